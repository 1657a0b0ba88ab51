import type { Place, PrometheanEvent } from './event.js';
import type { Code } from './errors.js';
import { PrometheanError } from './errors.js';
import { brokenOff, parse, unreachable, type Http } from './http.js';
import { rawOfDeliveries, rawOfEvent, rawOfEvents } from './raw.js';
import { Schemas } from './schemas.js';
import { Views } from './views.js';
import type { ChangefeedInfo, OutboxInfo, OutboxRow } from './inflow.js';
import type { GroupPartitions } from './parted.js';
import type { GroupSettings } from './subscription.js';

/** What every call takes. */
export interface CallOptions {
  signal?: AbortSignal;
}

/** What calls that give events take. */
export interface ReadOptions extends CallOptions {
  /** Give each event's payload as text too, in `event.raw`. The default is false. */
  raw?: boolean;
}

/** What calls take that can give events in the latest version of their schema. */
export interface NormaliseOptions {
  /**
   * Give events in the latest version of their topic's schema: those of older
   * ones are upcast by the hub. One that cannot be is an error that names its
   * `seq`, where a group reads a dead letter. The default is false.
   */
  normalise?: boolean;
}

/** Some events of a topic. */
export interface Page<T = unknown> {
  topic: string;
  count: number;
  events: PrometheanEvent<T>[];
  /** The last seq given: read on with `from: 'seq', seq: next`. */
  next: number;
}

/** How events of a key become a state: the last one alone, or each as a merge patch (RFC 7386). */
export type Reduce = 'replace' | 'merge';

/** Which moment of the past is meant. Without `ts` and `asOf` it is now. */
export interface AtOptions extends CallOptions {
  /** The moment, in epoch ms: events with a later `ts` do not count. */
  ts?: number;
  /** How far the log had come: events with a higher seq do not count. */
  asOf?: number;
  /** The default is what the hub has for the topic. */
  reduce?: Reduce;
}

/** What a key was. */
export interface State<T = unknown> {
  topic: string;
  key: string;
  /** null where there was nothing, or it was deleted. */
  state: T | null;
  /** Of the last event that counts; 0 if there is none. */
  ts: number;
  seq: number;
  /** How many events were applied. */
  events: number;
}

/** One difference between two states. */
export interface Change {
  op: 'add' | 'remove' | 'replace';
  /** A JSON pointer into the state. */
  path: string;
  from?: unknown;
  to?: unknown;
}

/** An event of a key, and what it changed. */
export interface Step<T = unknown> {
  event: PrometheanEvent<T>;
  /** After the event; left out where it is not known, since events before are gone. */
  state?: unknown;
  /** Left out where the state before is not known. */
  changes?: Change[];
}

/** Some steps of a key. */
export interface Steps<T = unknown> {
  topic: string;
  key: string;
  reduce: Reduce;
  steps: Step<T>[];
  count: number;
  /** The last seq given: go on with `after: next`. */
  next: number;
}

/** Settings of a topic. `null` in a change is the default again. */
export interface TopicSettings {
  partitions?: number | null;
  /** An age such as `72h`. */
  retention?: string | null;
  max_bytes?: number | string | null;
  durability?: 'sync' | 'async' | null;
  /** A directory on the hub's machine to load schemas from. */
  schemas?: string | null;
  /** Refuse events while the topic has no schema. */
  strict_schema?: boolean | null;
  /** The version of stored events without a stamp; the latest by default. */
  legacy_version?: number | null;
  /** Write events to `topic.vN` too: true, false, or the time at which that ends. */
  dual_write?: boolean | string | number | null;
  /** Keep the latest event of each key only. */
  compaction?: boolean | null;
  /** How long superseded events of a compaction topic stay: an age such as `24h`. */
  history?: string | null;
  /** How long the last event of a deleted key stays. */
  tombstones?: string | null;
  /** Where snapshots of a compaction topic go, and how often they are written. */
  snapshot?: boolean | { topic?: string; every?: string } | null;
}

export interface TopicInfo {
  topic: string;
  events: number;
  first: number;
  last: number;
  bytes: number;
  /** `dual_write_to` is the topic that events are written to as well at the moment. */
  settings: TopicSettings & { dual_write_to?: string };
}

export interface GroupInfo {
  topic: string;
  group: string;
  /** The seq up to which everything is settled. */
  cursor: number;
  tail: number;
  lag: number;
  inflight: number;
  pending: number;
  members: number;
  paused: boolean;
  settings: GroupSettings;
}

export interface Cursor {
  group: string;
  seq: number;
  lastId?: string;
  lastTs?: number;
  pending: number;
}

export interface Lag {
  topic: string;
  group: string;
  /** Events that are not settled. */
  lag: number;
  /** How old the oldest of them is. */
  lagMs: number;
  cursor: number;
  tail: number;
}

export interface PullOptions extends ReadOptions {
  /** At most so many events. The default is 100. */
  max?: number;
  /** How long to wait for the first. The default is 0, the most 30,000. */
  waitMs?: number;
  /** How the group is made on first use, and whether events are normalised. */
  opts?: Place & GroupSettings & NormaliseOptions;
}

/** An event that a pull has leased. */
export interface Pulled<T = unknown> {
  event: PrometheanEvent<T>;
  attempt: number;
  maxAttempts: number;
  lease: string;
  ack_deadline_ms: number;
}

export interface SettleOptions extends CallOptions {
  /** The lease of each id: a delivery that is over is then `fenced`. */
  leases?: string[];
}

export interface NackOptions extends SettleOptions {
  reason?: string;
  delay_ms?: number;
  dead?: boolean;
}

/** What became of each id. */
export interface Settled {
  count: number;
  results: { id: string; ok: boolean; err?: Code }[];
}

/** An event that has failed for good. */
export interface DeadLetter<T = unknown> {
  id: string;
  seq: number;
  topic: string;
  group: string;
  original: PrometheanEvent<T>;
  err: string;
  ts: number;
  attempts: number;
  parked?: boolean;
}

export interface ReplayLettersOptions extends CallOptions {
  limit?: number;
  ids?: string[];
  group?: string;
  to?: 'topic' | 'group';
}

const enc = encodeURIComponent;

/**
 * The calls over HTTP, typed. None is tried again by itself; `retryable` of the
 * error says whether it may succeed later.
 */
export abstract class Api {
  /** @internal */
  protected constructor(protected readonly http: Http) {
    this.schemas = new Schemas(http);
    this.views = new Views(http);
  }

  /** The schemas of topics. */
  readonly schemas: Schemas;

  /** The read models of topics. */
  readonly views: Views;

  /**
   * Events of a topic from a place on, `earliest` by default. A page may have
   * fewer events than `limit` also before the end of the topic.
   */
  async replay<T = unknown>(topic: string, options: Place & ReadOptions & NormaliseOptions & { limit?: number } = {}): Promise<Page<T>> {
    const { signal, raw, normalise, ...query } = options;
    const response = await this.http.fetch('GET', '/replay', { query: { topic, ...query, ...(normalise && { normalise: 1 }) }, signal });
    let text: string;
    try {
      text = await this.http.bodyOf(response, signal);
    } catch (error) {
      // The hub cuts an answer that it cannot finish, and what it said about
      // that may be lost with it. It answers a short page as a whole.
      const limit = options.limit ?? 1000;
      if (!normalise || limit <= 1 || !lost(error)) throw error;
      return this.replay(topic, { ...options, limit: Math.max(1, Math.floor(limit / 10)) });
    }
    return withRaw(text, raw);
  }

  /** All events of a topic from a place on, page by page, up to its end. */
  async *read<T = unknown>(topic: string, options: Place & ReadOptions & NormaliseOptions & { limit?: number } = {}): AsyncGenerator<PrometheanEvent<T>, void, void> {
    const { signal, raw, limit, normalise, ...from } = options;
    const more = { ...(signal && { signal }), ...(raw && { raw }), ...(normalise && { normalise }), ...(limit !== undefined && { limit }) };
    for (let place: Place = from; ; ) {
      const page = await this.replay<T>(topic, { ...place, ...more });
      if (page.count === 0) return;
      yield* page.events;
      place = { from: 'seq', seq: page.next };
    }
  }

  /** The latest event of each key, null where there is none. */
  latestByKey<T = unknown>(topic: string, keys: readonly string[], options: CallOptions = {}): Promise<Record<string, PrometheanEvent<T> | null>> {
    return this.http.json('GET', '/latest-by-key', { query: { topic, key: keys }, ...options });
  }

  /** The events of a key in log order. `after` goes on after a seq. */
  async history<T = unknown>(topic: string, key: string, options: ReadOptions & { limit?: number; after?: number } = {}): Promise<Page<T> & { key: string }> {
    const { signal, raw, ...query } = options;
    return withRaw(await this.http.text('GET', '/history', { query: { topic, key, ...query }, signal }), raw);
  }

  /** The events of a key in log order, each with the state after it and what changed. */
  historyDiff<T = unknown>(topic: string, key: string, options: CallOptions & { limit?: number; after?: number; reduce?: Reduce } = {}): Promise<Steps<T>> {
    const { signal, ...query } = options;
    return this.http.json('GET', '/history', { query: { topic, key, diff: 1, ...query }, signal });
  }

  /**
   * What a key was at a moment of the past. If events are gone that may have to
   * do with the answer, it fails with `history_gone`, and `oldest` says from
   * when on there is one.
   */
  at<T = unknown>(topic: string, key: string, options: AtOptions = {}): Promise<State<T>> {
    const { signal, ...query } = options;
    return this.http.json('GET', '/at', { query: { topic, key, ...query }, signal });
  }

  /** A whole topic, or what lies between two times, as a stream. */
  async *export<T = unknown>(topic: string, options: ReadOptions & NormaliseOptions & { fromTs?: number; toTs?: number } = {}): AsyncGenerator<PrometheanEvent<T>, void, void> {
    const { signal, raw, normalise, ...query } = options;
    const response = await this.http.fetch('GET', '/export', { query: { topic, ...query, ...(normalise && { normalise: 1 }) }, signal });
    const reader = response.body!.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, any>).getReader();
    let rest = '';
    let last = 0;
    try {
      for (;;) {
        // A stream that breaks off is cut, so that a part is never taken for the whole.
        let piece;
        try {
          piece = await reader.read();
        } catch (cause) {
          signal?.throwIfAborted();
          if (!normalise || query.fromTs !== undefined || query.toTs !== undefined) throw unreachable(this.http.base, cause);
          // The hub may have said why, and that may be lost with what came
          // before it. Page by page it comes again.
          yield* this.read<T>(topic, { from: 'seq', seq: last, normalise, ...(raw && { raw }), ...(signal && { signal }) });
          return;
        }
        const { done, value } = piece;
        const lines = (rest + (value ?? '')).split('\n');
        rest = done ? '' : lines.pop()!;
        for (const line of lines) {
          if (line === '') continue;
          const event = withRawEvent<T>(line, raw);
          last = event.seq;
          yield event;
        }
        if (done) return;
      }
    } finally {
      await reader.cancel().catch(() => {}); // it has ended, or nobody reads on
    }
  }

  /** Leases events of a group without a subscription. Settle them by `ack` or `nack`. */
  async pull<T = unknown>(topic: string, group: string, options: PullOptions = {}): Promise<Pulled<T>[]> {
    const { signal, raw, max, waitMs, opts } = options;
    const text = await this.http.text('POST', '/pull', { body: { topic, group, max, wait_ms: waitMs, opts }, signal });
    const { events } = parse<{ events: Pulled<T>[] }>(text);
    if (raw) {
      rawOfDeliveries(text).forEach((r, i) => {
        if (r !== undefined) events[i]!.event.raw = r;
      });
    }
    return events;
  }

  /** Settles events; resolves once that is durable. */
  ack(topic: string, group: string, ids: readonly string[], options: SettleOptions = {}): Promise<Settled> {
    return this.settle('/ack', topic, group, ids, options);
  }

  /** Gives events back. */
  nack(topic: string, group: string, ids: readonly string[], options: NackOptions = {}): Promise<Settled> {
    return this.settle('/nack', topic, group, ids, options);
  }

  /** Lets leases last until so many milliseconds from now. */
  modack(topic: string, group: string, ids: readonly string[], extendMs: number, options: SettleOptions = {}): Promise<Settled> {
    return this.settle('/modack', topic, group, ids, { ...options, extend_ms: extendMs });
  }

  private settle(path: string, topic: string, group: string, ids: readonly string[], options: NackOptions & { extend_ms?: number }): Promise<Settled> {
    const { signal, ...rest } = options;
    return this.http.json('POST', path, { body: { topic, group, ids, ...rest }, signal });
  }

  /** How far a group is behind. */
  lag(topic: string, group: string, options: CallOptions = {}): Promise<Lag> {
    return this.http.json('GET', '/lag', { query: { topic, group }, ...options });
  }

  /** All topics, with settings and counts. */
  async topics(options: CallOptions = {}): Promise<TopicInfo[]> {
    return (await this.http.json<{ topics: TopicInfo[] }>('GET', '/topics', options)).topics;
  }

  topic(topic: string, options: CallOptions = {}): Promise<TopicInfo> {
    return this.http.json('GET', `/topics/${enc(topic)}`, options);
  }

  /** Changes settings of a topic, and makes it if need be. */
  setTopic(topic: string, settings: TopicSettings, options: CallOptions = {}): Promise<TopicInfo> {
    return this.http.json('PUT', `/topics/${enc(topic)}`, { body: settings, ...options });
  }

  /** The groups of a topic, or all. */
  async groups(topic?: string, options: CallOptions = {}): Promise<GroupInfo[]> {
    return (await this.http.json<{ groups: GroupInfo[] }>('GET', '/groups', { query: { topic }, ...options })).groups;
  }

  /**
   * How groups of a name are divided among their members, on one topic or on all.
   * Without a name it is all partitioned groups.
   */
  async groupPartitions(group?: string, topic?: string, options: CallOptions = {}): Promise<GroupPartitions[]> {
    return (await this.http.json<{ groups: GroupPartitions[] }>('GET', '/ops/partitions', { query: { group, topic }, ...options })).groups;
  }

  /** How the change feeds of the hub are doing. */
  async changefeeds(options: CallOptions = {}): Promise<ChangefeedInfo[]> {
    return (await this.http.json<{ changefeeds: ChangefeedInfo[] }>('GET', '/ops/changefeeds', options)).changefeeds;
  }

  /** Has a change feed forget its place and begin anew. */
  resyncChangefeed(name: string, options: CallOptions = {}): Promise<ChangefeedInfo> {
    return this.http.json('POST', `/ops/changefeeds/${enc(name)}/resync`, options);
  }

  /** How the outboxes that the hub drains are doing. */
  async outboxes(options: CallOptions = {}): Promise<OutboxInfo[]> {
    return (await this.http.json<{ outboxes: OutboxInfo[] }>('GET', '/ops/outboxes', options)).outboxes;
  }

  /** Rows that could not be published, those that wait for a person first. */
  async outboxErrors(name: string, limit?: number, options: CallOptions = {}): Promise<OutboxRow[]> {
    return (await this.http.json<{ rows: OutboxRow[] }>('GET', `/ops/outboxes/${enc(name)}/errors`, { query: { limit }, ...options })).rows;
  }

  /** Has rows that could not be published tried again: those with these ids, or all. */
  async retryOutbox(name: string, ids?: string[], options: CallOptions = {}): Promise<number> {
    return (await this.http.json<{ retried: number }>('POST', `/ops/outboxes/${enc(name)}/retry`, { body: ids && { ids }, ...options })).retried;
  }

  /** Removes rows that could not be published; those behind them go on. */
  async discardOutbox(name: string, ids: string[], options: CallOptions = {}): Promise<number> {
    return (await this.http.json<{ discarded: number }>('POST', `/ops/outboxes/${enc(name)}/discard`, { body: { ids }, ...options })).discarded;
  }

  /** Makes a group. */
  setGroup(topic: string, group: string, settings: Place & GroupSettings = {}, options: CallOptions = {}): Promise<GroupInfo> {
    return this.http.json('PUT', `/groups/${enc(topic)}/${enc(group)}`, { body: settings, ...options });
  }

  /** Removes a group that nobody reads. */
  async deleteGroup(topic: string, group: string, options: CallOptions = {}): Promise<void> {
    await this.http.text('DELETE', `/groups/${enc(topic)}/${enc(group)}`, options);
  }

  /** Where the groups of a topic are. */
  async cursors(topic: string, options: CallOptions = {}): Promise<Cursor[]> {
    return (await this.http.json<{ cursors: Cursor[] }>('GET', '/cursors', { query: { topic }, ...options })).cursors;
  }

  /** Moves a group to another place. Its leases end. */
  moveCursor(topic: string, group: string, to: Place, options: CallOptions = {}): Promise<Cursor> {
    return this.http.json('PUT', '/cursors', { body: { topic, group, to }, ...options });
  }

  /** How many dead letters there are, by topic and group. */
  async deadLetterCounts(options: CallOptions = {}): Promise<{ topic: string; group: string; count: number }[]> {
    return (await this.http.json<{ topics: { topic: string; group: string; count: number }[] }>('GET', '/dlq', options)).topics;
  }

  /** The dead letters of a topic that were not replayed. */
  async deadLetters<T = unknown>(topic: string, options: CallOptions & { group?: string; limit?: number } = {}): Promise<DeadLetter<T>[]> {
    const { signal, ...query } = options;
    return (await this.http.json<{ records: DeadLetter<T>[] }>('GET', `/dlq/${enc(topic)}`, { query, signal })).records;
  }

  /** Replays dead letters of a topic, oldest first. */
  replayDeadLetters(topic: string, options: ReplayLettersOptions = {}): Promise<{ replayed: number; remaining: number }> {
    const { signal, ...body } = options;
    return this.http.json('POST', `/dlq/${enc(topic)}/replay`, { body, signal });
  }

  /** Whether the hub takes work. */
  async isReady(options: CallOptions = {}): Promise<boolean> {
    try {
      await this.http.text('GET', '/readyz', options);
      return true;
    } catch {
      options.signal?.throwIfAborted();
      return false;
    }
  }
}

/** Whether an answer broke off on its way. */
function lost(error: unknown): boolean {
  return error instanceof PrometheanError && error.code === 'unavailable';
}

function withRaw<P extends { events: PrometheanEvent[] }>(text: string, raw: boolean | undefined): P {
  const page = parse<P & { error?: unknown }>(text);
  if (page.error !== undefined) throw brokenOff(page.error);
  if (raw) {
    rawOfEvents(text).forEach((r, i) => {
      if (r !== undefined) page.events[i]!.raw = r;
    });
  }
  return page;
}

function withRawEvent<T>(text: string, raw: boolean | undefined): PrometheanEvent<T> {
  const event = parse<PrometheanEvent<T> & { error?: unknown }>(text);
  if (event.error !== undefined) throw brokenOff(event.error);
  const payload = raw ? rawOfEvent(text) : undefined;
  if (payload !== undefined) event.raw = payload;
  return event;
}
