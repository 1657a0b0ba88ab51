// Package auth says who a caller is, and what he may do.
//
// A caller shows a token; a [Verifier] makes a [Principal] of it. A principal
// has scopes, and [Principal.Can] is the one place that decides by them.
//
// [Tokens] knows secrets of the configuration, [JWT] what an issuer has signed.
// [Chain] asks several, [Switch] lets them be replaced while they are in use:
//
//	tokens, err := auth.NewTokens(auth.Token{Name: "OPS_TOKEN", Secret: os.Getenv("OPS_TOKEN"), Scopes: []string{"admin"}})
//	issued, err := auth.NewJWT(auth.JWTOptions{JWKS: "https://id.example.org/keys", Issuer: "https://id.example.org"})
//	verifier := auth.NewSwitch(auth.Chain{tokens, issued})
//
// No error, log line or name holds a token.
package auth

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Action is a kind of call.
type Action string

// The actions.
const (
	// Open needs no token.
	Open Action = ""
	// Publish covers publishing.
	Publish Action = "publish"
	// Subscribe covers pulling, streams, subscriptions and settling.
	Subscribe Action = "subscribe"
	// Read covers replay, history, views and schemas.
	Read Action = "read"
	// Admin covers cursors, groups, settings, registrations, dead letters and
	// operations. It has no pattern.
	Admin Action = "admin"
)

// ErrUnauthorized says that a token is missing, wrong or over.
var ErrUnauthorized = errors.New("a valid token is needed")

// maxToken bounds what is looked at, in bytes.
const maxToken = 16 << 10

// unauthorized is ErrUnauthorized with a reason.
func unauthorized(reason string) error { return fmt.Errorf("%w: %s", ErrUnauthorized, reason) }

// Principal is a caller. It is shared by all his requests and never changed.
type Principal struct {
	// Name is for logs and audit: never the token.
	Name string
	// Scopes are what he may do; see [ParseScope].
	Scopes []Scope
	// Expires is when the token ends; zero if it does not.
	Expires time.Time
}

// Can says whether he may do something with a topic, or with all topics that
// fit a pattern. Admin has no topic, and covers reading the hub's own topics
// too: dead letters and the audit are his.
func (p *Principal) Can(a Action, topic string) bool {
	hubs := (a == Read || a == Subscribe) && (strings.HasPrefix(topic, "dlq.") || strings.HasPrefix(topic, "system."))
	for _, s := range p.Scopes {
		if s.Covers(a, topic) || hubs && s.Covers(Admin, "") {
			return true
		}
	}
	return false
}

// Verifier knows tokens.
type Verifier interface {
	// Verify gives the principal of a token, or an error that is
	// ErrUnauthorized and says why, for logs, without the token.
	Verify(ctx context.Context, token string) (*Principal, error)
}

// clip shortens what somebody sent, for a message or a name, and leaves out what
// does not print.
func clip(s string) string {
	const most = 80
	cut := s
	if len(cut) > most {
		cut = cut[:most]
	}
	cut = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, cut)
	if len(s) > most {
		cut += "…"
	}
	return cut
}
