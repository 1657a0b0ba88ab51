// The package as others get it.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../', import.meta.url));
const npm = process.platform === 'win32' ? 'npm.cmd' : 'npm';

test('the package holds what was built, and nothing else', { timeout: 60_000 }, () => {
  const [pack] = JSON.parse(execFileSync(npm, ['pack', '--dry-run', '--json', '--ignore-scripts'], { cwd: root, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }));
  const files: string[] = pack.files.map((f: { path: string }) => f.path);
  assert.deepEqual(files.filter((f) => !/^dist\/[a-z]+(\.d\.ts|\.js)$/.test(f)).sort(), ['LICENSE', 'README.md', 'package.json']);
  for (const want of ['dist/index.js', 'dist/index.d.ts']) assert.ok(files.includes(want), `${want} is missing`);
  const manifest = JSON.parse(readFileSync(`${root}package.json`, 'utf8'));
  assert.equal(manifest.dependencies, undefined, 'dependencies at run time');
});

test('the code in the documentation compiles', { timeout: 60_000 }, () => {
  const dir = `${root}build/documented`;
  rmSync(dir, { recursive: true, force: true });
  mkdirSync(dir, { recursive: true });
  const names: string[] = [];
  for (const page of ['README.md', '../../docs/client-ts.md']) {
    const blocks = [...readFileSync(root + page, 'utf8').matchAll(/^```ts\n(.*?)^```$/gms)];
    assert.ok(blocks.length > 0, `${page} has no code`);
    for (const [, code] of blocks) {
      const name = `block${names.length + 1}.ts`;
      // A block that goes on where the one before ended uses its client.
      const given = /\bhub\b/.test(code!) && !/const hub\b/.test(code!) ? "import type { Client } from 'promethean-client';\ndeclare const hub: Client;\n" : '';
      writeFileSync(`${dir}/${name}`, `${given}${code}\nexport {};\n`);
      names.push(name);
    }
  }
  // Our declarations are checked too: users may not skip that.
  writeFileSync(`${dir}/tsconfig.json`, JSON.stringify({
    compilerOptions: {
      strict: true, noEmit: true, exactOptionalPropertyTypes: true, skipLibCheck: false, target: 'es2022', module: 'nodenext', types: [],
      lib: ['es2022', 'dom', 'dom.iterable', 'dom.asynciterable'],
    },
    files: names,
  }));
  try {
    execFileSync(process.execPath, [`${root}node_modules/typescript/bin/tsc`, '-p', dir], { encoding: 'utf8' });
  } catch (error) {
    assert.fail((error as { stdout: string }).stdout);
  }
});
