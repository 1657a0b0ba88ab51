/** How a change feed of a hub is doing. Times are epoch milliseconds. */
export interface ChangefeedInfo {
  name: string;
  topic: string;
  /** `elsewhere`: another hub runs it, and did not tell more. `failed`: somebody has to do something. */
  state: 'starting' | 'snapshot' | 'streaming' | 'waiting' | 'gone' | 'failed' | 'stopped' | 'elsewhere';
  /** Which hub runs it. */
  hub?: string;
  since: number;
  published: number;
  /** Read again, and known to the hub. */
  duplicates: number;
  filtered: number;
  /** Too large, and replaced by a marker. */
  oversized: number;
  /** Left out, since the hub refused them. */
  refused: number;
  failures: number;
  history_lost: number;
  position?: string;
  last_change?: number;
  /** How long after it was made the last change was published, or the age of one that cannot be. */
  lag_ms: number;
  /** What the server keeps for the feed. */
  lag_bytes?: number;
  server?: string;
  /** What somebody should look after at the source. */
  warning?: string;
  error?: string;
  error_at?: number;
}

/** How an outbox that a hub drains is doing. Times are epoch milliseconds. */
export interface OutboxInfo {
  name: string;
  state: 'draining' | 'outage' | 'stopped';
  pending: number;
  claimed: number;
  /** How many of the pending rows have an error. */
  refused: number;
  /** How many wait for a person. */
  failed: number;
  /** Age of the oldest row that is not sent. */
  lag_ms: number;
  counted?: number;
  sent_total: number;
  refused_total: number;
  last_sent?: number;
  /** The database tells when rows come. */
  waking: boolean;
  outage?: string;
  error?: string;
  error_at?: number;
}

/** A row of an outbox that could not be published. */
export interface OutboxRow {
  id: string;
  topic: string;
  key?: string;
  state: 'pending' | 'claimed' | 'failed';
  attempts: number;
  error: string;
  at: number;
}
