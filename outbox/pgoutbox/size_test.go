package pgoutbox_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"promethean/event"
	"promethean/outbox"
	"promethean/outbox/pgoutbox"
)

// fill adds rows past the driver. columns and values are more of them.
func (b *bench) fill(t testing.TB, n int, key, columns, values string) {
	t.Helper()
	b.exec(t, `INSERT INTO `+b.table+` (id, topic, key, payload`+columns+`)
		SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000000)::bigint), 16, '0') || lpad(to_hex(g), 16, '0'))::uuid,
			'a', `+key+`, g::text`+values+` FROM generate_series(1, $1::int) AS g`, n)
}

// turn claims and sends rows, up to n, a hundred at a time, and says how long the
// claims took.
func (b *bench) turn(t testing.TB, n int) (times []time.Duration) {
	t.Helper()
	for n > 0 {
		start := time.Now()
		rows, err := b.ClaimBatch(t.Context(), "me", 100, lease)
		times = append(times, time.Since(start))
		if err != nil || len(rows) == 0 {
			t.Fatalf("claimed %d rows with %d to come, %v", len(rows), n, err)
		}
		if err := b.MarkSent(t.Context(), idsOf(rows)...); err != nil {
			t.Fatal(err)
		}
		n -= len(rows)
	}
	slices.Sort(times)
	return times
}

// A million rows that were sent, and what was learnt of the table before they
// were, slow nothing down: all looks go by indexes of rows that are not sent.
func TestManySent(t *testing.T) {
	sent := 1_000_000
	if testing.Short() {
		sent = 100_000
	}
	b := open(t, pgoutbox.Options{})
	const rows = 3000
	b.fill(t, rows, `'k' || g % 100`, ``, ``)
	few := b.turn(t, rows)
	b.fill(t, sent, `'k' || g % 100`, `, state, since`, `, 'sent', now()`)
	b.fill(t, rows, `'k' || g % 100`, ``, ``)
	many := b.turn(t, rows)
	median := func(list []time.Duration) time.Duration { return list[len(list)/2] }
	t.Logf("a claim of 100 takes %s, with %d rows sent %s", median(few), sent, median(many))
	if median(many) > 5*median(few)+20*time.Millisecond {
		t.Errorf("claims take %s with %d rows sent, and %s without", median(many), sent, median(few))
	}
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			b.exec(t, `ANALYZE `+b.table)
		}
		b.wantIndexes(t)
	}
}

// wantIndexes asks the server how it carries statements out.
func (b *bench) wantIndexes(t testing.TB) {
	t.Helper()
	id := fmt.Sprintf("{%s}", event.NewID())
	for name, look := range map[string]struct {
		args    []any
		indexes []string
	}{
		"claim":   {[]any{0, 100, 100, "me", 1000, "{}"}, []string{"outbox_pending", "outbox_lane"}},
		"peek":    {nil, []string{"outbox_pending"}},
		"expired": {nil, []string{"outbox_claimed"}},
		"requeue": {nil, []string{"outbox_claimed", "outbox_pkey"}},
		"stats":   {nil, []string{"outbox_pending", "outbox_claimed", "outbox_error"}},
		"sent":    {[]any{id}, []string{"outbox_pkey"}},
		"prune":   {[]any{1000, 10}, []string{"outbox_sent", "outbox_pkey"}},
		"errors":  {[]any{10}, []string{"outbox_error"}},
	} {
		var lines []string
		err := pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
			// As the store's own transactions begin. Two looks have none.
			if !slices.Contains([]string{"peek", "expired"}, name) {
				for _, setting := range []string{"enable_seqscan", "enable_bitmapscan"} {
					if _, err := tx.Exec(t.Context(), "SET LOCAL "+setting+" = off"); err != nil {
						return err
					}
				}
			}
			rows, err := tx.Query(t.Context(), "EXPLAIN "+b.Statements()[name], look.args...)
			if err == nil {
				lines, err = pgx.CollectRows(rows, pgx.RowTo[string])
			}
			return err
		})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		plan := strings.Join(lines, "\n")
		used := make(map[string]bool)
		for _, m := range regexp.MustCompile(`(?:using|on) (outbox_\w+)`).FindAllStringSubmatch(plan, -1) {
			used[m[1]] = true
		}
		for _, ix := range look.indexes {
			if !used[ix] {
				t.Errorf("%s does not go by %s:\n%s", name, ix, plan)
			}
			delete(used, ix)
		}
		if len(used) > 0 || strings.Contains(plan, "Seq Scan on outbox") {
			t.Errorf("%s goes by other ways:\n%s", name, plan)
		}
	}
}

// Rows behind one that has failed are looked past: those of other keys go on, and
// order is kept.
func TestManyHeldUp(t *testing.T) {
	b := open(t, pgoutbox.Options{})
	const stuck, rows = 50_000, 4_000
	b.add(t, numbered("a", "stuck", 0))
	head, err := b.ClaimBatch(t.Context(), "me", 1, lease)
	if err != nil || len(head) != 1 {
		t.Fatal(head, err)
	}
	if err := b.MarkError(t.Context(), "me", outbox.Refusal{ID: head[0].ID, Reason: "no", GiveUp: true}); err != nil {
		t.Fatal(err)
	}
	b.fill(t, stuck, `'stuck'`, ``, ``)
	b.fill(t, rows, `'k' || g % 100`, ``, ``)
	start := time.Now()
	times := b.turn(t, rows)
	t.Logf("behind %d rows that are held up, %d rows take %s, a claim mostly %s, at worst %s",
		stuck, rows, time.Since(start), times[len(times)/2], times[len(times)-1])
	want(t, b.claim(t, "me", 10))

	// While only a part is looked at, a row that comes before it is found soon,
	// and the key of one that is held up stays so.
	b.fill(t, rows, `'k' || g % 100`, ``, ``)
	b.turn(t, 200)
	b.exec(t, `UPDATE `+b.table+` SET state = 'pending', until = NULL WHERE id = $1`, head[0].ID.String())
	got := ""
	for i := 0; i < rows && got != "stuck0"; i += 100 {
		for _, name := range b.claim(t, "me", 100) {
			if strings.HasPrefix(name, "stuck") {
				got = name
				break
			}
		}
	}
	if got != "stuck0" {
		t.Errorf("the first row of the key that came is %q, want stuck0", got)
	}
}
