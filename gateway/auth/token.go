package auth

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
)

// Token is a secret that the configuration knows, and what its bearer may do.
type Token struct {
	// Name is for logs and audit, such as the name of the variable that the
	// secret came from. Default: "token 1" and so on, by the order.
	Name string
	// Secret is what the caller sends.
	Secret string
	// Scopes are what he may do, as [ParseScope] reads them.
	Scopes []string
}

// Tokens is a [Verifier] of secrets that never end.
type Tokens struct {
	// known is by the hash of the secret, so that how long a lookup takes says
	// nothing about a secret, and none lies around.
	known map[[sha256.Size]byte]*Principal
}

// NewTokens makes a verifier. The error names the token by its name, never by
// its secret.
func NewTokens(list ...Token) (*Tokens, error) {
	t := &Tokens{known: make(map[[sha256.Size]byte]*Principal, len(list))}
	for i, x := range list {
		if x.Name == "" {
			x.Name = fmt.Sprintf("token %d", i+1)
		}
		if err := checkSecret(x.Secret); err != nil {
			return nil, fmt.Errorf("auth: %s: %w", x.Name, err)
		}
		scopes, err := ParseScopes(x.Scopes)
		if err != nil {
			return nil, fmt.Errorf("auth: %s: %w", x.Name, err)
		}
		sum := sha256.Sum256([]byte(x.Secret))
		if other := t.known[sum]; other != nil {
			return nil, fmt.Errorf("auth: %s has the same secret as %s", x.Name, other.Name)
		}
		t.known[sum] = &Principal{Name: x.Name, Scopes: scopes}
	}
	return t, nil
}

// checkSecret refuses what could not be sent in a header.
func checkSecret(s string) error {
	if s == "" {
		return fmt.Errorf("the secret is empty")
	}
	if len(s) > maxToken {
		return fmt.Errorf("the secret has %d bytes, the limit is %d", len(s), maxToken)
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return fmt.Errorf("the secret has a character that a header cannot carry: use letters, digits and signs without blanks")
	}
	return nil
}

// Verify implements [Verifier].
func (t *Tokens) Verify(_ context.Context, token string) (*Principal, error) {
	if len(token) <= maxToken {
		if who := t.known[sha256.Sum256([]byte(token))]; who != nil {
			return who, nil
		}
	}
	return nil, unauthorized("the token is unknown")
}
