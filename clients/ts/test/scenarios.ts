/**
 * What the client has to do, told once and played in Node and in a browser.
 * Nothing of Node may be used here.
 */
import {
  Client, connect, dead, newId, partitionFor, PrometheanError, rawJSON, retry, type ClientOptions, type PrometheanEvent, type Status,
} from 'promethean-client';

/** What a scenario finds. */
export interface World {
  /** A hub without auth. */
  url: string;
  /** Kills that hub as kill -9 does, and starts it again. */
  crash(): Promise<void>;
  /** A hub with auth, and its only token. */
  guarded: { url: string; token: string };
}

function check(condition: unknown, message: string): asserts condition {
  if (!condition) throw new Error(message);
}

function equal(got: unknown, want: unknown, what: string): void {
  check(JSON.stringify(got) === JSON.stringify(want), `${what}: got ${JSON.stringify(got)}, want ${JSON.stringify(want)}`);
}

/** Waits for a condition. */
async function until(what: string, condition: () => boolean | Promise<boolean>, ms = 30_000): Promise<void> {
  for (const end = Date.now() + ms; !(await condition()); ) {
    check(Date.now() < end, `waited ${ms} ms in vain: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** The code that a promise fails with. */
async function codeOf(promise: Promise<unknown>): Promise<string> {
  try {
    await promise;
  } catch (error) {
    check(error instanceof PrometheanError, `not a PrometheanError: ${error}`);
    return error.code;
  }
  return 'none';
}

/** What a promise fails with. */
async function failureOf(promise: Promise<unknown>): Promise<PrometheanError> {
  try {
    await promise;
  } catch (error) {
    check(error instanceof PrometheanError, `not a PrometheanError: ${error}`);
    return error;
  }
  throw new Error('it did not fail');
}

/** A schema whose field of memory changes its name. */
const beat = (mem: string) => ({
  type: 'object', additionalProperties: false, required: ['pid', mem], properties: { pid: { type: 'integer' }, [mem]: { type: 'number' } },
});
const rename = '.mem_mib = .mem_mb | del(.mem_mb)';

/** A payload with its names in order. */
const sorted = (payload: unknown) => Object.fromEntries(Object.entries(payload as object).sort());

let topics = 0;
const freshTopic = () => `t${Date.now()}x${++topics}.events`;

/** Closes the client also where the scenario fails: it would go on for ever. */
async function withClient(url: string, use: (hub: Client) => Promise<void>, options: ClientOptions = {}): Promise<void> {
  const hub = await connect(url, { backoff: { minMs: 20, maxMs: 300 }, ...options });
  try {
    await use(hub);
  } finally {
    await hub.close({ signal: AbortSignal.timeout(5_000) });
  }
}

export const scenarios: Record<string, (w: World) => Promise<void>> = {
  'publish gives seqs, finds duplicates and conflicts': ({ url }) =>
    withClient(url, async (hub) => {
      const topic = freshTopic();
      const first = await hub.publish(topic, { n: 1 }, { key: 'k', tags: ['a'], headers: { 'x-schema-version': '2' } });
      equal([first.seq, first.duplicate], [1, false], 'first receipt');
      const again = await hub.publish(topic, { n: 1 }, { id: first.id });
      equal(again, { id: first.id, seq: 1, duplicate: true }, 'the same id');
      try {
        await hub.publish(topic, null, { expect_seq: 7 });
        check(false, 'a wrong expect_seq passed');
      } catch (error) {
        check(error instanceof PrometheanError, String(error));
        equal([error.code, error.expected, error.actual, error.retryable], ['seq_conflict', 7, 1, false], 'conflict');
      }
      equal((await hub.publish(topic, null, { expect_seq: 1 })).seq, 2, 'right expect_seq');
      const batch = await hub.publishBatch([{ topic, payload: 1, id: first.id }, { topic, payload: 'two' }, { topic, payload: [3] }]);
      equal(batch.map((r) => [r.seq, r.duplicate]), [[1, true], [3, false], [4, false]], 'batch');
      equal(await hub.publishBatch([]), [], 'an empty batch');
      const page = await hub.replay<unknown>(topic);
      equal(page.events.map((e) => e.payload), [{ n: 1 }, null, 'two', [3]], 'what is stored');
      const stored = page.events[0]!;
      equal([stored.key, stored.tags, stored.headers], ['k', ['a'], { 'x-schema-version': '2' }], 'its options');
    }),

  'schemas are registered, checked and held to': ({ url }) =>
    withClient(url, async (hub) => {
      const topic = freshTopic();
      equal(await codeOf(hub.schemas.get(topic)), 'not_found', 'no schema');
      const first = await hub.schemas.register(topic, { schema: beat('mem_mb') });
      equal([first.topic, first.version, first.compat, first.fresh], [topic, 1, 'backward', true], 'first version');
      equal((await hub.schemas.register(topic, { schema: beat('mem_mb'), version: 1 })).fresh, false, 'the same again');
      const found = await hub.schemas.check(topic, { schema: beat('mem_mib') });
      check(!found.compatible && found.problems.length > 0 && found.problems[0]!.rule && found.problems[0]!.detail, `problems: ${JSON.stringify(found)}`);
      const refused = await failureOf(hub.schemas.register(topic, { schema: beat('mem_mib') }));
      equal([refused.code, refused.status, refused.problems?.length, refused.retryable], ['schema_conflict', 409, found.problems.length, false], 'refused');
      equal((await hub.schemas.check(topic, { schema: beat('mem_mib'), upcast: rename })).compatible, true, 'with an upcaster');
      await hub.schemas.register(topic, { schema: beat('mem_mib'), upcast: rename });
      const latest = await hub.schemas.get(topic);
      equal([latest.version, latest.upcast, latest.schema], [2, rename, beat('mem_mib')], 'latest');
      equal((await hub.schemas.get(topic, 1)).version, 1, 'by number');
      equal((await hub.schemas.versions(topic)).map((v) => v.version), [1, 2], 'versions');
      equal((await hub.schemas.list()).find((s) => s.topic === topic)?.versions, [1, 2], 'list');
      equal(sorted(await hub.schemas.validate(topic, { pid: 1, mem_mb: 2 }, 1)), { errors: [], valid: true, version: 1 }, 'valid');
      const invalid = await hub.schemas.validate(topic, { payload: 1 });
      check(!invalid.valid && invalid.version === 2 && invalid.errors.length > 1 && invalid.errors[0]!.message, `errors: ${JSON.stringify(invalid)}`);
      const invalidPublish = await failureOf(hub.publish(topic, { pid: 'x' }));
      check(invalidPublish.code === 'schema_invalid' && invalidPublish.errors?.some((e) => e.path === '/pid'), `publish: ${JSON.stringify(invalidPublish)}`);
      const settings = (await hub.setTopic(topic, { legacy_version: 1, dual_write: true })).settings;
      equal([settings.legacy_version, settings.dual_write, settings.dual_write_to], [1, true, `${topic}.v2`], 'settings');
    }),

  'readers that normalise see the latest version only': ({ url }) =>
    withClient(url, async (hub) => {
      const topic = freshTopic();
      await hub.schemas.register(topic, { schema: beat('mem_mb') });
      await hub.publish(topic, { pid: 1, mem_mb: 100 });
      await hub.schemas.register(topic, { schema: beat('mem_mib'), upcast: rename });
      await hub.publish(topic, { pid: 2, mem_mb: 100 }, { headers: { 'x-schema-version': '1' } });
      await hub.publish(topic, { pid: 3, mem_mib: 100 });
      const want = [1, 2, 3].map((pid) => ['2', { mem_mib: 100, pid }]);
      const seen = (list: PrometheanEvent[], what: string) =>
        equal(list.map((e) => [e.headers?.['x-schema-version'], sorted(e.payload)]), want, what);
      const three = async (events: AsyncIterable<PrometheanEvent>) => {
        const list: PrometheanEvent[] = [];
        for await (const e of events) if (list.push(e) === 3) break;
        return list;
      };
      seen((await hub.replay(topic, { normalise: true })).events, 'replay');
      seen(await three(hub.read(topic, { normalise: true, limit: 2 })), 'read');
      seen(await three(hub.export(topic, { normalise: true })), 'export');
      seen(await three(hub.tail(topic, { from: 'earliest', normalise: true })), 'tail');
      seen((await hub.pull(topic, 'p', { waitMs: 10_000, opts: { from: 'earliest', ordering: 'none', normalise: true } })).map((p) => p.event), 'pull');
      const handled: PrometheanEvent[] = [];
      const sub = await hub.subscribe(topic, 'g', (e) => void handled.push(e), { from: 'earliest', ordering: 'topic', normalise: true });
      await until('three are handled', () => handled.length === 3);
      seen(handled, 'subscribe');
      await sub.stop();
      equal((await hub.replay<object>(topic)).events.map((e) => 'mem_mb' in e.payload), [true, true, false], 'as stored');
      // No way to version 3: with a group a dead letter, else an error that names the event.
      await hub.schemas.register(topic, { schema: { type: 'object', required: ['v3'] }, compat: 'none' });
      await hub.subscribe(topic, 'late', () => { throw dead('it came half done'); }, { from: 'earliest', normalise: true });
      await until('the dead letters are there', async () => (await hub.deadLetters(topic, { group: 'late' })).length === 3);
      check((await hub.deadLetters(topic)).every((l) => l.err.includes('upcaster')), 'reasons of the dead letters');
    }),

  'a stream that cannot go on ends with an error that names the event': ({ url }) =>
    withClient(url, async (hub) => {
      const topic = freshTopic();
      const good = 300;
      await hub.schemas.register(topic, { schema: { type: 'object', required: ['fill'] } });
      const headers = { 'x-schema-version': '1' };
      await hub.publishBatch(Array.from({ length: good }, () => ({ topic, payload: { fill: 'x'.repeat(1000) }, headers })));
      await hub.schemas.register(topic, {
        schema: { type: 'object', required: ['fill', 'n'] }, upcast: 'if .fill == "nobody would think of it" then error("no way") else .n = 1 end',
      });
      await hub.publish(topic, { fill: 'nobody would think of it' }, { headers });
      await hub.publish(topic, { fill: 'after' }, { headers });
      const streams: Record<string, AsyncIterable<PrometheanEvent>> = {
        read: hub.read(topic, { normalise: true }),
        export: hub.export(topic, { normalise: true }),
        tail: hub.tail(topic, { from: 'earliest', normalise: true }),
      };
      for (const [what, events] of Object.entries(streams)) {
        const seqs: number[] = [];
        const failure = await failureOf((async () => {
          for await (const e of events) seqs.push(e.seq);
        })());
        equal([failure.code, failure.seq, failure.retryable], ['schema_invalid', good + 1, false], `${what}: ${failure.message}`);
        check(failure.message.includes(`seq ${good + 1}`), `${what}: ${failure.message}`);
        check(seqs.every((seq, i) => seq === i + 1) && seqs.length <= good, `${what}: ${seqs.length} events`);
        if (what === 'tail') equal(seqs.length, good, 'events before it');
      }
    }),

  'publish says what is wrong': ({ url }) =>
    withClient(url, async (hub) => {
      const topic = freshTopic();
      equal(await codeOf(hub.publish('Not.A.Topic', 1)), 'invalid_topic', 'topic');
      equal(await codeOf(hub.publish(topic, undefined)), 'invalid_argument', 'undefined');
      equal(await codeOf(hub.publish(topic, 10n)), 'invalid_argument', 'a BigInt');
      equal(await codeOf(hub.publish(topic, 1, { headers: { 'Not-X': '1' } })), 'invalid_header', 'header');
      equal(await codeOf(hub.publish(topic, '\ud800')), 'bad_json', 'half a character');
      equal(await codeOf(hub.publish(topic, rawJSON('{"a":1,"a":2}'))), 'bad_json', 'a name twice');
      equal(await codeOf(hub.publish(topic, 'x'.repeat(2 << 20))), 'payload_too_large', 'a large payload');
      equal(await codeOf(hub.publish(topic, 'x'.repeat(9 << 20))), 'payload_too_large', 'a frame over the limit');
      equal(await codeOf(hub.publishBatch(Array.from({ length: 10_001 }, () => ({ topic, payload: 1 })))), 'batch_too_large', 'a long batch');
      try {
        await hub.publishBatch([{ topic, payload: 1 }, { topic: 'NO', payload: 2 }]);
        check(false, 'a bad row passed');
      } catch (error) {
        check(error instanceof PrometheanError, String(error));
        equal([error.code, error.index], ['invalid_topic', 1], 'bad row');
      }
      equal((await hub.replay(topic)).count, 0, 'stored of all that');
      equal((await hub.publish(topic, 1)).seq, 1, 'and the connection still works');
    }),

  'a frame that only the hub finds too large fails alone': ({ url }) =>
    withClient(url, async (hub) => {
      const topic = freshTopic();
      const small = Array.from({ length: 20 }, (_, n) => hub.publish(topic, n));
      const large = codeOf(hub.publish(topic, 'x'.repeat(10 << 20), { signal: AbortSignal.timeout(20_000) }));
      const later = Array.from({ length: 20 }, (_, n) => hub.publish(topic, 20 + n));
      equal(await large, 'payload_too_large', 'the large one');
      await Promise.all([...small, ...later]);
      equal((await hub.replay(topic)).events.map((e) => e.payload), Array.from({ length: 40 }, (_, n) => n), 'the others, in order');
    }, { maxFrameBytes: 64 << 20 }),

  'handlers ack, give back, delay and bury': ({ url }) =>
    withClient(url, async (hub) => {
      const topic = freshTopic();
      const seen: string[] = [];
      const errors: unknown[] = [];
      let delayed = 0;
      const sub = await hub.subscribe<string>(topic, 'g', async (e, d) => {
        seen.push(`${e.payload}${d.attempt}`);
        if (e.payload === 'throws' && d.attempt === 1) throw new Error('first time');
        if (e.payload === 'later' && d.attempt === 1) {
          delayed = Date.now();
          throw retry(300, 'not yet');
        }
        if (e.payload === 'later') delayed = Date.now() - delayed;
        if (e.payload === 'poison') throw dead('cannot be read');
      }, { from: 'earliest', onError: (e) => errors.push(e) });
      for (const payload of ['good', 'throws', 'later', 'poison']) await hub.publish(topic, payload);
      await until('all are settled', async () => (await hub.lag(topic, 'g')).lag === 0);
      equal(seen.sort(), ['good1', 'later1', 'later2', 'poison1', 'throws1', 'throws2'], 'deliveries');
      check(delayed >= 290, `came again after ${delayed} ms, not 300`);
      const letters = await hub.deadLetters<string>(topic);
      equal(letters.map((l) => [l.original.payload, l.err, l.attempts]), [['poison', 'cannot be read', 1]], 'dead letters');
      equal(errors.map((e) => (e as Error).message).sort(), ['cannot be read', 'first time', 'not yet'], 'errors told');
      await sub.stop();
      equal(await sub.closed, undefined, 'closed');
      equal((await hub.groups(topic)).map((g) => [g.group, g.members]), [['g', 0]], 'members after stop');
    }),

  'events of a key are handled in order, keys in parallel': ({ url }) =>
    withClient(url, async (hub) => {
      const topic = freshTopic();
      const events = Array.from({ length: 200 }, (_, n) => ({ topic, key: `k${n % 5}`, payload: n }));
      await hub.publishBatch(events);
      const seen: Record<string, number[]> = {};
      const busy = new Set<string>();
      let most = 0;
      await hub.subscribe<number>(topic, 'g', async (e) => {
        check(!busy.has(e.key!), `two of key ${e.key} at a time`);
        busy.add(e.key!);
        most = Math.max(most, busy.size);
        check(busy.size <= 3, `${busy.size} handlers at a time, 3 are allowed`);
        await new Promise((resolve) => setTimeout(resolve, 1));
        busy.delete(e.key!);
        (seen[e.key!] ??= []).push(e.payload);
      }, { from: 'earliest', concurrency: 3 });
      await until('all are settled', async () => (await hub.lag(topic, 'g')).lag === 0);
      for (const [key, list] of Object.entries(seen)) equal(list, [...list].sort((a, b) => a - b), `order of ${key}`);
      equal(Object.values(seen).flat().length, 200, 'handled');
      equal(most, 3, 'handlers at a time');
    }),

  'patterns and lists of topics': ({ url }) =>
    withClient(url, async (hub) => {
      const base = freshTopic();
      const seen: string[] = [];
      await hub.subscribe(`${base}.*`, 'g', (e) => void seen.push(e.topic));
      await hub.subscribe([`${base}.a.b`, `${base}.a.c`], 'g', (e) => void seen.push(`list ${e.topic}`));
      equal(await codeOf(hub.subscribe(`${base}.**`, 'g', () => {})), 'already_subscribed', 'an overlap');
      for (const t of ['a', 'b', 'a.b', 'a.c', 'a.d']) await hub.publish(`${base}.${t}`, 1);
      await until('four come', () => seen.length >= 4);
      equal(seen.sort(), [`${base}.a`, `${base}.b`, `list ${base}.a.b`, `list ${base}.a.c`].sort(), 'who got what');
      for (const t of ['a', 'a.b']) await until('acked', async () => (await hub.lag(`${base}.${t}`, 'g')).lag === 0);
    }),

  'a lease is extended while a handler runs': ({ url }) =>
    withClient(url, async (hub) => {
      const topic = freshTopic();
      await hub.publishBatch([{ topic, payload: 'slow' }, { topic, payload: 'waits for its turn' }]);
      const attempts: number[] = [];
      let lost = false;
      const ackTimeoutMs = 1_200; // a busy machine may take long to run a timer
      // The client learns from the hub how long leases last.
      await hub.setGroup(topic, 'g', { from: 'earliest', ackTimeoutMs, ordering: 'none' });
      await hub.subscribe(topic, 'g', async (_, d) => {
        attempts.push(d.attempt);
        d.signal.addEventListener('abort', () => (lost = true));
        // Longer than the lease lasts.
        const end = Date.now() + 2.5 * ackTimeoutMs;
        await until('the handler has had its time', () => Date.now() >= end);
      }, { concurrency: 1 });
      await until('both are settled', async () => (await hub.lag(topic, 'g')).lag === 0);
      equal([attempts, lost], [[1, 1], false], 'attempts, lost');
    }),

  'a handler is told when its lease is lost': ({ url }) =>
    withClient(url, async (hub) => {
      const topic = freshTopic();
      const { seq } = await hub.publish(topic, 'x');
      const reasons: string[] = [];
      let running = 0;
      await hub.subscribe(topic, 'g', async (_, d) => {
        check(++running === 1, 'the event is handled twice at a time');
        try {
          if (reasons.length === 0) {
            const gone = new Promise((_, reject) => d.signal.addEventListener('abort', () => reject(d.signal.reason)));
            // Moving the cursor ends the leases of the group.
            await Promise.all([gone, hub.moveCursor(topic, 'g', { from: 'seq', seq: seq - 1 })]);
          }
        } catch (error) {
          reasons.push((error as PrometheanError).code);
          throw error;
        } finally {
          running--;
        }
      }, { from: 'earliest', ackTimeoutMs: 300 });
      await until('it is settled', async () => (await hub.lag(topic, 'g')).lag === 0);
      equal(reasons, ['fenced'], 'reasons');
    }),

  'pause, resume, stop': ({ url }) =>
    withClient(url, async (hub) => {
      const topic = freshTopic();
      let handled = 0;
      let release = () => {};
      const held = new Promise<void>((resolve) => (release = resolve));
      const sub = await hub.subscribe<number>(topic, 'g', async (e) => {
        if (e.payload === 100) await held;
        handled++;
      }, { concurrency: 1, ordering: 'none' });
      sub.pause();
      await hub.publishBatch(Array.from({ length: 10 }, (_, payload) => ({ topic, payload })));
      await until('the hub knows of the pause', async () => (await hub.groups(topic))[0]!.lag === 10);
      equal([handled, sub.paused], [0, true], 'handled while paused');
      sub.resume();
      await until('all are handled', async () => handled === 10 && (await hub.lag(topic, 'g')).lag === 0);
      await hub.publishBatch([100, 101, 102].map((payload) => ({ topic, payload })));
      await until('one runs, two wait', async () => (await hub.groups(topic))[0]!.inflight === 3);
      const stopped = sub.stop();
      release();
      await stopped;
      equal(handled, 11, 'handled: what ran was finished, what waited was not begun');
      equal((await hub.lag(topic, 'g')).lag, 2, 'lag');
      const attempts: number[] = [];
      await hub.subscribe(topic, 'g', (_, d) => void attempts.push(d.attempt));
      await until('the others come', () => attempts.length === 2);
      equal(attempts, [1, 1], 'their attempts: what was not begun does not count');
    }),

  'tail follows from a place on, and keeps digits': ({ url }) =>
    withClient(url, async (hub) => {
      const topic = freshTopic();
      await hub.publish(topic, rawJSON('{"n":12345678901234567890}'));
      await hub.publish(topic, 2);
      const seqs: number[] = [];
      for await (const e of hub.tail(topic, { from: 'earliest', raw: true })) {
        seqs.push(e.seq);
        if (e.seq === 1) equal(e.raw, '{"n":12345678901234567890}', 'raw payload');
        if (e.seq === 2) await hub.publish(topic, 3);
        if (e.seq === 3) break;
      }
      equal(seqs, [1, 2, 3], 'seqs');
      const page = await hub.replay(topic, { raw: true });
      equal(page.events.map((e) => e.raw), ['{"n":12345678901234567890}', '2', '3'], 'raw of a replay');
      let got: PrometheanEvent | undefined;
      await hub.subscribe(topic, 'raw', (e) => void (got ??= e), { from: 'earliest', raw: true });
      await until('it comes', () => got !== undefined);
      equal(got!.raw, '{"n":12345678901234567890}', 'raw of a delivery');
      const abort = new AbortController();
      const waiting = hub.tail(topic, { signal: abort.signal }).next();
      abort.abort(new PrometheanError('closed', 'enough'));
      equal(await codeOf(waiting), 'closed', 'a tail whose signal ended');
      equal(await codeOf(hub.tail('No', {}).next()), 'invalid_topic', 'a tail of no topic');
    }),

  'the past of a key': ({ url }) =>
    withClient(url, async (hub) => {
      const topic = freshTopic();
      await hub.publishBatch([{ n: 1, s: 'up' }, { n: 2 }, null].map((payload, i) => ({ topic, key: 'a', ts: 1000 * (i + 1), payload })));
      equal(await hub.at(topic, 'a'), { topic, key: 'a', state: null, ts: 3000, seq: 3, events: 3 }, 'now');
      equal((await hub.at(topic, 'a', { ts: 2999 })).state, { n: 2 }, 'at a time');
      equal((await hub.at(topic, 'a', { asOf: 2, reduce: 'merge' })).state, { n: 2, s: 'up' }, 'as of a seq, merged');
      equal((await hub.at(topic, 'a', { asOf: 0 })).seq, 0, 'before everything');
      equal(await codeOf(hub.at(topic, 'a', { ts: -1 })), 'invalid_argument', 'no time');
      const { steps, next } = await hub.historyDiff(topic, 'a', { after: 1, limit: 1 });
      equal(next, 2, 'next');
      equal(steps.map((s) => [s.event.seq, s.state, s.changes]), [[2, { n: 2 }, [{ op: 'replace', path: '/n', from: 1, to: 2 }, { op: 'remove', path: '/s', from: 'up' }]]], 'steps');
    }),

  'the calls over HTTP': ({ url }) =>
    withClient(url, async (hub) => {
      const topic = freshTopic();
      await hub.publishBatch([1, 2, 3].map((payload) => ({ topic, key: payload === 2 ? 'b' : 'a', payload })));
      equal((await hub.replay(topic, { from: 'seq', seq: 1, limit: 1 })).events.map((e) => e.payload), [2], 'replay');
      const read: unknown[] = [];
      for await (const e of hub.read(topic, { limit: 2 })) read.push(e.payload);
      equal(read, [1, 2, 3], 'read');
      const exported: unknown[] = [];
      for await (const e of hub.export(topic)) exported.push(e.payload);
      equal(exported, [1, 2, 3], 'export');
      const latest = await hub.latestByKey(topic, ['a', 'b', 'c']);
      equal([latest['a']?.payload, latest['b']?.payload, latest['c']], [3, 2, null], 'latest by key');
      equal((await hub.history(topic, 'a')).events.map((e) => e.payload), [1, 3], 'history');
      const pulled = await hub.pull(topic, 'p', { max: 10, waitMs: 5_000, opts: { from: 'earliest', ordering: 'none' } });
      equal(pulled.map((p) => p.attempt), [1, 1, 1], 'pull');
      const [one, two, three] = pulled.map((p) => p.event.id) as [string, string, string];
      equal((await hub.ack(topic, 'p', [one, newId()])).results.map((r) => r.err ?? 'ok'), ['ok', 'unknown_id'], 'ack');
      equal((await hub.modack(topic, 'p', [two], 60_000)).count, 1, 'modack');
      equal((await hub.nack(topic, 'p', [two], { dead: true, reason: 'no' })).count, 1, 'nack');
      equal((await hub.nack(topic, 'p', [three], { leases: ['1'] })).results[0]!.err, 'fenced', 'nack with a lease that is over');
      await until('the dead one is settled', async () => (await hub.lag(topic, 'p')).lag === 1);
      equal((await hub.cursors(topic)).map((c) => [c.group, c.seq]), [['p', 2]], 'cursors');
      equal((await hub.deadLetterCounts()).filter((c) => c.topic === topic).map((c) => c.count), [1], 'dead letter counts');
      equal(await hub.replayDeadLetters(topic, { to: 'topic' }), { remaining: 0, replayed: 1 }, 'replay of dead letters');
      equal((await hub.setTopic(topic, { partitions: 8 })).settings.partitions, 8, 'settings');
      equal((await hub.topic(topic)).last, 4, 'last seq');
      check((await hub.topics()).some((t) => t.topic === topic), 'the topic is not listed');
      await hub.publish(topic, 'x', { key: 'dev:stt:1' });
      const { partition } = (await hub.replay(topic, { from: 'seq', seq: 4 })).events[0]!;
      equal(partition, partitionFor('dev:stt:1', '', 8), 'the partition is the one that we compute');
      await hub.setGroup(topic, 'made', { maxAttempts: 3 });
      equal(await codeOf(hub.setGroup(topic, 'made', { ordering: 'none' })), 'group_conflict', 'other settings');
      await hub.deleteGroup(topic, 'made');
      equal(await codeOf(hub.topic('nobody.made.this')), 'not_found', 'no topic');
      equal(await hub.isReady(), true, 'ready');
    }),

  'tokens by AUTH and by header': async ({ guarded }) => {
    const topic = freshTopic();
    equal(await codeOf(connect(guarded.url, { token: 'wrong' })), 'unauthorized', 'a wrong token');
    equal(await codeOf(connect(guarded.url, { token: () => Promise.reject(new Error('no key')) })), 'unauthorized', 'no token to be had');
    const nobody = new Client(guarded.url);
    equal(await codeOf(nobody.publish(topic, 1)), 'unauthorized', 'no token');
    await nobody.close();
    const late = new Client(guarded.url, { token: 'wrong' });
    equal(await codeOf(late.publish(topic, 1)), 'unauthorized', 'a publish with a wrong token');
    equal(await codeOf(late.publish(topic, 1)), 'unauthorized', 'and the next');
    equal(late.status.state, 'closed', 'state');
    let asked = 0;
    const hub = await connect(guarded.url, { token: async () => (asked++, guarded.token) });
    await hub.publish(topic, 1);
    equal((await hub.replay(topic)).count, 1, 'read by header');
    for await (const e of hub.tail(topic, { from: 'earliest' })) {
      equal(e.payload, 1, 'tail by header');
      break;
    }
    equal(await codeOf(hub.publish('forbidden.topic', 1)), 'forbidden', 'a topic that the token does not allow');
    equal(await codeOf(hub.subscribe('forbidden.topic', 'g', () => {})), 'forbidden', 'a subscription likewise');
    check(asked >= 3, `the token was asked for ${asked} times`);
    await hub.close();
  },

  'signals and closing': ({ url }) =>
    withClient(url, async (hub) => {
      const topic = freshTopic();
      const aborted = AbortSignal.abort(new PrometheanError('closed', 'enough'));
      equal(await codeOf(hub.publish(topic, 1, { signal: aborted })), 'closed', 'publish');
      equal(await codeOf(hub.replay(topic, { signal: aborted })), 'closed', 'replay');
      equal(await codeOf(hub.subscribe(topic, 'g', () => {}, { signal: aborted })), 'closed', 'subscribe');
      const stop = new AbortController();
      const sub = await hub.subscribe(topic, 'g', () => {}, { signal: stop.signal });
      stop.abort();
      equal(await sub.closed, undefined, 'a subscription whose signal ended');
      equal(await codeOf(hub.subscribe(topic, 'g', () => {}, { maxAttempts: 1000, ackTimeoutMs: 1 })), 'group_conflict', 'other settings');
      const other = await connect(url);
      const published = Array.from({ length: 50 }, (_, n) => other.publish(topic, n));
      await other.close();
      await Promise.all(published);
      equal(await codeOf(other.publish(topic, 1)), 'closed', 'publish after close');
      equal((await hub.replay(topic)).count, 50, 'stored before close');
    }),

  'no hub at the address': async () => {
    const states: string[] = [];
    // A port that nobody listens on and that browsers do not refuse.
    const hub = new Client('http://127.0.0.1:47', { onStatus: (s) => states.push(s.state), backoff: { minMs: 10, maxMs: 20 } });
    const patient = hub.publish('a.b', 1, { signal: AbortSignal.timeout(300) }).then(() => 'stored', (e: Error) => e.name);
    equal(await patient, 'TimeoutError', 'a publish with a deadline');
    check(states.includes('waiting') && states.filter((s) => s === 'connecting').length > 1, `states: ${states}`);
    equal(await codeOf(hub.replay('a.b')), 'unavailable', 'a call');
    await hub.close();
    equal(await codeOf(connect('http://127.0.0.1:47', { timeoutMs: 300 })), 'unavailable', 'connect');
    equal(await codeOf((async () => new Client('ftp://x'))()), 'invalid_argument', 'another scheme');
    equal(await codeOf((async () => new Client('http://a:b@x'))()), 'invalid_argument', 'a password in the address');
  },

  'nothing is lost or doubled when the hub is killed and started again': ({ url, crash }) => {
    const waits: Status[] = [];
    return withClient(url, async (hub) => {
      const topic = freshTopic();
      const handled = new Map<number, number>();
      const sub = await hub.subscribe<number>(topic, 'g', async (e) => {
        await Promise.resolve();
        handled.set(e.payload, (handled.get(e.payload) ?? 0) + 1);
      }, { from: 'earliest', maxAttempts: 100, concurrency: 8, maxInFlight: 64 });
      const tailed: number[] = [];
      const tailEnd = new AbortController();
      const tailing = (async () => {
        for await (const e of hub.tail<number>(topic, { signal: tailEnd.signal })) tailed.push(e.seq);
      })().catch((error: unknown) => {
        if (!tailEnd.signal.aborted) throw error;
      });

      // Publishers that go on whatever happens, alone and in batches.
      let next = 0;
      let stop = false;
      const receipts = new Map<number, number>();
      const single = async () => {
        while (!stop) {
          const n = next++;
          receipts.set(n, (await hub.publish(topic, n, { key: `k${n % 7}` })).seq);
        }
      };
      const batches = async () => {
        while (!stop) {
          const list = Array.from({ length: 5 }, () => next++);
          const got = await hub.publishBatch(list.map((n) => ({ topic, payload: n, key: `k${n % 7}` })));
          got.forEach((r, i) => receipts.set(list[i]!, r.seq));
        }
      };
      const publishers = [single(), single(), single(), batches(), batches()];
      for (let i = 0; i < 3; i++) {
        const before = receipts.size;
        await until('publishes are answered, and tailed', () => receipts.size > before + 100 && tailed.length > 0);
        await crash();
      }
      const before = receipts.size;
      await until('publishes are answered after the last start', () => receipts.size > before + 50);
      stop = true;
      await Promise.all(publishers);
      check(waits.length >= 3, `the connection was lost ${waits.length} times, not 3`);

      const stored: PrometheanEvent<number>[] = [];
      for await (const e of hub.read<number>(topic)) stored.push(e);
      equal(receipts.size, next, 'answers');
      equal(stored.length, next, 'stored events against published ones');
      equal(new Set(stored.map((e) => e.payload)).size, next, 'different ones among them');
      for (const e of stored) check(receipts.get(e.payload) === e.seq, `event ${e.payload} is at ${e.seq}, its publish said ${receipts.get(e.payload)}`);

      await until('all are settled', async () => (await hub.lag(topic, 'g')).lag === 0);
      equal(handled.size, next, 'handled events');
      equal((await hub.deadLetters(topic)).length, 0, 'dead letters');
      // It began at the end, which had moved on by then.
      await until('the tail has all', () => tailed.at(-1) === stored.at(-1)!.seq);
      equal(tailed, stored.map((e) => e.seq).filter((seq) => seq >= tailed[0]!), 'the tail: each once, in order');
      tailEnd.abort();
      await tailing;
      await sub.stop();
      // What was acked never comes back.
      let back = 0;
      await hub.subscribe(topic, 'g', () => void back++);
      const { id } = await hub.publish(topic, next, { key: 'last' });
      await until('the last one is settled', async () => (await hub.lag(topic, 'g')).lag === 0);
      equal(back, 1, `events after all was acked, ${id} is the only one`);
    }, { onStatus: (s) => void (s.state === 'waiting' && waits.push(s)) });
  },
};

/** Plays one; for a page, which cannot be given functions from outside. */
export function play(name: string, world: World): Promise<void> {
  return scenarios[name]!(world);
}
