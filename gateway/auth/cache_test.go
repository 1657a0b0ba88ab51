package auth

import (
	"crypto/sha256"
	"testing"
	"testing/synctest"
	"time"
)

func TestCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cache{most: 8}
		old, now := &keySet{}, &keySet{}
		add := func(name byte, set *keySet, d time.Duration) {
			c.add(sha256.Sum256([]byte{name}), &Principal{Expires: time.Now().Add(d)}, set)
		}
		has := func(name byte) bool { return c.find(sha256.Sum256([]byte{name}), now) != nil }
		for i := range byte(4) {
			add(i, now, time.Minute)
			add(10+i, old, time.Hour)
		}
		if !has(0) || has(10) {
			t.Error("what another set has verified does not count")
		}
		time.Sleep(2 * time.Minute)
		add(20, nil, time.Hour) // those that are over make room
		if has(0) || !has(20) || len(c.rows) != 5 {
			t.Errorf("%d rows", len(c.rows))
		}
		for i := range byte(200) {
			add(30+i, now, time.Hour)
			if len(c.rows) > 8 || !has(30+i) {
				t.Fatalf("%d rows", len(c.rows))
			}
		}
	})
}
