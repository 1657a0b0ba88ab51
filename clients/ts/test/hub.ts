import { spawn, type ChildProcess } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** The program to test with, or why there is none. */
export const bin = process.env['PROMETHEAN_BIN'];
export const needsHub: { skip?: string } = bin ? {} : { skip: 'needs hub: PROMETHEAN_BIN names no promethean program' };

/** A real hub in a process of its own, on a directory of its own. */
export class Hub {
  url = '';
  private child: ChildProcess | undefined;
  private log = '';
  private readonly dir = mkdtempSync(join(tmpdir(), 'promethean-ts-'));

  constructor(
    private readonly args: string[] = [],
    private readonly env: Record<string, string> = {},
  ) {}

  /** Starts it: on a free port the first time, on the same one later. */
  async start(): Promise<this> {
    const listen = this.url ? new URL(this.url).host : '127.0.0.1:0';
    const child = spawn(bin!, ['serve', '--listen', listen, '--store', `file://${join(this.dir, 'data')}`, ...this.args], {
      cwd: this.dir, env: { ...process.env, ...this.env }, stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.child = child;
    child.stderr!.setEncoding('utf8').on('data', (s: string) => (this.log = (this.log + s).slice(-20_000)));
    this.url = await new Promise((resolve, reject) => {
      let out = '';
      child.stdout!.setEncoding('utf8').on('data', (s: string) => {
        const found = /ready on (\S+)/.exec((out += s));
        if (found) resolve(found[1]!);
      });
      child.once('error', reject);
      child.once('exit', (code) => reject(new Error(`the hub ended with ${code}:\n${this.log}`)));
    });
    return this;
  }

  /** Ends it by a signal, and waits for the end. */
  async end(signal: 'SIGKILL' | 'SIGTERM'): Promise<void> {
    const child = this.child;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const gone = new Promise((resolve) => child.once('exit', resolve));
    child.kill(signal);
    await gone;
  }

  /** Kills it as kill -9 does, and starts it again. */
  async crash(): Promise<void> {
    await this.end('SIGKILL');
    await this.start();
  }

  async remove(): Promise<void> {
    await this.end('SIGKILL');
    rmSync(this.dir, { recursive: true, force: true });
  }
}
