// What the client does when the other end misbehaves, with a fake one.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Client, connect, PrometheanError, type ClientOptions, type Status } from 'promethean-client';
import { FakeNet, type FakeSocket, type Sent } from './fake.js';

const options = (net: FakeNet, more: ClientOptions = {}): ClientOptions => ({ WebSocket: net.WebSocket, backoff: { minMs: 1, maxMs: 5 }, ...more });
const limit = { timeout: 20_000 };

const event = (n: number, attempt = 1) => ({
  event: { id: `id${n}`, seq: n, ts: 1, topic: 'a', payload: n },
  ctx: { attempt, maxAttempts: 5, lease: `lease${n}.${attempt}`, ack_deadline_ms: Date.now() + 30_000, cursor: 0 },
});
const events = (...list: object[]) => ({ op: 'EVENTS', topic: 'a', group: 'g', events: list });

test('what has no answer is sent again, in order and with the same ids', limit, async () => {
  const net = new FakeNet();
  const hub = new Client('http://hub', options(net));
  const published = [1, 2, 3].map((n) => hub.publish('a', n));
  const batch = hub.publishBatch([{ topic: 'a', payload: 4 }, { topic: 'b', payload: 5 }]);
  const first = await net.until(() => net.sockets[0]?.sent.length === 4 && net.sockets[0]);
  first.ok(first.sent[1]!, { id: first.sent[1]!['opts'].id, seq: 2 });
  assert.equal((await published[1]!).seq, 2);
  first.lose();
  const later = hub.publish('a', 6);
  const second = await net.until(() => net.sockets[1]?.sent.length === 4 && net.sockets[1]);
  const content = (f: Sent) => ({ ...f, corr: 0 });
  assert.deepEqual(second.sent.slice(0, 3).map(content), [first.sent[0]!, first.sent[2]!, first.sent[3]!].map(content));
  assert.equal(second.sent[3]!['payload'], 6);
  second.ok(second.sent[0]!, { id: 'x', seq: 1, duplicate: true });
  second.ok(second.sent[1]!, { id: 'y', seq: 3 });
  second.ok(second.sent[2]!, { ids: ['p', 'q'], seqs: [4, 1], duplicates: [1] });
  second.ok(second.sent[3]!, { id: 'z', seq: 5 });
  assert.deepEqual(await published[0], { id: 'x', seq: 1, duplicate: true });
  assert.deepEqual(await batch, [{ id: 'p', seq: 4, duplicate: false }, { id: 'q', seq: 1, duplicate: true }]);
  assert.equal((await later).seq, 5);
  await hub.close();
  assert.equal(second.closedWith, 1000);
});

test('a refusal for the moment is tried again, any other is final', limit, async () => {
  const net = new FakeNet();
  let tries = 0;
  net.answers['PUBLISH'] = (f, s) => {
    if (f['payload'] === 'bad') s.err(f, 'invalid_topic');
    else if (f['payload'] === 'never') s.err(f, 'publish_failed', 'the disk is full');
    else if (++tries < 3) s.err(f, 'rate_limited');
    else return { id: f['opts'].id, seq: 1 };
    return undefined;
  };
  const hub = new Client('http://hub', options(net));
  assert.equal((await hub.publish('a', 'good')).seq, 1);
  assert.equal(tries, 3);
  await assert.rejects(hub.publish('a', 'bad'), { code: 'invalid_topic', retryable: false });
  await assert.rejects(hub.publish('a', 'never'), { code: 'publish_failed', message: 'the disk is full' });
  assert.equal(new Set(net.sockets[0]!.sent.filter((f) => f['payload'] === 'never').map((f) => f['opts'].id)).size, 1, 'one id for all tries');
  await hub.close();
});

test('a signal ends a publish that is on its way, and it is not sent again', limit, async () => {
  const net = new FakeNet();
  const hub = new Client('http://hub', options(net));
  const stop = new AbortController();
  const published = hub.publish('a', 1, { signal: stop.signal });
  const kept = hub.publish('a', 2);
  const first = await net.until(() => net.sockets[0]?.sent.length === 2 && net.sockets[0]);
  stop.abort(new Error('enough'));
  await assert.rejects(published, /enough/);
  first.lose();
  const second = await net.until(() => net.sockets[1]?.sent.length === 1 && net.sockets[1]);
  assert.deepEqual(second.sent.map((f) => f['payload']), [2]);
  second.ok(second.sent[0]!, { id: 'x', seq: 1 });
  await kept;
  await hub.close();
});

test('no more is queued than may be', limit, async () => {
  const hub = new Client('http://hub', options(new FakeNet(), { maxQueuedBytes: 1_000 }));
  const first = hub.publish('a', 'x'.repeat(900));
  await assert.rejects(hub.publish('a', 'x'.repeat(900)), { code: 'queue_full', retryable: true });
  await hub.close({ signal: AbortSignal.abort() });
  await assert.rejects(first, { code: 'closed' });
});

test('a silent hub is asked, then left', limit, async () => {
  const net = new FakeNet();
  const waits: Status[] = [];
  const hub = new Client('http://hub', options(net, { heartbeatMs: 30, onStatus: (s) => void (s.state === 'waiting' && waits.push(s)) }));
  await hub.ready();
  await net.until(() => net.sockets[1]);
  assert.ok(net.sockets[0]!.frames('AUTH').length >= 1, 'it was not asked');
  assert.match(waits[0]!.error!.message, /silent/);
  // One that answers is kept.
  net.answers['AUTH'] = () => ({});
  const last = await net.until(() => net.sockets.at(-1)!.frames('AUTH').length >= 3 && net.sockets.at(-1)!);
  assert.equal(last.closedWith, undefined);
  await hub.close();
});

test('acks without an answer go again, before the subscription does', limit, async () => {
  const net = new FakeNet();
  net.answers['SUBSCRIBE'] = () => ({});
  const hub = new Client('http://hub', options(net));
  const handled: number[] = [];
  await hub.subscribe<number>('a', 'g', (e) => void handled.push(e.payload), { from: 'earliest', maxInFlight: 7 });
  const first = net.sockets[0]!;
  first.give(events(event(1), event(2)));
  await net.until(() => first.frames('ACK').length === 1);
  first.lose();
  const second = await net.until(() => net.sockets[1]?.frames('SUBSCRIBE').length === 1 && net.sockets[1]);
  assert.deepEqual(second.sent.map((f) => f.op), ['ACK', 'SUBSCRIBE']);
  assert.deepEqual(second.sent[0]!['ids'], ['id1', 'id2']);
  assert.deepEqual(second.sent[1]!['opts'], { batch: 100, from: 'earliest', maxInFlight: 7 });
  // A redelivery that crossed the ack is not handled again.
  second.give(events(event(1, 2)));
  second.ok(second.sent[0]!, { results: [{ id: 'id1', ok: true }, { id: 'id2', ok: true }] });
  second.give(events(event(3)));
  await net.until(() => second.frames('ACK').length === 2);
  assert.deepEqual(handled, [1, 2, 3]);
  await hub.close({ signal: AbortSignal.timeout(10) });
});

test('an event that comes again while its handler runs waits for it', limit, async () => {
  for (const succeeds of [true, false]) {
    const net = new FakeNet();
    net.answers['SUBSCRIBE'] = () => ({});
    net.answers['ACK'] = (f) => ({ results: f['ids'].map((id: string) => ({ id, ok: true })) });
    const hub = new Client('http://hub', options(net));
    let finish = () => {};
    const attempts: number[] = [];
    const aborted: number[] = [];
    await hub.subscribe('a', 'g', (_, d) => {
      attempts.push(d.attempt);
      d.signal.addEventListener('abort', () => aborted.push(d.attempt));
      return new Promise<void>((resolve, reject) => (finish = () => (succeeds || d.attempt > 1 ? resolve() : reject(new Error('no')))));
    });
    net.sockets[0]!.give(events(event(1)));
    net.sockets[0]!.lose();
    const second = await net.until(() => net.sockets[1]?.frames('SUBSCRIBE').length === 1 && net.sockets[1]);
    assert.deepEqual(aborted, [1], 'its signal');
    second.give(events(event(1, 2)));
    assert.deepEqual(attempts, [1], 'handlers at a time');
    finish();
    if (!succeeds) {
      await new Promise(setImmediate);
      assert.deepEqual(attempts, [1, 2], 'it has its turn');
      finish();
    }
    await net.until(() => second.frames('ACK').length === 1);
    assert.equal(second.frames('NACK').length, 0, 'a lease that is over is not given back');
    await hub.close({ signal: AbortSignal.timeout(50) });
    assert.deepEqual(attempts, succeeds ? [1] : [1, 2]);
  }
});

test('acks that come together go together', limit, async () => {
  const net = new FakeNet();
  net.answers['SUBSCRIBE'] = () => ({});
  const hub = new Client('http://hub', options(net));
  const told: unknown[] = [];
  await hub.subscribe('a', 'g', () => {}, { concurrency: 1, onError: (e) => told.push(e) });
  const socket = net.sockets[0]!;
  for (let n = 0; n < 10; n++) {
    socket.give(events(...Array.from({ length: 10 }, (_, i) => event(10 * n + i))));
    await new Promise(setImmediate);
  }
  assert.deepEqual(socket.frames('ACK').map((f) => f['ids'].length), [10, 10], 'frames without an answer');
  socket.ok(socket.frames('ACK')[0]!, { results: [{ id: 'id0', ok: false, err: 'unknown_id' }] });
  assert.deepEqual(socket.frames('ACK').map((f) => f['ids'].length), [10, 10, 80]);
  assert.deepEqual(told.map((e) => (e as PrometheanError).code), ['unknown_id'], 'an ack that had no effect is told');
  await hub.close({ signal: AbortSignal.timeout(10) });
});

test('a member of a partitioned group is told what it has, and acks with leases', limit, async () => {
  const net = new FakeNet();
  net.answers['SUBSCRIBE'] = () => ({});
  const hub = new Client('http://hub', options(net));
  const told: unknown[] = [];
  const order: unknown[] = [];
  const sub = await hub.subscribe<number>('a', 'g', (e) => void order.push(e.payload), {
    partitioned: true, member: 'me', onAssign: (generation, partitions) => { told.push([generation, partitions]); order.push('assign'); },
  });
  const first = net.sockets[0]!;
  assert.deepEqual(first.frames('SUBSCRIBE')[0]!['opts'], { batch: 100, member: 'me', partitioned: true });
  first.give({ op: 'ASSIGN', topic: 'a', group: 'g', generation: 2, partitions: [0, 3] });
  first.give({ op: 'ASSIGN', topic: 'a', group: 'other', generation: 9, partitions: [] });
  first.give(events(event(1)));
  assert.deepEqual(told, [[2, [0, 3]]]);
  assert.deepEqual(order, ['assign', 1]);
  const ack = await net.until(() => first.frames('ACK')[0]);
  assert.equal(ack['leases'].length, 1);
  first.lose();
  // It comes back under its name, and the ack goes again with its lease.
  const second = await net.until(() => net.sockets[1]?.frames('SUBSCRIBE').length === 1 && net.sockets[1]);
  assert.deepEqual(second.frames('ACK')[0]!['leases'], ack['leases']);
  assert.equal(second.frames('SUBSCRIBE')[0]!['opts'].member, 'me');
  second.ok(second.frames('ACK')[0]!, { results: [{ id: 'id1', ok: true }] });
  // One that was not heard of for too long is made again.
  second.give({ op: 'ERR', code: 'unavailable', msg: 'swept', topic: 'a', group: 'g', member: 'me' });
  await net.until(() => second.frames('SUBSCRIBE').length === 2);
  // One whose name another has taken is over; the connection is not.
  second.give({ op: 'ERR', code: 'fenced', msg: 'another member has come', topic: 'a', group: 'g', member: 'me' });
  assert.equal((await sub.closed)?.code, 'fenced');
  assert.equal(second.closedWith, undefined);
  second.give({ op: 'ASSIGN', topic: 'a', group: 'g', generation: 3, partitions: [] });
  assert.equal(told.length, 1);
  assert.equal(second.frames('UNSUBSCRIBE').length, 0);
  await hub.close({ signal: AbortSignal.timeout(50) });
});

test('a subscription that the hub refuses later is over with the reason', limit, async () => {
  const net = new FakeNet();
  net.answers['SUBSCRIBE'] = () => ({});
  const hub = new Client('http://hub', options(net));
  const sub = await hub.subscribe('a', 'g', () => {});
  let refusals = 0;
  net.answers['SUBSCRIBE'] = (f, s) => void s.err(f, refusals++ < 2 ? 'unavailable' : 'forbidden', 'no longer');
  net.sockets[0]!.lose();
  const reason = await sub.closed;
  assert.ok(reason instanceof PrometheanError);
  assert.deepEqual([reason.code, reason.message, refusals], ['forbidden', 'no longer', 3]);
  await sub.stop();
  await hub.close();
});

test('a hub that is none is left', limit, async () => {
  for (const nonsense of ['no JSON', new Uint8Array(3)]) {
    const net = new FakeNet();
    const waits: Status[] = [];
    const hub = new Client('http://hub', options(net, { onStatus: (s) => void (s.state === 'waiting' && waits.push(s)) }));
    await hub.ready();
    net.sockets[0]!.onmessage!({ data: nonsense });
    await net.until(() => net.sockets[1]);
    assert.equal(waits[0]!.error!.code, 'internal');
    await hub.close();
  }
});

test('answers over HTTP that are not from a hub are named', limit, async () => {
  const answer = (status: number, body: string, headers: Record<string, string> = {}) => new Client('http://hub', { fetch: async () => new Response(body, { status, headers }) });
  await assert.rejects(answer(200, '<html>').replay('a'), { code: 'unsupported', message: /is this a Promethean hub/ });
  await assert.rejects(answer(200, '<html>').tail('a').next(), { code: 'unsupported' });
  await assert.rejects(answer(502, '<html>').replay('a'), { code: 'unavailable', status: 502, retryable: true });
  await assert.rejects(answer(404, 'no').replay('a'), { code: 'not_found', status: 404, retryable: false });
  await assert.rejects(answer(429, '{"code":"rate_limited","detail":"slow down"}', { 'retry-after': '2' }).replay('a'), { code: 'rate_limited', message: 'slow down', retryAfterMs: 2_000 });
});

test('a token that ends is replaced where there is another', limit, async () => {
  const jwt = (exp: number) => ['{}', JSON.stringify({ exp }), 'x'].map((p) => Buffer.from(p).toString('base64url')).join('.');
  const now = Date.now() / 1000;
  const tokens = [jwt(now + 0.2), jwt(now + 3_600)];
  const net = new FakeNet();
  net.answers['AUTH'] = () => ({});
  const hub = await connect('http://hub', options(net, { token: async () => tokens.shift()! }));
  const auths = await net.until(() => net.sockets[0]!.frames('AUTH').length === 2 && net.sockets[0]!.frames('AUTH'));
  assert.notEqual(auths[0]!['token'], auths[1]!['token']);
  assert.equal(net.sockets.length, 1, 'connections');
  await hub.close();

  // A fixed one cannot be: the client is over.
  const other = new FakeNet();
  other.answers['AUTH'] = () => ({});
  const fixed = await connect('http://hub', options(other, { token: 'x' }));
  const waiting = fixed.publish('a', 1);
  other.sockets[0]!.lose(4100, 'the token has ended');
  await assert.rejects(waiting, { code: 'unauthorized' });
  assert.equal(fixed.status.state, 'closed');
  await assert.rejects(fixed.publish('a', 2), { code: 'unauthorized' });
});

test('a runtime without a WebSocket is told what to do', limit, async () => {
  const { WebSocket } = globalThis;
  try {
    delete (globalThis as { WebSocket?: unknown }).WebSocket;
    await assert.rejects(connect('http://hub'), { code: 'unsupported', message: /Node 22.*options\.WebSocket/ });
  } finally {
    globalThis.WebSocket = WebSocket;
  }
});

test('a stop that no longer waits ends the signals of handlers', limit, async () => {
  const net = new FakeNet();
  net.answers['SUBSCRIBE'] = net.answers['UNSUBSCRIBE'] = net.answers['PAUSE'] = () => ({});
  const hub = new Client('http://hub', options(net));
  let ended: unknown;
  const sub = await hub.subscribe('a', 'g', (_, d) => new Promise((_, reject) => d.signal.addEventListener('abort', () => reject((ended = d.signal.reason)))));
  net.sockets[0]!.give(events(event(1), event(2)));
  await sub.stop({ signal: AbortSignal.timeout(10) });
  assert.equal((ended as PrometheanError).code, 'closed');
  assert.deepEqual(net.sockets[0]!.sent.map((f) => f.op), ['SUBSCRIBE', 'PAUSE', 'UNSUBSCRIBE']);
  await hub.close();
});

test('leases are extended together, and one that is fenced is lost', limit, async () => {
  const net = new FakeNet();
  net.answers['SUBSCRIBE'] = () => ({});
  const hub = new Client('http://hub', options(net));
  const lost: number[] = [];
  await hub.subscribe<number>('a', 'g', (e, d) => new Promise((_, reject) => d.signal.addEventListener('abort', () => {
    lost.push(e.payload);
    reject(d.signal.reason);
  })), { ackTimeoutMs: 60, concurrency: 2 });
  const socket: FakeSocket = net.sockets[0]!;
  socket.give(events(event(1), event(2), event(3)));
  const modack = await net.until(() => socket.frames('MODACK')[0]);
  assert.deepEqual([modack['ids'], modack['leases'], modack['extend_ms']], [['id1', 'id2', 'id3'], ['lease1.1', 'lease2.1', 'lease3.1'], 60]);
  socket.ok(modack, { results: [{ id: 'id1', ok: true }, { id: 'id2', ok: false, err: 'fenced' }, { id: 'id3', ok: false, err: 'fenced' }] });
  const next = await net.until(() => socket.frames('MODACK')[1]);
  assert.deepEqual(next['ids'], ['id1'], 'what is left');
  assert.deepEqual(lost, [2], 'what ran and was lost; what had not begun never does');
  assert.equal(socket.frames('NACK').length, 0);
  await hub.close({ signal: AbortSignal.timeout(10) });
});

test('what a handler throws reaches the hub as a reason, whatever it is', limit, async () => {
  const thrown: [unknown, string][] = [[new Error('plain'), 'plain'], ['text', 'text'], [undefined, 'undefined'], [new Error(''), 'Error'], [new Error('\ud83d'), '\ufffd'], [new Error(`${'x'.repeat(999)}😀`), `${'x'.repeat(999)}\ufffd`]];
  const net = new FakeNet();
  net.answers['SUBSCRIBE'] = () => ({});
  const hub = new Client('http://hub', options(net));
  const told: unknown[] = [];
  await hub.subscribe<number>('a', 'g', (e) => {
    throw thrown[e.payload]![0];
  }, { onError: (error) => told.push(error) });
  net.sockets[0]!.give(events(...thrown.map((_, n) => event(n))));
  assert.deepEqual(net.sockets[0]!.frames('NACK').map((f) => f['reason']), thrown.map(([, reason]) => reason));
  assert.deepEqual(told, thrown.map(([error]) => error));
  await hub.close({ signal: AbortSignal.timeout(10) });
});

test('nothing is left behind', () => {
  // Every client above is closed; a timer that is left would keep a program alive.
  assert.deepEqual(process.getActiveResourcesInfo().filter((r) => r === 'Timeout'), []);
});
