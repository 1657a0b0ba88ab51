package mongofeed

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"promethean/changefeed"
)

// Codes of the server that mean something for a feed.
var (
	// ChangeStreamHistoryLost, CappedPositionLost: the log no longer has it.
	lostCodes = []int{286, 136}
	// What servers without change streams answer: not a replica set;
	// CommandNotSupported; NotImplemented; CommandNotFound; a stage that is not
	// known.
	noStreamCodes = []int{40573, 115, 238, 59, 40324}
	// Unauthorized, AuthenticationFailed.
	forbiddenCodes = []int{13, 18}
)

const (
	codeInvalidToken  = 260   // InvalidResumeToken
	codeStreamFatal   = 280   // ChangeStreamFatalError
	codeTooLarge      = 10334 // BSONObjectTooLarge
	codeNoImage       = 47    // NoMatchingDocument: a post image that is not there
	codeOnView        = 166   // CommandNotSupportedOnView
	codeBadNamespace  = 73    // InvalidNamespace
	codeBadOption     = 72    // InvalidOptions
	codeNotAuthAtlas  = 8000  // how a hosted service refuses
	codeImagesMissing = 51770 // post images are asked for and not kept
)

// opening marks an error of opening a stream at a place.
type opening struct{ error }

// Unwrap gives what it was.
func (o opening) Unwrap() error { return o.error }

// explain gives an error of the server its meaning.
func (s *Source) explain(err error) error {
	if err == nil || errors.Is(err, changefeed.ErrRefused) || errors.Is(err, changefeed.ErrGone) {
		return s.wrap(err)
	}
	var server mongo.ServerError
	if !errors.As(err, &server) {
		if strings.Contains(err.Error(), "auth error:") { // of the handshake: it has no type
			return s.wrap(refused(err, "the server refuses the login"))
		}
		return s.wrap(err)
	}
	var open opening
	is := func(codes ...int) bool { return slices.ContainsFunc(codes, server.HasErrorCode) }
	switch {
	case is(lostCodes...):
		err = fmt.Errorf("%w: the oplog no longer has the saved place, it is too small for how long the feed stood still: %w", changefeed.ErrHistoryLost, err)
	case is(codeStreamFatal) && errors.As(err, &open):
		err = fmt.Errorf("%w: the server does not know the saved place: %w", changefeed.ErrHistoryLost, err)
	case is(noStreamCodes...):
		err = refused(err, "the server has no change streams: it must be a MongoDB replica set or sharded cluster")
	case is(forbiddenCodes...), is(codeNotAuthAtlas):
		err = refused(err, "the user may not do this: it needs the role read on the database (find and changeStream)")
	case is(codeInvalidToken):
		err = refused(err, "the server cannot read the saved token, it is of another deployment: begin anew")
	case is(codeTooLarge):
		err = refused(err, "an event is larger than the 16 MiB that the server can send, and the stream cannot pass it: make the document smaller and begin anew")
	case is(codeNoImage, codeImagesMissing):
		err = refused(err, "a post image is missing: have the collection keep them (changeStreamPreAndPostImages), or take fullDocument %s", UpdateLookup)
	case is(codeOnView, codeBadNamespace, codeBadOption):
		err = refused(err, "this cannot be watched")
	}
	return s.wrap(err)
}

func (s *Source) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("MongoDB feed of %s: %w", s.name(), err)
}

func refused(err error, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %w", changefeed.ErrRefused, fmt.Sprintf(format, args...), err)
}
