import type { WebSocketConstructor } from 'promethean-client';

/** A frame as the client sent it. */
export interface Sent {
  op: string;
  corr: number;
  [field: string]: any;
}

/** The other end of a connection, in the hands of a test. */
export class FakeSocket {
  onopen: ((event: any) => void) | null = null;
  onclose: ((event: any) => void) | null = null;
  onerror: ((event: any) => void) | null = null;
  onmessage: ((event: any) => void) | null = null;
  readonly sent: Sent[] = [];
  closedWith: number | undefined;

  constructor(
    readonly url: string,
    private readonly net: FakeNet,
  ) {
    net.sockets.push(this);
    queueMicrotask(() => this.onopen?.({}));
  }

  send(data: string): void {
    const frame = JSON.parse(data) as Sent;
    this.sent.push(frame);
    const answer = this.net.answers[frame.op]?.(frame, this);
    if (answer) this.ok(frame, answer);
    this.net.changed();
  }

  close(code?: number): void {
    this.closedWith = code;
    this.net.changed();
  }

  give(frame: object | string): void {
    this.onmessage?.({ data: typeof frame === 'string' ? frame : JSON.stringify(frame) });
  }

  ok(frame: Sent, fields: object = {}): void {
    this.give({ op: 'OK', corr: frame.corr, ...fields });
  }

  err(frame: Sent, code: string, msg = code): void {
    this.give({ op: 'ERR', corr: frame.corr, code, msg });
  }

  /** Breaks the connection. */
  lose(code = 1006, reason = ''): void {
    this.onclose?.({ code, reason });
  }

  frames(op: string): Sent[] {
    return this.sent.filter((f) => f.op === op);
  }
}

/** Makes connections, and lets a test wait for what is sent over them. */
export class FakeNet {
  readonly sockets: FakeSocket[] = [];
  /** What to answer at once, by op; undefined leaves it to the test. */
  answers: Record<string, (frame: Sent, socket: FakeSocket) => object | undefined> = {};
  readonly WebSocket: WebSocketConstructor;
  private waiting: (() => void)[] = [];

  constructor() {
    const net = this;
    this.WebSocket = class extends FakeSocket {
      constructor(url: string) {
        super(url, net);
        net.changed();
      }
    };
  }

  changed(): void {
    for (const f of this.waiting.splice(0)) f();
  }

  /** Waits until the test's condition holds, looking after every frame. */
  async until<T>(find: () => T | undefined | false): Promise<T> {
    for (;;) {
      const found = find();
      if (found) return found;
      await new Promise<void>((resolve) => this.waiting.push(resolve));
    }
  }
}
