/**
 * Client of the Promethean event bus, for Node and browsers.
 *
 * Durability: `publish` resolves once the hub has the event on disk, or on the
 * majority of its engine. Every event is sent with an id, so that sending it
 * again after a lost connection stores it once.
 *
 * Delivery: at least once, with the rules of the hub. A handler that resolves
 * acks its event, one that throws gives it back. Leases are extended while a
 * handler runs.
 *
 * Order: publishes go in the order of the calls, also over lost connections.
 * Events of one key are handled one after the other.
 *
 * Connection: a lost one is made again, with growing waits, and subscriptions
 * go on. No call ends without a result or the reason.
 *
 * @module
 */
export { Client, connect } from './client.js';
export type { ClientOptions, CloseOptions, ConnectOptions, PublishOptions } from './client.js';
export { PrometheanError, dead, retry } from './errors.js';
export type { Code, ErrorDetails, FieldError, SchemaProblem } from './errors.js';
export { RawJSON, rawJSON } from './event.js';
export type { EventOptions, NewEvent, Place, PrometheanEvent, Receipt } from './event.js';
export type { Status, TokenSource } from './link.js';
export type { BackoffOptions } from './backoff.js';
export type { Delivery } from './delivery.js';
export type { GroupSettings, Handler, StopOptions, SubscribeOptions, Subscription } from './subscription.js';
export type { GroupPartitions, PartitionInfo, PartitionMember, Rebalance } from './parted.js';
export type { ChangefeedInfo, OutboxInfo, OutboxRow } from './inflow.js';
export type { TailOptions } from './tail.js';
export type { WebSocketConstructor, WebSocketLike } from './socket.js';
export { Api } from './api.js';
export type {
  AtOptions, CallOptions, Change, Cursor, DeadLetter, GroupInfo, Lag, NackOptions, NormaliseOptions, Page, Pulled, PullOptions, ReadOptions, Reduce, ReplayLettersOptions,
  SettleOptions, Settled, State, Step, Steps, TopicInfo, TopicSettings,
} from './api.js';
export { Schemas } from './schemas.js';
export type { Compat, Compatibility, JSONSchema, SchemaDefinition, SchemaInfo, SchemaVersion, Validity } from './schemas.js';
export { newId } from './uuid.js';
export { partitionFor } from './partition.js';
export { Views } from './views.js';
export type { Snapshot, ViewDocument, ViewInfo, ViewList, ViewQuery, ViewRebuild } from './views.js';
