import { Api, type CallOptions } from './api.js';
import { raceSignal, type BackoffOptions } from './backoff.js';
import { PrometheanError, messageOf } from './errors.js';
import type { EventOptions, NewEvent, PrometheanEvent, Receipt } from './event.js';
import { Http } from './http.js';
import { Link, type Status, type TokenSource } from './link.js';
import { Publisher } from './publisher.js';
import type { WebSocketConstructor } from './socket.js';
import { Member, type Handler, type SubscribeOptions, type Subscription } from './subscription.js';
import { tail, type TailOptions } from './tail.js';

/** How to reach a hub. All of it may be left out. */
export interface ClientOptions {
  /** The token, or what gives one each time it is needed. The default is none. */
  token?: TokenSource;
  /** The waits between tries to connect, and to publish again. */
  backoff?: BackoffOptions;
  /** After so much silence the hub is asked whether it is there, and after as much again the connection is made anew. The default is 15,000. */
  heartbeatMs?: number;
  /** How many bytes of publishes may wait for their answers; beyond, `publish` fails with `queue_full`. The default is 64 MiB. */
  maxQueuedBytes?: number;
  /** The largest frame that the hub takes. The default is 8 MiB and 64 KiB, as that of the hub; raise it with `limits.payload`. */
  maxFrameBytes?: number;
  /** Told of every change of the connection. The default is to tell nobody. */
  onStatus?: (status: Status) => void;
  /** The default is the global one, which Node has from version 22 on. */
  WebSocket?: WebSocketConstructor;
  /** The default is the global one. */
  fetch?: typeof fetch;
}

/** How to connect. */
export interface ConnectOptions extends ClientOptions {
  /** Ends the wait for the first connection. */
  signal?: AbortSignal;
  /** How long to wait for the first connection. The default is 10,000. */
  timeoutMs?: number;
}

export interface PublishOptions extends EventOptions {
  /**
   * Store the event only if this is the last seq of the topic, 0 for an empty
   * one; else `seq_conflict`.
   */
  expect_seq?: number;
  /** Ends the wait. The event may be stored all the same. */
  signal?: AbortSignal;
}

/** How to close. */
export interface CloseOptions {
  /** Ends the wait for publishes and handlers. */
  signal?: AbortSignal;
}

/**
 * A hub, seen from afar. One connection serves all publishes and subscriptions;
 * it is made when first needed, and again whenever it is lost.
 */
export class Client extends Api {
  /** Where the hub is. */
  readonly url: string;
  private readonly link: Link;
  private readonly publisher: Publisher;
  private readonly subscriptions = new Set<Member>();
  private readonly routes = new Map<string, Member>(); // by group and topic, found once
  private readonly over = new AbortController();
  private readonly options: ClientOptions;

  /** Does not connect: the first publish or subscription does, or `ready`. */
  constructor(url: string, options: ClientOptions = {}) {
    const base = baseOf(url);
    super(new Http(base, options.token, options.fetch ?? ((...args) => fetch(...args))));
    this.url = base;
    this.options = options;
    const link = {
      url: `ws${base.slice(4)}/ws`, token: options.token, WebSocket: options.WebSocket, backoff: options.backoff,
      heartbeatMs: options.heartbeatMs ?? 15_000, onStatus: options.onStatus,
    };
    this.link = new Link(link, {
      events: (frame, text) => this.find(frame.topic, frame.group)?.deliver(frame, text),
      assign: (frame) => this.find(frame.topic, frame.group)?.assign(frame),
      dismiss: (topic, group, error) => this.find(topic, group)?.dismiss(error),
    });
    this.publisher = new Publisher(this.link, {
      maxQueuedBytes: options.maxQueuedBytes ?? 64 << 20, maxFrameBytes: options.maxFrameBytes ?? (8 << 20) + (64 << 10), backoff: options.backoff,
    });
  }

  /** What the connection does. */
  get status(): Status {
    return this.link.status;
  }

  /**
   * Resolves when the connection stands. It rejects if the token is refused,
   * or when the signal ends; otherwise it waits for a hub to appear.
   */
  ready(options: CallOptions = {}): Promise<void> {
    return this.link.ready(options.signal);
  }

  /**
   * Publishes an event and resolves once it is durable. It has an id, a new one
   * where none is given, and is sent again with it over lost connections until
   * there is an answer, so that it is stored once. Publishes go in the order of
   * the calls.
   */
  async publish<T>(topic: string, payload: T, options: PublishOptions = {}): Promise<Receipt> {
    const { expect_seq, signal, ...rest } = options;
    return this.publisher.one({ ...rest, topic, payload }, expect_seq, signal);
  }

  /**
   * Publishes up to 10,000 events and 8 MiB together: all are stored, or none.
   * As with `publish`, they are sent again until there is an answer.
   */
  async publishBatch(events: readonly NewEvent[], options: CallOptions = {}): Promise<Receipt[]> {
    return this.publisher.many(events, options.signal);
  }

  /**
   * Handles the events of a topic, of several, or of a pattern (`*` is one
   * segment, `**` any number) as a member of a group. Resolves when the hub has
   * taken the subscription; it then lasts, over lost connections, until `stop`.
   */
  async subscribe<T = unknown>(topics: string | readonly string[], group: string, handler: Handler<T>, options: SubscribeOptions = {}): Promise<Subscription> {
    const list = typeof topics === 'string' ? [topics] : topics;
    for (const s of this.subscriptions) {
      if (s.overlaps(list, group)) {
        throw new PrometheanError('already_subscribed', `this client has a subscription to ${s.topics.join(', ')} as group ${group}, which overlaps: use another client`);
      }
    }
    const s = new Member(this.link, list, group, handler, options, (gone) => this.forget(gone), this.options.backoff);
    this.subscriptions.add(s);
    try {
      await s.begin();
    } catch (error) {
      this.forget(s);
      throw error;
    }
    return s;
  }

  /**
   * Follows a topic without a group, from a place on, `latest` by default.
   * Nothing is leased or acked. A broken connection is made again, and the loop
   * goes on after the last event. It ends when it is left, by its signal, or
   * with the client.
   */
  tail<T = unknown>(topic: string, options: TailOptions = {}): AsyncGenerator<PrometheanEvent<T>, void, void> {
    const signal = options.signal ? anySignal(options.signal, this.over.signal) : this.over.signal;
    return tail<T>(this.http, topic, { ...options, signal }, this.options.backoff);
  }

  /**
   * Stops subscriptions, waits until every publish is answered and every
   * handler done, and closes the connection. With a signal that ends, it closes
   * at once: publishes without an answer fail with `closed`.
   */
  async close(options: CloseOptions = {}): Promise<void> {
    try {
      await Promise.all([...this.subscriptions].map((s) => s.stop(options)));
      await raceSignal(this.publisher.drained(), options.signal);
    } catch {
      // The signal has ended the wait, which is no failure.
    }
    const closed = new PrometheanError('closed', 'the client is closed');
    this.link.close(closed);
    this.over.abort(closed);
  }

  private forget(s: Member): void {
    this.subscriptions.delete(s);
    this.routes.clear();
  }

  private find(topic: string, group: string): Member | undefined {
    const name = `${topic}/${group}`;
    let s = this.routes.get(name);
    if (s) return s;
    for (s of this.subscriptions) {
      if (s.takes(topic, group)) {
        if (this.routes.size >= 10_000) this.routes.clear(); // there are as many topics as the pattern fits
        this.routes.set(name, s);
        return s;
      }
    }
    return undefined; // it was stopped while events were on their way
  }
}

/**
 * A client whose connection stands. Rejects if the token is refused, and with
 * `unavailable` if there is no hub within `timeoutMs`.
 */
export async function connect(url: string, options: ConnectOptions = {}): Promise<Client> {
  const { signal, timeoutMs = 10_000, ...rest } = options;
  const client = new Client(url, rest);
  const timeout = new AbortController();
  const timer = setTimeout(() => timeout.abort(timeout), timeoutMs);
  try {
    await client.ready({ signal: signal ? anySignal(signal, timeout.signal) : timeout.signal });
    return client;
  } catch (error) {
    const last = client.status.error;
    void client.close();
    if (error !== timeout) throw error;
    throw await noHub(client, timeoutMs, last);
  } finally {
    clearTimeout(timer);
  }
}

/** Says more than a WebSocket does about why it could not be opened. */
async function noHub(client: Client, timeoutMs: number, last: PrometheanError | undefined): Promise<PrometheanError> {
  const found = await client.isReady({ signal: AbortSignal.timeout(2_000) }).catch(() => false);
  const hint = found
    ? 'it answers over HTTP: does a proxy between pass WebSockets on?'
    : 'is it running there? A page of another origin must be named in its setting origins';
  return new PrometheanError('unavailable', `no connection to ${client.url} within ${timeoutMs} ms: ${last?.message ?? 'there was no answer'}; ${hint}`, { cause: last });
}

function anySignal(a: AbortSignal, b: AbortSignal): AbortSignal {
  return AbortSignal.any([a, b]);
}

/** The address for HTTP, without a slash at the end. */
function baseOf(text: string): string {
  let url: URL;
  try {
    url = new URL(text.includes('://') ? text : `http://${text}`);
  } catch (cause) {
    throw new PrometheanError('invalid_argument', `address ${JSON.stringify(text)}: ${messageOf(cause)}`, { cause });
  }
  const scheme = { 'http:': 'http', 'ws:': 'http', 'https:': 'https', 'wss:': 'https' }[url.protocol];
  if (!scheme) throw new PrometheanError('invalid_argument', `address ${JSON.stringify(text)}: want http or https`);
  if (url.username || url.password) throw new PrometheanError('invalid_argument', 'address: it has a password; use options.token');
  return `${scheme}://${url.host}${url.pathname.replace(/\/+$/, '')}`;
}
