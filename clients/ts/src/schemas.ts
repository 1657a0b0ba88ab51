import type { FieldError, SchemaProblem } from './errors.js';
import type { CallOptions } from './api.js';
import { parse, type Http } from './http.js';

/** How a version must fit those before it. The plain ones look at the latest, the transitive ones at all. */
export type Compat = 'none' | 'backward' | 'forward' | 'full' | 'backward_transitive' | 'forward_transitive' | 'full_transitive';

/** A topic that has a schema. */
export interface SchemaInfo {
  topic: string;
  latest: number;
  versions: number[];
  /** That of the latest version. */
  compat: Compat;
}

/** A JSON Schema of 2020-12. */
export type JSONSchema = boolean | { [keyword: string]: unknown };

/** One version of a topic's schema, as it was registered. */
export interface SchemaVersion {
  topic: string;
  version: number;
  compat: Compat;
  lenient?: boolean;
  unproved?: boolean;
  /** Its upcaster is a Go function: only processes that were given it can run it. */
  function?: boolean;
  /** When it was registered, in epoch milliseconds. */
  ts: number;
  /** The jq program that makes payloads of the version before into payloads of this one. */
  upcast?: string;
  schema: JSONSchema;
}

/** A version as somebody wants to register it. */
export interface SchemaDefinition {
  schema: JSONSchema;
  /** The default is `backward`. */
  compat?: Compat;
  /** Let optional properties come into open objects and leave closed ones. The default is false. */
  lenient?: boolean;
  /** The default is the next one. */
  version?: number;
  /** A jq program that makes a payload of the version before into one of this. The default is none. */
  upcast?: string;
  /** Take an upcaster that cannot be tried. The default is false. */
  unproved?: boolean;
}

/** Whether a schema could be registered, and if not, why. */
export interface Compatibility {
  compatible: boolean;
  problems: SchemaProblem[];
}

/** What a version of a schema says about a payload. */
export interface Validity {
  valid: boolean;
  version: number;
  errors: FieldError[];
}

const pathOf = (topic: string, more = '') => `/schemas/${encodeURIComponent(topic)}${more}`;

/** The calls about schemas. Like all over HTTP, none is tried again by itself. */
export class Schemas {
  /** @internal */
  constructor(private readonly http: Http) {}

  /** The topics that have a schema. */
  async list(options: CallOptions = {}): Promise<SchemaInfo[]> {
    return (await this.http.json<{ topics: SchemaInfo[] }>('GET', '/schemas', options)).topics;
  }

  /** All versions of a topic's schema, the oldest first. */
  async versions(topic: string, options: CallOptions = {}): Promise<SchemaVersion[]> {
    return (await this.http.json<{ versions: SchemaVersion[] }>('GET', pathOf(topic), options)).versions;
  }

  /** One version of a topic's schema. */
  get(topic: string, version: number | 'latest' = 'latest', options: CallOptions = {}): Promise<SchemaVersion> {
    return this.http.json('GET', pathOf(topic, `/${version}`), options);
  }

  /**
   * Registers a version; resolves once that is durable. What is there already is
   * given back with `fresh: false`. One that does not fit is `schema_conflict`,
   * with the reasons in `problems`.
   */
  async register(topic: string, definition: SchemaDefinition, options: CallOptions = {}): Promise<SchemaVersion & { fresh: boolean }> {
    const response = await this.http.fetch('POST', pathOf(topic), { body: definition, ...options });
    return { ...parse<SchemaVersion>(await this.http.bodyOf(response, options.signal)), fresh: response.status === 201 };
  }

  /** Whether a version could be registered. Nothing is stored. */
  check(topic: string, definition: SchemaDefinition, options: CallOptions = {}): Promise<Compatibility> {
    return this.http.json('POST', pathOf(topic, '/check'), { body: definition, ...options });
  }

  /** Whether a payload is valid under a version, the latest unless one is given. Nothing is stored. */
  validate(topic: string, payload: unknown, version?: number, options: CallOptions = {}): Promise<Validity> {
    return this.http.json('POST', pathOf(topic, '/validate'), { body: { payload: payload ?? null, version }, ...options });
  }
}
