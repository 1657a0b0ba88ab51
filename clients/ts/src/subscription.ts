import { Acks } from './acks.js';
import { Backoff, raceSignal, type BackoffOptions } from './backoff.js';
import { Work, type Delivery } from './delivery.js';
import { PrometheanError, Refusal, callUser, messageOf, wellFormed } from './errors.js';
import type { Place, PrometheanEvent } from './event.js';
import { errorOf, fields, type AssignFrame, type EventsFrame } from './frame.js';
import type { Link, LinkUser } from './link.js';
import { matches, overlap } from './pattern.js';
import { rawOfDeliveries } from './raw.js';

/**
 * Handles an event. To return, or to resolve, means that the work is done: the
 * event is acked. To throw gives it back; `throw retry(ms)` and `throw dead()`
 * say how.
 */
export type Handler<T = unknown> = (event: PrometheanEvent<T>, delivery: Delivery) => unknown;

/** The settings of a group. They make it on first use; a value that contradicts the kept one is `group_conflict`. */
export interface GroupSettings {
  /** What waits for what. The default is `key`: events of one key are handed out one after the other. */
  ordering?: 'key' | 'topic' | 'none';
  /** What happens to the key of an event that has failed for good. The default is `event`. */
  deadLetter?: 'event' | 'key' | 'block';
  /** Deliveries until an event is a dead letter. The default is 5. */
  maxAttempts?: number;
  /** How long a lease lasts. The default is 30,000; leases are extended while a handler runs. */
  ackTimeoutMs?: number;
  /** A CEL expression. Events that it refuses are settled. */
  filter?: string;
  /**
   * Every partition of the topic, and so every key, is at one member of the group
   * at a time. For subscriptions to one topic, without a pattern; a group is
   * partitioned or not from its first use on. The default is false.
   */
  partitioned?: boolean;
}

/** How to subscribe. `from` and its companions count on first use of the group; later it goes on at its cursor. */
export interface SubscribeOptions extends Place, GroupSettings {
  /** How many handlers may run at a time. The default is 16. */
  concurrency?: number;
  /** How many events this client may hold, running or waiting for their turn. The default is 1,000. */
  maxInFlight?: number;
  /** How many events come in one frame. The default is 100. */
  batch?: number;
  /** How many the hub reads ahead at a time. */
  batchSize?: number;
  /**
   * A name for this member. In a partitioned group one that comes back under its
   * name after a lost connection has its partitions again, if that does not take
   * too long; a member without a name leaves when its connection is lost. Of two
   * with one name the older is over with `fenced`.
   */
  member?: string;
  /**
   * Told all partitions that this member of a partitioned group has, in ascending
   * order, and a number that grows whenever partitions are given to others: when
   * the subscription is made, on each connection, before the first event of a
   * partition that is new, and as soon as one is to be given to somebody else.
   * What is handled of that one then may be finished for a while.
   */
  onAssign?: (generation: number, partitions: number[]) => void;
  /**
   * Give events in the latest version of their topic's schema: those of older
   * ones are upcast by the hub. One that cannot be goes to the dead letters, as
   * it was stored. The default is false.
   */
  normalise?: boolean;
  /** Give each event's payload as text too, in `event.raw`. The default is false. */
  raw?: boolean;
  /** Stops the subscription, as `stop` does. */
  signal?: AbortSignal;
  /** Told of what handlers throw, and of settlements that the hub refuses. The default is to tell nobody: the hub keeps the reason of what failed for good with the dead letter. */
  onError?: (error: unknown, event?: PrometheanEvent) => void;
}

/** How to stop. */
export interface StopOptions {
  /** Ends the wait for handlers that run: their signals end, and their events go back at once. */
  signal?: AbortSignal;
}

const serverOptions = [
  'from', 'ts', 'afterId', 'seq', 'ordering', 'deadLetter', 'maxAttempts', 'ackTimeoutMs', 'filter', 'maxInFlight', 'batchSize', 'member', 'normalise', 'partitioned',
] as const;

/** A handler as a member of a group. */
export interface Subscription {
  /** The topics and patterns. */
  readonly topics: readonly string[];
  readonly group: string;
  /** Resolves when the subscription is over: with nothing after `stop`, with the error if the hub refuses it. */
  readonly closed: Promise<PrometheanError | undefined>;
  readonly paused: boolean;
  /** No handler is started until `resume`. What this client holds it keeps; other members of the group go on. */
  pause(): void;
  resume(): void;
  /**
   * Starts no further handler, waits for those that run and for their acks, and
   * leaves the group. Events that no handler has begun go back and do not count
   * as attempts.
   */
  stop(options?: StopOptions): Promise<void>;
}

/**
 * A subscription over whatever connection there is.
 * @internal
 */
export class Member implements Subscription, LinkUser {
  readonly topics: readonly string[];
  readonly group: string;
  readonly closed: Promise<PrometheanError | undefined>;

  private readonly held = new Map<string, Work>(); // by topic and id: all that is not settled
  private queue: Work[] = [];
  private head = 0; // of the queue
  private running = 0;
  private isPaused = false;
  private stopping = false;
  private attached = false;
  private over = false;
  private quiet: (() => void)[] = []; // wait until nothing runs
  private timer: ReturnType<typeof setInterval> | undefined;
  private again: ReturnType<typeof setTimeout> | undefined;
  private tickMs = 1_000; // how often leases are looked at
  private readonly concurrency: number;
  private readonly backoff: Backoff;
  private readonly acks: Acks;
  private readonly opts: Record<string, unknown>;
  private resolveClosed!: (error: PrometheanError | undefined) => void;
  private first: { resolve: () => void; reject: (error: unknown) => void } | undefined;
  private readonly onSignal = () => void this.stop();

  constructor(
    private readonly link: Link,
    topics: readonly string[],
    group: string,
    private readonly handler: Handler<any>,
    private readonly options: SubscribeOptions,
    private readonly gone: (m: Member) => void,
    backoff: BackoffOptions | undefined,
  ) {
    this.topics = [...topics];
    this.group = group;
    this.closed = new Promise((resolve) => {
      this.resolveClosed = resolve;
    });
    const { concurrency = 16, batch = 100 } = options;
    if (!Number.isInteger(concurrency) || concurrency < 1) {
      throw new PrometheanError('invalid_argument', `concurrency: ${concurrency} is no number of handlers`);
    }
    this.concurrency = concurrency;
    this.backoff = new Backoff(backoff);
    this.opts = { batch };
    for (const name of serverOptions) if (options[name] !== undefined) this.opts[name] = options[name];
    this.acks = new Acks(link, group, (topic, ids) => this.settled(topic, ids), (e) => this.report(e), backoff, options.partitioned === true);
  }

  begin(): Promise<void> {
    const { signal } = this.options;
    signal?.throwIfAborted();
    this.link.start();
    this.link.use(this);
    signal?.addEventListener('abort', this.onSignal, { once: true });
    return new Promise((resolve, reject) => {
      this.first = { resolve, reject };
      if (this.link.open) this.opened();
    });
  }

  /** Whether an event of this topic and group is for this subscription. */
  takes(topic: string, group: string): boolean {
    return !this.over && group === this.group && this.topics.some((p) => matches(p, topic));
  }

  /** Whether an event could be for both. */
  overlaps(topics: readonly string[], group: string): boolean {
    return group === this.group && this.topics.some((a) => topics.some((b) => overlap(a, b)));
  }

  // The connection.

  opened(): void {
    // Acks first: what they settle does not come again.
    this.acks.flush();
    if (this.stopping) {
      this.checkQuiet();
      return;
    }
    const named = this.topics.length === 1 ? { topic: this.topics[0] } : { topics: this.topics };
    // Events come after OK, but in the same turn: they must find it attached.
    this.attached = true;
    this.link.send('SUBSCRIBE', fields({ ...named, group: this.group, opts: this.opts }), (answer) => {
      if (answer instanceof PrometheanError) return; // the connection is lost; there will be another
      if (answer.op === 'ERR') {
        this.attached = false;
        this.refused(errorOf(answer));
        return;
      }
      this.backoff.reset();
      if (this.isPaused || this.stopping) this.tell('PAUSE');
      this.first?.resolve();
      this.first = undefined;
    });
  }

  private refused(error: PrometheanError): void {
    if (!error.retryable) {
      this.finish(error);
      return;
    }
    this.again = setTimeout(() => {
      if (this.link.open && !this.over && !this.attached) this.opened();
    }, this.backoff.next());
  }

  lost(error: PrometheanError): void {
    this.attached = false;
    clearTimeout(this.again);
    this.loseAll(error);
  }

  private loseAll(error: PrometheanError): void {
    // What waits comes again; what runs may have come to somebody else.
    for (const w of this.queue.slice(this.head)) this.forget(w);
    this.queue = [];
    this.head = 0;
    const reason = new PrometheanError('fenced', `the lease is lost: ${error.message}`, { cause: error });
    for (const w of this.held.values()) {
      w.again = undefined;
      if (w.state === 'running') w.lose(reason);
    }
    this.checkQuiet();
  }

  failed(error: PrometheanError): void {
    this.finish(error.code === 'closed' && !this.first ? undefined : error);
  }

  /** The hub has ended the subscription, and the connection goes on. */
  dismiss(error: PrometheanError): void {
    if (!this.attached) return;
    this.attached = false;
    this.loseAll(error);
    if (!this.stopping) this.refused(error);
  }

  assign(frame: AssignFrame): void {
    if (this.attached) callUser(this.options.onAssign, frame.generation, frame.partitions);
  }

  // Events.

  deliver(frame: EventsFrame, text: string): void {
    const now = Date.now();
    let soonest = Infinity;
    const raws = this.options.raw ? rawOfDeliveries(text) : undefined;
    frame.events.forEach(({ event, ctx }, i) => {
      const raw = raws?.[i];
      if (raw !== undefined) event.raw = raw;
      const work = new Work(event, this.group, ctx, this.options.ackTimeoutMs, now);
      soonest = Math.min(soonest, work.renewAt);
      this.take(work);
    });
    this.pump();
    this.watchLeases(soonest - now);
  }

  /** Looks at leases often enough for those that came: the group may have been made with shorter ones than we know of. */
  private watchLeases(withinMs: number): void {
    if (this.held.size === 0) return;
    const needed = Math.max(withinMs / 2, 20);
    if (needed < this.tickMs) {
      this.tickMs = needed;
      clearInterval(this.timer);
      this.timer = undefined;
    }
    this.timer ??= setInterval(() => this.renew(), this.tickMs);
  }

  private take(work: Work): void {
    const name = nameOf(work.event);
    const before = this.held.get(name);
    if (!before) {
      this.held.set(name, work);
      this.queue.push(work);
    } else if (before.state === 'running') {
      // It would be handled twice at a time. If the handler succeeds its ack
      // settles this one too.
      before.again = work;
      before.lose(new PrometheanError('fenced', 'the lease is lost: the event was handed out again'));
    } else if (before.state === 'queued') {
      this.queue[this.queue.indexOf(before, this.head)] = work;
      this.held.set(name, work);
    }
    // Else it is done, and its ack is on the way.
  }

  private pump(): void {
    while (this.running < this.concurrency && this.head < this.queue.length && !this.isPaused && !this.stopping) {
      this.run(this.queue[this.head++]!);
    }
    if (this.head > 1_024 && this.head * 2 > this.queue.length) {
      this.queue = this.queue.slice(this.head);
      this.head = 0;
    }
  }

  private run(work: Work): void {
    work.state = 'running';
    this.running++;
    let result: unknown;
    try {
      result = this.handler(work.event, work);
    } catch (error) {
      this.fail(work, error);
      return;
    }
    if (typeof (result as PromiseLike<unknown> | undefined)?.then === 'function') {
      (result as PromiseLike<unknown>).then(
        () => {
          this.succeed(work);
          this.pump();
        },
        (error: unknown) => {
          this.fail(work, error);
          this.pump();
        },
      );
    } else {
      this.succeed(work);
    }
  }

  private succeed(work: Work): void {
    this.running--;
    if (!this.over) {
      work.state = 'done';
      work.again = undefined;
      this.acks.add(work.event.topic, work.event.id, work.lease);
    }
    this.checkQuiet();
  }

  private fail(work: Work, error: unknown): void {
    this.running--;
    this.forget(work);
    const { again } = work;
    if (again && !again.lost && !this.over) {
      // This delivery is over already; the next one has its turn.
      this.held.set(nameOf(again.event), again);
      this.queue.push(again);
    } else if (!work.lost && !this.over && this.link.open) {
      this.nack(work, error);
    }
    this.report(error, work.event);
    this.checkQuiet();
  }

  private nack(work: Work, error: unknown): void {
    const { topic, id } = work.event;
    const frame: Record<string, unknown> = { topic, group: this.group, id, lease: work.lease, reason: wellFormed(messageOf(error).slice(0, 1_000)) };
    if (error instanceof Refusal && error.dead) frame['dead'] = true;
    else if (error instanceof Refusal && error.delayMs !== undefined) frame['delay_ms'] = error.delayMs;
    this.link.send('NACK', fields(frame), (answer) => {
      // After a lost connection the event comes back by itself, and fenced says
      // that somebody else has it: both are as good as the nack.
      if (answer instanceof PrometheanError || answer.op === 'OK') return;
      const refused = errorOf(answer);
      if (refused.code !== 'fenced' && refused.code !== 'unknown_id') this.report(refused, work.event);
    });
  }

  private report(error: unknown, event?: PrometheanEvent): void {
    callUser(this.options.onError, error, event);
  }

  private settled(topic: string, ids: string[]): void {
    for (const id of ids) this.held.delete(`${topic}/${id}`);
    if (this.held.size === 0) {
      clearInterval(this.timer);
      this.timer = undefined;
    }
  }

  private forget(work: Work): void {
    const name = nameOf(work.event);
    if (this.held.get(name) === work) this.held.delete(name);
  }

  /** Extends leases that would end while their events wait or are worked on. */
  private renew(): void {
    if (!this.link.open || this.held.size === 0) return;
    const now = Date.now();
    const due = new Map<string, Work[]>();
    for (const held of this.held.values()) {
      const w = held.again ?? held;
      if (held.state === 'done' || w.renewing || (w.lost && w === held) || now < w.renewAt) continue;
      // One frame extends by one time.
      const name = `${w.extendMs}/${w.event.topic}`;
      const list = due.get(name);
      if (list) list.push(w);
      else due.set(name, [w]);
    }
    for (const list of due.values()) {
      for (let i = 0; i < list.length; i += 10_000) this.extend(list.slice(i, i + 10_000));
    }
  }

  private extend(list: Work[]): void {
    const { event, extendMs } = list[0]!;
    for (const w of list) w.renewing = true;
    const frame = { topic: event.topic, group: this.group, ids: list.map((w) => w.event.id), leases: list.map((w) => w.lease), extend_ms: extendMs };
    const sent = Date.now();
    this.link.send('MODACK', fields(frame), (answer) => {
      for (const w of list) w.renewing = false;
      if (answer instanceof PrometheanError) return;
      if (answer.op === 'ERR') {
        this.report(errorOf(answer)); // tried again at the next tick
        return;
      }
      answer.results!.forEach((r, i) => {
        const w = list[i]!;
        if (r.ok) w.renewed(sent);
        else this.leaseLost(w, r.err ?? 'fenced');
      });
    });
  }

  private leaseLost(work: Work, why: string): void {
    work.lose(new PrometheanError('fenced', `the lease is lost: ${why}`));
    if (work.state !== 'queued') return;
    // It has not begun, so it need not.
    this.forget(work);
    const i = this.queue.indexOf(work, this.head);
    if (i >= 0) this.queue.splice(i, 1);
  }

  // Steering.

  get paused(): boolean {
    return this.isPaused;
  }

  pause(): void {
    if (this.isPaused || this.over) return;
    this.isPaused = true;
    this.tell('PAUSE');
  }

  resume(): void {
    if (!this.isPaused || this.over) return;
    this.isPaused = false;
    if (!this.stopping) this.tell('RESUME');
    this.pump();
  }

  private tell(op: 'PAUSE' | 'RESUME'): void {
    if (!this.attached) return;
    for (const topic of this.topics) {
      // Without a connection there is nothing to pause: the next one is told.
      this.link.send(op, fields({ topic, group: this.group }), () => {});
    }
  }

  async stop(options: StopOptions = {}): Promise<void> {
    if (!this.stopping && !this.over) {
      this.stopping = true;
      this.tell('PAUSE');
    }
    try {
      await raceSignal(this.untilQuiet(), options.signal);
      if (!this.over) await raceSignal(this.acks.drained(), options.signal);
    } catch {
      const reason = new PrometheanError('closed', 'the subscription was stopped');
      for (const w of this.held.values()) w.lose(reason);
    }
    if (this.over) return;
    const { attached } = this;
    this.attached = false;
    if (attached && this.link.open) {
      const named = this.topics.length === 1 ? { topic: this.topics[0] } : { topics: this.topics };
      // If the connection is lost meanwhile, that has left the group too.
      await raceSignal(this.link.call('UNSUBSCRIBE', fields({ ...named, group: this.group })), options.signal).catch(() => {});
    }
    this.finish(undefined);
  }

  private untilQuiet(): Promise<void> {
    return this.running === 0 || this.over ? Promise.resolve() : new Promise((resolve) => this.quiet.push(resolve));
  }

  private checkQuiet(): void {
    if (this.running === 0 && this.quiet.length > 0) for (const f of this.quiet.splice(0)) f();
  }

  private finish(error: PrometheanError | undefined): void {
    if (this.over) return;
    this.over = true;
    this.attached = false;
    clearInterval(this.timer);
    clearTimeout(this.again);
    this.options.signal?.removeEventListener('abort', this.onSignal);
    this.acks.stop();
    const reason = error ?? new PrometheanError('closed', 'the subscription is stopped');
    for (const w of this.held.values()) if (w.state === 'running') w.lose(reason);
    this.held.clear();
    this.queue = [];
    this.head = 0;
    for (const f of this.quiet.splice(0)) f();
    this.link.drop(this);
    this.gone(this);
    this.first?.reject(reason);
    this.first = undefined;
    this.resolveClosed(error);
  }
}

/** Ids are unique in a topic only. */
function nameOf(event: PrometheanEvent): string {
  return `${event.topic}/${event.id}`;
}
