/** How a group is divided among its members. Times are epoch milliseconds. */
export interface GroupPartitions {
  topic: string;
  group: string;
  /** Where it is false there is nothing more to tell. */
  partitioned: boolean;
  /** Grows whenever partitions are given to others. */
  generation: number;
  members: PartitionMember[];
  partitions: PartitionInfo[];
  last_rebalance?: Rebalance;
}

/** A member of a partitioned group. */
export interface PartitionMember {
  id: string;
  /** It chose its id: its partitions wait for it for a while. */
  static: boolean;
  hub?: string;
  meta?: Record<string, string>;
  joined: number;
  last_heartbeat: number;
  /** Since when its partitions wait for it. */
  away_since?: number;
  leaving?: boolean;
  /** It came and went too often, and gets nothing until then. */
  damped_until?: number;
  /** Those that it is to have. */
  partitions: number[];
}

/** How one partition stands. */
export interface PartitionInfo {
  partition: number;
  /** The member that is to have it, `''` if there is none. */
  owner: string;
  /** Who has it still, while it moves. */
  from?: string;
  epoch: number;
  cursor: number;
  lag: number;
  /** The lag is an estimate. */
  about?: boolean;
  /** Known where the hub serves the partition. */
  inflight?: number;
}

/** The last rebalance of a group. */
export interface Rebalance {
  at: number;
  /** How long it was until all partitions ran again. */
  took_ms?: number;
  moved: number;
  /** How many do not run yet. */
  pending?: number;
}
