import { readFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { extname, join, normalize } from 'node:path';

const types: Record<string, string> = { '.html': 'text/html; charset=utf-8', '.js': 'text/javascript', '.css': 'text/css' };

/** Serves files under some prefixes, and pages from memory, on a free port. */
export async function serve(folders: Record<string, string>, pages: Record<string, string> = {}): Promise<{ origin: string; close(): Promise<void> }> {
  const server: Server = createServer(async (request, response) => {
    const path = normalize(new URL(request.url!, 'http://x').pathname);
    const prefix = Object.keys(folders).find((p) => path.startsWith(p));
    try {
      const body = pages[path] ?? (await readFile(join(folders[prefix!]!, path.slice(prefix!.length))));
      response.writeHead(200, { 'content-type': types[extname(path)] ?? types['.html'] });
      response.end(body);
    } catch {
      response.writeHead(404);
      response.end();
    }
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    origin: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    close: () => new Promise((resolve) => {
      server.closeAllConnections();
      server.close(() => resolve());
    }),
  };
}
