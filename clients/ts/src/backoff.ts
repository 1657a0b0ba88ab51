/** How long to wait between tries. */
export interface BackoffOptions {
  /** The longest first wait, in milliseconds. The default is 100. */
  minMs?: number;
  /** The longest wait of all. The default is 10,000. */
  maxMs?: number;
}

/**
 * Waits that double, each shortened by chance to between a half and the whole:
 * many clients that lost the same hub do not come back at the same moment.
 * @internal
 */
export class Backoff {
  private tries = 0;
  private readonly min: number;
  private readonly max: number;

  constructor(
    options: BackoffOptions = {},
    private readonly random: () => number = Math.random,
  ) {
    this.min = options.minMs ?? 100;
    this.max = Math.max(options.maxMs ?? 10_000, this.min);
  }

  next(): number {
    const whole = Math.min(this.max, this.min * 2 ** this.tries);
    this.tries = Math.min(this.tries + 1, 30);
    return Math.round(whole / 2 + (whole / 2) * this.random());
  }

  reset(): void {
    this.tries = 0;
  }
}

/**
 * Waits, or rejects with the signal's reason.
 * @internal
 */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason);
      return;
    }
    const onAbort = () => {
      clearTimeout(timer);
      reject(signal!.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', onAbort);
      resolve();
    }, ms);
    signal?.addEventListener('abort', onAbort, { once: true });
  });
}

/**
 * The promise, or the signal's reason, whichever comes first.
 * @internal
 */
export function raceSignal<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    if (signal.aborted) {
      reject(signal.reason);
      promise.catch(() => {}); // nobody waits for it any more
      return;
    }
    const onAbort = () => reject(signal.reason);
    signal.addEventListener('abort', onAbort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', onAbort));
  });
}
