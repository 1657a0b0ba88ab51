package pgfeed

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"promethean/changefeed"
)

// lsn is a place in the server's log.
type lsn uint64

func (l lsn) String() string {
	return strings.ToUpper(strconv.FormatUint(uint64(l>>32), 16) + "/" + strconv.FormatUint(uint64(l&0xffffffff), 16))
}

func parseLSN(s string) (lsn, error) {
	high, low, ok := strings.Cut(s, "/")
	h, err1 := strconv.ParseUint(high, 16, 32)
	l, err2 := strconv.ParseUint(low, 16, 32)
	if !ok || err1 != nil || err2 != nil {
		return 0, fmt.Errorf("%q is no log sequence number", s)
	}
	return lsn(h<<32 | l), nil
}

func (l lsn) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

func (l *lsn) UnmarshalText(b []byte) (err error) {
	*l, err = parseLSN(string(b))
	return err
}

// place is what a token holds: where a feed stands.
type place struct {
	Version int `json:"v"`
	// System is the server's identifier, Table the table's number there, and
	// Member that of its place in the publication: all of them change if somebody
	// puts another in its stead, which has not the changes since.
	System string `json:"system"`
	Table  uint32 `json:"table"`
	Member uint32 `json:"member"`
	Slot   string `json:"slot"`
	// LSN is where all transactions that were committed before are stored.
	LSN lsn `json:"lsn"`
	// Commit is the transaction of which the first Done changes are stored.
	Commit lsn `json:"commit,omitzero"`
	Done   int `json:"done,omitzero"`
	// Snapshot says that the rows of the beginning are not all stored, and Origin
	// where the first attempt to do so began.
	Snapshot bool `json:"snapshot,omitzero"`
	Origin   lsn  `json:"origin,omitzero"`
}

const placeVersion = 1

func parsePlace(token []byte) (p place, err error) {
	if err = json.Unmarshal(token, &p); err != nil || p.Version != placeVersion || p.Slot == "" {
		return p, fmt.Errorf("%w: the token is none of a PostgreSQL feed, or of a later version: %.100q", changefeed.ErrRefused, token)
	}
	return p, nil
}

func (p place) token() []byte {
	p.Version = placeVersion
	b, err := json.Marshal(p)
	if err != nil { // it holds numbers and text
		panic(err)
	}
	return b
}

// position is the place as a person reads it.
func (p place) position() string {
	switch {
	case p.Snapshot:
		return p.LSN.String() + " snapshot"
	case p.Commit != 0:
		return fmt.Sprintf("%s, %d changes of %s", p.LSN, p.Done, p.Commit)
	}
	return p.LSN.String()
}
