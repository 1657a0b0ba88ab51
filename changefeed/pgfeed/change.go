package pgfeed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"promethean/changefeed"
	"promethean/event"
)

// message is one of the plugin.
func (p *pump) message(ctx context.Context, kind byte, r *reader) error {
	switch kind {
	case 'B':
		tx := r.begin()
		if until := lsn(p.until.Load()); until != 0 && tx.commit >= until {
			return errReached
		}
		p.in, p.tx, p.nth = true, tx, 0
		clear(p.headers)
	case 'C':
		at, end := r.commit()
		if r.err == nil && (!p.in || at != p.tx.commit) {
			return fmt.Errorf("a commit at %s of the transaction at %s", at, p.tx.commit)
		}
		p.in = false
		p.q.end(end)
	case 'R':
		return p.relation(ctx, r)
	case 'I', 'U', 'D':
		return p.row(ctx, kind, r)
	case 'T':
		for _, id := range r.truncate() {
			if id == p.t.oid {
				p.put(changefeed.OpTruncate, "", nil, "")
			}
		}
	}
	return nil // origins, types, messages
}

// relation takes note of how the table is made from here on.
func (p *pump) relation(ctx context.Context, r *reader) error {
	rel := r.relation()
	if r.err != nil || rel.id != p.t.oid {
		return r.err
	}
	if rel.schema != p.s.schema || rel.name != p.s.table {
		return fmt.Errorf("%w: table %s was renamed to %s", changefeed.ErrGone, p.s.name(), pgx.Identifier{rel.schema, rel.name}.Sanitize())
	}
	l, err := p.s.layout(ctx, rel)
	p.layout = l
	return err
}

// row is an insert, an update or a delete.
func (p *pump) row(ctx context.Context, kind byte, r *reader) error {
	c := &p.change
	if r.change(c); r.err != nil || c.table != p.t.oid {
		return r.err
	}
	if p.layout == nil {
		return errors.New("it comes before the table was described")
	}
	for _, part := range []struct {
		there bool
		row   []value
	}{{c.hasOld, c.old}, {c.hasNew, c.new}} {
		if err := p.layout.fits(part.row); part.there && err != nil {
			return err
		}
	}
	switch {
	case kind == 'D' && c.hasOld:
		p.put(changefeed.OpDelete, p.layout.key(c.old), nil, "")
	case kind == 'I' && c.hasNew:
		p.put(changefeed.OpInsert, p.layout.key(c.new), c.new, "")
	case kind == 'U' && c.hasNew:
		return p.update(ctx, c)
	default:
		return errors.New("a part of the change is missing")
	}
	return nil
}

func (p *pump) update(ctx context.Context, c *change) error {
	for i := range c.new {
		if c.new[i].kind == isUnchanged && c.hasOld && c.old[i].kind == isText {
			c.new[i] = c.old[i]
		}
	}
	for _, k := range p.layout.keys {
		if c.new[k].kind == isUnchanged {
			return fmt.Errorf("the server has not sent the column %s of the key", p.layout.columns[k].name)
		}
	}
	key := p.layout.key(c.new)
	if c.hasOld {
		if old := p.layout.key(c.old); old != key {
			p.put(changefeed.OpDelete, old, nil, "")
		}
	}
	ahead, err := p.lookUp(ctx, c)
	if err != nil {
		return err
	}
	p.put(changefeed.OpUpdate, key, c.new, ahead)
	return nil
}

// put queues a change: row is what there is now. Ahead names columns that may be
// of a later row.
func (p *pump) put(op changefeed.Op, key string, row []value, ahead string) {
	p.nth++
	if p.tx.commit == p.skipOf && p.nth <= p.skip {
		return
	}
	e := entry{commit: p.tx.commit, nth: p.nth}
	e.change = changefeed.Change{ID: p.id(), Key: key, Op: op, At: p.tx.at, Headers: p.header(op)}
	if row != nil {
		p.buffer = p.layout.doc(p.buffer[:0], row)
		e.change.Doc = bytes.Clone(p.buffer)
	}
	if ahead != "" {
		e.change.Headers = e.change.Headers.Set("x-pg-ahead", ahead)
	}
	p.q.put(e)
}

// id follows from the commit and the place in it. The number and the time of
// the transaction tell apart commits of servers that have gone different ways
// from one and the same copy.
func (p *pump) id() event.ID {
	var b [80]byte
	name := strconv.AppendUint(b[:0], uint64(p.tx.commit), 16)
	name = strconv.AppendUint(append(name, '/'), uint64(p.tx.xid), 16)
	name = strconv.AppendInt(append(name, '/'), p.tx.at.UnixMicro(), 16)
	name = strconv.AppendInt(append(name, '/'), int64(p.nth), 16)
	return event.NameID(p.space, string(name))
}

// header gives the headers of a change, which those of a transaction share.
func (p *pump) header(op changefeed.Op) event.Headers {
	h := p.headers[op]
	if h == nil {
		h = headers(op, p.tx.commit, strconv.FormatUint(uint64(p.tx.xid), 10))
		p.headers[op] = h
	}
	return h
}

func headers(op changefeed.Op, at lsn, xid string) event.Headers {
	return event.Headers{{Name: "x-pg-lsn", Value: at.String()}, {Name: "x-pg-op", Value: string(op)}, {Name: "x-pg-xid", Value: xid}}
}

// lookFor is how long looking up a row may take.
const lookFor = 10 * time.Second

// maxAhead bounds the header that names columns.
const maxAhead = 8 << 10

// lookUp fills in large values that the server has not sent, from the row as it
// is now, and names those that may be of a later change.
func (p *pump) lookUp(ctx context.Context, c *change) (ahead string, err error) {
	var missing []int
	var names []string
	for i := range c.new {
		if c.new[i].kind == isUnchanged {
			missing, names = append(missing, i), append(names, p.layout.columns[i].name)
		}
	}
	if missing == nil {
		return "", nil
	}
	row, err := p.now(ctx, names, c.new)
	if err != nil {
		return "", err
	}
	for n, i := range missing {
		c.new[i] = value{kind: isNull}
		if row != nil && row[n+1] != nil {
			c.new[i] = value{kind: isText, text: row[n+1]}
		}
	}
	if row != nil && string(row[0]) == strconv.FormatUint(uint64(p.tx.xid), 10) {
		return "", nil // this very change has made it
	}
	if ahead = strings.Join(names, ","); len(ahead) > maxAhead {
		ahead = "*"
	}
	return ahead, nil
}

// now gives the version and some columns of a row as they are now; nil if it is
// gone.
func (p *pump) now(ctx context.Context, columns []string, row []value) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	query := []byte("SELECT xmin")
	for _, name := range columns {
		query = append(append(query, ", "...), pgx.Identifier{name}.Sanitize()...)
	}
	query = append(append(query, " FROM "...), p.s.name()...)
	var args [][]byte
	for n, k := range p.layout.keys {
		word := " AND "
		if n == 0 {
			word = " WHERE "
		}
		query = fmt.Appendf(query, "%s%s = $%d", word, pgx.Identifier{p.layout.columns[k].name}.Sanitize(), n+1)
		args = append(args, row[k].text)
	}
	conn, err := p.s.pool.Acquire(ctx)
	if err != nil {
		return nil, p.s.means(ctx, "look up large values", err)
	}
	defer conn.Release()
	// Types are left to the server, so that the text of a key of any type does.
	got := conn.Conn().PgConn().ExecParams(ctx, string(query), args, nil, nil, nil).Read()
	switch {
	case code(got.Err) == codeNoTable:
		return nil, nil
	case got.Err != nil:
		return nil, p.s.means(ctx, "look up large values of "+p.s.name(), got.Err)
	case len(got.Rows) == 0:
		return nil, nil
	}
	return got.Rows[0], nil
}
