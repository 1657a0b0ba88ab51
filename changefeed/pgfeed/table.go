package pgfeed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"promethean/changefeed"
	"promethean/event"
)

// table is what the catalog says about the table.
type table struct {
	oid      uint32
	kind     string // r a table, p a partitioned one
	identity string
	keys     []string // the columns of the replica identity, in the table's order
	version  int      // the server's
	database string
}

// errNoTable is met when there is no table of the name.
var errNoTable = errors.New("there is no such table")

// describe looks the table up.
func (s *Source) describe(ctx context.Context) (t table, err error) {
	err = s.pool.QueryRow(ctx, `
		SELECT c.oid, c.relkind::text, c.relreplident::text, current_setting('server_version_num')::int, current_database()::text,
			ARRAY(SELECT a.attname::text
				FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid
				WHERE i.indrelid = c.oid AND i.indisvalid
					AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
					AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
				ORDER BY a.attnum)
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2`, s.schema, s.table).
		Scan(&t.oid, &t.kind, &t.identity, &t.version, &t.database, &t.keys)
	if errors.Is(err, pgx.ErrNoRows) {
		return t, errNoTable
	}
	return t, s.means(ctx, "look at table "+s.name(), err)
}

// usable says why a table cannot be fed from.
func (s *Source) usable(t table) error {
	if t.kind != "r" && t.kind != "p" {
		return fmt.Errorf("%w: %s is not a table (kind %s of pg_class): only tables are replicated", changefeed.ErrRefused, s.name(), t.kind)
	}
	if t.identity == "n" || len(t.keys) == 0 {
		return fmt.Errorf("%w: table %s has no primary key, and no other replica identity: give it one (ALTER TABLE %s ADD PRIMARY KEY …), or choose a unique index (ALTER TABLE %s REPLICA IDENTITY USING INDEX …)",
			changefeed.ErrRefused, s.name(), s.name(), s.name())
	}
	return nil
}

// madeHere is the comment of publications that this package has made.
const madeHere = "made by promethean for a change feed"

// publish makes sure that the publication has the table, and gives the number
// of its membership. With make a missing publication is made.
func (s *Source) publish(ctx context.Context, t table, make bool) (member uint32, err error) {
	member, err = s.member(ctx, t)
	if member != 0 || err != nil {
		return member, err
	}
	name := pgx.Identifier{s.o.Publication}.Sanitize()
	if !make {
		return 0, fmt.Errorf("%w: table %s was taken out of the publication %s, or that was dropped", changefeed.ErrHistoryLost, s.name(), name)
	}
	with := ""
	if t.kind == "p" {
		with = " WITH (publish_via_partition_root = true)"
	}
	statement := "CREATE PUBLICATION " + name + " FOR TABLE ONLY " + s.name() + with
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "COMMENT ON PUBLICATION "+name+" IS '"+madeHere+"'")
		return err
	})
	switch code(err) {
	case "":
		if err != nil {
			return 0, s.means(ctx, "make publication "+name, err)
		}
		return s.member(ctx, t)
	case codeDuplicate:
		return 0, fmt.Errorf("%w: the publication %s does not hold table %s: ALTER PUBLICATION %s ADD TABLE %s", changefeed.ErrRefused, name, s.name(), name, s.name())
	case codePrivilege:
		return 0, fmt.Errorf("%w: the role %s may not make a publication; let somebody who may do this: %s: %w", changefeed.ErrRefused, s.config.User, statement, err)
	case codeBadParameter, codeUnsupported:
		return 0, fmt.Errorf("%w: make publication: %w", changefeed.ErrRefused, err)
	}
	return 0, s.means(ctx, "make publication "+name, err)
}

// member gives the number of what makes the table part of the publication: of
// the row for the table or for its schema, or of a publication of all tables.
// It is 0 if the table is no part of it.
func (s *Source) member(ctx context.Context, t table) (member uint32, err error) {
	inSchema, viaRoot := "0", "true"
	if t.version >= 150000 {
		inSchema = "coalesce((SELECT n.oid FROM pg_publication_namespace n WHERE n.pnpubid = p.oid AND n.pnnspid = c.relnamespace), 0)"
	}
	if t.version >= 130000 {
		viaRoot = "p.pubviaroot"
	}
	var all, root bool
	err = s.pool.QueryRow(ctx, `
		SELECT coalesce(nullif(coalesce((SELECT r.oid FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid), 0), 0),
			nullif(`+inSchema+`, 0), CASE WHEN p.puballtables THEN p.oid END, 0)::oid,
			p.pubinsert AND p.pubupdate AND p.pubdelete, `+viaRoot+`
		FROM pg_publication p, pg_class c WHERE p.pubname = $1 AND c.oid = $2`, s.o.Publication, t.oid).Scan(&member, &all, &root)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, nil
	case err != nil:
		return 0, s.means(ctx, "look at publication "+s.o.Publication, err)
	case !all:
		return 0, fmt.Errorf("%w: the publication %s leaves out inserts, updates or deletes: ALTER PUBLICATION %s SET (publish = 'insert, update, delete, truncate')",
			changefeed.ErrRefused, s.o.Publication, s.o.Publication)
	case t.kind == "p" && !root:
		return 0, fmt.Errorf("%w: %s is partitioned: ALTER PUBLICATION %s SET (publish_via_partition_root = true)", changefeed.ErrRefused, s.name(), s.o.Publication)
	}
	return member, nil
}

// layout is how rows of the table are read: it is made anew whenever the server
// says that the table has changed.
type layout struct {
	columns []column
	keys    []int // which of them are the key
	full    bool  // old rows come whole
}

type column struct {
	name   string
	label  []byte // "name":
	encode encoder
}

func newColumn(ctx context.Context, k *kinds, pool *pgxpool.Pool, name string, oid uint32) (c column, err error) {
	c = column{name: name, label: append(appendText(nil, []byte(name)), ':')}
	c.encode, err = k.of(ctx, pool, oid)
	return c, err
}

// layout makes the layout of a relation that the stream has told about.
func (s *Source) layout(ctx context.Context, rel relation) (l *layout, err error) {
	l = &layout{full: rel.identity == 'f'}
	names := map[string]bool{}
	if l.full {
		// All columns are the identity then: the key is the primary key.
		t, err := s.describe(ctx)
		if errors.Is(err, errNoTable) {
			return nil, fmt.Errorf("%w: table %s was dropped", changefeed.ErrGone, s.name())
		}
		if err != nil {
			return nil, err
		}
		for _, k := range t.keys {
			names[k] = true
		}
	}
	for i, c := range rel.columns {
		col, err := newColumn(ctx, &s.kinds, s.pool, c.name, c.kind)
		if err != nil {
			return nil, s.means(ctx, "look at the types of "+s.name(), err)
		}
		l.columns = append(l.columns, col)
		if l.full && names[c.name] || !l.full && c.key {
			l.keys = append(l.keys, i)
		}
	}
	if len(l.keys) == 0 {
		return nil, s.usable(table{kind: "r", identity: "n"})
	}
	return l, nil
}

// key is that of a row, as text. A null in it is nothing: only columns that are
// not null are part of a replica identity.
func (l *layout) key(row []value) string {
	if len(l.keys) == 1 {
		return string(row[l.keys[0]].text)
	}
	key := []byte{'['}
	for i, k := range l.keys {
		if i > 0 {
			key = append(key, ',')
		}
		key = appendText(key, row[k].text)
	}
	return string(append(key, ']'))
}

// doc appends a row as a JSON object.
func (l *layout) doc(dst []byte, row []value) []byte {
	dst = append(dst, '{')
	for i := range l.columns {
		if i > 0 {
			dst = append(dst, ',')
		}
		c := &l.columns[i]
		dst = append(dst, c.label...)
		if row[i].kind != isText {
			dst = append(dst, "null"...)
			continue
		}
		dst = c.encode(dst, row[i].text)
	}
	return append(dst, '}')
}

// fits says whether a row has as many columns as the layout.
func (l *layout) fits(row []value) error {
	if len(row) != len(l.columns) {
		return fmt.Errorf("a row of %d columns for a table of %d", len(row), len(l.columns))
	}
	return nil
}

// space is what the ids of a table's changes are made in.
func space(system string, t table) event.ID {
	name, _ := json.Marshal([]any{"pgfeed", system, t.database, t.oid})
	return event.NameID(event.ID{}, string(name))
}
