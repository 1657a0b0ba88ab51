package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"promethean/gateway/auth"
	"promethean/wire"
)

// operation is what a route is to somebody who calls it. The OpenAPI document
// is made of it, and a test calls every route by its example.
type operation struct {
	summary string
	params  []param
	// body names the schema of the body, in bodyType, which is JSON unless it
	// says otherwise; optional says that there may be none.
	body, bodyType string
	optional       bool
	// status is that of success, 200 unless it is given; answer names the
	// schema of its body, in answerType. known says that it is 200 for what
	// was there before.
	status             int
	answer, answerType string
	known              bool
	// codes are those that the route may answer, beside what all may.
	codes   []wire.Code
	example example
}

// param is a parameter of the query, or of the header.
type param struct {
	name, in, kind, about string
	required, many        bool
}

// example is a request that is right. The path comes with its query.
type example struct{ path, body string }

// object is one of JSON.
type object = map[string]any

// document makes the OpenAPI document of the routes.
func document(routes []route, version string) []byte {
	paths := object{}
	for i := range routes {
		r := &routes[i]
		path := strings.ReplaceAll(r.path, "...}", "}") // which the document has no way to say
		item, _ := paths[path].(object)
		if item == nil {
			item = object{}
			paths[path] = item
		}
		item[strings.ToLower(r.method)] = describe(r)
	}
	body, err := json.Marshal(object{
		"openapi": "3.1.0",
		"info": object{
			"title": "Promethean", "version": version,
			"description": "A durable event bus. Errors are application/problem+json with a stable code. Times in queries are epoch ms or RFC 3339. Numbers above a maximum are clamped to it; negative or unreadable ones are refused.",
			"license":     object{"name": "See the file LICENSE", "identifier": "LicenseRef-Promethean"},
		},
		"servers":  []object{{"url": "/"}},
		"security": []object{{"bearer": []string{}}},
		"paths":    paths,
		"components": object{
			"schemas":         schemas(),
			"securitySchemes": object{"bearer": object{"type": "http", "scheme": "bearer", "description": "Needed where the hub has auth on."}},
		},
	})
	if err != nil {
		panic(fmt.Sprintf("the document does not encode: %v", err)) // it is made of literals
	}
	return append(body, '\n')
}

func ref(name string) object { return object{"$ref": "#/components/schemas/" + name} }

// describe makes the operation of a route.
func describe(r *route) object {
	d := &r.doc
	out := object{"summary": d.summary, "operationId": operationID(r), "responses": responses(r)}
	if r.action == auth.Open {
		out["security"] = []object{}
	} else {
		out["description"] = "Needs the scope " + scopeText(r) + " where auth is on."
	}
	var params []object
	for _, s := range strings.Split(r.path[1:], "/") {
		if strings.HasPrefix(s, "{") {
			params = append(params, object{"name": strings.Trim(s, "{.}"), "in": "path", "required": true, "schema": object{"type": "string"}})
		}
	}
	for _, p := range d.params {
		params = append(params, p.describe())
	}
	if params != nil {
		out["parameters"] = params
	}
	if d.body != "" {
		kind := d.bodyType
		if kind == "" {
			kind = "application/json"
		}
		content := object{kind: object{"schema": ref(d.body)}}
		if kind == "application/json" || kind == structuredType {
			content[kind] = object{"schema": ref(d.body), "example": json.RawMessage(d.example.body)}
		}
		switch r.path {
		case "/publish":
			content["application/json"] = object{"schema": ref("Rows")}
		case "/cloudevents":
			content[batchedType] = object{"schema": object{"type": "array", "items": ref(d.body)}}
			content["*/*"] = object{"schema": object{"description": "Binary mode: the data, with the attributes as headers ce-*."}}
		}
		out["requestBody"] = object{"required": !d.optional, "content": content}
	}
	return out
}

func (p *param) describe() object {
	schema := object{"type": p.kind}
	if p.kind == "integer" {
		schema["minimum"] = 0
	}
	if p.many {
		schema = object{"type": "array", "items": schema}
	}
	in := p.in
	if in == "" {
		in = "query"
	}
	return object{"name": p.name, "in": in, "description": p.about, "required": p.required, "schema": schema}
}

func scopeText(r *route) string {
	switch {
	case r.action == auth.Admin:
		return "admin"
	case r.topic == "all":
		return string(r.action) + ":**"
	}
	return string(r.action) + ":<topic>"
}

// operationID is the method and the words of the path.
func operationID(r *route) string {
	id := strings.ToLower(r.method)
	for _, s := range strings.FieldsFunc(r.path, func(c rune) bool { return strings.ContainsRune("/{}-.", c) }) {
		id += strings.ToUpper(s[:1]) + s[1:]
	}
	if r.path == "/" {
		id += "Page"
	}
	return id
}

// common are the codes that any route may answer.
var common = []wire.Code{wire.InvalidArgument, wire.Forbidden, wire.Unavailable, wire.Internal}

// responses lists answers by status.
func responses(r *route) object {
	d := &r.doc
	success := object{"description": "Done."}
	if d.answer != "" {
		kind := d.answerType
		if kind == "" {
			kind = "application/json"
		}
		content := object{kind: object{"schema": ref(d.answer)}}
		if r.path == "/export" {
			content["application/json"] = object{"schema": object{"type": "array", "items": ref("Event")}}
		}
		success["content"] = content
	}
	status := d.status
	if status == 0 {
		status = http.StatusOK
	}
	out := object{strconv.Itoa(status): success}
	if d.known {
		out["200"] = object{"description": "The id was known: nothing was stored.", "content": success["content"]}
	}
	if strings.HasSuffix(r.path, "/snap/{key...}") {
		out["304"] = object{"description": "The caller has it: an ETag of If-None-Match fits."}
	}
	codes := slices.Concat(d.codes, common)
	if !r.steady {
		codes = append(codes, wire.Draining)
	}
	if r.action != auth.Open {
		codes = append(codes, wire.Unauthorized)
	}
	byStatus := make(map[int][]string)
	for _, e := range wire.Table() { // in the table's order
		if slices.Contains(codes, e.Code) {
			byStatus[e.Status] = append(byStatus[e.Status], string(e.Code))
		}
	}
	for status, names := range byStatus {
		out[strconv.Itoa(status)] = object{
			"description": strings.Join(names, ", "),
			"content":     object{"application/problem+json": object{"schema": ref("Problem")}},
		}
	}
	return out
}
