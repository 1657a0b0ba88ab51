package pgoutbox

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

// DefaultTable is the table of an outbox that names none.
const DefaultTable = "promethean_outbox"

// tableName leaves room for what indexes add to it; PostgreSQL cuts names at 63 bytes.
var tableName = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,47}$`)

// schemaSQL makes the table. {t} is the table, {ix:name} an index of it. There is
// one index for every look, so that the server cannot choose a wrong one by old
// statistics: none of all rows by n, which would lead past those that are sent.
const schemaSQL = `CREATE TABLE IF NOT EXISTS {t} (
	n        bigint GENERATED ALWAYS AS IDENTITY,
	id       uuid NOT NULL PRIMARY KEY DEFAULT gen_random_uuid(),
	ts       bigint NOT NULL DEFAULT floor(extract(epoch FROM clock_timestamp()) * 1000),
	topic    text COLLATE "C" NOT NULL,
	key      text COLLATE "C" NOT NULL DEFAULT '',
	payload  text NOT NULL,
	meta     text, -- headers, sid, caused_by, tags and partition as a JSON object
	added    timestamptz NOT NULL DEFAULT clock_timestamp(),
	state    text COLLATE "C" NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'claimed', 'failed', 'sent')),
	owner    text, -- who has claimed it
	since    timestamptz, -- when the state began
	until    timestamptz, -- when the claim or the pause after an error is over
	attempts integer NOT NULL DEFAULT 0,
	error    text, -- the last one
	error_at timestamptz
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 10000);
CREATE INDEX IF NOT EXISTS {ix:pending} ON {t} (n) WHERE state = 'pending';
CREATE INDEX IF NOT EXISTS {ix:lane} ON {t} (topic, key, n) WHERE key <> '' AND state <> 'sent';
CREATE INDEX IF NOT EXISTS {ix:claimed} ON {t} (until) WHERE state = 'claimed';
CREATE INDEX IF NOT EXISTS {ix:error} ON {t} (n) WHERE error IS NOT NULL AND state <> 'sent';
CREATE INDEX IF NOT EXISTS {ix:sent} ON {t} (since) WHERE state = 'sent';
`

var indexNames = []string{"pending", "lane", "claimed", "error", "sent"}

// table is the name of a table in the forms that SQL wants.
type table struct {
	schema, name string
}

func parseTable(name string) (table, error) {
	if name == "" {
		name = DefaultTable
	}
	if !tableName.MatchString(name) {
		return table{}, fmt.Errorf("outbox table %q: must be a name of letters, digits and _ with at most 48 characters, or schema.name", name)
	}
	if schema, bare, ok := strings.Cut(name, "."); ok {
		return table{schema, bare}, nil
	}
	return table{"", name}, nil
}

func (t table) in(name string) string {
	if t.schema == "" {
		return pgx.Identifier{name}.Sanitize()
	}
	return pgx.Identifier{t.schema, name}.Sanitize()
}

// String is the table quoted as in SQL.
func (t table) String() string { return t.in(t.name) }

func (t table) index(name string) string { return t.name + "_" + name }

// sql puts the table into a statement.
func (t table) sql(text string) string {
	pairs := []string{
		"{t}", t.String(),
		"{oid}", "'" + t.String() + "'::regclass::oid", // names have no quotes in them
	}
	for _, name := range indexNames {
		pairs = append(pairs, "{ix:"+name+"}", pgx.Identifier{t.index(name)}.Sanitize())
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// Schema is the SQL that makes a table, and its indexes, which Setup does too.
// What is there already stays as it is.
func Schema(table string) (string, error) {
	t, err := parseTable(table)
	if err != nil {
		return "", err
	}
	return t.sql(schemaSQL), nil
}

// Setup makes the table and its indexes where one of them is missing, and so
// needs no right to make any where all are there. The schema must be there.
func (s *Outbox) Setup(ctx context.Context) error {
	err := s.withTx(ctx, func(tx pgx.Tx) error {
		whole, err := s.complete(ctx, tx)
		if err != nil || whole {
			return err
		}
		// Two who make one table at a time would meet an error.
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, setupLock); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, s.table.sql(schemaSQL), pgx.QueryExecModeSimpleProtocol)
		return err
	})
	if err == nil {
		err = s.looksRight(ctx)
	}
	if err != nil {
		return fmt.Errorf("set up outbox %s: %w", s.table, err)
	}
	return nil
}

func (s *Outbox) complete(ctx context.Context, tx pgx.Tx) (bool, error) {
	names := []string{s.table.String()}
	for _, name := range indexNames {
		names = append(names, s.table.in(s.table.index(name)))
	}
	var found int
	err := tx.QueryRow(ctx, `SELECT count(to_regclass(name)) FROM unnest($1::text[]) AS name`, names).Scan(&found)
	return found == len(names), err
}

// looksRight refuses a table of that name that is not an outbox.
func (s *Outbox) looksRight(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, s.table.sql(`SELECT n, id, ts, topic, key, payload, meta, added, state, owner, since, until, attempts, error, error_at FROM {t} LIMIT 0`))
	if err != nil {
		return fmt.Errorf("the table is not that of an outbox: %w", err)
	}
	return nil
}
