import { encodePayload, type EventOptions, type NewEvent, type PrometheanEvent } from './event.js';
import { PrometheanError, type Code } from './errors.js';

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

export type Incoming = { kind: 'answer'; answer: Answer } | { kind: 'events'; frame: EventsFrame } | { kind: 'other' };

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
    default:
      return { kind: 'other' };
  }
}

/** The error that an ERR tells of. */
export function errorOf(answer: Answer): PrometheanError {
  const { code = 'internal', msg = 'the hub gave no reason', index, expected, actual } = answer;
  return new PrometheanError(code, msg, { index, expected, actual });
}

const optionNames = ['id', 'key', 'ts', 'sid', 'partition', 'headers', 'tags', 'caused_by'] as const;

/** The members of an event's options, each with a comma before it. */
function options(e: EventOptions): string {
  let text = '';
  for (const name of optionNames) {
    const value = e[name];
    if (value !== undefined) text += `,"${name}":${JSON.stringify(value)}`;
  }
  return text;
}

/** What follows op and corr in a PUBLISH of one event. */
export function publishOne(e: NewEvent, expectSeq: number | undefined): string {
  const opts = options(e) + (expectSeq === undefined ? '' : `,"expect_seq":${JSON.stringify(expectSeq)}`);
  return `,"topic":${JSON.stringify(e.topic)},"opts":{${opts.slice(1)}},"payload":${encodePayload(e.payload)}}`;
}

/** What follows op and corr in a PUBLISH of several. */
export function publishMany(events: readonly NewEvent[]): string {
  let text = ',"events":[';
  for (let i = 0; i < events.length; i++) {
    const e = events[i]!;
    text += `${i > 0 ? ',' : ''}{"topic":${JSON.stringify(e.topic)}${options(e)},"payload":${encodePayload(e.payload)}}`;
  }
  return text + ']}';
}

/** What follows op and corr in other frames. */
export function fields(object: Record<string, unknown>): string {
  const text = JSON.stringify(object);
  return text === '{}' ? '}' : `,${text.slice(1)}`;
}
