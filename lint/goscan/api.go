package goscan

import (
	"go/types"

	"promethean/lint"
)

// Role is what a parameter of a function is for.
type Role struct {
	// Kind is what is done with the topic; "" says that the parameter is the name
	// of a header.
	Kind lint.Kind
	// Param is the parameter, from 0, the receiver not counted.
	Param int
	// Payload is the parameter that is published, -1 if there is none.
	Payload int
	// Handler is the parameter that handles events, -1 if there is none.
	Handler int
	// Version is what the event is stamped with; see [lint.Use].
	Version int
}

// module is the path of our own packages.
const module = "promethean"

func publishes(topic, payload int) []Role {
	return []Role{{Kind: lint.Publish, Param: topic, Payload: payload, Handler: -1}}
}

func subscribes(topic, handler int) []Role {
	return []Role{{Kind: lint.Subscribe, Param: topic, Payload: -1, Handler: handler}}
}

func mentions(topic int) []Role {
	return []Role{{Kind: lint.Mention, Param: topic, Payload: -1, Handler: -1}}
}

func registers(topic int) []Role {
	return []Role{{Kind: lint.Register, Param: topic, Payload: -1, Handler: -1}}
}

func header(name int) []Role { return []Role{{Param: name, Payload: -1, Handler: -1}} }

// functions are ours that take a topic or the name of a header, by full name. A
// test looks whether each is there.
var functions = map[string][]Role{
	"(*promethean.Hub).Emit":                   publishes(1, 2),
	"(*promethean.Hub).Serve":                  subscribes(1, 3),
	"promethean.PublishAs":                     publishes(2, 3),
	"promethean/event.New":                     publishes(0, -1),
	"(*promethean/client.Client).Publish":      publishes(1, 2),
	"(*promethean/prometheantest.Hub).Publish": publishes(0, 1),

	"(*promethean.Hub).Subscribe":             subscribes(1, 3),
	"(*promethean.Hub).SubscribeExactlyOnce":  subscribes(1, 3),
	"(*promethean.Hub).SubscribeOnceInMemory": subscribes(1, 3),
	"(promethean.Bus).Subscribe":              subscribes(1, 3),
	"promethean.Topics":                       subscribes(0, -1),
	"promethean/deadletter.Subscribe":         subscribes(2, 5),
	"(*promethean/client.Client).Subscribe":   subscribes(1, -1),
	"(*promethean/client.Client).Tail":        subscribes(1, -1),
	"promethean/client.Topics":                subscribes(0, -1),

	"(*promethean.Hub).SetTopic":                    mentions(1),
	"(*promethean.Hub).Cursor":                      mentions(1),
	"(*promethean.Hub).SetCursor":                   mentions(1),
	"(*promethean.Hub).Lag":                         mentions(1),
	"(*promethean.Hub).Groups":                      mentions(1),
	"(*promethean.Hub).Ack":                         mentions(1),
	"(*promethean.Hub).AckAsync":                    mentions(0),
	"(*promethean.Hub).Nack":                        mentions(1),
	"(*promethean.Hub).ModAck":                      mentions(1),
	"(promethean.Bus).Ack":                          mentions(1),
	"(promethean.Bus).Nack":                         mentions(1),
	"(promethean.Bus).Cursor":                       mentions(1),
	"(promethean.Bus).SetCursor":                    mentions(1),
	"promethean/deadletter.Replay":                  mentions(2),
	"(*promethean/client.Client).Read":              mentions(1),
	"(*promethean/client.Client).Locate":            mentions(1),
	"(*promethean/client.Client).History":           mentions(1),
	"(*promethean/client.Client).HistoryDiff":       mentions(1),
	"(*promethean/client.Client).At":                mentions(1),
	"promethean/compact.ColdStart":                  mentions(2),
	"promethean/compact.MarkOf":                     mentions(2),
	"promethean/compact.LastRecord":                 mentions(2),
	"(*promethean.Hub).Settings":                    mentions(0),
	"(*promethean/client.Client).Export":            mentions(1),
	"(*promethean/client.Client).LatestByKey":       mentions(1),
	"(*promethean/client.Client).TopicInfo":         mentions(1),
	"(*promethean/client.Client).SetTopic":          mentions(1),
	"(*promethean/client.Client).MakeGroup":         mentions(1),
	"(*promethean/client.Client).DeleteGroup":       mentions(1),
	"(*promethean/client.Client).Cursors":           mentions(1),
	"(*promethean/client.Client).MoveCursor":        mentions(1),
	"(*promethean/client.Client).GroupLag":          mentions(1),
	"(*promethean/client.Client).GroupPartitions":   mentions(1),
	"(*promethean/client.Client).Letters":           mentions(1),
	"(*promethean/client.Client).ReplayLetters":     mentions(1),
	"(*promethean/client.Client).Ack":               mentions(1),
	"(*promethean/client.Client).Schema":            mentions(1),
	"(*promethean/client.Client).SchemaVersions":    mentions(1),
	"(*promethean/client.Client).ValidatePayload":   mentions(1),
	"(*promethean/client.Client).Cutover":           mentions(1),
	"(*promethean/client.Client).CheckSchema":       mentions(1),
	"(*promethean/client.Client).Nack":              mentions(1),
	"(*promethean/client.Client).ModAck":            mentions(1),
	"(*promethean/prometheantest.Hub).ExpectEvents": mentions(0),
	"(*promethean/prometheantest.Hub).ExpectNone":   mentions(0),
	"(*promethean/prometheantest.Hub).Events":       mentions(0),

	"promethean/schema.SubscribeNormalised":      subscribes(3, 5),
	"promethean/schema.ReadDir":                  registers(0),
	"promethean/schema.Define":                   registers(0),
	"(*promethean/schema.Registry).Load":         registers(1),
	"(*promethean/client.Client).RegisterSchema": registers(1),
	"(*promethean/schema.Registry).AddUpcaster":  mentions(1),
	"(*promethean/schema.Registry).Latest":       mentions(0),
	"(*promethean/schema.Registry).Version":      mentions(0),
	"(*promethean/schema.Registry).Versions":     mentions(0),
	"(*promethean/schema.Registry).Validate":     mentions(1),
	"(*promethean/schema.Registry).Cutover":      mentions(1),
	"(*promethean/schema.Registry).DualWriteTo":  mentions(0),
	"(*promethean/schema.Registry).Apply":        mentions(1),
	"(*promethean/schema.Registry).Prepare":      mentions(1),
	"promethean/schema.VersionTopic":             mentions(0),

	"promethean.Header":              header(0),
	"promethean/client.Header":       header(0),
	"(promethean/event.Headers).Set": header(0),
}

// fields are members of our structs that are a topic or the name of a header, by
// the full name of the struct. Kind "" is a header.
var fields = map[string]map[string]lint.Kind{
	"promethean/event.Event":               {"Topic": lint.Publish},
	"promethean/event.Header":              {"Name": ""},
	"promethean/store.Query":               {"Topic": lint.Mention},
	"promethean/store.Expect":              {"Topic": lint.Mention},
	"promethean/client.PullRequest":        {"Topic": lint.Subscribe},
	"promethean/view.ChangelogOptions":     {"Topic": lint.Subscribe},
	"promethean/view.TransactionalOptions": {"Topic": lint.Subscribe},
	"promethean/timetravel.Query":          {"Topic": lint.Mention},
	"promethean/client.Settlement":         {"Topic": lint.Mention},
	"promethean/schema.Definition":         {"Topic": lint.Register},
}

// handle is the function that makes a handler of a typed one.
const handle = "promethean.Handle"

// known gives the roles of a function of ours.
func known(f *types.Func) []Role {
	if f.Pkg() == nil {
		return nil
	}
	return functions[f.FullName()]
}

// reaches says whether a package can reach a hub: it imports our vocabulary, if
// through others. seen remembers the answers.
func reaches(p *types.Package, seen map[*types.Package]bool) bool {
	if yes, ok := seen[p]; ok {
		return yes
	}
	seen[p] = false // imports have no circles
	yes := p.Path() == module+"/event"
	for _, i := range p.Imports() {
		yes = yes || reaches(i, seen)
	}
	seen[p] = yes
	return yes
}
