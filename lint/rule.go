package lint

// Rule is something that must hold.
type Rule struct {
	ID       string
	Severity Severity
	// Summary says what a finding of it means.
	Summary string
	// Help says what to do.
	Help string
	// Example breaks it.
	Example string
}

// The rules by name.
const (
	TopicName      = "topic-name"
	TopicReserved  = "topic-reserved"
	TopicSchema    = "topic-schema"
	HeaderName     = "header-name"
	PayloadUnknown = "payload-unknown"
	PayloadMissing = "payload-missing"
	PayloadType    = "payload-type"
	SchemaInvalid  = "schema-invalid"
	SchemaCompat   = "schema-compat"
	SchemaGap      = "schema-gap"
	SchemaDead     = "schema-dead"
	SchemaDouble   = "schema-double"
	ConfigInvalid  = "config-invalid"
	SourceInvalid  = "source-invalid"
	AllowReason    = "allow-reason"
	AllowUnused    = "allow-unused"
)

// Rules are all rules. docs/lint.md has them as a table, which a test holds to
// this one.
var Rules = []Rule{
	{TopicName, Error, "a topic, or a pattern of topics, that no hub takes", "write segments of a-z and 0-9, joined by single dots", `hub.Emit(ctx, "Orders.Placed", o)`},
	{TopicReserved, Error, "a publish to a topic under dlq. or system., where only the hub writes", "publish to a topic of your own", `hub.Emit(ctx, "dlq.orders.placed", o)`},
	{TopicSchema, Error, "a topic that is published, subscribed to or configured, and has no schema; versioned topics (.vN) need none", "write schemas/TOPIC/v1.json, or allow it with a reason", `hub.Emit(ctx, "orders.lost", o)`},
	{HeaderName, Error, "the name of a header that no hub takes", "write x- followed by a-z, 0-9 and -, or content-type, traceparent, tracestate", `promethean.Header("Source", "shop")`},
	{PayloadUnknown, Error, "a field that the latest schema does not know; a warning where the schema lets it pass", "take the field out, or write a new version of the schema that has it", "`json:\"colour\"` in the struct, no colour in the schema"},
	{PayloadMissing, Error, "a property that the latest schema requires and the payload lacks or may leave out", "add the field, or take omitempty away", "`json:\"item,omitempty\"`, and item is required"},
	{PayloadType, Error, "a field whose type the latest schema refuses", "give the field the type that the schema has", "`Count string`, and count is an integer"},
	{SchemaInvalid, Error, "a schema or an upcaster that cannot be used", "mend the file", "`{\"type\": \"objekt\"}`"},
	{SchemaCompat, Error, "a version of a schema that does not fit those before it", "make the change compatible, or write an upcaster vN.upcast.jq beside it", "v2.json requires a property that v1.json does not have"},
	{SchemaGap, Error, "a version that is missing between two others, or before the first", "number the versions v1, v2, v3 without gaps", "v1.json and v3.json without v2.json"},
	{SchemaDead, Warning, "a schema whose topic nobody publishes, subscribes to, reads or configures", "remove the schema, or the typing error in its name", "schemas/order.placed, and the code says orders.placed"},
	{SchemaDouble, Error, "two different schemas for the same version of a topic", "keep one of them", "a/schemas/x.y/v1.json and b/schemas/x.y/v1.json differ"},
	{ConfigInvalid, Error, "a configuration that cannot be read, or that names schemas that are not there", "mend the file; 'promethean serve' says what else is wrong with it", "`topics: [`"},
	{SourceInvalid, Error, "a source that cannot be parsed, type-checked or read, so that nothing is known about it", "mend the source; it must build", "`func (`"},
	{AllowReason, Error, "an allow comment without a reason; it allows nothing", "say why behind it", "`//promethean:allow`"},
	{AllowUnused, Warning, "an allow comment that takes no finding away", "remove it", "`//promethean:allow legacy` on a line that is right"},
}

// ruleOf finds a rule by name.
func ruleOf(id string) *Rule {
	for i := range Rules {
		if Rules[i].ID == id {
			return &Rules[i]
		}
	}
	panic("lint: there is no rule " + id) // a mistake in this module
}

// NewFinding makes a finding of a rule, with the severity and the help of that.
func NewFinding(rule string, at Position, message string) Finding {
	return newFinding(rule, at, message, ruleOf(rule).Help)
}
