package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"promethean/gateway/auth"
	"promethean/wire"
)

// allow decides whether a caller may do something with a topic, or with the
// topics of a pattern. Every route and every frame asks it, and nothing else
// decides. Without a verifier everybody may do everything.
func (g *Gateway) allow(who *auth.Principal, a auth.Action, topic string) error {
	switch {
	case g.o.Verifier == nil || a == auth.Open:
		return nil
	case who == nil:
		return wire.Errorf(wire.Unauthorized, "a token is needed")
	case who.Can(a, topic):
		return nil
	case a == auth.Admin:
		return wire.Errorf(wire.Forbidden, "the token lacks the scope admin")
	}
	return wire.Errorf(wire.Forbidden, "the token has no scope that covers %s:%s", a, clip(topic))
}

// identify finds out who calls. Without a token there is nobody, which is no
// error: some routes are open.
func (g *Gateway) identify(r *http.Request) (*auth.Principal, error) {
	if g.o.Verifier == nil {
		return nil, nil
	}
	if r.Header.Get("Authorization") == "" {
		return nil, nil
	}
	token := bearer(r)
	if token == "" {
		return nil, wire.Errorf(wire.Unauthorized, "the header Authorization must be there once: Bearer, a blank, the token")
	}
	return g.verify(r.Context(), r.RemoteAddr, token)
}

// bearer is the token that a request has in its header, or "".
func bearer(r *http.Request) string {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return "" // two of them might be read differently by a proxy
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.Trim(token, " ")
}

// verify asks who has a token: that of a request, or of an AUTH frame. A
// refusal is recorded, with the address that it came from.
func (g *Gateway) verify(ctx context.Context, remote, token string) (*auth.Principal, error) {
	who, err := g.o.Verifier.Verify(ctx, token)
	if errors.Is(err, auth.ErrUnauthorized) {
		g.auditLogin(remote, err)
		return nil, &wire.Error{Code: wire.Unauthorized, Msg: err.Error(), Err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("verify a token: %w", err)
	}
	return who, nil
}
