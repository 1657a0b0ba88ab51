/**
 * What a call can fail with. Those of the hub never change their meaning; the
 * last two are of this client: `closed` (the client was closed, or the
 * subscription stopped) and `queue_full` (more is waiting to be published than
 * `maxQueuedBytes`).
 */
export type Code =
  | 'bad_json'
  | 'unknown_op'
  | 'unsupported'
  | 'unauthorized'
  | 'forbidden'
  | 'invalid_topic'
  | 'invalid_header'
  | 'invalid_argument'
  | 'payload_too_large'
  | 'batch_too_large'
  | 'schema_invalid'
  | 'rate_limited'
  | 'already_subscribed'
  | 'not_subscribed'
  | 'unknown_id'
  | 'group_conflict'
  | 'schema_conflict'
  | 'seq_conflict'
  | 'cursor_unknown'
  | 'not_found'
  | 'history_gone'
  | 'publish_failed'
  | 'ack_failed'
  | 'slow_consumer'
  | 'fenced'
  | 'draining'
  | 'unavailable'
  | 'internal'
  | 'closed'
  | 'queue_full';

const retryableCodes: ReadonlySet<string> = new Set<Code>([
  'rate_limited', 'publish_failed', 'ack_failed', 'slow_consumer', 'draining', 'unavailable', 'internal', 'queue_full',
]);

/** One thing that is wrong with a payload. */
export interface FieldError {
  /** A JSON pointer to the value; empty for the whole payload. */
  path: string;
  message: string;
}

/** One reason why a schema does not fit those before it. */
export interface SchemaProblem {
  /** A JSON pointer into the schema; empty for the whole. */
  path: string;
  /** The name of what is broken. */
  rule: string;
  /** What it means, and what to do. */
  detail: string;
  /** A document that is valid under one of the schemas only, where one was found. */
  example?: unknown;
}

/** What is known about an error beside its code and message. */
export interface ErrorDetails {
  /** The HTTP status of the answer, where there was one. */
  status?: number | undefined;
  /** The row of a batch that is wrong, counted from 0. */
  index?: number | undefined;
  /** Of `seq_conflict`: the seq that was asked for. */
  expected?: number | undefined;
  /** Of `seq_conflict`: the last seq of the topic. */
  actual?: number | undefined;
  /** The event that cannot be normalised. */
  seq?: number | undefined;
  /** Of `schema_invalid`: what is wrong with the payload, where the answer came over HTTP. */
  errors?: FieldError[] | undefined;
  /** Of `schema_conflict`: why the schema does not fit. */
  problems?: SchemaProblem[] | undefined;
  /** Of `history_gone`: the oldest `ts` that can be answered, where there is one. */
  oldest?: number | undefined;
  /** Of `history_gone`: the smallest `asOf` that can be answered, where there is one. */
  oldestSeq?: number | undefined;
  /** How long to wait before the next try, where the hub said so. */
  retryAfterMs?: number | undefined;
  /** What caused it. */
  cause?: unknown;
}

/** Every failure of a call but that of a signal, whose own reason is thrown. */
export class PrometheanError extends Error {
  override readonly name = 'PrometheanError';
  /** The condition, for programs. */
  readonly code: Code;
  readonly status: number | undefined;
  readonly index: number | undefined;
  readonly expected: number | undefined;
  readonly actual: number | undefined;
  readonly seq: number | undefined;
  readonly errors: FieldError[] | undefined;
  readonly problems: SchemaProblem[] | undefined;
  readonly oldest: number | undefined;
  readonly oldestSeq: number | undefined;
  readonly retryAfterMs: number | undefined;

  constructor(code: Code, message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.code = code;
    this.status = details.status;
    this.index = details.index;
    this.expected = details.expected;
    this.actual = details.actual;
    this.seq = details.seq;
    this.errors = details.errors;
    this.problems = details.problems;
    this.oldest = details.oldest;
    this.oldestSeq = details.oldestSeq;
    this.retryAfterMs = details.retryAfterMs;
  }

  /** Whether the same call may succeed later. */
  get retryable(): boolean {
    return retryableCodes.has(this.code);
  }
}

/**
 * The ways in which a handler gives an event back. What else it throws is a
 * nack too, after which the event comes again with a growing delay.
 * @internal
 */
export class Refusal extends Error {
  override readonly name = 'Refusal';
  constructor(
    reason: string,
    readonly delayMs: number | undefined,
    readonly dead: boolean,
  ) {
    super(reason);
  }
}

/** Thrown by a handler: give the event back, and hand it out again after so many milliseconds, a day at most. */
export function retry(afterMs: number, reason = 'retry'): Error {
  if (!Number.isInteger(afterMs) || afterMs < 0 || afterMs > 2_592_000_000) {
    throw new PrometheanError('invalid_argument', `retry: ${afterMs} is no number of milliseconds up to 30 days`);
  }
  return new Refusal(reason, afterMs, false);
}

/** Thrown by a handler: the event can never be handled, and goes to the dead letters at once. */
export function dead(reason = 'dead'): Error {
  return new Refusal(reason, undefined, true);
}

/** @internal */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message || error.name : String(error);
}

/**
 * The text without halves of characters, which no hub takes.
 * @internal
 */
export function wellFormed(text: string): string {
  return new TextDecoder().decode(new TextEncoder().encode(text));
}

/**
 * Calls what a user gave to be told. If that throws it is an uncaught error of
 * theirs, and must not stop what called it half-way.
 * @internal
 */
export function callUser<A extends unknown[]>(told: ((...args: A) => unknown) | undefined, ...args: A): void {
  try {
    told?.(...args);
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}
