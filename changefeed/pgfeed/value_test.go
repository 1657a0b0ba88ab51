package pgfeed_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"promethean/changefeed/pgfeed"
	"promethean/event"
	"promethean/internal/pgtest"
)

// values are what columns of all kinds become, by the expression that makes them.
var values = []struct{ kind, value, want string }{
	{"smallint", "-32768", "-32768"},
	{"bigint", "9223372036854775807", "9223372036854775807"},
	{"numeric", "123456789012345678901234567890.123456789000", "123456789012345678901234567890.123456789000"},
	{"numeric", "'NaN'", `"NaN"`},
	{"numeric(5,2)", "-0.5", "-0.50"},
	{"double precision", "0.1::float8 + 0.2::float8", "0.30000000000000004"},
	{"double precision", "'-Infinity'", `"-Infinity"`},
	{"double precision", "1e300", "1e+300"},
	{"real", "'NaN'", `"NaN"`},
	{"boolean", "true", "true"},
	{"boolean", "false", "false"},
	{"text", `E'a "quoted" \\ \t\u0001 \u2028 \U0001F600 é'`, "\"a \\\"quoted\\\" \\\\ \\t\\u0001 \u2028 😀 é\""},
	{"text", "''", `""`},
	{"text", "NULL", "null"},
	{"varchar(3)", "'abc'", `"abc"`},
	{"char(4)", "'ab'", `"ab  "`},
	{"json", `'{"b" : 1,  "a":[1.50, 1e2]}'`, `{"b" : 1,  "a":[1.50, 1e2]}`},
	{"json", `'{"a":1,"a":2}'`, `"{\"a\":1,\"a\":2}"`},
	{"json", `'"\ud800"'`, `"\"\\ud800\""`},
	{"json", `repeat('[', 1200)::text || repeat(']', 1200)`, `"` + strings.Repeat("[", 1200) + strings.Repeat("]", 1200) + `"`},
	{"jsonb", `'{"b": 12345678901234567890.10, "a": null}'`, `{"a": null, "b": 12345678901234567890.10}`},
	{"jsonb", `'null'`, `null`},
	{"bytea", `'\x00ff10'`, `"AP8Q"`},
	{"bytea", `''`, `""`},
	{"date", "'2026-02-03'", `"2026-02-03"`},
	{"time", "'03:04:05.5'", `"03:04:05.5"`},
	{"timestamp", "'2026-02-03 04:05:06.123456'", `"2026-02-03T04:05:06.123456"`},
	{"timestamptz", "'2026-02-03 04:05:06.5+02'", `"2026-02-03T02:05:06.5Z"`},
	{"timestamptz", "'infinity'", `"infinity"`},
	{"timestamptz", "'0044-03-15 12:00:00+00 BC'", `"0044-03-15 12:00:00+00 BC"`},
	{"timestamptz", "'20260-03-15 12:00:00+00'", `"20260-03-15 12:00:00+00"`},
	{"interval", "'1 day 02:03:04'", `"P1DT2H3M4S"`},
	{"uuid", "'0192f7c1-0000-7000-8000-000000000001'", `"0192f7c1-0000-7000-8000-000000000001"`},
	{"inet", "'10.0.0.1/8'", `"10.0.0.1/8"`},
	{"int[]", "'{1,NULL,-3}'", `[1,null,-3]`},
	{"int[]", "'{}'", `[]`},
	{"int[]", "'{{1,2},{3,4}}'", `[[1,2],[3,4]]`},
	{"int[]", "'[0:1]={7,8}'", `[7,8]`},
	{"text[]", `ARRAY['a', 'b c', '"', '\', '{}', 'NULL', NULL, '', 'é,']`, `["a","b c","\"","\\","{}","NULL",null,"","é,"]`},
	{"jsonb[]", `ARRAY['{"a": [1]}'::jsonb, 'null']`, `[{"a": [1]},null]`},
	{"boolean[]", "'{t,f}'", `[true,false]`},
	{"timestamptz[]", "ARRAY['2026-02-03 04:05:06+00'::timestamptz]", `["2026-02-03T04:05:06Z"]`},
	{"bytea[]", `ARRAY['\x01'::bytea]`, `["AQ=="]`},
	{"box[]", "ARRAY['(1,1),(0,0)'::box, '(2,2),(0,0)']", `["(1,1),(0,0)","(2,2),(0,0)"]`},
	{"int2vector", "'1 2'", `"1 2"`},
	{"point", "'(1,2)'", `"(1,2)"`},
	{"int4range", "'[1,5)'", `"[1,5)"`},
	{"mood", "'so so'", `"so so"`},
	{"mood[]", "'{ok,\"so so\"}'", `["ok","so so"]`},
	{"cents", "12.30", `12.30`},
	{"cents[]", "'{12.30,1}'", `[12.30,1]`},
	{"pair", "ROW(1, 'x y')", `"(1,\"x y\")"`},
}

// TestValues wants the same document from the snapshot and from the stream,
// whatever the server and the database are set to.
func TestValues(t *testing.T) {
	uri := pgtest.Database(t)
	db := uri[strings.LastIndexByte(uri, '/')+1 : strings.IndexByte(uri, '?')]
	pgtest.Exec(t, uri, `
		ALTER DATABASE `+db+` SET datestyle = 'German, DMY';
		ALTER DATABASE `+db+` SET timezone = 'Asia/Kolkata';
		ALTER DATABASE `+db+` SET bytea_output = 'escape';
		ALTER DATABASE `+db+` SET extra_float_digits = 0;
		ALTER DATABASE `+db+` SET statement_timeout = '1s';
		CREATE TYPE mood AS ENUM ('ok', 'so so');
		CREATE DOMAIN cents AS numeric CHECK (value > 0);
		CREATE TYPE pair AS (a int, b text);`)
	columns, list := []string{"id int PRIMARY KEY", "made int GENERATED ALWAYS AS (id * 2) STORED"}, []string{"1"}
	names := []string{"id"}
	for i, v := range values {
		name := "c" + string(rune('a'+i/26)) + string(rune('a'+i%26))
		columns, list, names = append(columns, name+" "+v.kind), append(list, "("+v.value+")::"+v.kind), append(names, name)
	}
	pgtest.Exec(t, uri, "SET timezone = UTC; SET datestyle = ISO; CREATE TABLE kinds ("+strings.Join(columns, ", ")+")")
	insert := "SET timezone = UTC; SET datestyle = ISO; INSERT INTO kinds (" + strings.Join(names, ", ") + ") SELECT " + strings.Join(list, ", ")
	pgtest.Exec(t, uri, insert)
	s, l := newSource(t, uri, "kinds", pgfeed.Options{Snapshot: true}), newTopic()
	run := stream(t, s, l)
	l.begun(t)
	pgtest.Exec(t, uri, "DELETE FROM kinds")
	pgtest.Exec(t, uri, insert)
	got := l.has(t, 3)
	run.stop()
	for _, i := range []int{0, 2} {
		if err := event.CheckJSON(got[i].Doc); err != nil {
			t.Fatalf("%s of the %s", err, got[i].Op)
		}
		var doc map[string]json.RawMessage
		if err := json.Unmarshal(got[i].Doc, &doc); err != nil {
			t.Fatal(err)
		}
		if len(doc) != len(names) {
			t.Errorf("the %s has the columns %v", got[i].Op, slices.Sorted(maps.Keys(doc)))
		}
		for n, v := range values {
			if have := string(doc[names[n+1]]); have != v.want {
				t.Errorf("%s of %s %s is %s, want %s", got[i].Op, v.kind, v.value, have, v.want)
			}
		}
	}
}

// TestLargeValues wants values that the server does not send with an update.
func TestLargeValues(t *testing.T) {
	for _, identity := range []string{"DEFAULT", "FULL"} {
		t.Run(identity, func(t *testing.T) {
			uri := pgtest.Database(t)
			pgtest.Exec(t, uri, `CREATE TABLE big (id text PRIMARY KEY, n int, body text, note text);
				ALTER TABLE big ALTER COLUMN body SET STORAGE EXTERNAL;
				ALTER TABLE big REPLICA IDENTITY `+identity+`;
				INSERT INTO big VALUES ('a', 1, repeat('x', 10000)), ('b', 1, repeat('y', 10000)), ('c', 1, repeat('z', 10000))`)
			s, l := newSource(t, uri, "big", pgfeed.Options{}), newTopic()
			run := stream(t, s, l)
			l.begun(t)
			// Read when nothing has changed since.
			pgtest.Exec(t, uri, "UPDATE big SET n = 2 WHERE id = 'a'")
			l.has(t, 1)
			run.stop()
			// Read when the row has changed again, or is gone.
			pgtest.Exec(t, uri, "UPDATE big SET n = 3 WHERE id = 'b'")
			pgtest.Exec(t, uri, "UPDATE big SET body = 'new' WHERE id = 'b'")
			pgtest.Exec(t, uri, "UPDATE big SET n = 4 WHERE id = 'c'")
			pgtest.Exec(t, uri, "DELETE FROM big WHERE id = 'c'")
			stream(t, s, l)
			got := l.has(t, 5)
			x, y, z := strings.Repeat("x", 10000), strings.Repeat("y", 10000), strings.Repeat("z", 10000)
			want := []string{
				`update a {"id":"a","n":2,"body":"` + x + `","note":null}`,
				`update b {"id":"b","n":3,"body":"` + y + `","note":null}`,
				`update b {"id":"b","n":3,"body":"new","note":null}`,
				`update c {"id":"c","n":4,"body":"` + z + `","note":null}`,
				`delete c`,
			}
			ahead := make([]string, 5)
			if identity == "DEFAULT" { // what is known later is told, and said to be
				want[1] = `update b {"id":"b","n":3,"body":"new","note":null}`
				want[3] = `update c {"id":"c","n":4,"body":null,"note":null}`
				ahead[1], ahead[3] = "body", "body"
			}
			same(t, got, want...)
			for i, c := range got {
				if h, _ := c.Headers.Get("x-pg-ahead"); h != ahead[i] {
					t.Errorf("change %d: x-pg-ahead is %q, want %q", i, h, ahead[i])
				}
			}
		})
	}
}
