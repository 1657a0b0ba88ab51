package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"promethean/gateway"
	"promethean/gateway/auth"
	"promethean/wire"
)

// apiPage is the page that is held to the code. With -update its tables are
// made anew, and so are answers that are not as they stand there.
const apiPage = "../docs/api.md"

var update = flag.Bool("update", false, "write docs/api.md")

// page is the text, and what was found of it.
type page struct {
	*served
	text  string
	ws    *socket
	known map[string]string // ids and leases of the page, and what they are here
}

// Every route, code, op and close code stands in the page, and its examples are
// answered as they stand there.
func TestAPIPage(t *testing.T) {
	text, err := os.ReadFile(apiPage)
	if err != nil {
		t.Fatal(err)
	}
	s := serveInflow(t, &gateway.Options{Metrics: http.NotFoundHandler()})
	p := &page{served: s, text: string(text), known: make(map[string]string)}
	p.table("routes", p.routeTable())
	p.table("codes", codeTable())
	p.ops()
	p.closeCodes()
	p.examples()
	if *update && p.text != string(text) {
		if err := os.WriteFile(apiPage, []byte(p.text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// table wants a table between its marks.
func (p *page) table(name, want string) {
	p.Helper()
	begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->"
	before, rest, ok := strings.Cut(p.text, begin)
	have, after, ok2 := strings.Cut(rest, end)
	switch {
	case !ok || !ok2:
		p.Fatalf("the page has no marks for %s", name)
	case have == want:
	case *update:
		p.text = before + begin + want + end + after
	default:
		p.Errorf("the table of %s is not that of the code: run go test ./gateway -run TestAPIPage -update\nwant\n%s", name, want)
	}
}

// routeTable is made of the routes and of what the OpenAPI document says.
func (p *page) routeTable() string {
	p.Helper()
	_, _, text := p.raw("GET", "/openapi.json", "")
	var doc struct {
		Paths map[string]map[string]struct{ Summary string }
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		p.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| call | scope | does |\n|---|---|---|\n")
	for _, r := range p.g.Routes() {
		scope := "`" + string(r.Action) + ":<topic>`"
		switch {
		case r.Path == "/ws":
			scope = "each frame its own"
		case r.Action == auth.Open:
			scope = "none"
		case r.Action == auth.Admin:
			scope = "`admin`"
		case r.Topic == "all":
			scope = "`" + string(r.Action) + ":**`"
		}
		does := doc.Paths[strings.ReplaceAll(r.Path, "...}", "}")][strings.ToLower(r.Method)].Summary
		if does == "" {
			p.Errorf("%s %s has no summary", r.Method, r.Path)
		}
		fmt.Fprintf(&b, "| `%s %s` | %s | %s |\n", r.Method, r.Path, scope, does)
	}
	return b.String()
}

func codeTable() string {
	var b strings.Builder
	b.WriteString("| code | HTTP | title | again? |\n|---|---|---|---|\n")
	for _, e := range wire.Table() {
		fmt.Fprintf(&b, "| `%s` | %d | %s | %s |\n", e.Code, e.Status, e.Title, map[bool]string{true: "yes", false: "no"}[e.Retry])
	}
	return b.String()
}

// ops wants an example of each frame.
func (p *page) ops() {
	ops := []string{"OK", "ERR", "EVENT", "EVENTS"}
	for o := wire.OpAuth; ; o++ {
		name, ok := opName(o)
		if !ok {
			break
		}
		ops = append(ops, name)
	}
	for _, op := range ops {
		if !strings.Contains(p.text, `{"op":"`+op+`"`) {
			p.Errorf("the page has no example of %s", op)
		}
	}
	if len(ops) < 13 {
		p.Errorf("only %q were looked for", ops)
	}
}

// opName gives the name of an op, if there is such a one.
func opName(o wire.Op) (name string, ok bool) {
	defer func() { ok = recover() == nil }()
	return o.String(), true
}

func (p *page) closeCodes() {
	for _, c := range []wire.Close{
		wire.CloseNormal, wire.CloseGoingAway, wire.CloseProtocol, wire.CloseUnsupported, wire.CloseBadText, wire.CloseTooBig,
		wire.CloseInternal, wire.CloseSlowConsumer, wire.CloseSilent, wire.CloseUnauthorized,
	} {
		if !strings.Contains(p.text, fmt.Sprintf("| %d |", c)) {
			p.Errorf("the page has no close code %d", c)
		}
	}
}

// fence is a block of code of a kind that is tried.
var fence = regexp.MustCompile("(?ms)^```(sh|http|frames)\n(.*?)^```$")

// examples sends what stands in the page, from the first to the last, to one
// hub and over one WebSocket.
func (p *page) examples() {
	counts := make(map[string]int)
	p.text = fence.ReplaceAllStringFunc(p.text, func(block string) string {
		m := fence.FindStringSubmatch(block)
		kind, body := m[1], m[2]
		counts[kind]++
		switch kind {
		case "sh":
			body = p.commands(body)
		case "http":
			body = p.exchange(body)
		case "frames":
			p.frames(body)
		}
		return "```" + kind + "\n" + body + "```"
	})
	if counts["sh"] < 1 || counts["http"] < 30 || counts["frames"] < 7 {
		p.Errorf("too few examples were found: %v", counts)
	}
}

// word is one of a command: in single quotes, or bare.
var word = regexp.MustCompile(`'([^']*)'|(\S+)`)

// commands runs lines of curl; what follows after "# " is the answer.
func (p *page) commands(body string) string {
	p.Helper()
	var out strings.Builder
	lines := strings.SplitAfter(body, "\n")
	for i := 0; i < len(lines)-1; i++ {
		out.WriteString(lines[i])
		if !strings.HasPrefix(lines[i], "curl ") {
			continue
		}
		command, want := lines[i], ""
		for i+1 < len(lines) && strings.HasPrefix(lines[i+1], "#") {
			i++
			want += strings.TrimPrefix(strings.TrimPrefix(lines[i], "#"), " ")
		}
		method, path, data, stream := "GET", "", "", false
		words := word.FindAllStringSubmatch(command, -1)
		for n := 1; n < len(words); n++ {
			switch w := words[n][1] + words[n][2]; w {
			case "-N":
				stream = true
			case "-d":
				n++
				method, data = "POST", words[n][1]+words[n][2]
			default:
				_, path, _ = strings.Cut(w, ":7070")
			}
		}
		if path == "" {
			p.Fatalf("no address: %s", command)
		}
		x := &exchange{method: method, path: path, body: data, answer: want}
		if stream {
			x.head = []string{"Content-Type: text/event-stream"}
		}
		p.send(x)
		for line := range strings.Lines(x.answer) {
			out.WriteString(strings.TrimSuffix("# "+line, " \n"))
			if line == "\n" {
				out.WriteString("\n")
			}
		}
	}
	return out.String()
}

// exchange is a request and its answer.
type exchange struct {
	method, path, body string
	headers            []string // of the request, as pairs
	status             string   // empty: it is not shown
	head               []string // of the answer, as lines
	answer             string
}

// exchange tries a block of http: the request line, headers, an empty line and
// the body; then "HTTP" and the status, headers, an empty line and the body.
func (p *page) exchange(block string) string {
	p.Helper()
	request, answer, ok := strings.Cut(block, "\nHTTP ")
	if !ok {
		p.Fatalf("no answer in\n%s", block)
	}
	head, body, _ := strings.Cut(request+"\n", "\n\n")
	lines := strings.Split(strings.TrimRight(head, "\n"), "\n")
	x := &exchange{body: strings.TrimRight(body, "\n")}
	x.method, x.path, _ = strings.Cut(lines[0], " ")
	for _, h := range lines[1:] {
		name, value, _ := strings.Cut(h, ": ")
		x.headers = append(x.headers, name, value)
	}
	top, shown, _ := strings.Cut(answer, "\n\n")
	x.head = strings.Split(strings.TrimRight(top, "\n"), "\n")
	x.status, x.head, x.answer = x.head[0], x.head[1:], shown
	p.send(x)
	out := request + "\nHTTP " + strings.Join(append([]string{x.status}, x.head...), "\n") + "\n"
	if x.answer != "" {
		out += "\n" + x.answer
	}
	return out
}

// send sends a request and compares the answer, or takes it over with -update.
// What is only read is read again until it is as shown: some changes go on after
// the answer to who asked for them.
func (p *page) send(x *exchange) {
	p.Helper()
	var found string
	try := func() bool {
		found = p.try(x)
		return found == ""
	}
	switch {
	case x.method == http.MethodGet && !*update && !try():
		waitFor(p.TB, x.path+" as shown: "+found, try)
	case x.method != http.MethodGet || *update:
		if !try() {
			p.Errorf("%s %s: %s", x.method, x.path, found)
		}
	}
}

// try says what is not as shown.
func (p *page) try(x *exchange) string {
	p.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, x.method, p.url+p.here(x.path), strings.NewReader(p.here(x.body)))
	if err != nil {
		p.Fatal(err)
	}
	for i := 0; i < len(x.headers); i += 2 {
		r.Header.Set(x.headers[i], x.headers[i+1])
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		p.Fatal(err)
	}
	defer func() { _ = got.Body.Close() }()
	if status := fmt.Sprint(got.StatusCode); x.status != status && x.status != "" {
		if !*update {
			return fmt.Sprintf("status %s, shown is %s", status, x.status)
		}
		x.status = status
	}
	for _, h := range x.head {
		name, value, _ := strings.Cut(h, ": ")
		if have := got.Header.Get(name); have != value {
			return fmt.Sprintf("%s is %q, shown is %q", name, have, value)
		}
	}
	stream := strings.HasPrefix(got.Header.Get("Content-Type"), "text/event-stream")
	var text strings.Builder
	for lines := bufio.NewScanner(got.Body); ; {
		if stream && strings.Count(text.String(), "\n") >= strings.Count(x.answer, "\n") || !lines.Scan() {
			break
		}
		text.WriteString(lines.Text() + "\n")
	}
	wrong := p.compareText(text.String(), x.answer)
	if wrong != "" && *update {
		x.answer = wrap(text.String())
		return ""
	}
	return wrong
}

// frames sends what stands after ">" and reads what stands after "<", answers
// and events each in their order. A line that begins with blanks goes on with
// the frame before.
func (p *page) frames(block string) {
	p.Helper()
	if p.ws == nil {
		p.ws = p.dial()
	}
	for f := range strings.Lines(strings.ReplaceAll(block, "\n  ", "")) {
		if frame, ok := strings.CutPrefix(f, "> "); ok {
			p.ws.send(p.here(frame))
			continue
		}
		want, ok := strings.CutPrefix(f, "< ")
		if !ok {
			p.Fatalf("neither > nor <: %s", f)
		}
		read := p.ws.answer
		switch {
		case strings.HasPrefix(want, `{"op":"EVENT`):
			read = p.ws.event
		case strings.HasPrefix(want, `{"op":"ASSIGN`):
			read = func() map[string]any { return p.ws.frame("ASSIGN") }
		}
		got, err := json.Marshal(read())
		if err != nil {
			p.Fatal(err)
		}
		if wrong := p.compareText(string(got), want); wrong != "" {
			p.Errorf("%s\nin\n%s\ngot %s", wrong, block, got)
		}
	}
}
