// Serves the page on http://127.0.0.1:8080, and the built client under /dist.
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { extname } from 'node:path';

const types = { '.html': 'text/html; charset=utf-8', '.js': 'text/javascript', '.css': 'text/css' };
const port = Number(process.env.PORT ?? 8080);

createServer(async (request, response) => {
  let { pathname } = new URL(request.url, 'http://localhost'); // has no ".." left
  if (pathname === '/') pathname = '/index.html';
  const folder = pathname.startsWith('/dist/') ? '../../clients/ts' : '.';
  try {
    const body = await readFile(new URL(folder + pathname, import.meta.url));
    response.writeHead(200, { 'content-type': types[extname(pathname)] ?? 'text/plain' });
    response.end(body);
  } catch {
    response.writeHead(404);
    response.end('not found\n');
  }
}).listen(port, '127.0.0.1', () => console.log(`http://127.0.0.1:${port}`));
