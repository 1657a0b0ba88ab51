// The scenarios, played in a page of Chromium against the real program: the
// page is of another origin than the hub, which has to name it.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { chromium, type Browser, type Page } from 'playwright-core';
import { Client } from 'promethean-client';
import { needsHub } from './hub.js';
import { scenarios } from './scenarios.js';
import { serve } from './static.js';
import { makeWorld } from './world.js';

const executablePath = findChromium();
const needs = !executablePath ? { skip: 'needs chromium: there is none in the path, and PROMETHEAN_CHROMIUM names none' } : needsHub;

function findChromium(): string | undefined {
  const named = process.env['PROMETHEAN_CHROMIUM'];
  if (named) return named;
  for (const dir of (process.env['PATH'] ?? '').split(delimiter)) {
    for (const name of ['chromium', 'chromium-browser', 'google-chrome']) {
      if (dir && existsSync(join(dir, name))) return join(dir, name);
    }
  }
  return undefined;
}

const folder = (path: string) => fileURLToPath(new URL(path, import.meta.url));

let browser: Browser;
let site: Awaited<ReturnType<typeof serve>>;
let world: Awaited<ReturnType<typeof makeWorld>>;

before(async () => {
  if (needs.skip) return;
  const map = JSON.stringify({ imports: { 'promethean-client': '/dist/index.js' } });
  site = await serve(
    { '/dist/': folder('../dist/'), '/build/': folder('../build/'), '/example/': folder('../../../examples/browser/') },
    { '/': `<!doctype html><title>scenarios</title><script type="importmap">${map}</script>` },
  );
  world = await makeWorld([site.origin]);
  browser = await chromium.launch({ executablePath: executablePath!, args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'] });
});
after(async () => {
  await browser?.close();
  await site?.close();
  await world?.remove();
});

async function withPage(path: string, use: (page: Page) => Promise<void>): Promise<void> {
  const page = await browser.newPage();
  const errors: Error[] = [];
  page.on('pageerror', (e) => errors.push(e));
  try {
    await page.goto(site.origin + path);
    await use(page);
    assert.deepEqual(errors, []);
  } finally {
    await page.close();
  }
}

for (const name of Object.keys(scenarios)) {
  test(`in a page: ${name}`, { ...needs, timeout: 120_000 }, () =>
    withPage('/', async (page) => {
      await page.exposeFunction('crash', () => world.crash());
      const given = { name, url: world.url, guarded: world.guarded };
      await page.evaluate(async ({ name, ...rest }) => {
        const path = '/build/scenarios.js'; // a page's address, which TypeScript cannot look up
        const { play } = await import(path);
        await play(name, { ...rest, crash: (globalThis as unknown as { crash(): Promise<void> }).crash });
      }, given);
    }),
  );
}

test('a page of an origin that the hub does not name is refused', { ...needs, timeout: 60_000 }, async () => {
  const stranger = await serve({ '/dist/': folder('../dist/') }, { '/': '<!doctype html><title>stranger</title>' });
  const page = await browser.newPage();
  try {
    await page.goto(stranger.origin);
    const message = await page.evaluate(async (url) => {
      const path = '/dist/index.js';
      const { connect } = await import(path);
      return connect(url, { timeoutMs: 500 }).then(() => 'connected', (e: Error) => e.message);
    }, world.url);
    assert.match(message, /origins/);
  } finally {
    await page.close();
    await stranger.close();
  }
});

test('the example page shows states and publishes', { ...needs, timeout: 60_000 }, async () => {
  const hub = new Client(world.url);
  const state = { pid: 7, name: 'stt', host: 'dev', status: 'alive' };
  await hub.publish('process.state', state, { key: 'dev:stt:7' });
  await withPage(`/example/index.html?hub=${encodeURIComponent(world.url)}`, async (page) => {
    await page.waitForSelector('tr[data-key="dev:stt:7"] >> text=alive');
    await hub.publish('process.state', { ...state, status: 'stale' }, { key: 'dev:stt:7' });
    await page.waitForSelector('tr[data-key="dev:stt:7"] >> text=stale');
    await page.fill('#topic', 'process.state');
    await page.fill('#key', 'dev:<b>tts</b>:8');
    await page.fill('#payload', '{"pid":8,"name":"<b>tts</b>","host":"dev","status":"alive"}');
    await page.click('#publish');
    await page.waitForSelector('text=/stored as seq \\d+/');
    await page.waitForSelector('td:text-is("<b>tts</b>")');
    await page.fill('#payload', '{');
    await page.click('#publish');
    await page.waitForSelector('#result.error');
    await world.crash();
    await hub.publish('process.state', { ...state, status: 'back' }, { key: 'dev:stt:7' });
    await page.waitForSelector('tr[data-key="dev:stt:7"] >> text=back');
  });
  await hub.close();
});
