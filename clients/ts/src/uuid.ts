const hex = Array.from({ length: 256 }, (_, i) => i.toString(16).padStart(2, '0'));

// Random bytes are fetched many at a time: a call for each id costs more than the id.
const pool = new Uint8Array(4096);
let left = 0;

function random32(): number {
  if (left < 4) {
    crypto.getRandomValues(pool);
    left = pool.length;
  }
  left -= 4;
  return ((pool[left]! << 24) | (pool[left + 1]! << 16) | (pool[left + 2]! << 8) | pool[left + 3]!) >>> 0;
}

/**
 * Makes ids of version 7 (RFC 9562) that ascend: 48 bits of time, then a counter
 * of 42 bits, then 32 bits of chance. The counter begins at random in each
 * millisecond and is one more for each further id in it. If the clock goes back,
 * the time of the last id is used on.
 * @internal
 */
export class Ids {
  private ms = -1;
  private high = 0; // 12 bits of the counter
  private low = 0; // 30 bits of the counter

  constructor(private readonly random: () => number = random32) {}

  next(now: number): string {
    this.advance(now);
    const { ms, high, low } = this;
    const top = Math.floor(ms / 0x10000); // the upper 32 bits of the time
    const mid = ms % 0x10000;
    const chance = this.random();
    return (
      hex[top >>> 24]! + hex[(top >>> 16) & 0xff]! + hex[(top >>> 8) & 0xff]! + hex[top & 0xff]! + '-' +
      hex[mid >>> 8]! + hex[mid & 0xff]! + '-' +
      hex[0x70 | (high >>> 8)]! + hex[high & 0xff]! + '-' +
      hex[0x80 | (low >>> 24)]! + hex[(low >>> 16) & 0xff]! + '-' +
      hex[(low >>> 8) & 0xff]! + hex[low & 0xff]! +
      hex[chance >>> 24]! + hex[(chance >>> 16) & 0xff]! + hex[(chance >>> 8) & 0xff]! + hex[chance & 0xff]!
    );
  }

  private advance(now: number): void {
    if (now > this.ms) {
      this.ms = now;
      // The highest bit is left free: no machine counts the rest to its end.
      this.high = this.random() & 0x7ff;
      this.low = this.random() >>> 2;
    } else if (this.low < 0x3fffffff) {
      this.low += 1;
    } else {
      this.low = 0;
      this.high += 1;
    }
  }
}

const ids = new Ids();

/** A new id for an event: a UUID of version 7, larger than all that this process made before. */
export function newId(): string {
  return ids.next(Date.now());
}
