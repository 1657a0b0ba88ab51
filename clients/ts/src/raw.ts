/**
 * Finds payloads in JSON text without parsing it, so that their own text can be
 * given out. Everything here expects text that JSON.parse has accepted; each
 * number is an index into it.
 */

const QUOTE = 0x22, BACKSLASH = 0x5c, COMMA = 0x2c, OPEN_OBJECT = 0x7b, CLOSE_OBJECT = 0x7d, OPEN_ARRAY = 0x5b, CLOSE_ARRAY = 0x5d;

function skipSpace(s: string, i: number): number {
  while (s.charCodeAt(i) <= 0x20) i++;
  return i;
}

function skipString(s: string, i: number): number {
  for (;;) {
    i = s.indexOf('"', i + 1);
    let back = i - 1;
    while (s.charCodeAt(back) === BACKSLASH) back--;
    if ((i - back) % 2 === 1) return i + 1; // an even number of backslashes before it
  }
}

/** The end of the value that begins at i. */
function skipValue(s: string, i: number): number {
  const c = s.charCodeAt(i);
  if (c === QUOTE) return skipString(s, i);
  if (c === OPEN_OBJECT || c === OPEN_ARRAY) {
    let depth = 0;
    for (;;) {
      const d = s.charCodeAt(i);
      if (d === QUOTE) {
        i = skipString(s, i);
        continue;
      }
      i++;
      if (d === OPEN_OBJECT || d === OPEN_ARRAY) depth++;
      else if ((d === CLOSE_OBJECT || d === CLOSE_ARRAY) && --depth === 0) return i;
    }
  }
  for (; i < s.length; i++) {
    const d = s.charCodeAt(i);
    if (d <= 0x20 || d === COMMA || d === CLOSE_OBJECT || d === CLOSE_ARRAY) break;
  }
  return i;
}

/** Where the value of a member of the object at i begins; -1 if there is none. */
function member(s: string, i: number, name: string): number {
  const quoted = JSON.stringify(name);
  i = skipSpace(s, i);
  if (s.charCodeAt(i) !== OPEN_OBJECT) return -1;
  i = skipSpace(s, i + 1);
  while (s.charCodeAt(i) === QUOTE) {
    const end = skipString(s, i);
    const value = skipSpace(s, s.indexOf(':', end) + 1);
    if (end - i === quoted.length && s.startsWith(quoted, i)) return value;
    i = skipSpace(s, skipValue(s, value));
    if (s.charCodeAt(i) === COMMA) i = skipSpace(s, i + 1);
  }
  return -1;
}

/** Where the elements of the array at i begin. */
function elements(s: string, i: number): number[] {
  const out: number[] = [];
  if (i < 0 || s.charCodeAt(i) !== OPEN_ARRAY) return out;
  i = skipSpace(s, i + 1);
  while (s.charCodeAt(i) !== CLOSE_ARRAY) {
    out.push(i);
    i = skipSpace(s, skipValue(s, i));
    if (s.charCodeAt(i) === COMMA) i = skipSpace(s, i + 1);
  }
  return out;
}

function payloadAt(s: string, event: number): string | undefined {
  const i = event < 0 ? -1 : member(s, event, 'payload');
  return i < 0 ? undefined : s.slice(i, skipValue(s, i));
}

/** The payload's text of an event. */
export function rawOfEvent(text: string): string | undefined {
  return payloadAt(text, 0);
}

/** Those of `{"events":[event…]}`. */
export function rawOfEvents(text: string): (string | undefined)[] {
  return elements(text, member(text, 0, 'events')).map((i) => payloadAt(text, i));
}

/** Those of an EVENT frame, or of an EVENTS frame or the answer of a pull: `{"events":[{"event":event,…}…]}`. */
export function rawOfDeliveries(text: string): (string | undefined)[] {
  const list = member(text, 0, 'events');
  if (list < 0) return [payloadAt(text, member(text, 0, 'event'))];
  return elements(text, list).map((i) => payloadAt(text, member(text, i, 'event')));
}
