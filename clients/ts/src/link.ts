import { Backoff, raceSignal, sleep, type BackoffOptions } from './backoff.js';
import { PrometheanError, callUser, messageOf } from './errors.js';
import type { Answer } from './frame.js';
import { Socket, type Receiver, type WebSocketConstructor } from './socket.js';

/** A token, or what gives one each time it is needed: at every connection and every call. */
export type TokenSource = string | (() => string | Promise<string>);

/** What the connection does. */
export interface Status {
  /**
   * `idle`: nothing has needed it yet. `connecting`: on the way. `open`: it
   * stands. `waiting`: it was lost, or could not be made, and is tried again
   * after `delayMs`. `closed`: for good.
   */
  state: 'idle' | 'connecting' | 'open' | 'waiting' | 'closed';
  /** Why it is waiting, or closed by something else than `close`. */
  error?: PrometheanError;
  delayMs?: number;
}

/** @internal */
export interface LinkOptions {
  url: string;
  token?: TokenSource | undefined;
  WebSocket?: WebSocketConstructor | undefined;
  backoff?: BackoffOptions | undefined;
  heartbeatMs: number;
  onStatus?: ((status: Status) => void) | undefined;
}

/**
 * Who uses the connection. `opened` is called each time it stands, `lost` each
 * time it is gone, after every frame without an answer was told so.
 * @internal
 */
export interface LinkUser {
  opened(): void;
  lost(error: PrometheanError): void;
  /** There will be no other connection. */
  failed(error: PrometheanError): void;
}

/** How long a connection must have lasted for the next wait to be short again. */
const steadyMs = 5_000;

/**
 * The one connection of a client, made again whenever it is lost. It remembers
 * nothing of what was sent: who sends keeps that until it is answered.
 * @internal
 */
export class Link {
  status: Status = { state: 'idle' };
  private socket: Socket | undefined;
  private readonly users: LinkUser[] = [];
  private readonly over = new AbortController();
  private readonly waiters = new Set<{ resolve: () => void; reject: (error: PrometheanError) => void }>();
  private fatal: PrometheanError | undefined;

  constructor(
    private readonly options: LinkOptions,
    private readonly receiver: Receiver,
  ) {}

  /** Users are told of a connection in the order in which they were added. */
  use(user: LinkUser): void {
    this.users.push(user);
  }

  drop(user: LinkUser): void {
    const i = this.users.indexOf(user);
    if (i >= 0) this.users.splice(i, 1);
  }

  get open(): boolean {
    return this.socket !== undefined && !this.socket.over;
  }

  /** Starts to connect, if nobody has yet. Throws if it is over. */
  start(): void {
    if (this.fatal) throw this.fatal;
    if (this.status.state === 'idle') void this.run();
  }

  /** Resolves when the connection stands; rejects if it never will, or if the token is refused. */
  ready(signal?: AbortSignal): Promise<void> {
    try {
      this.start();
    } catch (error) {
      return Promise.reject(error);
    }
    if (this.open) return Promise.resolve();
    let waiter: { resolve: () => void; reject: (error: PrometheanError) => void };
    const stands = new Promise<void>((resolve, reject) => {
      waiter = { resolve, reject };
      this.waiters.add(waiter);
    });
    return raceSignal(stands, signal).finally(() => this.waiters.delete(waiter));
  }

  /**
   * Sends a frame: `rest` is what follows op and corr. `done` is called once,
   * with the answer or, if the connection is lost before one came, with the
   * error. Only while open.
   */
  send(op: string, rest: string, done: (answer: Answer | PrometheanError) => void): void {
    this.socket!.send(op, rest, done);
  }

  /** Sends a frame and resolves with its answer; rejects if the connection is lost. */
  call(op: string, rest: string): Promise<Answer> {
    return new Promise((resolve, reject) => {
      if (!this.socket) {
        reject(new PrometheanError('unavailable', 'there is no connection'));
        return;
      }
      this.send(op, rest, (a) => (a instanceof PrometheanError ? reject(a) : resolve(a)));
    });
  }

  /** Ends it for good. */
  close(error = new PrometheanError('closed', 'the client is closed')): void {
    if (this.fatal) return;
    this.fatal = error;
    this.over.abort(error);
    const socket = this.socket;
    if (socket) socket.close(error);
    else this.finish(error);
  }

  private finish(error: PrometheanError): void {
    this.setStatus(error.code === 'closed' ? { state: 'closed' } : { state: 'closed', error });
    for (const w of [...this.waiters]) w.reject(error);
    for (const user of [...this.users]) user.failed(error);
  }

  private setStatus(status: Status): void {
    if (this.status.state === 'closed') return;
    this.status = status;
    callUser(this.options.onStatus, status);
  }

  private async run(): Promise<void> {
    const backoff = new Backoff(this.options.backoff);
    while (!this.fatal) {
      this.setStatus({ state: 'connecting' });
      const error = await this.once(backoff);
      if (this.fatal) break;
      if (this.isFatal(error)) {
        this.close(error);
        return;
      }
      const delayMs = backoff.next();
      this.setStatus({ state: 'waiting', error, delayMs });
      await sleep(delayMs, this.over.signal).catch(() => {});
    }
    if (this.status.state !== 'closed') this.finish(this.fatal!);
  }

  /** A refused token can only be replaced where there is somebody to ask for another. */
  private isFatal(error: PrometheanError): boolean {
    return error.code === 'unsupported' || (error.code === 'unauthorized' && typeof this.options.token !== 'function');
  }

  /** Makes a connection and waits for its end; returns why it ended. */
  private async once(backoff: Backoff): Promise<PrometheanError> {
    const socket = new Socket(this.options, this.receiver);
    try {
      await socket.open(this.over.signal);
    } catch (error) {
      const known = error instanceof PrometheanError ? error : new PrometheanError('unavailable', messageOf(error), { cause: error });
      socket.close(known);
      if (known.code === 'unauthorized' || known.code === 'unsupported') {
        for (const w of [...this.waiters]) w.reject(known);
      }
      return known;
    }
    if (this.fatal) {
      // Closed in the moment between.
      socket.close(this.fatal);
      return this.fatal;
    }
    const since = Date.now();
    this.socket = socket;
    this.setStatus({ state: 'open' });
    for (const w of [...this.waiters]) w.resolve();
    for (const user of [...this.users]) user.opened();
    const error = await socket.ended;
    this.socket = undefined;
    if (Date.now() - since >= steadyMs) backoff.reset();
    for (const user of [...this.users]) user.lost(error);
    return error;
  }
}
