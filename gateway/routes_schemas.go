package gateway

import (
	"net/http"

	"promethean/gateway/auth"
	"promethean/wire"
)

// registry are the routes of schemas.
func registry() []route {
	read := []wire.Code{wire.InvalidTopic, wire.NotFound, wire.Unsupported}
	write := []wire.Code{wire.BadJSON, wire.InvalidTopic, wire.PayloadTooLarge, wire.Unsupported}
	return []route{
		{method: "GET", path: "/schemas", action: auth.Read, topic: "all", handle: needSchemas(listSchemas), doc: operation{
			summary: "The topics that have a schema, and its versions.", answer: "Schemas", codes: []wire.Code{wire.Unsupported},
			example: example{path: "/schemas"},
		}},
		{method: "POST", path: "/schemas/{topic}", action: auth.Admin, handle: needSchemas(addSchema), doc: operation{
			summary: "Register the next version of a topic's schema; what is there already is answered with 200.",
			body:    "Definition", status: http.StatusCreated, answer: "Schema", known: true,
			codes:   append([]wire.Code{wire.SchemaConflict}, write...),
			example: example{path: "/schemas/orders.sold", body: `{"schema":{"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}},"compat":"backward"}`},
		}},
		{method: "GET", path: "/schemas/{topic}", action: auth.Read, topic: "path", handle: needSchemas(showSchemas), doc: operation{
			summary: "All versions of a topic's schema.", answer: "SchemaVersions", codes: read,
			example: example{path: "/schemas/orders.sold"},
		}},
		{method: "POST", path: "/schemas/{topic}/check", action: auth.Read, topic: "path", handle: needSchemas(checkSchema), doc: operation{
			summary: "Whether a schema could be registered as the next version; nothing is stored.",
			body:    "Definition", answer: "Compatibility", codes: write,
			example: example{path: "/schemas/orders.sold/check", body: `{"schema":{"type":"object","required":["n","at"],"properties":{"n":{"type":"integer"},"at":{"type":"integer"}}}}`},
		}},
		{method: "POST", path: "/schemas/{topic}/validate", action: auth.Read, topic: "path", handle: needSchemas(validatePayload), doc: operation{
			summary: "Whether a payload is valid under a version. The body is {payload, version?}, or the payload itself with the version in the query.",
			params:  []param{{name: "version", kind: "string", about: "The version; the latest unless given."}},
			body:    "Payload", answer: "Validity", codes: append([]wire.Code{wire.NotFound}, write...),
			example: example{path: "/schemas/orders.sold/validate", body: `{"payload":{"n":"one"},"version":1}`},
		}},
		{method: "POST", path: "/schemas/{topic}/cutover", action: auth.Admin, handle: needSchemas(cutover), doc: operation{
			summary: "Copy the history of a topic to topic.vN, upcast to the latest version N: goes on where it was cut off, and looks at the end whether all is there. One line of progress at a time.",
			body:    "CutoverTo", answer: "Text", answerType: "application/x-ndjson", codes: append([]wire.Code{wire.SchemaInvalid}, write...),
			example: example{path: "/schemas/orders.sold/cutover", body: `{"to":"orders.sold.v1"}`},
		}},
		{method: "GET", path: "/schemas/{topic}/{version}", action: auth.Read, topic: "path", handle: needSchemas(showSchema), doc: operation{
			summary: "One version of a topic's schema, by its number or latest.", answer: "Schema", codes: read,
			example: example{path: "/schemas/orders.sold/latest"},
		}},
	}
}
