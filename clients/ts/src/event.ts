import { PrometheanError, messageOf } from './errors.js';

/** An event as the hub gives it. What is absent is left out, never `null`. */
export interface PrometheanEvent<T = unknown> {
  /** A UUID, unique in its topic while the event is retained. */
  id: string;
  /** The position in the topic: 1 for the first, then larger. */
  seq: number;
  /** When it happened, in epoch milliseconds. */
  ts: number;
  topic: string;
  /** What the event is about. Events of one key are delivered in order. */
  key?: string;
  partition?: number;
  sid?: string;
  headers?: Record<string, string>;
  /**
   * The content, by `JSON.parse`: integers beyond 2^53 lose digits. `raw` keeps
   * them.
   */
  payload: T;
  caused_by?: string[];
  tags?: string[];
  /** The payload as its JSON text, where `raw: true` asked for it. */
  raw?: string;
}

/** What may stand beside topic and payload of an event that is published. */
export interface EventOptions {
  /** A UUID. The default is a new one of version 7. Publishing a known id stores nothing. */
  id?: string;
  key?: string;
  /** Epoch milliseconds. The default is the time at the hub. */
  ts?: number;
  sid?: string;
  partition?: number;
  headers?: Record<string, string>;
  tags?: string[];
  caused_by?: string[];
}

/** An event to be published. */
export interface NewEvent<T = unknown> extends EventOptions {
  topic: string;
  /** Any JSON value, or what {@link rawJSON} makes of a text. */
  payload: T;
}

/** Where a published event is. */
export interface Receipt {
  id: string;
  seq: number;
  /** The id was known: nothing was stored, and seq is that of the stored event. */
  duplicate: boolean;
}

/** A place in a topic to read from. */
export interface Place {
  from?: 'earliest' | 'latest' | 'ts' | 'afterId' | 'seq';
  /** With `from: 'ts'`: from the first event with this time or a later one, in epoch milliseconds. */
  ts?: number;
  /** With `from: 'afterId'`: after the event with this id. */
  afterId?: string;
  /** With `from: 'seq'`: after this seq. */
  seq?: number;
}

/** A payload that is JSON already. */
export class RawJSON {
  /** @internal */
  constructor(readonly text: string) {}
  /** So that it also works inside of something else that is stringified, with what `JSON.parse` makes of it. */
  toJSON(): unknown {
    return JSON.parse(this.text);
  }
}

/**
 * A payload that is sent as it is, for numbers that JavaScript cannot hold.
 * Throws if the text is not JSON.
 */
export function rawJSON(text: string): RawJSON {
  try {
    JSON.parse(text);
  } catch (cause) {
    throw new PrometheanError('bad_json', `rawJSON: ${messageOf(cause)}`, { cause });
  }
  return new RawJSON(text);
}

/**
 * The JSON text of a payload.
 * @internal
 */
export function encodePayload(payload: unknown): string {
  if (payload instanceof RawJSON) return payload.text;
  let text: string | undefined;
  try {
    text = JSON.stringify(payload);
  } catch (cause) {
    const hint = messageOf(cause).includes('BigInt') ? ': give a BigInt as part of rawJSON(text)' : '';
    throw new PrometheanError('invalid_argument', `payload: ${messageOf(cause)}${hint}`, { cause });
  }
  if (text === undefined) {
    throw new PrometheanError('invalid_argument', `payload: ${typeof payload} is no JSON value; null is one`);
  }
  return text;
}
