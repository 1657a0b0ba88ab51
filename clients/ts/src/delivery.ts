import { PrometheanError } from './errors.js';
import type { PrometheanEvent } from './event.js';
import type { DeliveryContext } from './frame.js';

/** What a handler learns about the delivery of its event. */
export interface Delivery {
  /** Whose group this is for. */
  readonly group: string;
  /** The how manyth delivery of the event to the group this is: 1 for the first. */
  readonly attempt: number;
  /** After so many the event goes to the dead letters. */
  readonly maxAttempts: number;
  /** The name of this delivery. */
  readonly lease: string;
  /** The group's cursor when the event was handed out. */
  readonly cursor: number;
  /**
   * Ends when the lease is lost: the connection broke, or the hub has given the
   * event to somebody else; also when a `stop` no longer waits. Who gives up
   * because of it must throw: to return means that the work is done.
   */
  readonly signal: AbortSignal;
}

/**
 * One event in the hands of this client.
 * @internal
 */
export class Work implements Delivery {
  readonly attempt: number;
  readonly maxAttempts: number;
  readonly lease: string;
  readonly cursor: number;
  /**
   * queued: waits for its turn. running: the handler has it. done: it is to be
   * acked, and the hub has not said yet that it is.
   */
  state: 'queued' | 'running' | 'done' = 'queued';
  /** Why the lease is lost, once it is. */
  lost: PrometheanError | undefined;
  /** When to extend the lease, and for how long. */
  renewAt: number;
  readonly extendMs: number;
  renewing = false;
  /** The same event, handed out again while the handler has it. */
  again: Work | undefined;
  private controller: AbortController | undefined;

  constructor(
    readonly event: PrometheanEvent,
    readonly group: string,
    ctx: DeliveryContext,
    ackTimeoutMs: number | undefined,
    now: number,
  ) {
    this.attempt = ctx.attempt;
    this.maxAttempts = ctx.maxAttempts;
    this.lease = ctx.lease;
    this.cursor = ctx.cursor;
    // The deadline is by the hub's clock, which may differ from ours. If it
    // seems near, the lease is extended early, which does no harm; if it seems
    // far, the bound of 10 s keeps most leases from running out unseen.
    const seems = Math.max(ctx.ack_deadline_ms - now, 0);
    this.extendMs = ackTimeoutMs ?? Math.min(Math.max(seems, 30_000), 600_000);
    this.renewAt = now + Math.min(Math.min(seems, this.extendMs) / 3, 10_000);
  }

  /** Made on demand: most handlers are done before they would look at it. */
  get signal(): AbortSignal {
    if (!this.controller) {
      this.controller = new AbortController();
      if (this.lost) this.controller.abort(this.lost);
    }
    return this.controller.signal;
  }

  lose(error: PrometheanError): void {
    if (this.lost) return;
    this.lost = error;
    this.controller?.abort(error);
  }

  renewed(now: number): void {
    this.renewAt = now + this.extendMs / 3;
  }
}
