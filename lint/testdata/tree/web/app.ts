import { Client } from 'promethean-client';

const hub = new Client('http://127.0.0.1:7070');
const topics = { placed: `orders.placed` } as const;

await hub.publish(topics.placed, { item: 'tea', count: 1, customer: { id: 'c1' } }, { headers: { 'x-source': 'web' } });
await hub.publish(topics.placed, { item: 7, colour: 'red', customer: {} }, { headers: { 'X-Source': 'web' } });
await hub.publish('orders placed', {});
await hub.subscribe('orders.unseen', 'web', async () => {});
await hub.publishBatch([{ topic: 'system.x', payload: null }]);
// promethean:allow the old page still listens to it
await hub.publish('orders.page', {});
