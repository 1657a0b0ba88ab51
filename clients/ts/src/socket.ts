import { raceSignal } from './backoff.js';
import { PrometheanError, messageOf } from './errors.js';
import { decode, errorOf, fields, type Answer, type AssignFrame, type EventsFrame } from './frame.js';
import type { LinkOptions, TokenSource } from './link.js';

/** What is needed of a WebSocket: that of browsers, of Node, and of the package ws have it. */
export interface WebSocketLike {
  onopen: ((event: any) => void) | null;
  onclose: ((event: any) => void) | null;
  onerror: ((event: any) => void) | null;
  onmessage: ((event: any) => void) | null;
  send(data: string): void;
  close(code?: number, reason?: string): void;
}

export type WebSocketConstructor = new (url: string) => WebSocketLike;

/** How long opening, and the answer to AUTH, may take. */
const openMs = 15_000;

/** Token that is sent where there is none: a hub without auth answers OK to any. */
const noToken = 'none';

/**
 * Who is told what the hub sends unasked.
 * @internal
 */
export interface Receiver {
  events(frame: EventsFrame, text: string): void;
  assign(frame: AssignFrame): void;
  /** A subscription is over. */
  dismiss(topic: string, group: string, error: PrometheanError): void;
}

type Done = (answer: Answer | PrometheanError) => void;

/**
 * One WebSocket from its opening to its end: authentication, answers by corr,
 * and a heartbeat. A connection whose other end has vanished without a word is
 * noticed by it: no page can send a ping, so an AUTH is sent, which any hub
 * answers.
 * @internal
 */
export class Socket {
  /** Resolves with the reason when the connection is over. It never rejects. */
  readonly ended: Promise<PrometheanError>;
  private end!: (error: PrometheanError) => void;
  /** Why it is over, once it is. */
  over: PrometheanError | undefined;
  private ws: WebSocketLike | undefined;
  private corr = 0;
  private readonly requests = new Map<number, { done: Done; size: number }>();
  private heard = 0;
  private asked = false;
  private beat: ReturnType<typeof setInterval> | undefined;
  private renewal: ReturnType<typeof setTimeout> | undefined;
  private token: string | undefined;
  private lastWords: PrometheanError | undefined; // an ERR without corr comes before some closes

  constructor(
    private readonly options: LinkOptions,
    private readonly receiver: Receiver,
  ) {
    this.ended = new Promise((resolve) => {
      this.end = resolve;
    });
  }

  /** Resolves once frames can be sent. After a rejection, close it. */
  async open(signal: AbortSignal): Promise<void> {
    const timeout = new AbortController();
    const timer = setTimeout(
      () => timeout.abort(new PrometheanError('unavailable', `${this.options.url} did not answer within ${openMs} ms`)),
      openMs,
    );
    const stop = () => timeout.abort(signal.reason);
    signal.addEventListener('abort', stop, { once: true });
    try {
      await raceSignal(this.begin(), timeout.signal);
    } finally {
      clearTimeout(timer);
      signal.removeEventListener('abort', stop);
    }
    if (signal.aborted) throw signal.reason;
    if (this.over) throw this.over; // it was lost as soon as it stood
    this.heard = Date.now();
    this.beat = setInterval(() => this.heartbeat(), this.options.heartbeatMs / 2);
  }

  private async begin(): Promise<void> {
    const Constructor = this.options.WebSocket ?? (globalThis as { WebSocket?: WebSocketConstructor }).WebSocket;
    if (!Constructor) {
      throw new PrometheanError(
        'unsupported',
        'this runtime has no WebSocket: use Node 22 or later, start Node 20 with --experimental-websocket, or give one as options.WebSocket',
      );
    }
    if (this.options.token !== undefined) this.token = await tokenOf(this.options.token);
    if (this.over) throw this.over;
    await this.dial(Constructor);
    if (this.token !== undefined) {
      await this.auth(this.token);
      this.renewToken(this.token);
    }
  }

  private dial(Constructor: WebSocketConstructor): Promise<void> {
    return new Promise((resolve, reject) => {
      let opened = false;
      const fail = (reason: string, cause?: unknown) => {
        const error = new PrometheanError('unavailable', reason, { cause });
        if (opened) this.finish(error);
        else reject(error);
      };
      let ws: WebSocketLike;
      try {
        ws = new Constructor(this.options.url);
      } catch (cause) {
        reject(new PrometheanError('invalid_argument', `${this.options.url}: ${messageOf(cause)}`, { cause }));
        return;
      }
      this.ws = ws;
      ws.onopen = () => {
        opened = true;
        resolve();
      };
      ws.onmessage = (event) => this.receive(event.data);
      ws.onerror = (event) => {
        // A page is told nothing here; Node has the reason.
        const detail = messageOf(event?.error ?? event?.message ?? '');
        if (!opened) fail(`cannot connect to ${this.options.url}${detail && detail !== 'undefined' ? `: ${detail}` : ''}`, event?.error);
      };
      ws.onclose = (event) => {
        if (!opened) fail(`cannot connect to ${this.options.url}`);
        else this.finish(this.closed(event?.code ?? 1006, event?.reason ?? ''));
      };
    });
  }

  /** What a close code of the hub means. */
  private closed(code: number, reason: string): PrometheanError {
    const words = this.lastWords;
    switch (code) {
      case 4100:
        return new PrometheanError('unauthorized', words?.message ?? (reason || 'the token has ended'));
      case 1009:
        this.blameLargest();
        return new PrometheanError('unavailable', `the connection was closed: ${words?.message ?? 'a frame was too large'}`);
      case 4001:
        return new PrometheanError('slow_consumer', words?.message ?? (reason || 'this client does not read'));
      case 1001:
        return new PrometheanError('draining', reason || 'the hub is shutting down');
      default:
        return new PrometheanError('unavailable', `the connection was lost (code ${code}${reason ? `: ${reason}` : ''})`);
    }
  }

  /**
   * The hub does not say which frame was too large. It must be refused, or it
   * would be sent again for ever; it was the largest one.
   */
  private blameLargest(): void {
    let largest = -1;
    let size = -1;
    for (const [corr, r] of this.requests) {
      if (r.size > size) {
        largest = corr;
        size = r.size;
      }
    }
    this.answer({ op: 'ERR', corr: largest, code: 'payload_too_large', msg: this.lastWords?.message ?? 'the frame is over the size limit of the hub' });
  }

  private receive(data: unknown): void {
    if (this.over) return;
    this.heard = Date.now();
    this.asked = false;
    if (typeof data !== 'string') {
      this.close(new PrometheanError('internal', 'the hub sent a binary message: is this a Promethean hub?'));
      return;
    }
    let incoming;
    try {
      incoming = decode(data);
    } catch (cause) {
      this.close(new PrometheanError('internal', `the hub sent what is no frame: ${messageOf(cause)}`, { cause }));
      return;
    }
    if (incoming.kind === 'answer') {
      this.answered(incoming.answer);
    } else if (incoming.kind === 'events') {
      this.receiver.events(incoming.frame, data);
    } else if (incoming.kind === 'assign') {
      this.receiver.assign(incoming.frame);
    }
  }

  private answered(answer: Answer): void {
    const { corr, topic, group } = answer;
    if (corr !== undefined) this.answer(answer);
    else if (topic !== undefined && group !== undefined) this.receiver.dismiss(topic, group, errorOf(answer));
    else this.lastWords = errorOf(answer);
  }

  private answer(answer: Answer): void {
    const request = this.requests.get(answer.corr!);
    if (!request) return;
    this.requests.delete(answer.corr!);
    request.done(answer);
  }

  send(op: string, rest: string, done: Done): void {
    if (this.over) {
      done(this.over);
      return;
    }
    const corr = ++this.corr;
    this.requests.set(corr, { done, size: rest.length });
    try {
      this.ws!.send(`{"op":"${op}","corr":${corr}${rest}`);
    } catch (cause) {
      // Between the loss of a connection and the news of it.
      this.finish(new PrometheanError('unavailable', `cannot send: ${messageOf(cause)}`, { cause }));
    }
  }

  private auth(token: string): Promise<void> {
    return new Promise((resolve, reject) => {
      this.send('AUTH', fields({ token }), (a) => {
        if (a instanceof PrometheanError) reject(a);
        else if (a.op === 'ERR') reject(errorOf(a));
        else resolve();
      });
    });
  }

  /**
   * Has a new token before the old one ends, where the token says when that is
   * and there is somebody to ask: otherwise the hub would end the connection,
   * and what is held would count as failed.
   */
  private renewToken(token: string): void {
    const source = this.options.token;
    const ends = expiryOf(token);
    if (typeof source !== 'function' || ends === undefined) return;
    const remaining = ends - Date.now();
    const wait = Math.max(remaining - Math.min(30_000, remaining / 4), 0);
    this.renewal = setTimeout(() => void this.renew(source, ends), Math.min(wait, 2 ** 31 - 1));
  }

  private async renew(source: TokenSource, ends: number): Promise<void> {
    try {
      const token = await tokenOf(source);
      if (this.over) return;
      await this.auth(token);
      if (this.over) return;
      this.token = token;
      if ((expiryOf(token) ?? Infinity) > ends) {
        this.renewToken(token);
        return;
      }
    } catch {
      // Tried again below; if it never succeeds the hub ends the connection
      // and says why.
    }
    const remaining = ends - Date.now();
    if (!this.over && remaining > 0) {
      this.renewal = setTimeout(() => void this.renew(source, ends), Math.max(remaining / 4, 250));
    }
  }

  private heartbeat(): void {
    const silent = Date.now() - this.heard;
    if (silent < this.options.heartbeatMs) return;
    if (!this.asked) {
      this.asked = true;
      this.send('AUTH', fields({ token: this.token ?? noToken }), () => {});
    } else if (silent >= 2 * this.options.heartbeatMs) {
      this.close(new PrometheanError('unavailable', `the hub has been silent for ${silent} ms`));
    }
  }

  /** Closes the connection and does not wait for the other end. */
  close(error: PrometheanError): void {
    try {
      this.ws?.close(1000);
    } catch {
      // It is closed already, or not open yet; both are as good.
    }
    this.finish(error);
  }

  private finish(error: PrometheanError): void {
    if (this.over) return;
    this.over = error;
    clearInterval(this.beat);
    clearTimeout(this.renewal);
    const ws = this.ws;
    if (ws) {
      ws.onopen = ws.onmessage = ws.onclose = null;
      ws.onerror = () => {}; // without a listener Node may throw what comes late
    }
    const left = [...this.requests.values()];
    this.requests.clear();
    for (const r of left) r.done(error);
    this.end(error);
  }
}

/** @internal */
export async function tokenOf(source: TokenSource): Promise<string> {
  let token: string;
  try {
    token = typeof source === 'function' ? await source() : source;
  } catch (cause) {
    throw new PrometheanError('unauthorized', `there is no token: ${messageOf(cause)}`, { cause });
  }
  if (typeof token !== 'string' || token === '') throw new PrometheanError('unauthorized', 'the token is empty');
  return token;
}

/**
 * When a JWT ends, in epoch milliseconds. Nothing is verified here: that is for
 * the hub.
 * @internal
 */
export function expiryOf(token: string): number | undefined {
  const parts = token.split('.');
  if (parts.length !== 3) return undefined;
  try {
    const claims = JSON.parse(atob(parts[1]!.replaceAll('-', '+').replaceAll('_', '/')));
    return typeof claims.exp === 'number' ? claims.exp * 1000 : undefined;
  } catch {
    return undefined; // it is no JWT
  }
}
