// Prints one line of JSON for each test, for whoever counts them: its file and
// name, how it ended, and why.
import { basename } from 'node:path';
import { inspect } from 'node:util';

export default async function* report(source) {
  for await (const { type, data } of source) {
    if ((type !== 'test:pass' && type !== 'test:fail') || data.nesting !== 0) continue;
    const error = data.details?.error;
    yield `${JSON.stringify({
      file: basename(data.file ?? '').replace(/\.test\.js$/, ''),
      name: data.name,
      ok: type === 'test:pass',
      skip: data.skip === undefined ? undefined : String(data.skip),
      ms: Math.round(data.details?.duration_ms ?? 0),
      error: error && inspect(error.cause ?? error),
    })}\n`;
  }
}
