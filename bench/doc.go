// Command bench measures Promethean's embedded engine, the limit that the disk
// sets, and two peers, in one run on one machine, and prints the ratios.
//
//	go run ./bench                      everything, 60 s a figure
//	go run ./bench -short               everything, in less than two minutes
//	go run ./bench -only c64,us,raw     one figure, two targets
//	go run ./bench -markdown FILE       the same tables for the documentation
//
// # What is compared
//
//	raw                group commit and nothing else: one write and one
//	                   fdatasync for all that wait, no checksum, no index
//	raw-recycled       the same over segments that were zeroed beforehand, for
//	                   information; with -short only if it is asked for
//	us                 store/logstore
//	redis-always       Redis streams, appendfsync always, over loopback
//	jetstream-always   NATS JetStream, sync_interval always, over loopback
//	jetstream-default  the same with the default interval: not durable
//
// A target that cannot run here is named, with the reason, and its rows are
// left out.
//
// # How it is made fair
//
// Every event has 300 bytes and comes from the same generator. Rounds are
// interleaved, so that drift of the machine meets all targets alike, and a
// ratio is the median of the ratios inside each round. Every round begins with
// an empty directory. The clock of us stops only when the last event of every
// publisher answers by id and by key; peers owe no such answer. Redis and
// JetStream do not pay for starting up, and Redis does not check ids.
//
// One thing favours us: the engine sorts full segments into their final place
// behind the publishers, and lookups answer before that is done. At its
// defaults about 128 MiB may still wait when the clock stops. The volume of a
// round stands below each table: where it is not many times that, the rate is
// one of a burst. Long rounds (-rounds 1), and the rates along the long
// history, are the sustained ones.
//
// Peers run as processes of their own, on loopback, and die with this one.
package main
