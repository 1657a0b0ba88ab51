package gateway

import (
	"net/http"

	"promethean/gateway/auth"
	"promethean/wire"
)

// table lists all routes. It is the order of the documentation. Of two paths
// that fit a request the first counts.
func (g *Gateway) table() []route {
	list := publishing()
	list = append(list, reading()...)
	list = append(list, consuming()...)
	list = append(list, administration()...)
	list = append(list, registry()...)
	list = append(list, readModels()...)
	return append(list, health()...)
}

// Parameters that several routes have.
var (
	topicParam = param{name: "topic", kind: "string", about: "The topic.", required: true}
	limitParam = param{name: "limit", kind: "integer", about: "How many at most: 1000 unless given, 10000 at most."}
	groupParam = param{name: "group", kind: "string", about: "The group.", required: true}
	placeParam = []param{
		{name: "from", kind: "string", about: "earliest, latest, ts, afterId or seq."},
		{name: "ts", kind: "string", about: "With from=ts: the first event at or after this time, epoch ms or RFC 3339."},
		{name: "afterId", kind: "string", about: "With from=afterId: after the event with this id."},
		{name: "seq", kind: "integer", about: "With from=seq: after this seq."},
	}
	normaliseParam = param{name: "normalise", kind: "string", about: "1: events upcast to the latest version."}
)

func publishing() []route {
	return []route{
		{method: "POST", path: "/publish/{topic}", action: auth.Publish, topic: "path", handle: publishOne, doc: operation{
			summary: "Publish one event; the body is its payload.",
			params: []param{
				{name: "key", kind: "string", about: "What order, compaction and partition follow."},
				{name: "id", kind: "string", about: "A UUID; publishing a known one stores nothing."},
				{name: "ts", kind: "string", about: "When it happened: epoch ms or RFC 3339."},
				{name: "sid", kind: "string", about: "The publisher's session."},
				{name: "partition", kind: "integer", about: "The partition."},
				{name: "tag", kind: "string", about: "A tag.", many: true},
				{name: "caused_by", kind: "string", about: "The id of an event that led to this one.", many: true},
				{name: "expect_seq", kind: "integer", about: "Store it only if this is the topic's last seq."},
				{name: "Idempotency-Key", in: "header", kind: "string", about: "The id, if none is given."},
			},
			body: "Payload", status: http.StatusCreated, answer: "Receipt", known: true,
			codes:   []wire.Code{wire.BadJSON, wire.InvalidTopic, wire.InvalidHeader, wire.PayloadTooLarge, wire.SchemaInvalid, wire.SeqConflict, wire.RateLimited, wire.NotFound},
			example: example{path: "/publish/orders.placed?key=customer-1&tag=new", body: `{"order":12345678901234567890}`},
		}},
		{method: "POST", path: "/publish", action: auth.Publish, topic: "handler", handle: publishMany, doc: operation{
			summary:  "Publish up to 10,000 events of 8 MiB together, all or nothing: NDJSON or a JSON array.",
			body:     "Batch",
			bodyType: "application/x-ndjson", status: http.StatusCreated, answer: "Receipts",
			codes:   []wire.Code{wire.BadJSON, wire.InvalidTopic, wire.InvalidHeader, wire.PayloadTooLarge, wire.BatchTooLarge, wire.SchemaInvalid, wire.RateLimited, wire.NotFound},
			example: example{path: "/publish", body: `{"topic":"orders.placed","payload":{"n":1},"key":"a"}` + "\n" + `{"topic":"orders.placed","payload":null}` + "\n"},
		}},
		{method: "POST", path: "/cloudevents", action: auth.Publish, topic: "handler", handle: publishCloud, doc: operation{
			summary: "Publish CloudEvents 1.0, binary, structured or batched: type is the topic, partitionkey or subject the key.",
			body:    "CloudEvent", bodyType: structuredType, status: http.StatusCreated, answer: "CloudReceipt", known: true,
			codes:   []wire.Code{wire.BadJSON, wire.InvalidTopic, wire.InvalidHeader, wire.PayloadTooLarge, wire.BatchTooLarge, wire.SchemaInvalid, wire.RateLimited, wire.NotFound},
			example: example{path: "/cloudevents", body: `{"specversion":"1.0","id":"a-1","source":"/shop","type":"orders.placed","subject":"customer-1","data":{"n":1}}`},
		}},
	}
}

func reading() []route {
	return []route{
		{method: "GET", path: "/replay", action: auth.Read, topic: "query", handle: replay, doc: operation{
			summary: "Events of a topic from a place on; next is the last seq given.",
			params:  append([]param{topicParam, limitParam, normaliseParam}, placeParam...), answer: "Events",
			codes:   []wire.Code{wire.InvalidTopic, wire.CursorUnknown, wire.NotFound, wire.SchemaInvalid, wire.Unsupported},
			example: example{path: "/replay?topic=orders.placed&from=seq&seq=0&limit=10"},
		}},
		{method: "GET", path: "/export", action: auth.Read, topic: "query", handle: export, doc: operation{
			summary: "A whole topic, or what lies between two times, as a stream.",
			params: []param{
				topicParam,
				{name: "fromTs", kind: "string", about: "No event before this time: epoch ms or RFC 3339."},
				{name: "toTs", kind: "string", about: "No event after this time."},
				{name: "ndjson", kind: "string", about: "1, one event a line, unless 0 is given: a JSON array."},
				normaliseParam,
			},
			answer: "Text", answerType: "application/x-ndjson",
			codes:   []wire.Code{wire.InvalidTopic, wire.NotFound, wire.SchemaInvalid, wire.Unsupported},
			example: example{path: "/export?topic=orders.placed&fromTs=2026-01-01T00:00:00Z"},
		}},
		{method: "GET", path: "/latest-by-key", action: auth.Read, topic: "query", handle: latestByKey, doc: operation{
			summary: "The latest event of each key, null where there is none.",
			params:  []param{topicParam, {name: "key", kind: "string", about: "A key; up to 1000 of them.", required: true, many: true}}, answer: "Latest",
			codes:   []wire.Code{wire.InvalidTopic, wire.NotFound},
			example: example{path: "/latest-by-key?topic=orders.placed&key=a&key=nobody"},
		}},
		{method: "GET", path: "/history", action: auth.Read, topic: "query", handle: history, doc: operation{
			summary: "The events of a key in log order; with diff=1 also what each changed.",
			params: []param{
				topicParam, keyParam, limitParam,
				{name: "after", kind: "integer", about: "Only events after this seq."},
				{name: "diff", kind: "string", about: "1: steps in place of events, each with the state after it and what changed."},
				reduceParam,
			},
			answer:  "History",
			codes:   []wire.Code{wire.InvalidTopic, wire.NotFound},
			example: example{path: "/history?topic=orders.placed&key=a&diff=1"},
		}},
		atRoute,
	}
}

func consuming() []route {
	settle := []wire.Code{wire.BadJSON, wire.InvalidTopic, wire.NotFound, wire.PayloadTooLarge, wire.BatchTooLarge}
	return []route{
		{method: "GET", path: "/subscribe", action: auth.Subscribe, topic: "query", handle: subscribe, doc: operation{
			summary: "Server-Sent Events: id is the seq, data the event. Without group a tail, resumed by Last-Event-ID; with group leased, acknowledged by POST /ack.",
			params: append([]param{
				topicParam,
				{name: "group", kind: "string", about: "Get events as a member of this group."},
				{name: "Last-Event-ID", in: "header", kind: "integer", about: "Go on after this seq; not with a group."},
				{name: "ordering", kind: "string", about: "Of the group: key, topic or none."},
				{name: "deadLetter", kind: "string", about: "Of the group: event, key or block."},
				{name: "maxAttempts", kind: "integer", about: "Of the group."},
				{name: "ackTimeoutMs", kind: "integer", about: "Of the group."},
				{name: "filter", kind: "string", about: "Of the group: a CEL expression."},
				{name: "partitioned", kind: "string", about: "Of the group."},
				{name: "batchSize", kind: "integer", about: "How many events are read ahead."},
				{name: "maxInFlight", kind: "integer", about: "How many events the connection may hold."},
				normaliseParam,
			}, placeParam...),
			answer: "Text", answerType: "text/event-stream",
			codes:   []wire.Code{wire.InvalidTopic, wire.CursorUnknown, wire.GroupConflict, wire.NotFound, wire.Unsupported},
			example: example{path: "/subscribe?topic=orders.placed&from=earliest"},
		}},
		{method: "POST", path: "/pull", action: auth.Subscribe, topic: "handler", handle: pull, doc: operation{
			summary: "Lease events of a group; waits for the first of them for up to wait_ms, at most 30 s.",
			body:    "Pull", answer: "Deliveries",
			codes:   append([]wire.Code{wire.CursorUnknown, wire.GroupConflict, wire.Unsupported}, settle...),
			example: example{path: "/pull", body: `{"topic":"orders.placed","group":"billing","max":10,"wait_ms":0,"opts":{"from":"earliest"}}`},
		}},
		{method: "POST", path: "/ack", action: auth.Subscribe, topic: "handler", handle: ack, doc: operation{
			summary: "Settle events; answered once that is durable.", body: "Settle", answer: "Results", codes: settle,
			example: example{path: "/ack", body: `{"topic":"orders.placed","group":"billing","ids":["0192f7c1-0000-7000-8000-000000000001"]}`},
		}},
		{method: "POST", path: "/nack", action: auth.Subscribe, topic: "handler", handle: nack, doc: operation{
			summary: "Give events back: they come again after a growing delay, or after delay_ms, or go to the dead letters.", body: "Settle", answer: "Results", codes: settle,
			example: example{path: "/nack", body: `{"topic":"orders.placed","group":"billing","ids":["0192f7c1-0000-7000-8000-000000000001"],"leases":["1"],"reason":"busy","delay_ms":1000}`},
		}},
		{method: "POST", path: "/modack", action: auth.Subscribe, topic: "handler", handle: modack, doc: operation{
			summary: "Let leases last until extend_ms from now.", body: "Settle", answer: "Results", codes: settle,
			example: example{path: "/modack", body: `{"topic":"orders.placed","group":"billing","ids":["0192f7c1-0000-7000-8000-000000000001"],"extend_ms":60000}`},
		}},
		{method: "GET", path: "/ws", handle: openWS, doc: operation{
			summary: "Open a WebSocket; each of its frames is checked by itself.", status: http.StatusSwitchingProtocols,
			codes: []wire.Code{wire.InvalidArgument, wire.Unauthorized, wire.Draining}, example: example{path: "/ws"},
		}},
	}
}

func administration() []route {
	return []route{
		{method: "GET", path: "/topics", action: auth.Admin, handle: listTopics, doc: operation{
			summary: "All topics with settings and counts.", answer: "Topics", example: example{path: "/topics"},
		}},
		{method: "GET", path: "/topics/{topic}", action: auth.Admin, handle: getTopic, doc: operation{
			summary: "Settings and counts of a topic.", answer: "Topic", codes: []wire.Code{wire.InvalidTopic, wire.NotFound},
			example: example{path: "/topics/orders.placed"},
		}},
		{method: "PUT", path: "/topics/{topic}", action: auth.Admin, handle: putTopic, doc: operation{
			summary: "Change settings of a topic, and make it if need be. What is left out stays, null is the default.", body: "TopicSettings", answer: "Topic",
			codes:   []wire.Code{wire.BadJSON, wire.InvalidTopic, wire.PayloadTooLarge, wire.Unsupported},
			example: example{path: "/topics/orders.placed", body: `{"retention":"72h","max_bytes":"10GiB"}`},
		}},
		{method: "GET", path: "/groups", action: auth.Admin, handle: listGroups, doc: operation{
			summary: "The groups of a topic, or all.", params: []param{{name: "topic", kind: "string", about: "Only those of this topic."}}, answer: "Groups",
			codes: []wire.Code{wire.InvalidTopic}, example: example{path: "/groups?topic=orders.placed"},
		}},
		{method: "PUT", path: "/groups/{topic}/{group}", action: auth.Admin, handle: putGroup, doc: operation{
			summary: "Make a group, or change maxAttempts and ackTimeoutMs of one that exists; it must not have other settings beside.", body: "Options", optional: true, answer: "Group",
			codes:   []wire.Code{wire.BadJSON, wire.InvalidTopic, wire.CursorUnknown, wire.GroupConflict, wire.NotFound, wire.PayloadTooLarge, wire.Unsupported},
			example: example{path: "/groups/orders.placed/billing", body: `{"from":"earliest","maxAttempts":5}`},
		}},
		{method: "DELETE", path: "/groups/{topic}/{group}", action: auth.Admin, handle: deleteGroup, doc: operation{
			summary: "Remove a group that nobody reads.", status: http.StatusNoContent,
			codes: []wire.Code{wire.InvalidTopic, wire.NotFound}, example: example{path: "/groups/orders.placed/unused"},
		}},
		{method: "GET", path: "/cursors", action: auth.Admin, handle: listCursors, doc: operation{
			summary: "Where the groups of a topic are.", params: []param{topicParam}, answer: "Cursors",
			codes: []wire.Code{wire.InvalidTopic, wire.NotFound}, example: example{path: "/cursors?topic=orders.placed"},
		}},
		{method: "PUT", path: "/cursors", action: auth.Admin, handle: putCursor, doc: operation{
			summary: "Move a group to another place: its leases end, and settlements after the place are forgotten.", body: "Move", answer: "Cursor",
			codes:   []wire.Code{wire.BadJSON, wire.InvalidTopic, wire.CursorUnknown, wire.NotFound, wire.PayloadTooLarge},
			example: example{path: "/cursors", body: `{"topic":"orders.placed","group":"billing","to":{"from":"earliest"}}`},
		}},
		{method: "GET", path: "/lag", action: auth.Admin, handle: lag, doc: operation{
			summary: "How far a group is behind: in events that are not settled, and in ms.", params: []param{topicParam, groupParam}, answer: "Lag",
			codes: []wire.Code{wire.InvalidTopic, wire.NotFound}, example: example{path: "/lag?topic=orders.placed&group=billing"},
		}},
		{method: "GET", path: "/ops/partitions", action: auth.Admin, handle: showPartitions, doc: operation{
			summary: "Who has which partition of a partitioned group, and how far each is.",
			params: []param{
				{name: "group", kind: "string", about: "Groups of this name. Unless given: all partitioned groups."},
				{name: "topic", kind: "string", about: "Only those of this topic."},
			},
			answer: "PartitionedGroups",
			codes:  []wire.Code{wire.InvalidTopic, wire.NotFound, wire.Unsupported}, example: example{path: "/ops/partitions?group=billing"},
		}},
		{method: "GET", path: "/dlq", action: auth.Admin, handle: countLetters, doc: operation{
			summary: "How many dead letters there are, by topic and group.", answer: "LetterCounts", example: example{path: "/dlq"},
		}},
		{method: "GET", path: "/dlq/{topic}", action: auth.Admin, handle: listLetters, doc: operation{
			summary: "The dead letters of a topic that were not replayed.", params: []param{{name: "group", kind: "string", about: "Only those of this group."}, limitParam}, answer: "Letters",
			codes: []wire.Code{wire.InvalidTopic}, example: example{path: "/dlq/orders.placed"},
		}},
		{method: "POST", path: "/dlq/{topic}/replay", action: auth.Admin, handle: replayLetters, doc: operation{
			summary: "Replay dead letters of a topic, oldest first; their attempts start again.", body: "Replay", optional: true, answer: "Replayed",
			codes:   []wire.Code{wire.BadJSON, wire.InvalidTopic, wire.NotFound, wire.PayloadTooLarge, wire.BatchTooLarge, wire.Unsupported},
			example: example{path: "/dlq/orders.placed/replay", body: `{"limit":10,"to":"topic"}`},
		}},
		{method: "GET", path: "/ops/cluster", action: auth.Admin, handle: listHubs, doc: operation{
			summary: "The hubs that share the engine, this one included.", answer: "Hubs", example: example{path: "/ops/cluster"},
		}},
		{method: "GET", path: "/ops/changefeeds", action: auth.Admin, handle: listFeeds, doc: operation{
			summary: "The change feeds of this hub, and how they are doing.", answer: "Changefeeds", example: example{path: "/ops/changefeeds"},
		}},
		{method: "POST", path: "/ops/changefeeds/{name}/resync", action: auth.Admin, handle: resyncFeed, doc: operation{
			summary: "Have a change feed forget its place and begin anew, with a snapshot if it takes one.", answer: "Changefeed", status: http.StatusAccepted,
			codes: []wire.Code{wire.NotFound, wire.Unavailable}, example: example{path: "/ops/changefeeds/processes/resync"},
		}},
		{method: "GET", path: "/ops/outboxes", action: auth.Admin, handle: listOutboxes, doc: operation{
			summary: "The outboxes that this hub drains, and how they are doing.", answer: "Outboxes", example: example{path: "/ops/outboxes"},
		}},
		{method: "GET", path: "/ops/outboxes/{name}/errors", action: auth.Admin, handle: listOutboxErrors, doc: operation{
			summary: "The rows of an outbox that could not be published, those that wait for a person first.", params: []param{limitParam}, answer: "OutboxErrors",
			codes: []wire.Code{wire.NotFound, wire.Unavailable}, example: example{path: "/ops/outboxes/shop/errors"},
		}},
		{method: "POST", path: "/ops/outboxes/{name}/retry", action: auth.Admin, handle: retryOutbox, doc: operation{
			summary: "Have rows of an outbox that could not be published tried again at once: those named, or all.", body: "OutboxRows", optional: true, answer: "OutboxRetried",
			codes: []wire.Code{wire.BadJSON, wire.NotFound, wire.BatchTooLarge, wire.Unavailable}, example: example{path: "/ops/outboxes/shop/retry", body: `{"ids":["0190a6d2-7b4c-7e8f-9a0b-1c2d3e4f5a6b"]}`},
		}},
		{method: "POST", path: "/ops/outboxes/{name}/discard", action: auth.Admin, handle: discardOutbox, doc: operation{
			summary: "Remove rows of an outbox that could not be published: they never will be, and those behind them go on.", body: "OutboxRows", answer: "OutboxDiscarded",
			codes: []wire.Code{wire.BadJSON, wire.NotFound, wire.BatchTooLarge, wire.Unavailable}, example: example{path: "/ops/outboxes/shop/discard", body: `{"ids":["0190a6d2-7b4c-7e8f-9a0b-1c2d3e4f5a6b"]}`},
		}},
		{method: "GET", path: "/metrics", action: auth.Admin, steady: true, handle: metrics, doc: operation{
			summary: "Metrics in the text format of Prometheus.", answer: "Text", answerType: "text/plain", codes: []wire.Code{wire.NotFound}, example: example{path: "/metrics"},
		}},
		{method: "GET", path: "/openapi.json", action: auth.Admin, steady: true, handle: openAPI, doc: operation{
			summary: "What this hub can do, as an OpenAPI 3.1 document.", answer: "Object", example: example{path: "/openapi.json"},
		}},
	}
}

func health() []route {
	return []route{
		{method: "GET", path: "/healthz", steady: true, handle: alive, doc: operation{
			summary: "Whether the hub works.", answer: "Health", example: example{path: "/healthz"},
		}},
		{method: "GET", path: "/livez", steady: true, handle: alive, doc: operation{
			summary: "Whether the process is alive.", answer: "Health", example: example{path: "/livez"},
		}},
		{method: "GET", path: "/readyz", steady: true, handle: ready, doc: operation{
			summary: "Whether the hub takes work; it stops doing so first when it drains.", answer: "Health",
			codes: []wire.Code{wire.Draining}, example: example{path: "/readyz"},
		}},
		// A browser that opens the page has no token to show; the page holds
		// nothing that needs one.
		{method: "GET", path: "/", steady: true, handle: home, doc: operation{
			summary: "A page for people: topics, groups, live events, dead letters.", answer: "Text", answerType: "text/html", example: example{path: "/"},
		}},
		{method: "GET", path: "/console/{file}", steady: true, handle: consoleFile, doc: operation{
			summary: "What the page is made of.", answer: "Text", answerType: "text/css", codes: []wire.Code{wire.NotFound},
			example: example{path: "/console/console.css"},
		}},
	}
}

// alive answers while the process does.
func alive(c *call) error {
	return c.answerJSON(http.StatusOK, map[string]string{"status": "ok", "version": c.g.o.Version})
}

// ready answers while work is taken.
func ready(c *call) error {
	if c.g.draining.Load() {
		return errDraining
	}
	return c.answerJSON(http.StatusOK, map[string]string{"status": "ready"})
}
