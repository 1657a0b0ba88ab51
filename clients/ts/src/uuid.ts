/**
 * Ids of version 7 (RFC 9562) that ascend within this process: 48 bits of time,
 * then a counter of 42 bits, then 32 bits of chance. The counter begins at
 * random in each millisecond and is one more for each further id in it. If the
 * clock goes back, or the counter ends, the time of the last id is used on.
 */

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
  return (((pool[left]! << 24) | (pool[left + 1]! << 16) | (pool[left + 2]! << 8) | pool[left + 3]!) >>> 0);
}

let lastMs = -1;
let high = 0; // 12 bits of the counter
let low = 0; // 30 bits of the counter

function advance(now: number): void {
  if (now > lastMs) {
    lastMs = now;
    high = random32() & 0x7ff; // the highest bit is left free, so that there is room to count
    low = random32() >>> 2;
    return;
  }
  low += 1;
  if (low > 0x3fffffff) {
    low = 0;
    high += 1;
  }
  if (high > 0xfff) {
    lastMs += 1;
    high = 0;
  }
}

/** A new id for an event: a UUID of version 7, larger than all before it. */
export function newId(now: number = Date.now()): string {
  advance(now);
  const top = Math.floor(lastMs / 0x10000); // the upper 32 bits of the time
  const mid = lastMs % 0x10000;
  const chance = random32();
  return (
    hex[top >>> 24]! + hex[(top >>> 16) & 0xff]! + hex[(top >>> 8) & 0xff]! + hex[top & 0xff]! + '-' +
    hex[mid >>> 8]! + hex[mid & 0xff]! + '-' +
    hex[0x70 | (high >>> 8)]! + hex[high & 0xff]! + '-' +
    hex[0x80 | (low >>> 24)]! + hex[(low >>> 16) & 0xff]! + '-' +
    hex[(low >>> 8) & 0xff]! + hex[low & 0xff]! +
    hex[chance >>> 24]! + hex[(chance >>> 16) & 0xff]! + hex[(chance >>> 8) & 0xff]! + hex[chance & 0xff]!
  );
}
