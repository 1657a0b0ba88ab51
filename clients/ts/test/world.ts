import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Hub } from './hub.js';
import type { World } from './scenarios.js';

/** The hubs that scenarios need. */
export async function makeWorld(origins: string[] = []): Promise<World & { hub: Hub; remove(): Promise<void> }> {
  const allow = origins.length > 0 ? ['--origins', origins.join(',')] : [];
  const hub = await new Hub(allow).start();
  const dir = mkdtempSync(join(tmpdir(), 'promethean-ts-'));
  const token = 'the-only-token';
  const config = join(dir, 'guarded.yaml');
  writeFileSync(config, 'auth:\n  tokens:\n    - {token_env: TS_TOKEN, scopes: ["publish:*.events", "subscribe:*.events", "read:*.events"]}\n');
  const guarded = await new Hub(['--config', config, ...allow], { TS_TOKEN: token }).start();
  return {
    url: hub.url,
    hub,
    crash: () => hub.crash(),
    guarded: { url: guarded.url, token },
    async remove() {
      await Promise.all([hub.remove(), guarded.remove()]);
      rmSync(dir, { recursive: true, force: true });
    },
  };
}
