// The parts of the client that need no hub.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { newId, partitionFor, PrometheanError, rawJSON, retry } from 'promethean-client';
import { Backoff, sleep } from '../dist/backoff.js';
import { encodePayload } from '../dist/event.js';
import { decode, publishMany, publishOne } from '../dist/frame.js';
import { xxhash64 } from '../dist/partition.js';
import { matches, overlap } from '../dist/pattern.js';
import { rawOfDeliveries, rawOfEvent, rawOfEvents } from '../dist/raw.js';
import { expiryOf } from '../dist/socket.js';
import { SseParser, type SseMessage } from '../dist/sse.js';
import { Ids } from '../dist/uuid.js';

const repository = new URL('../../../', import.meta.url);

test('ids are of version 7, tell the time and ascend', () => {
  let last = '';
  for (let i = 0; i < 100_000; i++) {
    const id = newId();
    assert.match(id, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
    assert.ok(id > last, `${id} after ${last}`);
    last = id;
  }
  assert.ok(Math.abs(parseInt(last.replaceAll('-', '').slice(0, 12), 16) - Date.now()) < 60_000, last);
});

test('ids ascend when the clock goes back and when the counter carries', () => {
  const ids = new Ids(() => 0xffffffff);
  const now = 0x0192f7c189ab;
  assert.equal(ids.next(now), '0192f7c1-89ab-77ff-bfff-ffffffffffff');
  assert.equal(ids.next(now), '0192f7c1-89ab-7800-8000-0000ffffffff');
  assert.equal(ids.next(now - 5_000), '0192f7c1-89ab-7800-8000-0001ffffffff');
  assert.equal(ids.next(now + 1), '0192f7c1-89ac-77ff-bfff-ffffffffffff');
});

test('partitions are those of the shared vectors', () => {
  const rows = JSON.parse(readFileSync(new URL('event/testdata/partition_vectors.json', repository), 'utf8')) as {
    key: string; id?: string; xxhash64: string; n: number; partition: number;
  }[];
  assert.ok(rows.length >= 200, `${rows.length} vectors`);
  for (const { key, id = '', n, partition, ...row } of rows) {
    assert.equal(xxhash64(key || id), row.xxhash64, `hash of ${JSON.stringify(key || id)}`);
    assert.equal(partitionFor(key, id.toUpperCase(), n), partition, `partition of ${JSON.stringify(key || id)} among ${n}`);
  }
  assert.equal(partitionFor('key', '', 0), 0);
});

test('hashing is the same as with BigInt', () => {
  for (let n = 0; n < 300; n++) {
    const text = Array.from({ length: n }, (_, i) => String.fromCharCode(33 + ((i * 7 + n) % 90))).join('');
    assert.equal(xxhash64(text), plainHash(text), `of ${n} bytes`);
  }
});

/** XXH64 as it is written down, slowly. */
function plainHash(text: string): string {
  const mask = (1n << 64n) - 1n;
  const [p1, p2, p3, p4, p5] = [0x9e3779b185ebca87n, 0xc2b2ae3d27d4eb4fn, 0x165667b19e3779f9n, 0x85ebca77c2b2ae63n, 0x27d4eb2f165667c5n];
  const rotl = (v: bigint, n: bigint) => ((v << n) | (v >> (64n - n))) & mask;
  const round = (acc: bigint, v: bigint) => (rotl((acc + v * p2) & mask, 31n) * p1) & mask;
  const b = new TextEncoder().encode(text);
  const view = new DataView(b.buffer);
  let i = 0;
  let h: bigint;
  if (b.length >= 32) {
    const v = [(p1 + p2) & mask, p2, 0n, -p1 & mask];
    for (; i + 32 <= b.length; i += 32) v.forEach((acc, k) => (v[k] = round(acc, view.getBigUint64(i + 8 * k, true))));
    h = (rotl(v[0]!, 1n) + rotl(v[1]!, 7n) + rotl(v[2]!, 12n) + rotl(v[3]!, 18n)) & mask;
    for (const acc of v) h = ((h ^ round(0n, acc)) * p1 + p4) & mask;
  } else {
    h = p5;
  }
  h = (h + BigInt(b.length)) & mask;
  for (; i + 8 <= b.length; i += 8) h = (rotl(h ^ round(0n, view.getBigUint64(i, true)), 27n) * p1 + p4) & mask;
  if (i + 4 <= b.length) {
    h = (rotl(h ^ ((BigInt(view.getUint32(i, true)) * p1) & mask), 23n) * p2 + p3) & mask;
    i += 4;
  }
  for (; i < b.length; i++) h = (rotl(h ^ ((BigInt(b[i]!) * p5) & mask), 11n) * p1) & mask;
  h = ((h ^ (h >> 33n)) * p2) & mask;
  h = ((h ^ (h >> 29n)) * p3) & mask;
  return (h ^ (h >> 32n)).toString(16).padStart(16, '0');
}

test('waits double between a half and the whole, up to the longest', () => {
  const longest = new Backoff({ minMs: 100, maxMs: 1_000 }, () => 1);
  assert.deepEqual(Array.from({ length: 6 }, () => longest.next()), [100, 200, 400, 800, 1_000, 1_000]);
  const shortest = new Backoff({ minMs: 100, maxMs: 1_000 }, () => 0);
  assert.deepEqual(Array.from({ length: 5 }, () => shortest.next()), [50, 100, 200, 400, 500]);
  shortest.reset();
  assert.equal(shortest.next(), 50);
  for (let i = 0; i < 5_000; i++) longest.next();
  assert.equal(longest.next(), 1_000, 'after very many');
});

test('a wait ends with its signal', async () => {
  const stop = new AbortController();
  const waiting = sleep(1e9, stop.signal);
  stop.abort(new Error('enough'));
  await assert.rejects(waiting, /enough/);
  await assert.rejects(sleep(1e9, stop.signal), /enough/);
});

test('server-sent events are the same wherever they are cut', () => {
  const text = '\ufeff: open\r\n\r\nid: 1\nevent: event\ndata: {"a":1}\n\n:\n\nid:2\rdata:x\rdata: y\r\rdata\n\nevent: event\nid: 3\ndata:  é\n\nid: 4\ndata: cut off';
  const want: SseMessage[] = [
    { id: '1', event: 'event', data: '{"a":1}' },
    { id: '2', event: 'message', data: 'x\ny' },
    { id: '2', event: 'message', data: '' },
    { id: '3', event: 'event', data: ' é' },
  ];
  assert.deepEqual(new SseParser().push(text), want);
  for (let i = 1; i < text.length; i++) {
    const parser = new SseParser();
    assert.deepEqual([...parser.push(text.slice(0, i)), ...parser.push(text.slice(i))], want, `cut at ${i}`);
  }
  const parser = new SseParser();
  assert.deepEqual([...text].flatMap((c) => parser.push(c)), want, 'one by one');
});

test('the text of a payload is found whatever stands around it', () => {
  const payloads = [
    '1', '-1.5e+300', '12345678901234567890', 'null', 'true', '""', '"a\\"b"', '"\\\\"', '"\\\\\\""', '"}],\\u0041"', '[]', '{}', '[[],{"payload":[1]}]',
    '{"payload":{"payload":"no"},"event":"}"}', '"é😀"', '[1,2,{"a":"]"}]',
  ];
  for (const payload of payloads) {
    for (const event of [
      `{"id":"x","payload":${payload},"tags":["payload"]}`, `{"headers":{"x-payload":"}"},"key":"\\"payload\\":","payload":${payload}}`,
      `{ "id" : "payload" , "payload" : ${payload} }`, `{\n"caused_by":[[{}],"x"],\t"payload":\n${payload}\n}`,
    ]) {
      assert.doesNotThrow(() => JSON.parse(event), event);
      assert.equal(rawOfEvent(event), payload, event);
      assert.deepEqual(rawOfEvents(`{"topic":"t","events":[${event},${event}],"count":2}`), [payload, payload]);
      assert.deepEqual(rawOfDeliveries(`{"op":"EVENTS","events":[{"event":${event},"ctx":{}},{"ctx":{},"event":${event}}]}`), [payload, payload]);
      assert.deepEqual(rawOfDeliveries(`{"op":"EVENT","topic":"t","event":${event},"ctx":{"payload":0}}`), [payload]);
    }
  }
  assert.deepEqual(rawOfEvents('{"events":[]}'), []);
  assert.equal(rawOfEvent('{}'), undefined);
});

test('frames are JSON, with the options that were given', () => {
  const parse = (rest: string) => JSON.parse(`{"op":"PUBLISH","corr":1${rest}`);
  assert.deepEqual(parse(publishOne({ topic: 'a.b', payload: { x: [1] }, id: 'i', key: 'k"', ts: 5, headers: { 'x-a': '1' } }, 7)), {
    op: 'PUBLISH', corr: 1, topic: 'a.b', payload: { x: [1] }, opts: { id: 'i', key: 'k"', ts: 5, headers: { 'x-a': '1' }, expect_seq: 7 },
  });
  assert.deepEqual(parse(publishOne({ topic: 'a', payload: null }, undefined)), { op: 'PUBLISH', corr: 1, topic: 'a', payload: null, opts: {} });
  assert.deepEqual(parse(publishMany([{ topic: 'a', payload: 1, partition: 0, tags: [], caused_by: ['x'], sid: 's' }, { topic: 'b', payload: 'y' }])), {
    op: 'PUBLISH', corr: 1, events: [{ topic: 'a', payload: 1, partition: 0, tags: [], caused_by: ['x'], sid: 's' }, { topic: 'b', payload: 'y' }],
  });
  const mixed = [{ topic: 'a', payload: rawJSON('12345678901234567890'), id: 'i' }, { topic: 'b', payload: new Date(0) }, { topic: 'c', payload: { deep: rawJSON('[1]') } }];
  assert.equal(publishMany(mixed), ',"events":[{"topic":"a","id":"i","payload":12345678901234567890},{"topic":"b","payload":"1970-01-01T00:00:00.000Z"},{"topic":"c","payload":{"deep":[1]}}]}');
  for (const bad of [undefined, 1n, { n: 1n }, { toJSON: () => undefined }]) {
    assert.throws(() => publishMany([{ topic: 'a', payload: 1 }, { topic: 'a', payload: bad }]), { code: 'invalid_argument' });
  }
  assert.equal(encodePayload(rawJSON('{"n": 12345678901234567890}')), '{"n": 12345678901234567890}');
  assert.equal(JSON.stringify({ inside: rawJSON('[1]') }), '{"inside":[1]}');
  assert.throws(() => rawJSON('{'), { name: 'PrometheanError', code: 'bad_json' });
  for (const bad of [undefined, () => 1, Symbol('x'), 1n, (() => { const o: { o?: unknown } = {}; o.o = o; return o; })()]) {
    assert.throws(() => encodePayload(bad), { name: 'PrometheanError', code: 'invalid_argument' });
  }
  assert.deepEqual(decode('{"op":"NEWER","x":1}'), { kind: 'other' });
  assert.equal(decode('{"op":"ERR","code":"internal","msg":""}').kind, 'answer');
});

test('patterns match and overlap as those of the hub', () => {
  const table: [pattern: string, topic: string, fits: boolean][] = [
    ['a.b', 'a.b', true], ['a.*', 'a.b', true], ['a.*', 'a', false], ['a.*', 'a.b.c', false], ['a.**', 'a', true], ['a.**', 'a.b.c', true],
    ['**', 'x.y', true], ['**', 'dlq.x', false], ['*.x', 'system.x', false], ['dlq.**', 'dlq.x', true], ['**.c', 'a.b.c', true], ['a.**.c', 'a.c', true],
    ['a.**.c', 'a.b.d', false], ['*', 'a', true], ['*.*', 'a', false],
  ];
  for (const [pattern, topic, fits] of table) {
    assert.equal(matches(pattern, topic), fits, `${pattern} on ${topic}`);
    assert.equal(overlap(pattern, topic), fits, `${pattern} with ${topic}`);
    assert.equal(overlap(topic, pattern), fits, `${topic} with ${pattern}`);
  }
  for (const [a, b, both] of [['a.*', '*.b', true], ['a.**', '**.b', true], ['a.*', 'b.*', false], ['a.*.c', 'a.b.*', true], ['**', 'dlq.*', false], ['*', '*.*', false], ['a.**.b', 'a.c', false]] as const) {
    assert.equal(overlap(a, b), both, `${a} with ${b}`);
    assert.equal(overlap(b, a), both, `${b} with ${a}`);
  }
});

test('codes can be tried again where the documentation says so', () => {
  const table = readFileSync(new URL('docs/api.md', repository), 'utf8').split('<!-- codes -->')[1]!.split('<!-- end of codes -->')[0]!;
  const rows = [...table.matchAll(/^\| `(\w+)` \|.*\| (yes|no) \|$/gm)];
  assert.ok(rows.length > 20, `${rows.length} codes`);
  for (const [, code, again] of rows) assert.equal(new PrometheanError(code as never, '').retryable, again === 'yes', code);
});

test('the end of a token is read from it', () => {
  const jwt = (claims: object) => ['{}', JSON.stringify(claims), 'x'].map((p) => Buffer.from(p).toString('base64url')).join('.');
  assert.equal(expiryOf(jwt({ exp: 1_800_000_000, sub: 'é?>~' })), 1_800_000_000_000);
  for (const none of [jwt({}), jwt({ exp: 'soon' }), 'secret', 'a.b.c', 'a..c', '']) assert.equal(expiryOf(none), undefined, none);
});

test('retry refuses what is no time', () => {
  for (const bad of [-1, 0.5, NaN, Infinity, 2_592_000_001]) assert.throws(() => retry(bad), { code: 'invalid_argument' });
});
