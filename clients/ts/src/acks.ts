import { Backoff, type BackoffOptions } from './backoff.js';
import { PrometheanError } from './errors.js';
import { errorOf, fields, type Answer } from './frame.js';
import type { Link } from './link.js';

/** Frames with acks of one topic that may be without an answer. Further acks gather meanwhile. */
const maxFlying = 2;

/** The most ids in one frame. */
const maxIds = 10_000;

interface Gathered {
  ids: string[];
  leases: string[]; // one for each id, or none
  flying: number;
}

/**
 * The acks of one subscription. Those that come while others are on their way
 * go together, so that a fast handler costs few frames and a slow one waits for
 * nobody. What was not answered is sent again over the next connection. An ack
 * needs no lease but in a partitioned group: there that of a stale owner must not
 * count.
 * @internal
 */
export class Acks {
  private readonly topics = new Map<string, Gathered>();
  private readonly backoff: Backoff;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private scheduled = false;
  private waiting = 0;
  private idle: (() => void)[] = [];

  constructor(
    private readonly link: Link,
    private readonly group: string,
    /** Called for ids that need no thought any more: they are settled, or cannot be. */
    private readonly settled: (topic: string, ids: string[]) => void,
    private readonly onError: (error: PrometheanError) => void,
    backoff: BackoffOptions | undefined,
    private readonly leased: boolean,
  ) {
    this.backoff = new Backoff(backoff);
  }

  add(topic: string, id: string, lease: string): void {
    let g = this.topics.get(topic);
    if (!g) this.topics.set(topic, (g = { ids: [], leases: [], flying: 0 }));
    g.ids.push(id);
    if (this.leased) g.leases.push(lease);
    this.waiting++;
    if (!this.scheduled) {
      // Handlers that end together are acked together.
      this.scheduled = true;
      queueMicrotask(() => {
        this.scheduled = false;
        this.flush();
      });
    }
  }

  /** Sends what has gathered. */
  flush(): void {
    if (this.timer) return; // the hub asked for some time
    for (const [topic, g] of this.topics) {
      while (g.ids.length > 0 && g.flying < maxFlying && this.link.open) this.send(topic, g);
    }
  }

  private send(topic: string, g: Gathered): void {
    const ids = g.ids.splice(0, maxIds);
    const leases = g.leases.splice(0, maxIds);
    const again = () => {
      g.ids.unshift(...ids);
      g.leases.unshift(...leases);
    };
    g.flying++;
    this.link.send('ACK', fields({ topic, group: this.group, ids, ...(this.leased ? { leases } : {}) }), (answer) => {
      g.flying--;
      if (answer instanceof PrometheanError) again(); // the connection is lost
      else this.answered(topic, ids, again, answer);
      if (g.ids.length === 0 && g.flying === 0) this.topics.delete(topic);
      this.flush();
    });
  }

  private answered(topic: string, ids: string[], again: () => void, answer: Answer): void {
    if (answer.op === 'OK') {
      this.backoff.reset();
      for (const r of answer.results ?? []) {
        if (!r.ok) this.onError(new PrometheanError(r.err ?? 'ack_failed', `ack of event ${r.id} of topic ${topic}: ${r.err}`));
      }
      this.done(topic, ids);
      return;
    }
    const error = errorOf(answer);
    if (!error.retryable) {
      this.onError(error); // such as a group that was removed
      this.done(topic, ids);
      return;
    }
    again();
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      this.flush();
    }, this.backoff.next());
  }

  private done(topic: string, ids: string[]): void {
    this.waiting -= ids.length;
    this.settled(topic, ids);
    if (this.waiting === 0) for (const f of this.idle.splice(0)) f();
  }

  /** Resolves when every ack was answered. */
  drained(): Promise<void> {
    return this.waiting === 0 ? Promise.resolve() : new Promise((resolve) => this.idle.push(resolve));
  }

  /** Gives up on what is left: the events come again. */
  stop(): void {
    clearTimeout(this.timer);
    this.topics.clear();
    this.waiting = 0;
    for (const f of this.idle.splice(0)) f();
  }
}
