/** One message of a stream of Server-Sent Events. */
export interface SseMessage {
  id: string;
  event: string;
  data: string;
}

/**
 * Reads Server-Sent Events from text that comes in pieces, cut anywhere, as the
 * HTML standard has it: lines end with LF, CR or both, data of several lines is
 * joined, comments are passed over, and an id holds until the next.
 * @internal
 */
export class SseParser {
  private rest = ''; // of a line that is not complete
  private id = '';
  private event = '';
  private data: string[] = [];
  private begun = false;

  /** Takes a piece and gives the messages that are complete with it. */
  push(piece: string): SseMessage[] {
    const out: SseMessage[] = [];
    let text = this.rest + piece;
    if (!this.begun && text.length > 0) {
      this.begun = true;
      if (text.charCodeAt(0) === 0xfeff) text = text.slice(1);
    }
    let from = 0;
    for (;;) {
      const lf = text.indexOf('\n', from);
      let end = lf;
      const cr = text.indexOf('\r', from);
      if (cr >= 0 && (lf < 0 || cr < lf)) {
        if (cr === text.length - 1) break; // its LF may be in the next piece
        end = cr;
      }
      if (end < 0) break;
      this.line(text.slice(from, end), out);
      from = end + (text.charCodeAt(end) === 13 && text.charCodeAt(end + 1) === 10 ? 2 : 1);
    }
    this.rest = from === 0 ? text : text.slice(from);
    return out;
  }

  private line(line: string, out: SseMessage[]): void {
    if (line === '') {
      if (this.data.length > 0) out.push({ id: this.id, event: this.event || 'message', data: this.data.join('\n') });
      this.event = '';
      this.data = [];
      return;
    }
    const colon = line.indexOf(':');
    if (colon === 0) return; // a comment
    const name = colon < 0 ? line : line.slice(0, colon);
    const begin = line.charCodeAt(colon + 1) === 0x20 ? colon + 2 : colon + 1;
    const value = colon < 0 ? '' : line.slice(begin);
    if (name === 'data') this.data.push(value);
    else if (name === 'event') this.event = value;
    else if (name === 'id' && !value.includes('\0')) this.id = value;
  }
}
