/**
 * The partition of a key, as the hub derives it: jump consistent hash over
 * XXH64 with seed 0. Numbers of 64 bits are kept as two halves of 32: in a
 * browser that is some times faster than BigInt.
 */

// Results of 64 bits are left here: low and high half, both unsigned.
let lo = 0;
let hi = 0;

function mul(aLo: number, aHi: number, bLo: number, bHi: number): void {
  const a0 = aLo & 0xffff;
  const a1 = aLo >>> 16;
  const b0 = bLo & 0xffff;
  const b1 = bLo >>> 16;
  // No sum below exceeds 2^34, so that all of them are exact.
  const p00 = a0 * b0;
  const p01 = a0 * b1;
  const p10 = a1 * b0;
  const middle = (p00 >>> 16) + (p01 & 0xffff) + (p10 & 0xffff);
  const upper = a1 * b1 + (p01 >>> 16) + (p10 >>> 16) + (middle >>> 16);
  lo = ((p00 & 0xffff) | (middle << 16)) >>> 0;
  hi = (upper + Math.imul(aLo, bHi) + Math.imul(aHi, bLo)) >>> 0;
}

function add(aLo: number, aHi: number, bLo: number, bHi: number): void {
  const sum = aLo + bLo;
  lo = sum >>> 0;
  hi = (aHi + bHi + (sum > 0xffffffff ? 1 : 0)) >>> 0;
}

function rotl(aLo: number, aHi: number, n: number): void {
  if (n >= 32) {
    [aLo, aHi] = [aHi, aLo];
    n -= 32;
  }
  if (n === 0) {
    lo = aLo;
    hi = aHi;
    return;
  }
  lo = ((aLo << n) | (aHi >>> (32 - n))) >>> 0;
  hi = ((aHi << n) | (aLo >>> (32 - n))) >>> 0;
}

// The primes of XXH64.
const P1L = 0x85ebca87, P1H = 0x9e3779b1;
const P2L = 0x27d4eb4f, P2H = 0xc2b2ae3d;
const P3L = 0x9e3779f9, P3H = 0x165667b1;
const P4L = 0xc2b2ae63, P4H = 0x85ebca77;
const P5L = 0x165667c5, P5H = 0x27d4eb2f;

/** round(acc, input): acc + input*P2, rotated by 31, times P1. */
function round(accLo: number, accHi: number, inLo: number, inHi: number): void {
  mul(inLo, inHi, P2L, P2H);
  add(accLo, accHi, lo, hi);
  rotl(lo, hi, 31);
  mul(lo, hi, P1L, P1H);
}

function merge(accLo: number, accHi: number, vLo: number, vHi: number): void {
  round(0, 0, vLo, vHi);
  mul((accLo ^ lo) >>> 0, (accHi ^ hi) >>> 0, P1L, P1H);
  add(lo, hi, P4L, P4H);
}

/** Leaves XXH64 of the bytes in lo and hi. */
function hash(b: Uint8Array): void {
  const n = b.length;
  const view = new DataView(b.buffer, b.byteOffset, n);
  let i = 0;
  let hLo: number, hHi: number;
  if (n >= 32) {
    add(P1L, P1H, P2L, P2H);
    let aL = lo, aH = hi;
    let bL = P2L, bH = P2H;
    let cL = 0, cH = 0;
    // 0 - P1
    add(~P1L >>> 0, ~P1H >>> 0, 1, 0);
    let dL = lo, dH = hi;
    for (; i <= n - 32; i += 32) {
      round(aL, aH, view.getUint32(i, true), view.getUint32(i + 4, true));
      aL = lo; aH = hi;
      round(bL, bH, view.getUint32(i + 8, true), view.getUint32(i + 12, true));
      bL = lo; bH = hi;
      round(cL, cH, view.getUint32(i + 16, true), view.getUint32(i + 20, true));
      cL = lo; cH = hi;
      round(dL, dH, view.getUint32(i + 24, true), view.getUint32(i + 28, true));
      dL = lo; dH = hi;
    }
    rotl(aL, aH, 1);
    hLo = lo; hHi = hi;
    rotl(bL, bH, 7);
    add(hLo, hHi, lo, hi);
    hLo = lo; hHi = hi;
    rotl(cL, cH, 12);
    add(hLo, hHi, lo, hi);
    hLo = lo; hHi = hi;
    rotl(dL, dH, 18);
    add(hLo, hHi, lo, hi);
    merge(lo, hi, aL, aH);
    merge(lo, hi, bL, bH);
    merge(lo, hi, cL, cH);
    merge(lo, hi, dL, dH);
    hLo = lo; hHi = hi;
  } else {
    hLo = P5L;
    hHi = P5H;
  }
  add(hLo, hHi, n, 0);
  hLo = lo; hHi = hi;
  for (; i + 8 <= n; i += 8) {
    round(0, 0, view.getUint32(i, true), view.getUint32(i + 4, true));
    rotl((hLo ^ lo) >>> 0, (hHi ^ hi) >>> 0, 27);
    mul(lo, hi, P1L, P1H);
    add(lo, hi, P4L, P4H);
    hLo = lo; hHi = hi;
  }
  if (i + 4 <= n) {
    mul(view.getUint32(i, true), 0, P1L, P1H);
    rotl((hLo ^ lo) >>> 0, (hHi ^ hi) >>> 0, 23);
    mul(lo, hi, P2L, P2H);
    add(lo, hi, P3L, P3H);
    hLo = lo; hHi = hi;
    i += 4;
  }
  for (; i < n; i++) {
    mul(b[i]!, 0, P5L, P5H);
    rotl((hLo ^ lo) >>> 0, (hHi ^ hi) >>> 0, 11);
    mul(lo, hi, P1L, P1H);
    hLo = lo; hHi = hi;
  }
  // Avalanche: each line is h ^= h >>> n, times a prime.
  mul((hLo ^ (hHi >>> 1)) >>> 0, hHi, P2L, P2H); // 33
  mul((lo ^ ((lo >>> 29) | (hi << 3))) >>> 0, (hi ^ (hi >>> 29)) >>> 0, P3L, P3H); // 29
  lo = (lo ^ hi) >>> 0; // 32
}

const encoder = new TextEncoder();

/** XXH64 with seed 0 of a text in UTF-8, as 16 hexadecimal digits. */
export function xxhash64(text: string): string {
  hash(encoder.encode(text));
  return hi.toString(16).padStart(8, '0') + lo.toString(16).padStart(8, '0');
}

/**
 * The partition, 0 … n-1, of an event in a topic with n partitions: by its key,
 * or by its id where the key is empty. It is what the hub computes for an event
 * that is published without a partition.
 */
export function partitionFor(key: string | undefined, id: string, n: number): number {
  if (n <= 1) return 0;
  hash(encoder.encode(key || id.toLowerCase()));
  let h = lo;
  let hHigh = hi;
  let b = 0;
  for (let j = 0; j < n; ) {
    b = j;
    mul(h, hHigh, 0x87b0b0fd, 0x27bb2ee6); // 2862933555777941757
    add(lo, hi, 1, 0);
    h = lo;
    hHigh = hi;
    j = Math.floor((b + 1) * (2 ** 31 / ((hHigh >>> 1) + 1)));
  }
  return b;
}
