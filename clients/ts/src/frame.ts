import { encodePayload, type NewEvent, type PrometheanEvent } from './event.js';
import { PrometheanError, type Code, type FieldError } from './errors.js';

/**
 * Frames over the WebSocket, in text. A frame begins with op and corr: the hub
 * can then answer it also when something later in it is not JSON to the hub.
 */

/** What the hub says about one id. */
export interface Result {
  id: string;
  ok: boolean;
  err?: Code;
}

/** The answer to a frame. */
export interface Answer {
  op: 'OK' | 'ERR';
  corr?: number;
  id?: string;
  seq?: number;
  duplicate?: boolean;
  ids?: string[];
  seqs?: number[];
  duplicates?: number[];
  results?: Result[];
  code?: Code;
  msg?: string;
  index?: number;
  expected?: number;
  actual?: number;
  errors?: FieldError[];
  /** Of an ERR without corr that says that a subscription is over. */
  topic?: string;
  group?: string;
}

/** What a member of a partitioned group has. */
export interface AssignFrame {
  topic: string;
  group: string;
  generation: number;
  partitions: number[];
}

/** What the hub says about a delivery. */
export interface DeliveryContext {
  attempt: number;
  maxAttempts: number;
  lease: string;
  ack_deadline_ms: number;
  cursor: number;
}

/** One event with what is said about its delivery. */
export interface Delivered {
  event: PrometheanEvent;
  ctx: DeliveryContext;
}

/** A frame that brings events. */
export interface EventsFrame {
  topic: string;
  group: string;
  events: Delivered[];
}

export type Incoming =
  | { kind: 'answer'; answer: Answer }
  | { kind: 'events'; frame: EventsFrame }
  | { kind: 'assign'; frame: AssignFrame }
  | { kind: 'other' };

/** Reads a frame of the hub. Ops that are not known are passed over: a newer hub may send more. */
export function decode(text: string): Incoming {
  const f = JSON.parse(text);
  switch (f.op) {
    case 'OK':
    case 'ERR':
      return { kind: 'answer', answer: f };
    case 'EVENT':
      return { kind: 'events', frame: { topic: f.topic, group: f.group, events: [{ event: f.event, ctx: f.ctx }] } };
    case 'EVENTS':
      return { kind: 'events', frame: f };
    case 'ASSIGN':
      return { kind: 'assign', frame: f };
    default:
      return { kind: 'other' };
  }
}

/** The error that an ERR tells of. */
export function errorOf(answer: Answer): PrometheanError {
  const { code = 'internal', msg = 'the hub gave no reason', index, expected, actual, errors } = answer;
  return new PrometheanError(code, msg, { index, expected, actual, errors });
}

/** What follows op and corr in a PUBLISH of one event. */
export function publishOne(event: NewEvent, expectSeq: number | undefined): string {
  const { topic, payload, ...opts } = event;
  const text = JSON.stringify(expectSeq === undefined ? opts : { ...opts, expect_seq: expectSeq });
  return `,"topic":${JSON.stringify(topic)},"opts":${text},"payload":${encodePayload(payload)}}`;
}

/**
 * What follows op and corr in a PUBLISH of several. Most batches are written in
 * one go, which is some times faster than event by event; a payload that is text
 * already has to be put in by hand, and one that is no JSON is found that way.
 */
export function publishMany(events: readonly NewEvent[]): string {
  if (events.every((e) => isPlain(e.payload))) {
    try {
      return `,"events":${JSON.stringify(events)}}`;
    } catch {
      // Below the culprit is named.
    }
  }
  const rows = events.map((event) => {
    const { payload, ...rest } = event;
    return `${JSON.stringify(rest).slice(0, -1)},"payload":${encodePayload(payload)}}`;
  });
  return `,"events":[${rows.join(',')}]}`;
}

/** Whether JSON.stringify writes it as a member of an object: undefined would be left out. */
function isPlain(payload: unknown): boolean {
  if (payload === null) return true;
  const type = typeof payload;
  return type === 'string' || type === 'number' || type === 'boolean' || (type === 'object' && !('toJSON' in (payload as object)));
}

/** What follows op and corr in other frames. */
export function fields(object: Record<string, unknown>): string {
  const text = JSON.stringify(object);
  return text === '{}' ? '}' : `,${text.slice(1)}`;
}
