import type { CallOptions } from './api.js';
import { PrometheanError } from './errors.js';
import { parse, type Http } from './http.js';

/** A document of a view; fields that begin with `_` are the view's own. */
export type ViewDocument<T = Record<string, unknown>> = T & {
  _key: string;
  /** The time of the event that it was made from, in epoch milliseconds. */
  _ts: number;
};

/** How a rebuild of a view is. */
export interface ViewRebuild {
  state: 'building' | 'swapping' | 'done' | 'failed';
  seq: number;
  tail: number;
  /** How many events were read. */
  events: number;
  began: string;
  ended?: string;
  err?: string;
}

/** How a view is. */
export interface ViewInfo {
  name: string;
  topic: string;
  group: string;
  kind: 'changelog' | 'transactional';
  /** How far it is, and how many seqs it is behind. */
  seq: number;
  tail: number;
  lag: number;
  collections: { name: string; count: number; indexes: string[][] }[];
  no_key?: number;
  stale?: number;
  dead?: number;
  expired?: number;
  /** Why it stands still, if it does. */
  err?: string;
  rebuild?: ViewRebuild;
}

/** A document together with what tells whether it has changed. */
export interface Snapshot<T = Record<string, unknown>> {
  etag: string;
  document: ViewDocument<T>;
}

/** Some documents of a view. */
export interface ViewList<T = Record<string, unknown>> {
  offset: number;
  limit: number;
  count: number;
  items: ViewDocument<T>[];
}

/** Which documents to list: fields that the view declares as indexed, and what they equal. */
export interface ViewQuery extends CallOptions {
  where?: Record<string, string | number | boolean | null>;
  offset?: number;
  limit?: number;
}

const pathOf = (view: string, more = '') => `/views/${encodeURIComponent(view)}${more}`;

/** The calls about views, the read models of topics. */
export class Views {
  /** @internal */
  constructor(private readonly http: Http) {}

  /** The views that the token may read. */
  async list(options: CallOptions = {}): Promise<ViewInfo[]> {
    return (await this.http.json<{ views: ViewInfo[] }>('GET', '/views', options)).views;
  }

  /** One view. */
  get(view: string, options: CallOptions = {}): Promise<ViewInfo> {
    return this.http.json('GET', pathOf(view), options);
  }

  /** The document of a key; undefined if there is none. */
  async snap<T = Record<string, unknown>>(view: string, key: string, options: CallOptions = {}): Promise<Snapshot<T> | undefined> {
    try {
      const response = await this.http.fetch('GET', pathOf(view, `/snap/${encodeURIComponent(key)}`), options);
      return { etag: response.headers.get('etag') ?? '', document: parse<ViewDocument<T>>(await this.http.bodyOf(response, options.signal)) };
    } catch (err) {
      // A view that is not there is another matter than a document.
      if (err instanceof PrometheanError && err.code === 'not_found') {
        await this.get(view, options);
        return undefined;
      }
      throw err;
    }
  }

  /** Documents, newest first. */
  documents<T = Record<string, unknown>>(view: string, query: ViewQuery = {}): Promise<ViewList<T>> {
    const { where, signal, ...page } = query;
    const filters = Object.fromEntries(Object.entries(where ?? {}).map(([name, value]) => [name, String(value)]));
    return this.http.json('GET', pathOf(view, '/list'), { query: { ...filters, ...page }, signal });
  }

  /**
   * Begins to build a view anew, from its first event or from the snapshots of
   * its topic. `get` tells how far it is.
   */
  rebuild(view: string, from: 'earliest' | 'snapshot' = 'earliest', options: CallOptions = {}): Promise<ViewInfo> {
    return this.http.json('POST', pathOf(view, '/rebuild'), { body: { from }, ...options });
  }
}
