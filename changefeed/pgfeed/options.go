package pgfeed

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"promethean/changefeed"
	"promethean/event"
	"promethean/store"
)

// Options are those of a source.
type Options struct {
	// Name is part of the default name of the slot: feeds of one database must
	// not share it. Default the table's.
	Name string
	// Slot is the replication slot; all databases of a server share the names of
	// slots. While a snapshot begins again there is a second one, with "_2" behind
	// its name. Default promethean_DATABASE_NAME, with a sum of it where it
	// had to be changed to fit. Who begins with a snapshot drops a slot of that
	// name that nobody reads.
	Slot string
	// Publication is made for the table if there is none of that name, and
	// dropped by Forget if it was made here. Default the name of the slot.
	Publication string
	// Snapshot begins with the rows that are there.
	Snapshot bool
	// BatchSize and BatchBytes bound what is handed over at a time. Default 1000
	// changes and 4 MiB.
	BatchSize  int
	BatchBytes int
	// MaxSlotBytes is how much of its log the server may keep for the slot before
	// the source warns. Default 1 GiB; negative never.
	MaxSlotBytes int64
	// DropSlotOver is how much of its log the server may keep before the slot is
	// dropped, to save the server's disk. The history is lost then. Default 0,
	// never.
	DropSlotOver int64
	// CheckEvery is how often the source looks at the slot and the table while it
	// streams. Default 10 s.
	CheckEvery time.Duration
	// Logger hears of warnings. Default nobody does.
	Logger *slog.Logger
}

// maxSlot is how long a name may be, less the end that a second slot has.
const maxSlot = 61

// slotName is what the server takes.
var slotName = regexp.MustCompile(`^[a-z0-9_]{1,61}$`)

// notInSlots is what a name of a slot must not have.
var notInSlots = regexp.MustCompile(`[^a-z0-9_]+`)

// defaultSlot makes a name of what it is for. What is lost on the way is in a sum
// behind it, so that two of them differ.
func defaultSlot(database, name string) string {
	whole := "promethean_" + database + "_" + name
	slot := notInSlots.ReplaceAllString(whole, "_")
	if slot == whole && len(slot) <= maxSlot {
		return slot
	}
	sum := event.NameID(event.ID{}, whole)
	return fmt.Sprintf("%s_%x", slot[:min(len(slot), maxSlot-9)], sum[:4])
}

func (o *Options) fill(database, schema, table string) error {
	if o.BatchSize < 0 || o.BatchBytes < 0 || o.DropSlotOver < 0 || o.CheckEvery < 0 {
		return fmt.Errorf("%w: BatchSize, BatchBytes, DropSlotOver and CheckEvery are not negative", store.ErrInvalid)
	}
	if o.Name == "" {
		o.Name = table
		if schema != "public" {
			o.Name = schema + "_" + table
		}
	}
	if o.Slot == "" {
		o.Slot = defaultSlot(database, o.Name)
	}
	if !slotName.MatchString(o.Slot) {
		return fmt.Errorf("%w: slot %q: a name has 1 to 61 lower case letters, digits and underscores", store.ErrInvalid, o.Slot)
	}
	if o.Publication == "" {
		o.Publication = o.Slot
	}
	if o.BatchSize == 0 {
		o.BatchSize = 1000
	}
	if o.BatchBytes == 0 {
		o.BatchBytes = 4 << 20
	}
	if o.MaxSlotBytes == 0 {
		o.MaxSlotBytes = 1 << 30
	}
	if o.CheckEvery == 0 {
		o.CheckEvery = 10 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Logger = o.Logger.With("slot", o.Slot)
	return nil
}

// Source reads one table. It is made by [New].
type Source struct {
	o             Options
	schema, table string
	config        *pgx.ConnConfig
	pool          *pgxpool.Pool // for what is asked beside the stream
	kinds         kinds

	mu     sync.Mutex
	warned bool // that the server keeps much log
}

var _ changefeed.Source = (*Source)(nil)

// New gives the source of a table, named as schema.table or as table of the
// schema public. Names are taken as they are spelled; one with a dot in it is
// put into double quotes. Nothing is asked of the server before Stream.
func New(uri, table string, o Options) (*Source, error) {
	schema, name, err := splitTable(table)
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL feed: %w", err)
	}
	config, err := parseURI(uri)
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL feed of %s: %w", table, err)
	}
	if err := o.fill(config.ConnConfig.Database, schema, name); err != nil {
		return nil, fmt.Errorf("PostgreSQL feed of %s: %w", table, err)
	}
	pool, err := newPool(config, 3)
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL feed of %s: %w", table, err)
	}
	return &Source{o: o, schema: schema, table: name, config: config.ConnConfig, pool: pool}, nil
}

// settings have the server write values in one way only, whatever it is set to.
var settings = map[string]string{
	"client_encoding":    "UTF8",
	"datestyle":          "ISO, YMD",
	"intervalstyle":      "iso_8601",
	"timezone":           "UTC",
	"bytea_output":       "hex",
	"extra_float_digits": "3",
	// A value that says when a query is given up is not meant for us.
	"statement_timeout":                   "0",
	"lock_timeout":                        "0",
	"idle_in_transaction_session_timeout": "0",
}

func parseURI(uri string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(uri)
	if err != nil {
		return nil, fmt.Errorf("%w: the address of the server: %w", store.ErrInvalid, err)
	}
	if config.ConnConfig.Database == "" { // what the server takes then
		config.ConnConfig.Database = config.ConnConfig.User
	}
	// Of several servers the one that writes has the slot, for all connections.
	for _, other := range config.ConnConfig.Fallbacks {
		if config.ConnConfig.ValidateConnect == nil && (other.Host != config.ConnConfig.Host || other.Port != config.ConnConfig.Port) {
			config.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
		}
	}
	params := config.ConnConfig.RuntimeParams
	for name, value := range settings {
		params[name] = value
	}
	if params["application_name"] == "" {
		params["application_name"] = "promethean"
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = 10 * time.Second
	}
	return config, nil
}

func newPool(config *pgxpool.Config, most int32) (*pgxpool.Pool, error) {
	c := config.Copy()
	c.MaxConns, c.MinConns, c.MinIdleConns = most, 0, 0
	return pgxpool.NewWithConfig(context.Background(), c)
}

// splitTable takes "schema.table" apart, either in double quotes or not.
func splitTable(s string) (schema, table string, err error) {
	var parts []string
	for rest, more := s, true; more; {
		var part string
		if part, rest, more, err = nextName(rest); err != nil {
			return "", "", fmt.Errorf("%w: table %q: %w", store.ErrInvalid, s, err)
		}
		parts = append(parts, part)
	}
	switch len(parts) {
	case 1:
		return "public", parts[0], nil
	case 2:
		return parts[0], parts[1], nil
	}
	return "", "", fmt.Errorf("%w: table %q: a table is named as schema.table", store.ErrInvalid, s)
}

// nextName takes the first name off s, and the dot behind it.
func nextName(s string) (name, rest string, more bool, err error) {
	if !strings.HasPrefix(s, `"`) {
		name, rest, more = strings.Cut(s, ".")
	} else {
		end := 1
		for ; ; end++ {
			i := strings.IndexByte(s[end:], '"')
			if i < 0 {
				return "", "", false, fmt.Errorf("a quote has no end")
			}
			if end += i; !strings.HasPrefix(s[end:], `""`) {
				break
			}
			end++
		}
		name, rest = strings.ReplaceAll(s[1:end], `""`, `"`), s[end+1:]
		if more = rest != ""; more && rest[0] != '.' {
			return "", "", false, fmt.Errorf("a dot is missing behind a quote")
		}
		rest = strings.TrimPrefix(rest, ".")
	}
	if name == "" || len(name) > 63 || strings.ContainsRune(name, 0) {
		return "", "", false, fmt.Errorf("a name has 1 to 63 bytes")
	}
	return name, rest, more, nil
}

// name is the table as SQL spells it.
func (s *Source) name() string { return pgx.Identifier{s.schema, s.table}.Sanitize() }
