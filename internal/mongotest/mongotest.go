// Package mongotest tells tests which MongoDB there is: a server that speaks
// MongoDB's protocol, as scripts/servers/mongodb starts it, and a deployment of
// MongoDB itself, if somebody names one.
//
// A test for whose server the environment has no address skips, and says which
// one it needs: what could not run is listed at the end of "make test-all".
package mongotest

import (
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"
)

// The environment that tests are told by.
const (
	compatibleName = "PROMETHEAN_TEST_MONGODB_COMPATIBLE_URI"
	realName       = "PROMETHEAN_TEST_MONGODB_URI"
)

// Compatible gives the address of a server that speaks MongoDB's protocol.
func Compatible(t testing.TB) string {
	t.Helper()
	uri := os.Getenv(compatibleName)
	if uri == "" {
		t.Skip("needs mongodb: " + compatibleName + " is not set")
	}
	return uri
}

// Real gives the address of a deployment of MongoDB.
func Real(t testing.TB) string {
	t.Helper()
	uri := os.Getenv(realName)
	if uri == "" {
		t.Skip("needs real-mongodb: " + realName + " is not set")
	}
	return uri
}

// Any gives the address of one of the two, rather of MongoDB itself.
func Any(t testing.TB) string {
	t.Helper()
	if uri := os.Getenv(realName); uri != "" {
		return uri
	}
	return Compatible(t)
}

// Fresh is Any with the name of a database that nobody has used, which begins
// with prefix.
func Fresh(t testing.TB, prefix string) string {
	t.Helper()
	return strings.TrimSuffix(Any(t), "/") + fmt.Sprintf("/%s_%d", prefix, time.Now().UnixNano())
}

// Each runs a test against both.
func Each(t *testing.T, test func(t *testing.T, uri string)) {
	t.Helper()
	t.Run("compatible", func(t *testing.T) { test(t, Compatible(t)) })
	t.Run("mongodb", func(t *testing.T) { test(t, Real(t)) })
}

// Host gives the host and port of an address.
func Host(t testing.TB, uri string) string {
	t.Helper()
	u, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// Direct gives the address of the server behind a host and port: of that one,
// whatever others it knows.
func Direct(host string) string { return "mongodb://" + host + "/?directConnection=true" }
