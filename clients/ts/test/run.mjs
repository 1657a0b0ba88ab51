// Runs the compiled tests. Node 20 has its WebSocket behind a flag. Arguments
// are passed on to node, such as --test-name-pattern=tail.
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const build = fileURLToPath(new URL('../build/', import.meta.url));
const files = readdirSync(build).filter((f) => f.endsWith('.test.js')).map((f) => build + f);
const flag = typeof WebSocket === 'undefined' ? ' --experimental-websocket' : '';
const { status } = spawnSync(process.execPath, ['--no-warnings', '--test', '--test-concurrency=1', ...process.argv.slice(2), ...files], {
  stdio: 'inherit',
  env: { ...process.env, NODE_OPTIONS: `${process.env.NODE_OPTIONS ?? ''}${flag}` },
});
process.exit(status ?? 1);
