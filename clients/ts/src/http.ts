import { PrometheanError, messageOf, type Code, type ErrorDetails } from './errors.js';
import type { TokenSource } from './link.js';
import { tokenOf } from './socket.js';

/** A parameter of a query: a list is given as often as it has elements. */
export type QueryValue = string | number | boolean | readonly string[] | undefined;

/** @internal */
export interface Request {
  query?: object;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
}

/**
 * Calls over HTTP. Nothing is tried again here: the error says whether that
 * would make sense.
 * @internal
 */
export class Http {
  constructor(
    /** Where the hub is, without a slash at the end. */
    readonly base: string,
    private readonly token: TokenSource | undefined,
    private readonly fetcher: typeof fetch,
  ) {}

  /** A response whose status says that all is well; else the problem is thrown. */
  async fetch(method: string, path: string, request: Request = {}): Promise<Response> {
    const url = this.base + path + queryOf(request.query);
    const headers: Record<string, string> = { ...request.headers };
    if (this.token !== undefined) headers['authorization'] = `Bearer ${await tokenOf(this.token)}`;
    const init: RequestInit = { method, headers, cache: 'no-store', credentials: 'omit' };
    if (request.body !== undefined) {
      init.body = JSON.stringify(request.body);
      headers['content-type'] = 'application/json';
    }
    if (request.signal) init.signal = request.signal;
    let response: Response;
    try {
      response = await this.fetcher(url, init);
    } catch (cause) {
      request.signal?.throwIfAborted();
      throw unreachable(this.base, cause);
    }
    if (response.ok) return response;
    throw await problemOf(response);
  }

  async text(method: string, path: string, request: Request = {}): Promise<string> {
    return this.bodyOf(await this.fetch(method, path, request), request.signal);
  }

  /** The whole body of a response. */
  async bodyOf(response: Response, signal: AbortSignal | undefined): Promise<string> {
    try {
      return await response.text();
    } catch (cause) {
      signal?.throwIfAborted();
      throw unreachable(this.base, cause);
    }
  }

  async json<T>(method: string, path: string, request: Request = {}): Promise<T> {
    return parse(await this.text(method, path, request));
  }
}

/**
 * Reads an answer. One that is no JSON is not from a hub.
 * @internal
 */
export function parse<T>(text: string): T {
  try {
    return JSON.parse(text) as T;
  } catch (cause) {
    throw new PrometheanError('unsupported', `the answer is no JSON (is this a Promethean hub?): ${messageOf(cause)}`, { cause });
  }
}

/** @internal */
export function unreachable(base: string, cause: unknown): PrometheanError {
  const inner = cause instanceof Error && cause.cause instanceof Error ? cause.cause : cause;
  return new PrometheanError('unavailable', `cannot reach the hub at ${base}: ${messageOf(inner)}`, { cause });
}

/**
 * The error that a problem of the hub is, undefined if it is none.
 * @internal
 */
export function errorOfProblem(problem: unknown, details: ErrorDetails = {}): PrometheanError | undefined {
  const p = problem as { code?: Code; detail?: string; title?: string; oldest_seq?: number } & ErrorDetails;
  if (typeof p?.code !== 'string') return undefined;
  const { status, index, expected, actual, seq, errors, problems, oldest, oldest_seq: oldestSeq } = p;
  return new PrometheanError(p.code, p.detail ?? p.title ?? p.code, { status, index, expected, actual, seq, errors, problems, oldest, oldestSeq, ...details });
}

/**
 * The error that a stream ends with where it cannot go on.
 * @internal
 */
export function brokenOff(problem: unknown): PrometheanError {
  return errorOfProblem(problem) ?? new PrometheanError('unsupported', `a stream ends with an error that cannot be read: ${JSON.stringify(problem)}`);
}

async function problemOf(response: Response): Promise<PrometheanError> {
  const { status } = response;
  const after = Number(response.headers.get('retry-after'));
  const retryAfterMs = after > 0 ? after * 1000 : undefined;
  try {
    const problem = errorOfProblem(await response.json(), { status, retryAfterMs });
    if (problem) return problem;
  } catch {
    // Not from a hub: a proxy, for instance.
  }
  const code: Code = status >= 500 ? 'unavailable' : status === 401 ? 'unauthorized' : status === 403 ? 'forbidden' : status === 404 ? 'not_found' : status === 429 ? 'rate_limited' : 'invalid_argument';
  return new PrometheanError(code, `${response.url} answered ${status}`, { status, retryAfterMs });
}

function queryOf(query: object | undefined): string {
  if (!query) return '';
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query) as [string, QueryValue][]) {
    if (value === undefined) continue;
    if (typeof value === 'object') for (const v of value) params.append(name, v);
    else params.append(name, String(value));
  }
  const text = params.toString();
  return text === '' ? '' : `?${text}`;
}
