package pgfeed

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"promethean/changefeed"
	"promethean/event"
)

// view is a transaction that sees the table as it was when a slot was made.
type view struct {
	conn *pgxpool.Conn
	run  *run
}

// view opens the transaction. Once it has, the connection that has made the
// slot may go.
func (r *run) view(ctx context.Context, snapshot string) (*view, error) {
	conn, err := r.s.pool.Acquire(ctx)
	if err != nil {
		return nil, r.s.means(ctx, "connect for the snapshot", err)
	}
	v := &view{conn: conn, run: r}
	for _, statement := range []string{
		"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
		"SET TRANSACTION SNAPSHOT " + quote(snapshot),
		"SET LOCAL row_security = off", // rows must not be left out unseen
		// A limit that later servers have is not meant for us.
		"SELECT set_config(name, '0', true) FROM pg_settings WHERE name = 'transaction_timeout'",
		"LOCK TABLE " + r.s.name() + " IN ACCESS SHARE MODE",
	} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			v.close()
			return nil, r.s.means(ctx, "take the snapshot", err)
		}
	}
	return v, nil
}

// close ends the transaction.
func (v *view) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, err := v.conn.Exec(ctx, "ROLLBACK"); err != nil {
		_ = v.conn.Conn().Close(ctx)
	}
	v.conn.Release()
}

// layout gives the columns that the stream will have too, and the query for them.
func (v *view) layout(ctx context.Context) (*layout, string, error) {
	s, t := v.run.s, v.run.t
	only, filter := "true", ""
	args := []any{t.oid}
	if t.version >= 150000 { // a publication may leave out columns and rows
		var columns []string
		err := v.conn.QueryRow(ctx, `SELECT attnames::text[], coalesce(rowfilter, '') FROM pg_publication_tables
			WHERE pubname = $1 AND schemaname = $2 AND tablename = $3`, s.o.Publication, s.schema, s.table).Scan(&columns, &filter)
		if err != nil {
			return nil, "", s.means(ctx, "look at publication "+s.o.Publication, err)
		}
		only, args = "attname = ANY ($2)", append(args, columns)
	}
	if t.version < 180000 && t.version >= 120000 { // later ones can publish generated columns
		only += " AND attgenerated = ''"
	}
	rows, err := v.conn.Query(ctx, "SELECT attname::text, atttypid FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped AND "+only+" ORDER BY attnum", args...)
	if err != nil {
		return nil, "", s.means(ctx, "look at the columns of "+s.name(), err)
	}
	type described struct {
		Name string
		Kind uint32
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[described])
	if err != nil {
		return nil, "", s.means(ctx, "look at the columns of "+s.name(), err)
	}
	l, list := &layout{}, []string{"xmin"}
	keys := map[string]bool{}
	for _, k := range t.keys {
		keys[k] = true
	}
	for i, c := range found {
		col, err := newColumn(ctx, &s.kinds, s.pool, c.Name, c.Kind)
		if err != nil {
			return nil, "", s.means(ctx, "look at the types of "+s.name(), err)
		}
		l.columns = append(l.columns, col)
		list = append(list, pgx.Identifier{c.Name}.Sanitize())
		if keys[c.Name] {
			l.keys = append(l.keys, i)
		}
	}
	if len(l.keys) != len(t.keys) {
		return nil, "", fmt.Errorf("%w: the publication %s leaves out columns of the key %v", changefeed.ErrRefused, s.o.Publication, t.keys)
	}
	from := " FROM ONLY "
	if t.kind == "p" {
		from = " FROM "
	}
	query := "SELECT " + strings.Join(list, ", ") + from + s.name()
	if filter != "" {
		query += " WHERE " + filter
	}
	return l, query, nil
}

// rows hands over all rows, in no order. At is the place behind each batch.
func (v *view) rows(ctx context.Context, at place) error {
	l, query, err := v.layout(ctx)
	if err != nil {
		return err
	}
	s := v.run.s
	result := v.conn.Conn().PgConn().ExecParams(ctx, query, nil, nil, nil, nil)
	defer func() { _, _ = result.Close() }()
	var batch []changefeed.Change
	var buffer []byte
	row := make([]value, len(l.columns))
	ids := space(at.System, v.run.t)
	size := 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		err := v.run.sink(ctx, changefeed.Batch{Changes: batch, Token: at.token(), Snapshot: true, Position: at.position()})
		batch, size = nil, 0
		return err
	}
	for result.NextRow() {
		values := result.Values()
		for i := range row {
			row[i] = value{kind: isNull}
			if values[i+1] != nil {
				row[i] = value{kind: isText, text: values[i+1]}
			}
		}
		buffer = l.doc(buffer[:0], row)
		c := changefeed.Change{Key: l.key(row), Op: changefeed.OpSnapshot, Doc: bytes.Clone(buffer)}
		version := string(values[0])
		c.ID = rowID(ids, at.Origin, c.Key, version)
		c.Headers = headers(c.Op, at.LSN, version)
		if batch, size = append(batch, c), size+len(c.Doc); len(batch) >= s.o.BatchSize || size >= s.o.BatchBytes {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if _, err := result.Close(); err != nil {
		if code(err) == codePrivilege && strings.Contains(err.Error(), "row-level security") {
			return fmt.Errorf("%w: row-level security hides rows of %s from the role %s: ALTER ROLE … BYPASSRLS: %w", changefeed.ErrRefused, s.name(), s.config.User, err)
		}
		return s.means(ctx, "read the rows of "+s.name(), err)
	}
	return flush()
}

// rowID is the id of a row of a snapshot. It changes whenever the row does, and
// with each snapshot, but not when one that was not finished begins again.
func rowID(space event.ID, origin lsn, key, version string) event.ID {
	name, _ := json.Marshal([]string{"row", origin.String(), key, version})
	return event.NameID(space, string(name))
}
