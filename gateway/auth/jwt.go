package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// JWTOptions configure a [JWT]. Secret or JWKS is needed, or both.
type JWTOptions struct {
	// Secret verifies HS256, and nothing else does. At least 32 bytes.
	Secret []byte
	// JWKS is the address of the issuer's public keys, which verify RS256,
	// ES256 and EdDSA, each key its own algorithm only.
	JWKS string
	// Issuer must be the claim iss, Audience must be in the claim aud.
	// Default "": not checked.
	Issuer, Audience string
	// Leeway is how much later our clock may be told than the issuer's: for the
	// claims nbf and iat. There is none for exp. Default 5 s.
	Leeway time.Duration

	// Refresh is how often the keys are fetched anew. Default 15 minutes; after
	// a failure it is tried again sooner.
	Refresh time.Duration
	// Refetch is how often at most they are fetched because a token names a key
	// that is not known; two such may follow each other at once. Default 10 s.
	Refetch time.Duration
	// Wait is how long such a token waits for the answer. Default 2 s.
	Wait time.Duration
	// Client fetches the keys. Default: one of our own.
	Client *http.Client

	// Cache is how many verified tokens are remembered until they end, so that
	// a signature is not checked for each request. Default 4096.
	Cache int
	// Logger hears of keys that cannot be had or used, and of scopes that do
	// not parse. Default: nobody does.
	Logger *slog.Logger
}

// minSecret is that of RFC 7518, 3.2: as many bits as the hash has.
const minSecret = 32

// latest is the end of the last year that RFC 3339 can write.
const latest = 253402300799

// JWT is a [Verifier] of JSON Web Tokens. Make one with [NewJWT], and close it.
//
// The algorithm is bound to the key and never chosen by the token: the secret
// verifies HS256, an RSA key RS256, a key on P-256 ES256, a key on Ed25519
// EdDSA. A token needs exp. Scopes are in the claim scope, with blanks between
// them, or in the list scopes; those that are not ours are left out. The claim
// sub is the principal's name.
type JWT struct {
	o      JWTOptions
	parser *jwt.Parser
	keys   *keeper // nil without JWKS
	known  cache

	mu   sync.Mutex
	told map[string]bool // scopes that were logged
}

// NewJWT makes a verifier, and begins to fetch keys. It does not wait for them:
// an issuer that is out of reach does not keep the hub from starting.
func NewJWT(o JWTOptions) (*JWT, error) {
	if len(o.Secret) == 0 && o.JWKS == "" {
		return nil, errors.New("auth: jwt: a secret or the address of a key set is needed")
	}
	if n := len(o.Secret); n > 0 && n < minSecret {
		return nil, fmt.Errorf("auth: jwt: the secret has %d bytes, HS256 needs %d at least", n, minSecret)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Leeway <= 0 {
		o.Leeway = 5 * time.Second
	}
	if o.Cache <= 0 {
		o.Cache = 4096
	}
	j := &JWT{o: o, told: make(map[string]bool), known: cache{most: o.Cache}}
	opts := []jwt.ParserOption{jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(o.Leeway), jwt.WithStrictDecoding()}
	if o.Issuer != "" {
		opts = append(opts, jwt.WithIssuer(o.Issuer))
	}
	if o.Audience != "" {
		opts = append(opts, jwt.WithAudience(o.Audience))
	}
	j.parser = jwt.NewParser(opts...)
	if o.JWKS != "" {
		var err error
		if j.keys, err = newKeeper(o); err != nil {
			return nil, fmt.Errorf("auth: jwt: %w", err)
		}
	}
	return j, nil
}

// Close ends the fetching of keys. Those that are known still verify.
func (j *JWT) Close() {
	if j.keys != nil {
		j.keys.close()
	}
}

// reason is why a token is refused.
type reason string

func (r reason) Error() string { return string(r) }

// Verify implements [Verifier]. It waits only for a token that names a key which
// is not known, and then not for long.
func (j *JWT) Verify(ctx context.Context, token string) (*Principal, error) {
	if len(token) > maxToken {
		return nil, unauthorized("the token is too long")
	}
	sum := sha256.Sum256([]byte(token))
	if who := j.known.find(sum, j.current()); who != nil {
		return who, nil
	}
	claims := jwt.MapClaims{}
	var set *keySet
	_, err := j.parser.ParseWithClaims(token, claims, func(t *jwt.Token) (any, error) {
		var key any
		var err error
		key, set, err = j.keyFor(ctx, t)
		return key, err
	})
	if err != nil {
		return nil, unauthorized(whyNot(err))
	}
	who, err := j.principal(claims)
	if err != nil {
		return nil, unauthorized(err.Error())
	}
	j.known.add(sum, who, set)
	return who, nil
}

// current is the set of keys that counts now; nil without one.
func (j *JWT) current() *keySet {
	if j.keys == nil {
		return nil
	}
	return j.keys.now.Load()
}

// keyFor gives the keys that may have signed a token, and the set that they are
// of. What the token says of itself selects among keys that fit its algorithm,
// and nothing more.
func (j *JWT) keyFor(ctx context.Context, t *jwt.Token) (any, *keySet, error) {
	if _, has := t.Header["crit"]; has {
		// RFC 7515, 4.1.11: what is critical must be understood.
		return nil, nil, reason("it has critical header fields that are not understood")
	}
	alg := t.Method.Alg()
	if alg == algHMAC && len(j.o.Secret) > 0 {
		return j.o.Secret, nil, nil
	}
	if j.keys == nil || !isPublic(alg) {
		return nil, nil, reason("its algorithm is not allowed")
	}
	kid, isText := t.Header["kid"].(string)
	if _, has := t.Header["kid"]; has && !isText {
		return nil, nil, reason("its kid is no string")
	}
	keys, set := j.keys.find(ctx, alg, kid)
	if len(keys) == 0 {
		return nil, nil, reason("its key is unknown")
	}
	return jwt.VerificationKeySet{Keys: keys}, set, nil
}

// whyNot puts an error of the library into our words: its own may hold parts of
// the token.
func whyNot(err error) string {
	var own reason
	if errors.As(err, &own) {
		return string(own)
	}
	for _, c := range []struct {
		err error
		why string
	}{
		{jwt.ErrTokenMalformed, "it is no JWT"},
		{jwt.ErrTokenSignatureInvalid, "its signature is wrong"},
		{jwt.ErrTokenExpired, "it is over"},
		{jwt.ErrTokenNotValidYet, "its time has not come"},
		{jwt.ErrTokenUsedBeforeIssued, "it was issued in the future"},
		{jwt.ErrTokenInvalidIssuer, "it is from another issuer"},
		{jwt.ErrTokenInvalidAudience, "it is for another audience"},
		{jwt.ErrTokenRequiredClaimMissing, "it lacks a claim: exp is needed, and iss and aud where they are checked"},
		{jwt.ErrTokenInvalidClaims, "a claim has the wrong type"},
	} {
		if errors.Is(err, c.err) {
			return c.why
		}
	}
	return "its algorithm is not allowed"
}

// principal reads the claims of a token whose signature and times are good.
func (j *JWT) principal(claims jwt.MapClaims) (*Principal, error) {
	exp, err := claims.GetExpirationTime()
	switch {
	case err != nil || exp == nil || exp.Unix() <= 0 || exp.Unix() > latest:
		return nil, reason("its exp is no time")
	case !time.Now().Before(exp.Time): // the library grants its leeway here too
		return nil, reason("it is over")
	}
	who := &Principal{Name: "jwt", Expires: exp.Time}
	if sub, _ := claims["sub"].(string); clip(sub) != "" {
		who.Name = clip(sub)
	}
	words, isText := claims["scope"].(string)
	if claims["scope"] != nil && !isText {
		j.tell(who.Name, "the claim scope is no string")
	}
	list := strings.Fields(words)
	many, isList := claims["scopes"].([]any)
	if claims["scopes"] != nil && !isList {
		j.tell(who.Name, "the claim scopes is no list")
	}
	for _, x := range many {
		if s, ok := x.(string); ok {
			list = append(list, s)
		} else {
			j.tell(who.Name, "the claim scopes has an entry that is no string")
		}
	}
	for _, s := range list {
		scope, err := ParseScope(s)
		if err != nil {
			j.tell(who.Name, err.Error()) // scopes only allow: one less is safe
			continue
		}
		who.Scopes = append(who.Scopes, scope)
	}
	return who, nil
}

// tell logs what is wrong with a scope, once, and not without end.
func (j *JWT) tell(name, what string) {
	const most = 100
	j.mu.Lock()
	told := j.told[what] || len(j.told) >= most
	if !told {
		j.told[what] = true
	}
	j.mu.Unlock()
	if !told {
		j.o.Logger.Warn("a scope of a token is left out", "principal", name, "why", what)
	}
}
