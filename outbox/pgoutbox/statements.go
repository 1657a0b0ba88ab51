package pgoutbox

import "strings"

// Numbers of advisory locks. They share a space of 64 bits with all others of the
// database, so each kind has some of the first bits to itself.
const (
	setupLock  int64 = 0x70_6F_62_01 << 32
	claimSpace       = "(1886347778::bigint << 32)" // 0x706F6202, then the table's oid
	laneSpace        = "(28787::bigint << 48)"      // 0x7073, then oid and lane
)

// statements are the SQL of a store.
type statements struct {
	add, addQuiet, addLocked, addLockedQuiet string
	peek, enter, claim, expired              string
	markSent, markError, release, requeue    string
	stats, errors, retry, discard, prune     string
	channel, notify                          string
}

// over says that the claim or the pause of row {r} has ended, by its end or since
// it began in what is now the future: then the clock was set back.
const over = `({r}.until IS NULL OR {r}.until <= statement_timestamp() OR {r}.since > statement_timestamp() + interval '1 second')`

func overOf(row string) string { return strings.ReplaceAll(over, "{r}", row) }

const channelSQL = `'promethean_outbox_' || {oid}`

// What Add does is one statement. Locks come before numbers: the rows are joined
// with the count of the locks, which is there when all are taken.
const (
	addRows = `rows AS MATERIALIZED (
	SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[])
		WITH ORDINALITY AS x(id, ts, topic, key, payload, meta, place)
)`
	addLocks = `, lanes AS MATERIALIZED (
	SELECT DISTINCT ` + laneSpace + ` | ({oid}::bigint << 11) | (hashtextextended(key, hashtextextended(topic, 0)) & 2047) AS lane
	FROM rows WHERE key <> '' ORDER BY 1
), locks AS MATERIALIZED (
	SELECT count(taken::text) AS held FROM (SELECT pg_advisory_xact_lock(lane) AS taken FROM lanes OFFSET 0) AS each
)`
	noLocks = `, locks AS MATERIALIZED (SELECT 0 AS held)`
	addInto = `INSERT INTO {t} (id, ts, topic, key, payload, meta)
	SELECT id, ts, topic, key, payload, nullif(meta, '') FROM rows, locks WHERE held >= 0 ORDER BY place`
)

func addStatement(locks string, quiet bool) string {
	if quiet {
		return `WITH ` + addRows + locks + ` ` + addInto
	}
	return `WITH ` + addRows + locks + `, added AS (
	` + addInto + ` RETURNING 1
) SELECT pg_notify(` + channelSQL + `, '') FROM (SELECT FROM added LIMIT 1) AS one`
}

// claimSQL looks at up to $2 due rows from number $1 on, in order, and takes up to
// $3 of them for the owner $4 and $5 microseconds. $6 are the numbers that this
// claim has taken already.
//
//	near   the due rows
//	lanes  their keys, each with its wall: the first row that holds up those
//	       behind it, being claimed, failed or in a pause, or before $1 and so
//	       not looked at
//	want   the rows before their walls
//	held   those of them that nobody else has locked
//	gaps   where the order of a key is broken by one that is not held
const claimSQL = `WITH near AS MATERIALIZED (
	SELECT r.n, r.topic, r.key FROM {t} AS r
	WHERE r.state = 'pending' AND r.n >= $1::bigint AND {over:r}
	ORDER BY r.n LIMIT $2::bigint
), lanes AS MATERIALIZED (
	SELECT l.topic, l.key, (
		SELECT e.n FROM {t} AS e
		WHERE e.topic = l.topic AND e.key = l.key AND e.key <> '' AND e.state <> 'sent' AND e.n < l.last
			AND (e.n < $1::bigint OR e.state <> 'pending' OR NOT {over:e}) AND e.n <> ALL ($6::bigint[])
		ORDER BY e.n LIMIT 1
	) AS wall
	FROM (SELECT topic, key, max(n) AS last FROM near WHERE key <> '' GROUP BY topic, key) AS l
), want AS MATERIALIZED (
	SELECT near.n, near.topic, near.key FROM near LEFT JOIN lanes USING (topic, key)
	WHERE wall IS NULL OR near.n < wall
	ORDER BY near.n LIMIT $3::bigint
), held AS MATERIALIZED (
	SELECT r.n FROM {t} AS r
	WHERE r.n = ANY (ARRAY(SELECT n FROM want)) AND r.state = 'pending' AND {over:r}
	ORDER BY r.n FOR UPDATE SKIP LOCKED
), gaps AS MATERIALIZED (
	SELECT topic, key, min(n) AS n FROM want
	WHERE key <> '' AND n NOT IN (SELECT n FROM held) GROUP BY topic, key
), free AS MATERIALIZED (
	SELECT want.n FROM want LEFT JOIN gaps USING (topic, key)
	WHERE (want.n IN (SELECT n FROM held)) IS TRUE AND (gaps.n IS NULL OR want.n < gaps.n)
), taken AS (
	UPDATE {t} AS r SET state = 'claimed', owner = $4::text,
		since = statement_timestamp(), until = statement_timestamp() + $5::bigint * interval '1 microsecond'
	WHERE r.n = ANY (ARRAY(SELECT n FROM free)) AND r.state = 'pending'
	RETURNING r.n, r.id, r.ts, r.topic, r.key, r.payload, r.meta, r.attempts
)
SELECT looked.rows, looked.last, t.n, t.id, t.ts, t.topic, t.key, t.payload, t.meta, t.attempts
FROM (SELECT count(*) AS rows, coalesce(max(n), 0) AS last FROM near) AS looked
LEFT JOIN taken AS t ON true ORDER BY t.n`

// How transactions begin. Every statement sees what was committed before it. Rows
// are read by the order of an index, up to a limit: by its statistics, which are
// always old here, the server may take the rows that are pending for a few, and
// read and sort them all. One at leisure does not wait for the disk at its end.
const (
	begin     = `BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE`
	inOrder   = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)`
	atLeisure = inOrder + `, set_config('synchronous_commit', 'off', true)`
)

func newStatements(t table) statements {
	sql := func(text string) string {
		text = strings.NewReplacer("{over:r}", overOf("r"), "{over:e}", overOf("e")).Replace(text)
		return t.sql(text)
	}
	return statements{
		add:            sql(addStatement(noLocks, false)),
		addQuiet:       sql(addStatement(noLocks, true)),
		addLocked:      sql(addStatement(addLocks, false)),
		addLockedQuiet: sql(addStatement(addLocks, true)),

		// These two are asked without a transaction. That they ask for the first
		// of an order leads them to the index.
		peek:  sql(`SELECT (SELECT r.n FROM {t} AS r WHERE r.state = 'pending' AND {over:r} ORDER BY r.n LIMIT 1) IS NOT NULL`),
		enter: sql(atLeisure + `, pg_advisory_xact_lock(` + claimSpace + ` | {oid}::bigint)`),
		claim: sql(claimSQL),

		// Rows are locked in order, so that two who mark the same ones do not
		// wait for each other in a ring.
		markSent: sql(`WITH mine AS MATERIALIZED (
	SELECT r.id FROM {t} AS r
	WHERE r.id = ANY ($1::uuid[]) AND r.state <> 'sent' ORDER BY r.n FOR UPDATE
)
UPDATE {t} AS r SET state = 'sent', owner = NULL, since = statement_timestamp(), until = NULL
WHERE r.id = ANY (ARRAY(SELECT id FROM mine))`),

		markError: sql(`WITH mine AS MATERIALIZED (
	SELECT r.id, f.reason, f.pause, f.over
	FROM {t} AS r, unnest($2::uuid[], $3::text[], $4::bigint[], $5::boolean[]) AS f(id, reason, pause, over)
	WHERE r.id = ANY ($2::uuid[]) AND f.id = r.id AND r.state = 'claimed' AND r.owner = $1::text
	ORDER BY r.n FOR UPDATE OF r
)
UPDATE {t} AS r SET attempts = r.attempts + 1, error = mine.reason, error_at = statement_timestamp(),
	state = CASE WHEN mine.over THEN 'failed' ELSE 'pending' END, owner = NULL, since = statement_timestamp(),
	until = CASE WHEN mine.over THEN NULL ELSE statement_timestamp() + mine.pause * interval '1 microsecond' END
FROM mine WHERE r.id = mine.id AND r.id = ANY (ARRAY(SELECT id FROM mine))`),

		release: sql(`WITH mine AS MATERIALIZED (
	SELECT r.id FROM {t} AS r
	WHERE r.id = ANY ($2::uuid[]) AND r.state = 'claimed' AND r.owner = $1::text ORDER BY r.n FOR UPDATE
)
UPDATE {t} AS r SET state = 'pending', owner = NULL, since = statement_timestamp(), until = NULL
WHERE r.id = ANY (ARRAY(SELECT id FROM mine))`),

		expired: sql(`SELECT (SELECT r.n FROM {t} AS r WHERE r.state = 'claimed' AND {over:r} ORDER BY r.until LIMIT 1) IS NOT NULL`),
		requeue: sql(`WITH mine AS MATERIALIZED (
	SELECT r.id FROM {t} AS r WHERE r.state = 'claimed' AND {over:r} ORDER BY r.n FOR UPDATE SKIP LOCKED
)
UPDATE {t} AS r SET state = 'pending', owner = NULL, since = statement_timestamp(), until = NULL
WHERE r.id = ANY (ARRAY(SELECT id FROM mine))`),

		stats: sql(`SELECT
	(SELECT count(*) FROM {t} WHERE state = 'pending'),
	(SELECT count(*) FROM {t} WHERE state = 'claimed'),
	(SELECT count(*) FROM {t} WHERE state = 'failed' AND error IS NOT NULL AND state <> 'sent'),
	(SELECT count(*) FROM {t} WHERE state = 'pending' AND error IS NOT NULL AND state <> 'sent'),
	(SELECT (extract(epoch FROM greatest(interval '1 microsecond', clock_timestamp() - min(added))) * 1000000)::bigint FROM (
		(SELECT added FROM {t} WHERE state = 'pending' ORDER BY n LIMIT 1)
		UNION ALL (SELECT added FROM {t} WHERE state = 'claimed')
		UNION ALL (SELECT added FROM {t} WHERE state = 'failed' AND error IS NOT NULL AND state <> 'sent')
	) AS first HAVING count(*) > 0)`),

		errors: sql(`SELECT id, topic, key, state, attempts, error, error_at FROM {t}
WHERE error IS NOT NULL AND state <> 'sent' ORDER BY state <> 'failed', n LIMIT $1`),

		retry: sql(`WITH mine AS MATERIALIZED (
	SELECT r.id FROM {t} AS r WHERE r.error IS NOT NULL AND r.state <> 'sent' AND r.state IN ('failed', 'pending')
		AND ($1::uuid[] IS NULL OR r.id = ANY ($1::uuid[])) ORDER BY r.n FOR UPDATE
)
UPDATE {t} AS r SET state = 'pending', owner = NULL, since = statement_timestamp(), until = NULL, attempts = 0
WHERE r.id = ANY (ARRAY(SELECT id FROM mine))`),

		discard: sql(`DELETE FROM {t} AS r
WHERE r.id = ANY ($1::uuid[]) AND r.error IS NOT NULL AND r.state IN ('failed', 'pending')`),

		prune: sql(`DELETE FROM {t} AS r WHERE r.id = ANY (ARRAY(
	SELECT s.id FROM {t} AS s WHERE s.state = 'sent' AND s.since <= statement_timestamp() - $1::bigint * interval '1 microsecond'
	ORDER BY s.since LIMIT $2::bigint FOR UPDATE SKIP LOCKED
))`),

		channel: sql(`SELECT ` + channelSQL),
		notify:  sql(`SELECT pg_notify(` + channelSQL + `, '')`),
	}
}
