package sqliteoutbox

import (
	"context"
	"fmt"
	"strings"
)

// now is the database's clock in epoch milliseconds.
const now = "CAST(unixepoch('now','subsec') * 1000 AS INTEGER)"

// over says that a claim or a back-off is over: by its end, or since it began in
// the future, so that the clock was set back.
const over = "(until <= " + now + " OR since > " + now + " + 1000)"

// schema is the table. A row that was never refused has until 0 while it is
// pending. Each index holds few rows, however many are kept or wait:
//
//	free     what may be claimed, in order, unless it is behind another
//	due      what waits after an error, by its end,
//	begun    and by its begin
//	claimed  what is claimed
//	held     what may hold up those behind it
//	errors   what has an error
//	sent     what may be pruned
const schema = `CREATE TABLE IF NOT EXISTS TABLE_NAME (
	pos      INTEGER PRIMARY KEY AUTOINCREMENT,
	id       BLOB NOT NULL UNIQUE DEFAULT (randomblob(16)) CHECK (typeof(id) = 'blob' AND length(id) = 16),
	ts       INTEGER NOT NULL DEFAULT (` + now + `) CHECK (typeof(ts) = 'integer'),
	topic    TEXT NOT NULL CHECK (typeof(topic) = 'text'),
	"key"    TEXT NOT NULL DEFAULT '' CHECK (typeof("key") = 'text'),
	payload  TEXT NOT NULL,
	meta     TEXT,
	state    TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'claimed', 'failed', 'sent')),
	owner    TEXT,
	since    INTEGER NOT NULL DEFAULT 0,
	until    INTEGER NOT NULL DEFAULT 0,
	attempts INTEGER NOT NULL DEFAULT 0,
	error    TEXT,
	error_at INTEGER,
	added    INTEGER NOT NULL DEFAULT (` + now + `)
);
CREATE INDEX IF NOT EXISTS TABLE_NAME_free ON TABLE_NAME (pos, topic, "key") WHERE state = 'pending' AND until = 0;
CREATE INDEX IF NOT EXISTS TABLE_NAME_due ON TABLE_NAME (until) WHERE state = 'pending' AND until > 0;
CREATE INDEX IF NOT EXISTS TABLE_NAME_begun ON TABLE_NAME (since) WHERE state = 'pending' AND until > 0;
CREATE INDEX IF NOT EXISTS TABLE_NAME_claimed ON TABLE_NAME (until) WHERE state = 'claimed';
CREATE INDEX IF NOT EXISTS TABLE_NAME_held ON TABLE_NAME (topic, "key", pos) WHERE state <> 'sent' AND "key" <> '' AND (state <> 'pending' OR until > 0);
CREATE INDEX IF NOT EXISTS TABLE_NAME_errors ON TABLE_NAME (pos) WHERE state <> 'sent' AND error IS NOT NULL;
CREATE INDEX IF NOT EXISTS TABLE_NAME_sent ON TABLE_NAME (since) WHERE state = 'sent';
`

// Schema is the SQL that makes the table, for migrations. [Outbox.Setup] runs the
// same. It may be run again.
func Schema(table string) string { return strings.ReplaceAll(schema, "TABLE_NAME", table) }

// Setup implements [outbox.Store].
func (b *Outbox) Setup(ctx context.Context) error {
	err := b.retry(ctx, func() error {
		_, err := b.db.ExecContext(ctx, Schema(b.o.Table))
		return err
	})
	if err != nil {
		return fmt.Errorf("set up outbox %s: %w", b.o.Table, err)
	}
	return nil
}

// queries are the statements on one table.
type queries struct {
	add, find, claim, claimed, sent, refuse, release, requeue, stats, errors, retry, retryAll, discard, prune string
}

func queriesOn(table string) queries {
	on := func(q string) string { return strings.ReplaceAll(q, "TABLE_NAME", table) }
	const free = `state = 'pending', owner = NULL, since = ` + now + `, until = 0`
	const troubled = `state <> 'sent' AND error IS NOT NULL AND state <> 'claimed'`
	// A row behind one of its key that is neither sent nor free waits. Those
	// before it that are free are taken too: they come first.
	const ahead = `("key" = '' OR NOT EXISTS (
		SELECT 1 FROM TABLE_NAME AS e WHERE e.state <> 'sent' AND e."key" <> '' AND (e.state <> 'pending' OR e.until > 0)
		AND e.topic = r.topic AND e."key" = r."key" AND e.pos < r.pos
		AND NOT (e.state = 'pending' AND (e.until <= ` + now + ` OR e.since > ` + now + ` + 1000))))`
	// Three ways to be free, each with an index of its own, which the planner
	// would not take by itself.
	const (
		never = `state = 'pending' AND until = 0`
		waits = `state = 'pending' AND until > 0`
		due   = waits + ` AND until <= ` + now
		back  = waits + ` AND +until > ` + now + ` AND since > ` + now + ` + 1000`
	)
	first := func(index, where string) string {
		return `SELECT pos FROM (SELECT pos FROM TABLE_NAME AS r INDEXED BY TABLE_NAME_` + index + ` WHERE ` + where + ` AND ` + ahead + ` ORDER BY pos LIMIT ?1)`
	}
	count := func(where string) string {
		return `SELECT count(*), count(error), ` + now + ` - min(added) FROM TABLE_NAME WHERE ` + where
	}
	return queries{
		add:  on(`INSERT INTO TABLE_NAME (id, ts, topic, "key", payload, meta) VALUES (?,?,?,?,?,?)`),
		find: on(first("free", never) + ` UNION ALL ` + first("due", due) + ` UNION ALL ` + first("begun", back) + ` ORDER BY pos LIMIT ?1`),
		claim: on(`UPDATE TABLE_NAME AS r SET state = 'claimed', owner = ?, since = ` + now + `, until = ` + now + ` + ?
			WHERE state = 'pending' AND ` + over + ` AND ` + ahead + ` AND pos IN `),
		claimed: ` RETURNING pos, id, ts, topic, "key", payload, meta, attempts`,
		sent:    on(`UPDATE TABLE_NAME SET state = 'sent', owner = NULL, since = ` + now + `, until = 0 WHERE state <> 'sent' AND id IN `),
		refuse: on(`UPDATE TABLE_NAME SET state = ?, owner = NULL, since = ` + now + `, until = max(` + now + ` + ?, 1), attempts = attempts + 1,
			error = ?, error_at = ` + now + ` WHERE id = ? AND state = 'claimed' AND owner = ?`),
		release: on(`UPDATE TABLE_NAME SET ` + free + ` WHERE state = 'claimed' AND owner = ? AND id IN `),
		requeue: on(`UPDATE TABLE_NAME SET ` + free + ` WHERE state = 'claimed' AND ` + over),
		stats: on(`SELECT 'pending', * FROM (` + count(never) + `)
			UNION ALL SELECT 'pending', * FROM (` + count(waits) + `)
			UNION ALL SELECT 'claimed', * FROM (` + count(`state = 'claimed'`) + `)
			UNION ALL SELECT 'failed', * FROM (` + count(`state <> 'sent' AND error IS NOT NULL AND state = 'failed'`) + `)`),
		errors: on(`SELECT id, topic, "key", state, attempts, error, error_at FROM TABLE_NAME WHERE state <> 'sent' AND error IS NOT NULL
			ORDER BY state <> 'failed', pos LIMIT ?`),
		retryAll: on(`UPDATE TABLE_NAME SET ` + free + `, attempts = 0 WHERE ` + troubled),
		retry:    on(`UPDATE TABLE_NAME SET ` + free + `, attempts = 0 WHERE ` + troubled + ` AND id IN `),
		discard:  on(`DELETE FROM TABLE_NAME WHERE ` + troubled + ` AND id IN `),
		prune:    on(`DELETE FROM TABLE_NAME WHERE pos IN (SELECT pos FROM TABLE_NAME WHERE state = 'sent' AND since <= ` + now + ` - ? ORDER BY since LIMIT ?)`),
	}
}
