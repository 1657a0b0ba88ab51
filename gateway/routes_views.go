package gateway

import (
	"net/http"

	"promethean/gateway/auth"
	"promethean/wire"
)

// readModels are the routes of views.
func readModels() []route {
	read := []wire.Code{wire.NotFound, wire.Unsupported}
	return []route{
		{method: "GET", path: "/views", action: auth.Read, topic: "handler", handle: needViews(listViews), doc: operation{
			summary: "The views that the caller may read, and how far each is.", answer: "Views", codes: []wire.Code{wire.Unsupported},
			example: example{path: "/views"},
		}},
		{method: "GET", path: "/views/{view}", action: auth.Read, topic: "handler", handle: needViews(showView), doc: operation{
			summary: "One view: how far it is, its collections, and its last rebuild.", answer: "View", codes: read,
			example: example{path: "/views/orders"},
		}},
		{method: "POST", path: "/views/{view}/rebuild", action: auth.Admin, handle: needViews(rebuildView), doc: operation{
			summary: "Begin to build a view anew beside the live one, and swap them when it has caught up. GET /views/{view} tells how far it is.",
			body:    "Rebuild", optional: true, status: http.StatusAccepted, answer: "View",
			codes:   append([]wire.Code{wire.BadJSON, wire.PayloadTooLarge, wire.GroupConflict}, read...),
			example: example{path: "/views/orders/rebuild", body: `{"from":"earliest"}`},
		}},
		{method: "GET", path: "/views/{view}/list", action: auth.Read, topic: "handler", handle: needViews(listView), doc: operation{
			summary: "Documents of a view, newest first. Every other name in the query is a filter: a field that the view declares as indexed, and what it equals.",
			params: []param{
				{name: "offset", kind: "integer", about: "How many to leave out: 0 unless given."},
				{name: "limit", kind: "integer", about: "How many at most: 100 unless given, 1000 at most."},
			},
			answer: "Documents", codes: read, example: example{path: "/views/orders/list?limit=10"},
		}},
		{method: "GET", path: "/views/{view}/watch", action: auth.Read, topic: "handler", handle: needViews(watchView), doc: operation{
			summary: "Server-Sent Events of what changes in a view: change with the document, delete with its key; reset where too much was missed, and the list is to be read again.",
			params: []param{
				{name: "after", kind: "integer", about: "Begin after this seq; what changes from now on unless given."},
				{name: "Last-Event-ID", in: "header", kind: "string", about: "Go on after this seq."},
			},
			answer: "Text", answerType: "text/event-stream", codes: read, example: example{path: "/views/orders/watch?after=0"},
		}},
		{method: "GET", path: "/views/{view}/snap/{key...}", action: auth.Read, topic: "handler", handle: needViews(snapView), doc: operation{
			summary: "One document, with a strong ETag; If-None-Match is answered with 304. Everything behind /snap/ is the key.",
			params:  []param{{name: "If-None-Match", in: "header", kind: "string", about: "ETags that the caller has."}},
			answer:  "Document", codes: read, example: example{path: "/views/orders/snap/a"},
		}},
	}
}
