// What only Node can try against the real program.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createHmac } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { connect, type Client } from 'promethean-client';
import { Hub, needsHub } from './hub.js';

const options = { ...needsHub, timeout: 60_000 };

/** What the test at hand has opened: left open by one that fails, it would keep Node alive. */
let opened: Client[] = [];

async function open(...args: Parameters<typeof connect>): Promise<Client> {
  const client = await connect(...args);
  opened.push(client);
  return client;
}

async function withHub(hub: Hub, use: (hub: Hub) => Promise<void>): Promise<void> {
  opened = [];
  try {
    await use(await hub.start());
  } finally {
    await hub.remove();
    await Promise.allSettled(opened.map((c) => c.close({ signal: AbortSignal.timeout(100) })));
  }
}

function sign(secret: string, claims: object): string {
  const text = [{ alg: 'HS256', typ: 'JWT' }, claims].map((p) => Buffer.from(JSON.stringify(p)).toString('base64url')).join('.');
  return `${text}.${createHmac('sha256', secret).update(text).digest('base64url')}`;
}

test('a connection outlives its token where another can be had', options, () => {
  const secret = 'a secret that is long enough for the hub to take it';
  return withHub(new Hub(['--auth-jwt-secret-env', 'TS_SECRET'], { TS_SECRET: secret }), async ({ url }) => {
    const states: string[] = [];
    const given: number[] = [];
    const token = () => {
      given.push(Math.floor(Date.now() / 1000) + 6);
      return sign(secret, { sub: 'ts', exp: given.at(-1), scope: 'publish:a.b subscribe:a.b' });
    };
    const hub = await open(url, { token, onStatus: (s) => states.push(s.state) });
    let attempt = 0;
    let finish = () => {};
    await hub.subscribe('a.b', 'g', (_, d) => {
      attempt = d.attempt;
      return new Promise<void>((resolve) => (finish = resolve));
    });
    await hub.publish('a.b', 1);
    while (given.length < 4 || Date.now() / 1000 < given[1]! + 1) await hub.publish('a.b', 2);
    finish();
    assert.deepEqual(states, ['connecting', 'open'], 'the connection was never lost');
    assert.equal(attempt, 1);
    await hub.close({ signal: AbortSignal.timeout(100) });
  });
});

test('a hub that is stopped and started again costs no attempt', options, () =>
  withHub(new Hub(), async (process) => {
    const hub = await open(process.url, { backoff: { minMs: 20, maxMs: 100 } });
    const attempts: number[] = [];
    let begun = () => {};
    const running = new Promise<void>((resolve) => (begun = resolve));
    let done = () => {};
    const finished = new Promise<void>((resolve) => (done = resolve));
    await hub.subscribe('a.b', 'g', async (_, d) => {
      attempts.push(d.attempt);
      if (attempts.length > 1) return done();
      begun();
      await new Promise((_, reject) => d.signal.addEventListener('abort', () => reject(d.signal.reason)));
    });
    await hub.publish('a.b', 1);
    await running;
    await process.end('SIGTERM');
    await process.start();
    await finished;
    assert.deepEqual(attempts, [1, 1]);
    await hub.close();
  }));

test('work that outlasts an outage is acked and not done again', options, () =>
  withHub(new Hub(), async (process) => {
    const hub = await open(process.url, { backoff: { minMs: 20, maxMs: 100 } });
    let runs = 0;
    let begun = () => {};
    const running = new Promise<void>((resolve) => (begun = resolve));
    let finish = () => {};
    await hub.subscribe('a.b', 'g', () => {
      runs++;
      begun();
      return new Promise<void>((resolve) => (finish = resolve));
    });
    await hub.publish('a.b', 1);
    await running;
    await process.crash();
    await hub.ready();
    finish();
    while ((await hub.lag('a.b', 'g')).lag > 0);
    assert.equal(runs, 1);
    await hub.close();
  }));

test('two clients share a group, and each event is handled once', options, () =>
  withHub(new Hub(), async ({ url }) => {
    const clients = await Promise.all([open(url), open(url)]);
    const handled = [0, 0];
    const seen = new Set<string>();
    await clients[0]!.setGroup('a.b', 'g', { from: 'earliest' });
    for (const [i, c] of clients.entries()) {
      await c.subscribe('a.b', 'g', async (e) => {
        assert.ok(!seen.has(e.id), 'handled twice');
        seen.add(e.id);
        handled[i]!++;
        await new Promise(setImmediate);
      }, { maxInFlight: 10 });
    }
    await clients[0]!.publishBatch(Array.from({ length: 500 }, (_, payload) => ({ topic: 'a.b', payload })));
    while ((await clients[0]!.lag('a.b', 'g')).lag > 0);
    assert.equal(seen.size, 500);
    assert.ok(handled[0]! > 0 && handled[1]! > 0, `handled: ${handled}`);
    await Promise.all(clients.map((c) => c.close()));
  }));

test('members of a partitioned group have its partitions among them', options, () =>
  withHub(new Hub(), async ({ url }) => {
    const clients = await Promise.all([open(url), open(url)]);
    const until = async (holds: () => boolean) => {
      while (!holds()) await new Promise(setImmediate);
    };
    await clients[0]!.setTopic('a.b', { partitions: 8 });
    const has: number[][] = [[], []];
    const last = new Map<string, number>();
    const seen = new Set<string>();
    const subs = [];
    for (const [i, c] of clients.entries()) {
      subs.push(await c.subscribe<number>('a.b', 'g', async (e) => {
        assert.ok(has[i]!.includes(e.partition!), `partition ${e.partition} came to the owner of ${has[i]}`);
        assert.ok((last.get(e.key!) ?? -1) < e.seq, `the order of ${e.key}`);
        last.set(e.key!, e.seq);
        seen.add(e.id);
        await new Promise(setImmediate);
      }, { from: 'earliest', partitioned: true, member: `m${i}`, onAssign: (_, partitions) => void (has[i] = partitions) }));
    }
    await until(() => has[0]!.length === 4 && has[1]!.length === 4);
    assert.deepEqual([...has[0]!, ...has[1]!].sort(), [0, 1, 2, 3, 4, 5, 6, 7]);
    await clients[0]!.publishBatch(Array.from({ length: 500 }, (_, n) => ({ topic: 'a.b', payload: n, key: `k${n % 50}` })));
    while ((await clients[0]!.lag('a.b', 'g')).lag > 0);
    assert.equal(seen.size, 500);
    const [shown] = await clients[0]!.groupPartitions('g', 'a.b');
    assert.deepEqual(shown!.members.map((m) => [m.id, m.static, m.partitions]), [['m0', true, has[0]], ['m1', true, has[1]]]);
    assert.equal(shown!.partitions.length, 8);
    // A group is partitioned or not.
    await assert.rejects(clients[1]!.pull('a.b', 'g'), { code: 'group_conflict' });
    // Another member of the same name takes its place.
    const third = await open(url);
    let all: number[] = [];
    await third.subscribe('a.b', 'g', () => {}, { partitioned: true, member: 'm1', onAssign: (_, partitions) => void (all = partitions) });
    assert.equal((await subs[1]!.closed)?.code, 'fenced');
    await until(() => all.length === 4);
    await subs[0]!.stop();
    await until(() => all.length === 8);
    await Promise.all([...clients, third].map((c) => c.close()));
  }));

test('a program ends by itself when it has closed its client', options, () =>
  withHub(new Hub(), async ({ url }) => {
    const script = `
      import { connect } from ${JSON.stringify(fileURLToPath(new URL('../dist/index.js', import.meta.url)))};
      const hub = await connect(${JSON.stringify(url)});
      const got = new Promise((resolve) => hub.subscribe('a.b', 'g', resolve, { from: 'earliest' }));
      await hub.publish('a.b', 1);
      for await (const event of hub.tail('a.b', { from: 'earliest' })) break;
      await got;
      await hub.close();
      console.log('closed');
    `;
    const child = spawn(process.execPath, ['--no-warnings', '--input-type=module', '-e', script], { stdio: ['ignore', 'pipe', 'inherit'] });
    let out = '';
    let closedAt = 0;
    child.stdout.on('data', (s) => {
      out += s;
      closedAt = Date.now();
    });
    const code = await new Promise((resolve) => child.once('exit', resolve));
    assert.deepEqual([code, out], [0, 'closed\n']);
    assert.ok(Date.now() - closedAt < 5_000, 'something kept it alive');
  }));

test('views are asked and built anew', options, () => {
  const dir = mkdtempSync(join(tmpdir(), 'promethean-views-'));
  const config = join(dir, 'views.yaml');
  writeFileSync(config, 'views:\n  processes: {topic: process.state, key: .id, indexes: [status, {fields: [pid], unique: true}]}\n');
  return withHub(new Hub(['--config', config]), async ({ url }) => {
    const hub = await open(url);
    const states = [{ id: 'a/1', pid: 1, status: 'up' }, { id: 'b', pid: 2, status: 'up' }, { id: 'b', pid: 2, status: 'down' }];
    await hub.publishBatch(states.map((payload, i) => ({ topic: 'process.state', key: payload.id, ts: i + 1, payload })));
    const caughtUp = async () => (await hub.views.get('processes')).lag === 0;
    while (!(await caughtUp())) await new Promise((resolve) => setTimeout(resolve, 20));
    const [view] = await hub.views.list();
    assert.equal(view!.name, 'processes');
    assert.deepEqual(view!.collections, [{ name: 'processes', count: 2, indexes: [['status'], ['pid']] }]);
    const snap = await hub.views.snap<{ id: string; status: string }>('processes', 'a/1');
    assert.deepEqual(snap!.document, { _key: 'a/1', _ts: 1, id: 'a/1', pid: 1, status: 'up' });
    assert.match(snap!.etag, /^"[0-9a-f]+"$/);
    assert.equal(await hub.views.snap('processes', 'nobody'), undefined);
    await assert.rejects(hub.views.snap('nothing', 'a'), { code: 'not_found' });
    assert.deepEqual((await hub.views.documents('processes', { where: { pid: 2 } })).items.map((d) => d._key), ['b']);
    assert.equal((await hub.views.documents('processes', { where: { status: 'up' }, limit: 1 })).count, 1);
    await assert.rejects(hub.views.documents('processes', { where: { id: 'b' } }), { code: 'invalid_argument' });
    await hub.views.rebuild('processes');
    while ((await hub.views.get('processes')).rebuild?.state !== 'done') await new Promise((resolve) => setTimeout(resolve, 20));
    assert.equal((await hub.views.documents('processes')).count, 2);
    await hub.close();
  }).finally(() => rmSync(dir, { recursive: true, force: true }));
});

test('feeds and outboxes of a hub whose databases are away are seen to wait', options, () => {
  const dir = mkdtempSync(join(tmpdir(), 'promethean-inflow-'));
  const config = join(dir, 'inflow.yaml');
  writeFileSync(config, `changefeeds:\n  orders: {uri: "postgres://127.0.0.1:1/x", table: orders, topic: orders.changed}\noutboxes:\n  shop: {uri: "sqlite://${join(dir, 'none.db')}"}\n`);
  return withHub(new Hub(['--config', config]), async ({ url }) => {
    const hub = await open(url);
    while ((await hub.changefeeds())[0]!.state !== 'waiting' || (await hub.outboxes())[0]!.state !== 'outage') await new Promise((resolve) => setTimeout(resolve, 20));
    const [feed] = await hub.changefeeds();
    assert.deepEqual([feed!.name, feed!.topic, feed!.published], ['orders', 'orders.changed', 0]);
    assert.match(feed!.error!, /connect/);
    assert.equal((await hub.resyncChangefeed('orders')).name, 'orders');
    await assert.rejects(hub.resyncChangefeed('none'), { code: 'not_found' });
    const [box] = await hub.outboxes();
    assert.match(box!.outage!, /none\.db/);
    await assert.rejects(hub.outboxErrors('shop'), { code: 'unavailable' });
    await assert.rejects(hub.retryOutbox('none'), { code: 'not_found' });
    await assert.rejects(hub.discardOutbox('shop', []), { code: 'unavailable' });
    await hub.close();
  }).finally(() => rmSync(dir, { recursive: true, force: true }));
});
