import { Backoff, type BackoffOptions } from './backoff.js';
import { PrometheanError } from './errors.js';
import type { NewEvent, Receipt } from './event.js';
import { errorOf, publishMany, publishOne, type Answer } from './frame.js';
import type { Link, LinkUser } from './link.js';
import { newId } from './uuid.js';

/** How much may be on its way without an answer. More waits here: a frame that is on its way cannot be taken back. */
const windowFrames = 2_048;
const windowBytes = 8 << 20;

/** How often an event is sent that the hub refuses for the moment. */
const maxTries = 12;

/** The most that a batch may have. */
const maxBatch = 10_000;

interface Entry {
  order: number;
  rest: string; // the frame after op and corr
  tries: number; // answers that said to try again
  backoff: Backoff | undefined;
  settled: boolean;
  resolve(answer: Answer): void;
  reject(error: unknown): void;
}

/** @internal */
export interface PublisherOptions {
  maxQueuedBytes: number;
  maxFrameBytes: number;
  backoff?: BackoffOptions | undefined;
}

/**
 * Publishes in order and keeps every event until it is answered. After a lost
 * connection all without an answer are sent again, in the order in which they
 * were given, with the same ids: the hub stores none of them twice.
 * @internal
 */
export class Publisher implements LinkUser {
  private order = 0;
  private queue: Entry[] = [];
  private head = 0; // of the queue; what is before it was taken
  private returned: Entry[] = []; // to be sent again; may come before what is queued
  private flying = 0;
  private flyingBytes = 0;
  private bytes = 0; // of all that is not settled
  private count = 0;
  private idle: (() => void)[] = [];
  private readonly later = new Map<Entry, ReturnType<typeof setTimeout>>(); // wait before they are sent again

  constructor(
    private readonly link: Link,
    private readonly options: PublisherOptions,
  ) {
    link.use(this);
  }

  async one(event: NewEvent, expectSeq: number | undefined, signal: AbortSignal | undefined): Promise<Receipt> {
    const id = event.id ?? newId();
    const answer = await this.add(publishOne({ ...event, id }, expectSeq), 'payload_too_large', signal);
    return { id: answer.id!, seq: answer.seq!, duplicate: answer.duplicate === true };
  }

  async many(events: readonly NewEvent[], signal: AbortSignal | undefined): Promise<Receipt[]> {
    if (events.length === 0) return [];
    if (events.length > maxBatch) {
      throw new PrometheanError('batch_too_large', `the batch has ${events.length} events, the limit is ${maxBatch}`);
    }
    const rows = events.map((e) => (e.id === undefined ? { ...e, id: newId() } : e)); // yours stay as they are
    const answer = await this.add(publishMany(rows), 'batch_too_large', signal);
    const duplicates = new Set(answer.duplicates);
    return answer.ids!.map((id, i) => ({ id, seq: answer.seqs![i]!, duplicate: duplicates.has(i) }));
  }

  private add(rest: string, tooLarge: 'payload_too_large' | 'batch_too_large', signal: AbortSignal | undefined): Promise<Answer> {
    signal?.throwIfAborted();
    const limit = this.options.maxFrameBytes;
    // No text has more than three bytes for each of its units.
    if (rest.length * 3 > limit) {
      const size = new TextEncoder().encode(rest).length;
      if (size > limit) throw new PrometheanError(tooLarge, `the frame would have ${size} bytes, the limit is ${limit} (maxFrameBytes)`);
    }
    if (this.count > 0 && this.bytes + rest.length > this.options.maxQueuedBytes) {
      throw new PrometheanError('queue_full', `${this.count} publishes of ${this.bytes} bytes wait for an answer: wait for some of them`);
    }
    this.link.start();
    return new Promise((resolve, reject) => {
      const settle = () => {
        entry.settled = true;
        signal?.removeEventListener('abort', onAbort);
        this.bytes -= rest.length;
        if (--this.count === 0) for (const f of this.idle.splice(0)) f();
      };
      const entry: Entry = {
        order: ++this.order, rest, tries: 0, backoff: undefined, settled: false,
        resolve: (answer) => {
          settle();
          resolve(answer);
        },
        reject: (error) => {
          settle();
          reject(error);
        },
      };
      const onAbort = () => {
        if (!entry.settled) entry.reject(signal!.reason);
      };
      signal?.addEventListener('abort', onAbort, { once: true });
      this.bytes += rest.length;
      this.count++;
      this.queue.push(entry);
      this.pump();
    });
  }

  /** Resolves when nothing waits for an answer. */
  drained(): Promise<void> {
    return this.count === 0 ? Promise.resolve() : new Promise((resolve) => this.idle.push(resolve));
  }

  opened(): void {
    this.pump();
  }

  lost(): void {
    // What was on its way has come back by its answer, which was the error.
  }

  failed(error: PrometheanError): void {
    for (const timer of this.later.values()) clearTimeout(timer);
    const left = [...this.later.keys(), ...this.returned, ...this.queue.slice(this.head)];
    this.later.clear();
    this.returned = [];
    this.queue = [];
    this.head = 0;
    for (const entry of left) if (!entry.settled) entry.reject(error);
  }

  /** Sends what there is room for. */
  private pump(): void {
    if (!this.link.open) return;
    if (this.returned.length > 0) {
      const rest = this.queue.slice(this.head);
      this.queue = [...this.returned, ...rest].sort((a, b) => a.order - b.order);
      this.head = 0;
      this.returned = [];
    }
    while (this.head < this.queue.length && this.flying < windowFrames && (this.flying === 0 || this.flyingBytes < windowBytes) && this.link.open) {
      const entry = this.queue[this.head++]!;
      if (entry.settled) continue; // its signal has ended it
      this.flying++;
      this.flyingBytes += entry.rest.length;
      this.link.send('PUBLISH', entry.rest, (answer) => this.answered(entry, answer));
    }
    if (this.head > 1_024 && this.head * 2 > this.queue.length) {
      this.queue = this.queue.slice(this.head);
      this.head = 0;
    }
  }

  private answered(entry: Entry, answer: Answer | PrometheanError): void {
    this.flying--;
    this.flyingBytes -= entry.rest.length;
    if (entry.settled) {
      // Nobody waits for it.
    } else if (answer instanceof PrometheanError) {
      if (this.link.status.state === 'closed') entry.reject(answer);
      else this.returned.push(entry); // the connection is lost
    } else if (answer.op === 'OK') {
      entry.resolve(answer);
    } else {
      this.refused(entry, errorOf(answer));
    }
    this.pump();
  }

  private refused(entry: Entry, error: PrometheanError): void {
    // A hub that stops says so until it is gone: that is a lost connection.
    if (!error.retryable || (error.code !== 'draining' && ++entry.tries >= maxTries)) {
      entry.reject(error);
      return;
    }
    entry.backoff ??= new Backoff(this.options.backoff);
    const timer = setTimeout(() => {
      this.later.delete(entry);
      this.returned.push(entry);
      this.pump();
    }, entry.backoff.next());
    this.later.set(entry, timer);
  }
}
