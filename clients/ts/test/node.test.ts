// The scenarios, played in Node against the real program.
import { after, before, test } from 'node:test';
import { needsHub } from './hub.js';
import { scenarios, type World } from './scenarios.js';
import { makeWorld } from './world.js';

let world: World & { remove(): Promise<void> };
before(async () => {
  if (!needsHub.skip) world = await makeWorld();
});
after(() => world?.remove());

for (const [name, play] of Object.entries(scenarios)) {
  test(name, { ...needsHub, timeout: 120_000 }, () => play(world));
}
