// The scenarios, played in a page of Chromium against the real program: the
// page is of another origin than the hub, which has to name it.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { chromium, type Browser, type Page } from 'playwright-core';
import { Client, dead } from 'promethean-client';
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

test('the page of a hub shows topics, groups, live events and dead letters', { ...needs, timeout: 60_000 }, async () => {
  const hub = new Client(world.url);
  await hub.publish('page.shown', { big: 1, text: '<b>bold</b>' }, { key: 'k<i>1</i>' });
  const refused = await hub.subscribe('page.shown', 'page<u>group</u>', () => { throw dead('no <s>use</s>'); }, { from: 'earliest' });
  while ((await hub.deadLetters('page.shown')).length === 0); // each look waits for the hub
  await refused.stop();
  const page = await browser.newPage();
  const errors: string[] = [];
  page.on('pageerror', (e) => errors.push(e.message));
  page.on('console', (m) => m.type() === 'error' && !/ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET/.test(m.text()) && errors.push(m.text()));
  try {
    await page.goto(world.url);
    await page.waitForSelector('#status.good');
    await page.waitForSelector('#groups td:text-is("page<u>group</u>")');
    await page.click('#topics button:text-is("page.shown")');
    // Payloads are text, never markup, and as they were stored.
    await page.waitForSelector('#events td:text-is(\'{"big":1,"text":"<b>bold</b>"}\')');
    await page.waitForSelector('#events td:text-is("k<i>1</i>")');
    await page.fill('#publish-topic', 'page.shown');
    await page.fill('#publish-payload', '{"n":12345678901234567890}');
    await page.click('#publish button');
    await page.waitForSelector('#publish-result:has-text("stored as seq 2")');
    await page.waitForSelector('#events td:text-is(\'{"n":12345678901234567890}\')');
    await page.fill('#publish-payload', '{');
    await page.click('#publish button');
    await page.waitForSelector('#publish-result.bad');

    const letters = '#dlq tr:has-text("page.shown")';
    await page.click(`${letters} >> button:text-is("Show")`);
    await page.waitForSelector('#letters td:text-is("no <s>use</s>")');
    await page.click(`${letters} >> button:text-is("Replay")`);
    await page.waitForSelector('#events td:text-is("3")'); // published again
    await page.waitForSelector(letters, { state: 'detached' });

    await page.click('#events-pause');
    await hub.publish('page.shown', 'while it pauses');
    await page.waitForSelector('#events-state:has-text("1 waiting")');
    await page.click('#events-pause');
    await page.waitForSelector('#events td:text-is(\'"while it pauses"\')');

    await world.crash(); // the page finds the hub again, and goes on where it was
    await hub.publish('page.shown', 'after the crash');
    await page.waitForSelector('#events td:text-is(\'"after the crash"\')');
    assert.equal(await page.locator('#events td:text-is(\'"while it pauses"\')').count(), 1);
    assert.deepEqual(errors.filter((e) => !/status of 400|503/.test(e)), []);
  } finally {
    await page.close();
    await hub.close();
  }
});

test('the page of a hub asks for a token', { ...needs, timeout: 60_000 }, async () => {
  const page = await browser.newPage();
  try {
    await page.goto(world.guarded.url);
    await page.waitForSelector('#token-form:visible');
    await page.fill('#token', 'wrong');
    await page.click('#token-form button');
    await page.waitForSelector('#status:has-text("the token does not do")');
    assert.ok(!page.url().includes('wrong'), 'the token is in the address');
  } finally {
    await page.close();
  }
});
