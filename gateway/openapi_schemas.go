package gateway

import (
	"encoding/json"

	"promethean/wire"
)

// schemas are the schemas of the document, by name.
func schemas() object {
	out := object{}
	for name, text := range schemaTexts {
		out[name] = json.RawMessage(text)
	}
	var codes []string
	for _, e := range wire.Table() {
		codes = append(codes, string(e.Code))
	}
	out["Problem"] = object{
		"type": "object", "description": "An error, as in RFC 9457.",
		"required": []string{"type", "title", "status", "code"},
		"properties": object{
			"type": object{"type": "string"}, "title": object{"type": "string"}, "detail": object{"type": "string"},
			"status":     object{"type": "integer"},
			"code":       object{"type": "string", "enum": codes, "description": "What programs go by."},
			"index":      object{"type": "integer", "minimum": 0, "description": "Of the bad row of a batch, from 0."},
			"expected":   object{"type": "integer", "minimum": 0, "description": "Of a seq_conflict."},
			"actual":     object{"type": "integer", "minimum": 0, "description": "Of a seq_conflict."},
			"seq":        object{"type": "integer", "minimum": 1, "description": "Of an event that cannot be normalised."},
			"errors":     object{"type": "array", "items": ref("FieldError"), "description": "Of a payload that is not valid."},
			"problems":   object{"type": "array", "items": ref("SchemaProblem"), "description": "Of a schema that does not fit."},
			"oldest":     object{"type": "integer", "minimum": 0, "description": "Of a history_gone: the oldest ts that can be answered."},
			"oldest_seq": object{"type": "integer", "minimum": 1, "description": "Of a history_gone: the smallest asOf that can be answered."},
		},
	}
	return out
}

// schemaTexts are schemas as they stand in the document.
var schemaTexts = map[string]string{
	"Document":  `{"type":"object","required":["_key","_ts"],"properties":{"_key":{"type":"string"},"_ts":{"type":"integer","description":"Epoch ms."}}}`,
	"Documents": `{"type":"object","required":["offset","limit","count","items"],"properties":{"offset":{"type":"integer"},"limit":{"type":"integer"},"count":{"type":"integer"},"items":{"type":"array","items":{"$ref":"#/components/schemas/Document"}}}}`,
	"Rebuild":   `{"type":"object","additionalProperties":false,"properties":{"from":{"enum":["earliest","snapshot"]}}}`,
	"View": `{"type":"object","required":["name","topic","group","kind","seq","tail","lag","collections"],"properties":{
		"name":{"type":"string"},"topic":{"type":"string"},"group":{"type":"string"},"kind":{"enum":["changelog","transactional"]},
		"seq":{"type":"integer","description":"How far it is."},"tail":{"type":"integer"},"lag":{"type":"integer"},
		"collections":{"type":"array","items":{"type":"object","required":["name","count","indexes"],"properties":{"name":{"type":"string"},"count":{"type":"integer"},"indexes":{"type":"array","items":{"type":"array","items":{"type":"string"}}}}}},
		"no_key":{"type":"integer","description":"Events without a key."},"stale":{"type":"integer"},"dead":{"type":"integer"},"expired":{"type":"integer"},
		"err":{"type":"string","description":"Why it stands still."},
		"rebuild":{"type":"object","properties":{"state":{"enum":["building","swapping","done","failed"]},"seq":{"type":"integer"},"tail":{"type":"integer"},"events":{"type":"integer"},"began":{"type":"string"},"ended":{"type":"string"},"err":{"type":"string"}}}}}`,
	"Views": `{"type":"object","required":["count","views"],"properties":{"count":{"type":"integer"},"views":{"type":"array","items":{"$ref":"#/components/schemas/View"}}}}`,
	"Hubs": `{"type":"object","required":["count","hubs"],"properties":{"count":{"type":"integer"},"hubs":{"type":"array","items":{"type":"object","required":["id","started","alive","self"],"properties":{
		"id":{"type":"string","description":"The owner's name of its groups' leases."},"url":{"type":"string","description":"How other hubs reach it; absent if they do not."},
		"version":{"type":"string"},"started":{"type":"integer","description":"Epoch ms."},"seen":{"type":"integer","description":"When it last renewed its lease, epoch ms."},
		"alive":{"type":"boolean","description":"It holds its lease."},"self":{"type":"boolean","description":"It is the hub that answers."}}}}}}`,
	"Changefeed": `{"type":"object","required":["name","topic","state","since","published","duplicates","filtered","oversized","refused","failures","history_lost","lag_ms"],"properties":{
		"name":{"type":"string"},"topic":{"type":"string"},"hub":{"type":"string","description":"The hub that runs it, as /ops/cluster names it; absent if none does."},
		"state":{"enum":["starting","snapshot","streaming","waiting","gone","failed","stopped","elsewhere"],"description":"waiting: something failed, and is tried again. gone: what is watched was dropped or renamed. failed: somebody has to do something. elsewhere: another hub runs it, and did not tell more."},
		"since":{"type":"integer","description":"When it came to be in that state, epoch ms."},
		"published":{"type":"integer"},"duplicates":{"type":"integer","description":"Known to the hub: published before, and read again."},"filtered":{"type":"integer"},
		"oversized":{"type":"integer","description":"Replaced by a marker."},"refused":{"type":"integer","description":"Left out."},"failures":{"type":"integer"},
		"history_lost":{"type":"integer","description":"How often the source no longer had what came after the saved place."},
		"position":{"type":"string"},"last_change":{"type":"integer","description":"When the last change was made, epoch ms."},
		"lag_ms":{"type":"integer","description":"How long after it was made the last change was published, or the age of one that cannot be."},
		"lag_bytes":{"type":"integer","description":"How much of its log the server keeps for the feed."},
		"server":{"type":"string"},"warning":{"type":"string","description":"What somebody should look after at the source."},
		"error":{"type":"string"},"error_at":{"type":"integer","description":"Epoch ms."}}}`,
	"Changefeeds": `{"type":"object","required":["count","changefeeds"],"properties":{"count":{"type":"integer"},"changefeeds":{"type":"array","items":{"$ref":"#/components/schemas/Changefeed"}}}}`,
	"Outboxes": `{"type":"object","required":["count","outboxes"],"properties":{"count":{"type":"integer"},"outboxes":{"type":"array","items":{"type":"object",
		"required":["name","state","pending","claimed","refused","failed","lag_ms","sent_total","refused_total","waking"],"properties":{
		"name":{"type":"string"},"state":{"enum":["draining","outage","stopped"]},
		"pending":{"type":"integer"},"claimed":{"type":"integer"},"refused":{"type":"integer","description":"How many of the pending ones have an error."},
		"failed":{"type":"integer","description":"Wait for a person."},"lag_ms":{"type":"integer","description":"Age of the oldest row that is not sent."},
		"counted":{"type":"integer","description":"When these were counted, epoch ms."},"sent_total":{"type":"integer"},"refused_total":{"type":"integer"},
		"last_sent":{"type":"integer","description":"Epoch ms."},"waking":{"type":"boolean","description":"The database tells when rows come."},
		"outage":{"type":"string","description":"Why nothing goes on."},"error":{"type":"string"},"error_at":{"type":"integer","description":"Epoch ms."}}}}}}`,
	"OutboxErrors": `{"type":"object","required":["count","rows"],"properties":{"count":{"type":"integer"},"rows":{"type":"array","items":{"type":"object",
		"required":["id","topic","state","attempts","error","at"],"properties":{"id":{"type":"string","format":"uuid"},"topic":{"type":"string"},"key":{"type":"string"},
		"state":{"enum":["pending","claimed","failed"]},"attempts":{"type":"integer"},"error":{"type":"string"},"at":{"type":"integer","description":"Epoch ms."}}}}}}`,
	"OutboxRows":      `{"type":"object","additionalProperties":false,"properties":{"ids":{"type":"array","minItems":1,"maxItems":10000,"items":{"type":"string","format":"uuid"}}}}`,
	"OutboxRetried":   `{"type":"object","required":["retried"],"properties":{"retried":{"type":"integer"}}}`,
	"OutboxDiscarded": `{"type":"object","required":["discarded"],"properties":{"discarded":{"type":"integer"}}}`,
	"Payload":         `{"description":"Any JSON value, null included. It comes back with the same bytes but for white space between tokens."}`,
	"Text":            `{"type":"string"}`,
	"Object":          `{"type":"object"}`,
	"Event": `{"type":"object","required":["id","seq","ts","topic","payload"],"properties":{
		"id":{"type":"string","format":"uuid"},"seq":{"type":"integer","minimum":1},"ts":{"type":"integer","description":"Epoch ms."},
		"topic":{"type":"string","pattern":"^[a-z0-9]+(\\.[a-z0-9]+)*$"},"key":{"type":"string"},"partition":{"type":"integer","minimum":0},
		"sid":{"type":"string"},"headers":{"type":"object","additionalProperties":{"type":"string"}},"payload":{},
		"caused_by":{"type":"array","items":{"type":"string"}},"tags":{"type":"array","items":{"type":"string"}}}}`,
	"Row": `{"type":"object","required":["topic","payload"],"additionalProperties":false,"properties":{
		"topic":{"type":"string"},"payload":{},"key":{"type":"string"},"id":{"type":"string","format":"uuid"},
		"seq":{"type":"integer","description":"Ignored, so that what /export gives can be published."},
		"ts":{"type":"integer","minimum":0},"partition":{"type":"integer","minimum":0},"headers":{"type":"object","additionalProperties":{"type":"string"}},
		"tags":{"type":"array","items":{"type":"string"}},"caused_by":{"type":"array","items":{"type":"string"}},"sid":{"type":"string"}}}`,
	"Rows":  `{"type":"array","minItems":1,"maxItems":10000,"items":{"$ref":"#/components/schemas/Row"}}`,
	"Batch": `{"type":"string","description":"One Row a line."}`,
	"Receipt": `{"type":"object","required":["id","seq","ts","topic","partition"],"properties":{
		"id":{"type":"string","format":"uuid"},"seq":{"type":"integer","minimum":1},"ts":{"type":"integer"},"topic":{"type":"string"},
		"partition":{"type":"integer","minimum":0},"duplicate":{"type":"boolean"}}}`,
	"Receipts": `{"type":"object","required":["count","events"],"properties":{"count":{"type":"integer"},"events":{"type":"array","items":{
		"type":"object","required":["id","seq","topic"],"properties":{"id":{"type":"string","format":"uuid"},"seq":{"type":"integer","minimum":1},
		"topic":{"type":"string"},"duplicate":{"type":"boolean"}}}}}}`,
	"CloudReceipt": `{"anyOf":[{"$ref":"#/components/schemas/Receipt"},{"$ref":"#/components/schemas/Receipts"}]}`,
	"CloudEvent": `{"type":"object","required":["specversion","id","source","type"],"properties":{
		"specversion":{"const":"1.0"},"id":{"type":"string","minLength":1},"source":{"type":"string","minLength":1},"type":{"type":"string","description":"The topic."},
		"subject":{"type":"string"},"partitionkey":{"type":"string"},"time":{"type":"string","format":"date-time"},"datacontenttype":{"type":"string"},
		"data":{},"data_base64":{"type":"string"}}}`,
	"Events": `{"type":"object","required":["topic","count","events","next"],"properties":{"topic":{"type":"string"},"key":{"type":"string"},
		"count":{"type":"integer"},"events":{"type":"array","items":{"$ref":"#/components/schemas/Event"}},"next":{"type":"integer","description":"The last seq given."}}}`,
	"State": `{"type":"object","required":["topic","key","state","ts","seq","events"],"properties":{"topic":{"type":"string"},"key":{"type":"string"},
		"state":{"description":"null where nothing existed, or it was deleted."},"ts":{"type":"integer","description":"Of the last event that counts; 0: there is none."},
		"seq":{"type":"integer"},"events":{"type":"integer","description":"How many were applied."}}}`,
	"Steps": `{"type":"object","required":["topic","key","reduce","steps","count","next"],"properties":{"topic":{"type":"string"},"key":{"type":"string"},
		"reduce":{"enum":["replace","merge"]},"count":{"type":"integer"},"next":{"type":"integer","description":"The last seq given."},
		"steps":{"type":"array","items":{"type":"object","required":["event"],"properties":{"event":{"$ref":"#/components/schemas/Event"},
		"state":{"description":"After the event; left out where it is not known, since events before are gone."},
		"changes":{"type":"array","description":"Left out where the state before is not known.","items":{"$ref":"#/components/schemas/Change"}}}}}}}`,
	"Change":  `{"type":"object","required":["op","path"],"properties":{"op":{"enum":["add","remove","replace"]},"path":{"type":"string","description":"A JSON pointer into the state."},"from":{},"to":{}}}`,
	"History": `{"anyOf":[{"$ref":"#/components/schemas/Events"},{"$ref":"#/components/schemas/Steps"}]}`,
	"Latest":  `{"type":"object","additionalProperties":{"anyOf":[{"$ref":"#/components/schemas/Event"},{"type":"null"}]}}`,
	"Options": `{"type":"object","additionalProperties":false,"properties":{
		"from":{"enum":["earliest","latest","ts","afterId","seq"]},"ts":{"type":["integer","string"]},"afterId":{"type":"string"},"seq":{"type":"integer","minimum":0},
		"ordering":{"enum":["key","topic","none"]},"deadLetter":{"enum":["event","key","block"]},"maxAttempts":{"type":"integer","minimum":1},
		"ackTimeoutMs":{"type":"integer","minimum":1},"filter":{"type":"string"},"partitioned":{"type":"boolean"},
		"batchSize":{"type":"integer","minimum":0},"maxInFlight":{"type":"integer","minimum":0},"batch":{"type":"integer","minimum":0},"member":{"type":"string"},"normalise":{"type":"boolean"}}}`,
	"Pull": `{"type":"object","required":["topic","group"],"additionalProperties":false,"properties":{"topic":{"type":"string"},"group":{"type":"string","minLength":1,"maxLength":256},
		"max":{"type":"integer","minimum":0},"wait_ms":{"type":"integer","minimum":0},"opts":{"$ref":"#/components/schemas/Options"}}}`,
	"Deliveries": `{"type":"object","required":["events"],"properties":{"events":{"type":"array","items":{"type":"object",
		"required":["event","attempt","lease","ack_deadline_ms"],"properties":{"event":{"$ref":"#/components/schemas/Event"},"attempt":{"type":"integer","minimum":1},
		"maxAttempts":{"type":"integer"},"lease":{"type":"string"},"ack_deadline_ms":{"type":"integer","description":"When the lease ends, epoch ms."}}}}}}`,
	"Settle": `{"type":"object","required":["topic","group"],"additionalProperties":false,"properties":{"topic":{"type":"string"},"group":{"type":"string"},
		"ids":{"type":"array","items":{"type":"string"},"minItems":1,"maxItems":10000},"leases":{"type":"array","items":{"type":["string","integer"]}},
		"id":{"type":"string"},"lease":{"type":["string","integer"]},"reason":{"type":"string"},"delay_ms":{"type":"integer","minimum":0},
		"dead":{"type":"boolean"},"extend_ms":{"type":"integer","minimum":0}}}`,
	"Results": `{"type":"object","required":["count","results"],"properties":{"count":{"type":"integer"},"results":{"type":"array","items":{"type":"object",
		"required":["id","ok"],"properties":{"id":{"type":"string"},"ok":{"type":"boolean"},"err":{"type":"string"}}}}}}`,
	"TopicSettings": `{"type":"object","properties":{"partitions":{"type":["integer","null"],"minimum":1},"retention":{"type":["string","null"],"description":"An age such as 72h or 30d."},
		"max_bytes":{"type":["integer","string","null"]},"durability":{"enum":["sync","async",null]},
		"schemas":{"type":["string","null"],"description":"A directory on the hub's machine with v1.json, v2.json, v2.upcast.jq."},
		"strict_schema":{"type":["boolean","null"],"description":"Refuse events while there is no schema."},
		"legacy_version":{"type":["integer","null"],"minimum":1,"description":"What a stored event without a stamp is; the latest unless given."},
		"dual_write":{"type":["boolean","string","integer","null"],"description":"Write to topic.vN too: true, false, or when that ends."},
		"dual_write_to":{"type":"string","description":"Where events are written to as well at the moment; only shown."},
		"compaction":{},"history":{},"snapshot":{}}}`,
	"Definition": `{"type":"object","required":["schema"],"additionalProperties":false,"properties":{"schema":{"type":["object","boolean"]},
		"compat":{"enum":["none","backward","forward","full","backward_transitive","forward_transitive","full_transitive"]},"lenient":{"type":"boolean"},
		"version":{"type":"integer","minimum":1},"upcast":{"type":"string","description":"A jq program that makes a payload of the version before into one of this."},
		"unproved":{"type":"boolean"}}}`,
	"Schema": `{"type":"object","required":["topic","version","compat","ts","schema"],"properties":{"topic":{"type":"string"},"version":{"type":"integer","minimum":1},
		"compat":{"type":"string"},"lenient":{"type":"boolean"},"unproved":{"type":"boolean"},"function":{"type":"boolean"},"ts":{"type":"integer"},"upcast":{"type":"string"},
		"schema":{"type":["object","boolean"]}}}`,
	"Schemas": `{"type":"object","required":["count","topics"],"properties":{"count":{"type":"integer"},"topics":{"type":"array","items":{"type":"object",
		"required":["topic","latest","versions","compat"],"properties":{"topic":{"type":"string"},"latest":{"type":"integer"},"versions":{"type":"array","items":{"type":"integer"}},"compat":{"type":"string"}}}}}}`,
	"SchemaVersions": `{"type":"object","required":["topic","latest","count","versions"],"properties":{"topic":{"type":"string"},"latest":{"type":"integer"},"count":{"type":"integer"},
		"versions":{"type":"array","items":{"$ref":"#/components/schemas/Schema"}}}}`,
	"SchemaProblem": `{"type":"object","required":["path","rule","detail"],"properties":{"path":{"type":"string","description":"A JSON pointer into the schema."},"rule":{"type":"string"},
		"detail":{"type":"string"},"example":{"description":"A document that shows it."}}}`,
	"CutoverTo":     `{"type":"object","required":["to"],"additionalProperties":false,"properties":{"to":{"type":"string","description":"topic.vN, where N is the latest version."}}}`,
	"FieldError":    `{"type":"object","required":["path","message"],"properties":{"path":{"type":"string","description":"A JSON pointer into the payload."},"message":{"type":"string"}}}`,
	"Compatibility": `{"type":"object","required":["compatible","problems"],"properties":{"compatible":{"type":"boolean"},"problems":{"type":"array","items":{"$ref":"#/components/schemas/SchemaProblem"}}}}`,
	"Validity": `{"type":"object","required":["valid","version","errors"],"properties":{"valid":{"type":"boolean"},"version":{"type":"integer"},
		"errors":{"type":"array","items":{"$ref":"#/components/schemas/FieldError"}}}}`,
	"Topic": `{"type":"object","required":["topic","events","first","last","bytes","settings"],"properties":{"topic":{"type":"string"},"events":{"type":"integer"},
		"first":{"type":"integer"},"last":{"type":"integer"},"bytes":{"type":"integer"},"settings":{"$ref":"#/components/schemas/TopicSettings"}}}`,
	"Topics": `{"type":"object","required":["count","topics"],"properties":{"count":{"type":"integer"},"topics":{"type":"array","items":{"$ref":"#/components/schemas/Topic"}}}}`,
	"Group": `{"type":"object","required":["topic","group","cursor","tail","lag","inflight","pending","members","paused","settings"],"properties":{
		"topic":{"type":"string"},"group":{"type":"string"},"cursor":{"type":"integer"},"tail":{"type":"integer"},"lag":{"type":"integer"},"inflight":{"type":"integer"},
		"pending":{"type":"integer"},"members":{"type":"integer"},"paused":{"type":"boolean"},"settings":{"$ref":"#/components/schemas/Options"}}}`,
	"PartitionedGroup": `{"type":"object","required":["topic","group","partitioned","generation","members","partitions"],"properties":{
		"topic":{"type":"string"},"group":{"type":"string"},"partitioned":{"type":"boolean","description":"If not, there is nothing more to tell: see /groups."},
		"generation":{"type":"integer","description":"Grows whenever partitions are given to others."},
		"members":{"type":"array","items":{"type":"object","required":["id","static","joined","last_heartbeat","partitions"],"properties":{
		"id":{"type":"string"},"static":{"type":"boolean","description":"It chose its id: its partitions wait for it for a while."},"hub":{"type":"string"},
		"meta":{"type":"object","additionalProperties":{"type":"string"}},"joined":{"type":"integer","description":"Epoch ms, as all times here."},"last_heartbeat":{"type":"integer"},
		"away_since":{"type":"integer"},"leaving":{"type":"boolean"},"damped_until":{"type":"integer","description":"It came and went too often, and gets nothing until then."},
		"partitions":{"type":"array","items":{"type":"integer"}}}}},
		"partitions":{"type":"array","items":{"type":"object","required":["partition","owner","epoch","cursor","lag"],"properties":{
		"partition":{"type":"integer","minimum":0},"owner":{"type":"string","description":"The member; empty if nobody is."},
		"from":{"type":"string","description":"Who has it still, while it moves."},"epoch":{"type":"integer"},"cursor":{"type":"integer"},"lag":{"type":"integer"},
		"about":{"type":"boolean","description":"The lag is an estimate."},"inflight":{"type":"integer","description":"Where this hub serves the partition."}}}},
		"last_rebalance":{"type":"object","required":["at","moved"],"properties":{"at":{"type":"integer"},"took_ms":{"type":"integer","description":"Until all of them ran again."},
		"moved":{"type":"integer"},"pending":{"type":"integer","description":"How many do not run yet."}}}}}`,
	"PartitionedGroups": `{"type":"object","required":["count","groups"],"properties":{"count":{"type":"integer"},"groups":{"type":"array","items":{"$ref":"#/components/schemas/PartitionedGroup"}}}}`,
	"Groups":            `{"type":"object","required":["count","groups"],"properties":{"count":{"type":"integer"},"groups":{"type":"array","items":{"$ref":"#/components/schemas/Group"}}}}`,
	"Cursor": `{"type":"object","required":["group","seq","pending"],"properties":{"topic":{"type":"string"},"group":{"type":"string"},"seq":{"type":"integer","minimum":0},
		"lastId":{"type":"string"},"lastTs":{"type":"integer"},"pending":{"type":"integer"}}}`,
	"Cursors": `{"type":"object","required":["topic","cursors"],"properties":{"topic":{"type":"string"},"cursors":{"type":"array","items":{"$ref":"#/components/schemas/Cursor"}}}}`,
	"Move": `{"type":"object","required":["topic","group","to"],"additionalProperties":false,"properties":{"topic":{"type":"string"},"group":{"type":"string"},
		"to":{"type":"object","additionalProperties":false,"properties":{"from":{"enum":["earliest","latest","ts","afterId","seq"]},"ts":{"type":["integer","string"]},
		"afterId":{"type":"string"},"seq":{"type":"integer","minimum":0}}}}}`,
	"Lag": `{"type":"object","required":["topic","group","lag","lagMs","cursor","tail"],"properties":{"topic":{"type":"string"},"group":{"type":"string"},
		"lag":{"type":"integer"},"lagMs":{"type":"integer"},"cursor":{"type":"integer"},"tail":{"type":"integer"}}}`,
	"LetterCounts": `{"type":"object","required":["count","topics"],"properties":{"count":{"type":"integer"},"topics":{"type":"array","items":{"type":"object",
		"required":["topic","group","count"],"properties":{"topic":{"type":"string"},"group":{"type":"string"},"count":{"type":"integer"}}}}}}`,
	"Letters": `{"type":"object","required":["topic","count","records"],"properties":{"topic":{"type":"string"},"count":{"type":"integer"},"records":{"type":"array","items":{
		"type":"object","required":["id","seq","topic","group","original","err","ts","attempts"],"properties":{"id":{"type":"string"},"seq":{"type":"integer"},
		"topic":{"type":"string"},"group":{"type":"string"},"original":{"$ref":"#/components/schemas/Event"},"err":{"type":"string"},"ts":{"type":"integer"},
		"attempts":{"type":"integer"},"parked":{"type":"boolean"}}}}}}`,
	"Replay": `{"type":"object","additionalProperties":false,"properties":{"limit":{"type":"integer","minimum":1},"ids":{"type":"array","items":{"type":"string"}},
		"group":{"type":"string"},"to":{"enum":["topic","group"]},"transform":{"type":"string","description":"A jq program that sees the event and gives its payload."}}}`,
	"Replayed": `{"type":"object","required":["replayed","remaining"],"properties":{"replayed":{"type":"integer"},"remaining":{"type":"integer"}}}`,
	"Health":   `{"type":"object","required":["status"],"properties":{"status":{"type":"string"},"version":{"type":"string"}}}`,
}
