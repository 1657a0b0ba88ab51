package gateway_test

import (
	"fmt"
	"strings"
	"testing"

	"promethean/gateway"
)

func TestAt(t *testing.T) {
	s := serve(t, gateway.Options{})
	for i, ts := range []string{"1000", "3000", "2000"} {
		s.want(201, "", "POST", fmt.Sprintf("/publish/a.b?ts=%s&key=k", ts), fmt.Sprintf(`{"n":1234567890123456789%d,"<%d>":1}`, i, i))
	}
	for _, c := range [][2]string{
		{"", `{"topic":"a.b","key":"k","state":{"n":12345678901234567892,"<2>":1},"ts":2000,"seq":3,"events":3}`},
		{"&ts=999", `{"topic":"a.b","key":"k","state":null,"ts":0,"seq":0,"events":0}`},
		{"&ts=1970-01-01T00:00:01Z", `{"topic":"a.b","key":"k","state":{"n":12345678901234567890,"<0>":1},"ts":1000,"seq":1,"events":1}`},
		{"&asOf=2", `{"topic":"a.b","key":"k","state":{"n":12345678901234567891,"<1>":1},"ts":3000,"seq":2,"events":2}`},
		{"&asOf=0", `{"topic":"a.b","key":"k","state":null,"ts":0,"seq":0,"events":0}`},
		{"&asOf=99999999999999999999999", `{"topic":"a.b","key":"k","state":{"n":12345678901234567892,"<2>":1},"ts":2000,"seq":3,"events":3}`},
		{"&asOf=2&ts=2000", `{"topic":"a.b","key":"k","state":{"n":12345678901234567890,"<0>":1},"ts":1000,"seq":1,"events":1}`},
		{"&ts=2000&reduce=merge", `{"topic":"a.b","key":"k","state":{"n":12345678901234567892,"<0>":1,"<2>":1},"ts":2000,"seq":3,"events":2}`},
		{"&ts=2000&reduce=replace", `{"topic":"a.b","key":"k","state":{"n":12345678901234567892,"<2>":1},"ts":2000,"seq":3,"events":2}`},
	} {
		if status, _, text := s.raw("GET", "/at?topic=a.b&key=k"+c[0], ""); status != 200 || strings.TrimSpace(text) != c[1] {
			t.Errorf("%s: %d %s, want %s", c[0], status, text, c[1])
		}
	}
	for _, bad := range []string{"&ts=yesterday", "&ts=-1", "&asOf=-1", "&asOf=x", "&reduce=sum"} {
		s.want(400, "invalid_argument", "GET", "/at?topic=a.b&key=k"+bad, "")
	}
	s.want(400, "invalid_argument", "GET", "/at?topic=a.b", "")
	s.want(400, "invalid_topic", "GET", "/at?topic=A&key=k", "")

	if err := s.hub.Log().Trim(t.Context(), "a.b", 2); err != nil {
		t.Fatal(err)
	}
	if got := s.want(410, "history_gone", "GET", "/at?topic=a.b&key=k&ts=1500", ""); got["oldest"] != 2000.0 {
		t.Errorf("%v", got)
	}
	if got := s.want(410, "history_gone", "GET", "/at?topic=a.b&key=k&asOf=1", ""); got["oldest_seq"] != 2.0 || got["oldest"] != nil {
		t.Errorf("%v", got)
	}
	if got := s.want(410, "history_gone", "GET", "/at?topic=a.b&key=other", ""); got["oldest"] != nil {
		t.Errorf("%v", got)
	}
}

// The hub may have another way to reduce a topic.
func TestAtReducesAsTheHubSays(t *testing.T) {
	s := serve(t, gateway.Options{Reduce: func(topic string) string {
		return map[string]string{"a.merged": "merge"}[topic]
	}})
	for _, topic := range []string{"a.merged", "a.plain"} {
		s.want(201, "", "POST", "/publish/"+topic+"?key=k", `{"a":1}`)
		s.want(201, "", "POST", "/publish/"+topic+"?key=k", `{"b":1}`)
	}
	for query, want := range map[string]int{"a.merged": 2, "a.plain": 1, "a.merged&reduce=replace": 1, "a.plain&reduce=merge": 2} {
		if got := s.want(200, "", "GET", "/at?key=k&topic="+query, ""); len(got["state"].(map[string]any)) != want {
			t.Errorf("%s: %v", query, got)
		}
	}
}

func TestHistorySteps(t *testing.T) {
	s := serve(t, gateway.Options{})
	for _, payload := range []string{`{"n":1,"s":"<a>"}`, `{"n":2}`, `null`} {
		s.want(201, "", "POST", "/publish/a.b?key=k", payload)
	}
	steps := func(query string) (out []string, got map[string]any) {
		t.Helper()
		got = s.want(200, "", "GET", "/history?topic=a.b&key=k&diff=1"+query, "")
		for _, v := range got["steps"].([]any) {
			step := v.(map[string]any)
			out = append(out, fmt.Sprint(step["event"].(map[string]any)["seq"], " ", step["state"], " ", step["changes"]))
		}
		return out, got
	}
	list, got := steps("")
	if len(list) != 3 || got["count"] != 3.0 || got["next"] != 3.0 || got["reduce"] != "replace" || got["key"] != "k" {
		t.Fatalf("%v", got)
	}
	if want := `2 map[n:2] [map[from:1 op:replace path:/n to:2] map[from:<a> op:remove path:/s]]`; list[1] != want {
		t.Errorf("%s, want %s", list[1], want)
	}
	if list, _ := steps("&after=1&limit=1&reduce=merge"); len(list) != 1 || list[0] != `2 map[n:2 s:<a>] [map[from:1 op:replace path:/n to:2]]` {
		t.Errorf("%q", list)
	}
	if list, got := steps("&limit=0"); len(list) != 0 || got["next"] != 0.0 {
		t.Errorf("%v", got)
	}
	s.want(400, "invalid_argument", "GET", "/history?topic=a.b&key=k&diff=maybe", "")
	s.want(400, "invalid_argument", "GET", "/history?topic=a.b&key=k&diff=1&reduce=sum", "")
	if err := s.hub.Log().Trim(t.Context(), "a.b", 2); err != nil {
		t.Fatal(err)
	}
	if list, _ := steps(""); len(list) != 2 || list[0] != `2 map[n:2] <nil>` {
		t.Errorf("%q", list)
	}
}
