package auth

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"
)

// The algorithms.
const (
	algHMAC    = "HS256"
	algRSA     = "RS256"
	algECDSA   = "ES256"
	algEd25519 = "EdDSA"
)

func isPublic(alg string) bool { return alg == algRSA || alg == algECDSA || alg == algEd25519 }

// keySet is what an issuer's address gave at one time. It never changes.
type keySet struct {
	sum  [sha256.Size]byte // of the bytes that it was read from
	keys []publicKey
}

// publicKey verifies one algorithm, which the kind of the key decides.
type publicKey struct {
	id, alg string
	key     jwt.VerificationKey
}

// find gives the keys for an algorithm that have an id, or all of the algorithm
// where the token names none.
func (s *keySet) find(alg, id string) (found []jwt.VerificationKey) {
	for _, k := range s.keys {
		if k.alg == alg && (id == "" || k.id == id) {
			found = append(found, k.key)
		}
	}
	return found
}

// maxKeys bounds a set: a token without a kid is tried with all of them.
const maxKeys = 100

// readKeySet reads a JWK set (RFC 7517). Keys that cannot verify tokens for us
// are left out, and told of; a set without the list of keys is an error.
func readKeySet(data []byte, tell func(id string, err error)) (*keySet, error) {
	var in struct {
		Keys *[]json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, fmt.Errorf("it is no JSON object with a list of keys: %w", err)
	}
	if in.Keys == nil {
		return nil, errors.New("it has no keys")
	}
	if n := len(*in.Keys); n > maxKeys {
		return nil, fmt.Errorf("it has %d keys, the limit is %d", n, maxKeys)
	}
	s := &keySet{sum: sha256.Sum256(data)}
	for _, raw := range *in.Keys {
		k, err := readKey(raw)
		if err != nil {
			tell(k.id, err)
			continue
		}
		s.keys = append(s.keys, k)
	}
	return s, nil
}

// readKey reads one public key, and binds it to its algorithm.
func readKey(raw []byte) (publicKey, error) {
	var m jwkset.JWKMarshal
	if err := json.Unmarshal(raw, &m); err != nil {
		return publicKey{}, err
	}
	k := publicKey{id: m.KID}
	if m.USE != "" && m.USE != jwkset.UseSig {
		return k, fmt.Errorf("its use is %q, not sig", clip(m.USE.String()))
	}
	if len(m.KEYOPS) > 0 && !slices.Contains(m.KEYOPS, jwkset.KeyOpsVerify) {
		return k, errors.New("its key_ops do not have verify")
	}
	if m.KTY == jwkset.KtyOct {
		return k, errors.New("a secret is no public key")
	}
	// Only the public numbers count. Certificates beside them say nothing that
	// we would check.
	read, err := jwkset.NewJWKFromMarshal(jwkset.JWKMarshal{KTY: m.KTY, CRV: m.CRV, X: m.X, Y: m.Y, N: m.N, E: m.E}, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
	if err != nil {
		return k, err
	}
	switch key := read.Key().(type) {
	case *rsa.PublicKey:
		if n := key.N.BitLen(); n < 2048 || n > 8192 {
			return k, fmt.Errorf("an RSA key of %d bits is not taken, only 2048 to 8192", n)
		}
		if key.E < 3 || key.E > 1<<31-1 || key.E%2 == 0 {
			return k, errors.New("the exponent of the RSA key is wrong")
		}
		k.alg, k.key = algRSA, key
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() {
			return k, errors.New("the curve is not P-256")
		}
		k.alg, k.key = algECDSA, key
	case ed25519.PublicKey:
		k.alg, k.key = algEd25519, key
	default:
		return k, fmt.Errorf("keys of the kind %q are not for signatures", clip(m.KTY.String()))
	}
	if m.ALG != "" && m.ALG.String() != k.alg {
		return k, fmt.Errorf("its alg is %q, such a key verifies %s", clip(m.ALG.String()), k.alg)
	}
	return k, nil
}
