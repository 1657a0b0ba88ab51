// Measures how many events a second this client publishes, in batches, and
// consumes, each acked, against a running hub:
//
//	promethean serve --store file://data &
//	npm run bench -- http://127.0.0.1:7070 200000
import { connect } from './dist/index.js';

const [url = 'http://127.0.0.1:7070', total = '200000', size = '500', bytes = '200'] = process.argv.slice(2);
const count = Number(total);
const perBatch = Number(size);
const topic = `bench.ts${Date.now()}`;
const filler = 'x'.repeat(Number(bytes));

const rate = (n, since) => `${Math.round(n / ((performance.now() - since) / 1000)).toLocaleString('en')} events/s`;

const hub = await connect(url);

let began = performance.now();
const flying = new Set();
for (let n = 0; n < count; n += perBatch) {
  const events = Array.from({ length: Math.min(perBatch, count - n) }, (_, i) => ({ topic, key: `k${(n + i) % 1000}`, payload: { n: n + i, filler } }));
  const p = hub.publishBatch(events).then(() => flying.delete(p));
  flying.add(p);
  if (flying.size >= 16) await Promise.race(flying);
}
await Promise.all(flying);
console.log(`publish, batches of ${perBatch}: ${rate(count, began)}`);

began = performance.now();
const singles = Math.min(count, 100_000);
for (let n = 0; n < singles; n += 2_000) {
  await Promise.all(Array.from({ length: Math.min(2_000, singles - n) }, (_, i) => hub.publish(`${topic}.single`, { n: n + i, filler })));
}
console.log(`publish, one by one, 2,000 on their way: ${rate(singles, began)}`);

for (const [name, options] of [['consume', {}], ['consume, ordering none', { ordering: 'none' }]]) {
  began = performance.now();
  const seen = new Uint8Array(count);
  let left = count;
  await new Promise((resolve, reject) => {
    hub.subscribe(topic, `bench ${name}`, (event) => {
      if (seen[event.payload.n]++ === 0 && --left === 0) resolve();
    }, { from: 'earliest', batch: 500, ...options }).catch(reject);
  });
  console.log(`${name}, acked: ${rate(count, began)}`);
}
began = performance.now();
await hub.close();
console.log(`the last acks: ${Math.round(performance.now() - began)} ms`);
