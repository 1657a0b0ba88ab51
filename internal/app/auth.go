package app

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"promethean/gateway/auth"
	"promethean/internal/app/config"
)

// login knows the tokens of the settings in force; SIGHUP exchanges them.
type login struct {
	*auth.Switch
	issued *auth.JWT // nil where no signed tokens are taken
}

// newLogin reads the secrets that the settings name.
func newLogin(c *config.Config, log *slog.Logger) (*login, error) {
	var known []auth.Token
	var wrong config.Problems
	seen := make(map[string]bool)
	for _, t := range c.Auth.Tokens {
		secret, err := secretOf(t.TokenEnv, t.TokenFile)
		if err == nil && seen[secret] {
			err = fmt.Errorf("token %s is the same as that of another", t.Name)
		}
		if err != nil {
			wrong = append(wrong, config.Problem{Place: t.Place, What: "auth.tokens: " + err.Error()})
			continue
		}
		seen[secret] = true
		known = append(known, auth.Token{Name: t.Name, Secret: secret, Scopes: t.Scopes})
	}
	tokens, err := auth.NewTokens(known...)
	if err != nil {
		wrong = append(wrong, c.At("auth.tokens", "%v", err))
	}
	chain := auth.Chain{tokens}
	l := &login{}
	if c.Auth.JWT.On() {
		if l.issued, err = newJWT(&c.Auth.JWT, log); err != nil {
			wrong = append(wrong, c.At("auth.jwt", "auth.jwt: %v", err))
		}
		chain = append(chain, l.issued)
	}
	if len(wrong) > 0 {
		l.close()
		return nil, misused{wrong}
	}
	l.Switch = auth.NewSwitch(chain)
	return l, nil
}

// newJWT makes a verifier of signed tokens.
func newJWT(c *config.JWT, log *slog.Logger) (*auth.JWT, error) {
	o := auth.JWTOptions{JWKS: c.JWKSURL, Issuer: c.Issuer, Audience: c.Audience, Logger: log}
	if c.SecretEnv != "" || c.SecretFile != "" {
		secret, err := secretOf(c.SecretEnv, c.SecretFile)
		if err != nil {
			return nil, err
		}
		o.Secret = []byte(secret)
	}
	return auth.NewJWT(o)
}

// take goes over to what another one knows.
func (l *login) take(other *login) {
	l.Set(other.Switch)
	l.close()
	l.issued = other.issued
}

// close lets go of what fetches keys.
func (l *login) close() {
	if l != nil && l.issued != nil {
		l.issued.Close()
	}
}

// secretOf reads a secret from a variable or a file.
func secretOf(variable, file string) (string, error) {
	secret, from := os.Getenv(variable), "the variable "+variable
	if file != "" {
		from = "the file " + file
		data, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		secret = strings.TrimSpace(string(data))
	}
	if secret == "" {
		return "", fmt.Errorf("%s is empty or not set", from)
	}
	return secret, nil
}
