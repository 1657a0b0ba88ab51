package sqliteoutbox

import (
	"database/sql"
	"strings"
	"testing"
)

// Every statement finds its rows by an index that holds few: none walks the table.
func TestPlans(t *testing.T) {
	db, err := sql.Open("sqlite", "file:"+t.TempDir()+"/a.db")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	b, err := New(db, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	id := "(x'00')"
	for name, query := range map[string]string{
		"find": b.q.find, "claim": b.q.claim + id + b.q.claimed, "sent": b.q.sent + id, "refuse": b.q.refuse, "release": b.q.release + id, "requeue": b.q.requeue,
		"stats": b.q.stats, "errors": b.q.errors, "retry": b.q.retry + id, "retry all": b.q.retryAll, "discard": b.q.discard + id, "prune": b.q.prune,
	} {
		args := make([]any, strings.Count(query, "?"))
		if strings.Contains(query, "?1") {
			args = args[:1]
		}
		for i := range args {
			args[i] = 1
		}
		rows, err := db.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, args...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for rows.Next() {
			var a, p, x int
			var detail string
			if err := rows.Scan(&a, &p, &x, &detail); err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: %s", name, detail)
			walks := strings.HasPrefix(detail, "SCAN "+DefaultTable) || strings.HasPrefix(detail, "SCAN r") || strings.HasPrefix(detail, "SCAN e")
			if walks && !strings.Contains(detail, "USING") {
				t.Errorf("%s walks the table: %s", name, detail)
			}
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		_ = rows.Close()
	}
}
