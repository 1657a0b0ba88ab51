package cluster

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"
	"time"
)

// proofFor is how old a proof may be, and how far clocks may be apart.
const proofFor = time.Minute

// Prove makes a mark for a request from this hub to another, by which that one
// knows that a hub has sent it. It tells nothing that could be used for another
// request, or later than a minute from now.
func (c *Cluster) Prove(request string) string {
	at := strconv.FormatInt(time.Now().UnixMilli(), 10)
	return at + "." + base64.RawURLEncoding.EncodeToString(c.sum(at, request))
}

// Proves says whether a mark was made by a hub of the cluster for that request,
// within the last minute.
func (c *Cluster) Proves(mark, request string) bool {
	at, sum, _ := strings.Cut(mark, ".")
	ms, err := strconv.ParseInt(at, 10, 64)
	if err != nil || time.Since(time.UnixMilli(ms)).Abs() > proofFor {
		return false
	}
	got, err := base64.RawURLEncoding.DecodeString(sum)
	want := c.sum(at, request)
	return err == nil && want != nil && hmac.Equal(got, want)
}

// sum is nil where there are no other hubs.
func (c *Cluster) sum(at, request string) []byte {
	c.mu.Lock()
	secret := c.list.Secret
	c.mu.Unlock()
	if len(secret) == 0 {
		return nil
	}
	h := hmac.New(sha256.New, secret)
	_, _ = h.Write([]byte(at + "\n" + request)) // it does not fail
	return h.Sum(nil)
}
