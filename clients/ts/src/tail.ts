import { Backoff, raceSignal, sleep, type BackoffOptions } from './backoff.js';
import { PrometheanError } from './errors.js';
import type { Place, PrometheanEvent } from './event.js';
import { brokenOff, parse, unreachable, type Http } from './http.js';
import { rawOfEvent } from './raw.js';
import { SseParser } from './sse.js';

/** How to follow a topic. */
export interface TailOptions extends Place {
  /** Ends the tail; the loop over it throws the signal's reason. */
  signal?: AbortSignal;
  /** Give each event's payload as text too, in `event.raw`. The default is false. */
  raw?: boolean;
  /**
   * Give events in the latest version of the topic's schema. One that cannot be
   * brought up to it ends the tail with an error that names its `seq`. The
   * default is false.
   */
  normalise?: boolean;
}

/** A stream without events has a comment every 15 s. One that is silent for so long is dead. */
const silentMs = 45_000;

/**
 * Follows a topic over Server-Sent Events, from a place on, and goes on after
 * the last seen event when the connection breaks. No event is left out and none
 * comes twice.
 * @internal
 */
export async function* tail<T>(http: Http, topic: string, options: TailOptions, backoffOptions: BackoffOptions | undefined): AsyncGenerator<PrometheanEvent<T>, void, void> {
  const { signal, raw = false, normalise = false, ...place } = options;
  const backoff = new Backoff(backoffOptions);
  let last: number | undefined;
  let refusedToken = false;
  for (;;) {
    signal?.throwIfAborted();
    const connection = new AbortController();
    const stop = () => connection.abort(signal!.reason);
    signal?.addEventListener('abort', stop, { once: true });
    let failure: unknown;
    try {
      last ??= await endOf(http, topic, place, connection.signal);
      const query = { topic, ...(last === undefined ? place : { from: 'seq', seq: last }), ...(normalise && { normalise: 1 }) };
      const headers: Record<string, string> = last === undefined ? {} : { 'last-event-id': String(last) };
      const response = await http.fetch('GET', '/subscribe', { query, headers, signal: connection.signal });
      refusedToken = false;
      for await (const event of read<T>(response, http.base, raw, connection)) {
        backoff.reset();
        last = event.seq;
        yield event;
      }
      // Also where the end of the stream came through and the reason did not.
      if (normalise) await probe(http, topic, last, place, connection.signal);
    } catch (error) {
      failure = error;
      if (normalise && error instanceof PrometheanError && error.code === 'unavailable' && !connection.signal.aborted) {
        await probe(http, topic, last, place, connection.signal).catch((told: unknown) => (failure = told));
      }
    } finally {
      // Also where the loop over us was left.
      signal?.removeEventListener('abort', stop);
      connection.abort();
    }
    signal?.throwIfAborted();
    let wait = backoff.next();
    if (failure !== undefined) {
      if (!(failure instanceof PrometheanError)) throw failure;
      // The stream ends with its token: the next call asks for another, once.
      const fresh = failure.code === 'unauthorized' && !refusedToken;
      if (!failure.retryable && !fresh) throw failure;
      refusedToken = failure.code === 'unauthorized';
      wait = Math.max(wait, failure.retryAfterMs ?? 0);
    }
    await sleep(wait, signal);
  }
}

/**
 * The seq that a tail from the end begins after. Without it, what is published
 * while the first connection breaks would be missed. A caller who may subscribe
 * but not read has to do without: undefined.
 */
async function endOf(http: Http, topic: string, place: Place, signal: AbortSignal): Promise<number | undefined> {
  const atEnd = place.from === 'latest' || (place.from === undefined && place.ts === undefined && place.afterId === undefined && place.seq === undefined);
  if (!atEnd) return undefined;
  try {
    const page = await http.json<{ events: PrometheanEvent[]; next: number }>('GET', '/replay', { query: { topic, from: 'latest', limit: 1 }, signal });
    return page.events.length > 0 ? page.events[0]!.seq - 1 : page.next;
  } catch (error) {
    if (error instanceof PrometheanError && error.code === 'forbidden') return undefined;
    throw error;
  }
}

/**
 * Throws what keeps the next event from being normalised, if something does. The
 * hub says it at the end of a stream and cuts the connection, and what stands
 * before a cut may be lost.
 */
async function probe(http: Http, topic: string, last: number | undefined, place: Place, signal: AbortSignal): Promise<void> {
  const from = last === undefined ? place : { from: 'seq', seq: last };
  try {
    await http.json('GET', '/replay', { query: { topic, ...from, limit: 1, normalise: 1 }, signal });
  } catch (error) {
    if (!(error instanceof PrometheanError && error.code === 'forbidden')) throw error;
  }
}

async function* read<T>(response: Response, base: string, raw: boolean, connection: AbortController): AsyncGenerator<PrometheanEvent<T>, void, void> {
  const reader = response.body!.getReader();
  const decoder = new TextDecoder();
  const parser = new SseParser();
  const dead = new PrometheanError('unavailable', `the stream was silent for ${silentMs} ms`);
  for (;;) {
    const timeout = new AbortController();
    const timer = setTimeout(() => timeout.abort(dead), silentMs);
    let piece;
    try {
      piece = await raceSignal(reader.read(), timeout.signal);
    } catch (cause) {
      if (cause === dead || connection.signal.aborted) throw cause;
      throw unreachable(base, cause);
    } finally {
      clearTimeout(timer);
    }
    if (piece.done) return;
    for (const message of parser.push(decoder.decode(piece.value, { stream: true }))) {
      if (message.event === 'error') throw brokenOff(parse(message.data));
      if (message.event !== 'event') continue;
      const event = parse<PrometheanEvent<T>>(message.data);
      const text = raw ? rawOfEvent(message.data) : undefined;
      if (text !== undefined) event.raw = text;
      yield event;
    }
  }
}
