package mongofake

import (
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Codes of MongoDB's errors that the fake answers with.
const (
	codeBadValue             = 2
	codeFailedToParse        = 9
	codeTypeMismatch         = 14
	codeIllegalOperation     = 20
	codeNamespaceNotFound    = 26
	codePathNotViable        = 28
	codeConflictingOperators = 40
	codeCursorNotFound       = 43
	codeNamespaceExists      = 48
	codeMaxTimeMSExpired     = 50
	codeCommandNotFound      = 59
	codeImmutableField       = 66
	codeInvalidNamespace     = 73
	codeIndexOptionsConflict = 85
	codeInvalidOptions       = 72
	codeWriteConflict        = 112
	codeConflictingProgress  = 117
	codeCappedPositionLost   = 136
	codeCursorInUse          = 12051
	codeNoMatchingDocument   = 47
	codeTransactionTooOld    = 225
	codeNoSuchTransaction    = 251
	codeTransactionCommitted = 256
	codeInvalidResumeToken   = 260
	codeNotInTransaction     = 263
	codeChangeStreamFatal    = 280
	codeHistoryLost          = 286
	codeNotWritablePrimary   = 10107
	codeTooLarge             = 10334
	codeDuplicateKey         = 11000
	codeInterruptedByState   = 11602
	codeNotPrimaryNoSecond   = 13435
	codeUnknownField         = 40415
	codeNotReplicaSet        = 40573
)

// codeName gives the name that goes with a code.
func codeName(code int32) string {
	if name, ok := codeNames()[code]; ok {
		return name
	}
	return fmt.Sprintf("Location%d", code)
}

func codeNames() map[int32]string {
	return map[int32]string{
		codeBadValue: "BadValue", codeFailedToParse: "FailedToParse", codeTypeMismatch: "TypeMismatch",
		codeIllegalOperation: "IllegalOperation", codeNamespaceNotFound: "NamespaceNotFound",
		codePathNotViable: "PathNotViable", codeConflictingOperators: "ConflictingUpdateOperators",
		codeCursorNotFound: "CursorNotFound", codeNamespaceExists: "NamespaceExists",
		codeMaxTimeMSExpired: "MaxTimeMSExpired", codeCommandNotFound: "CommandNotFound",
		codeImmutableField: "ImmutableField", codeInvalidNamespace: "InvalidNamespace",
		codeIndexOptionsConflict: "IndexOptionsConflict", codeInvalidOptions: "InvalidOptions",
		codeWriteConflict: "WriteConflict", codeConflictingProgress: "ConflictingOperationInProgress", codeCappedPositionLost: "CappedPositionLost",
		codeCursorInUse: "CursorInUse", codeNoMatchingDocument: "NoMatchingDocument",
		codeTransactionTooOld: "TransactionTooOld", codeNoSuchTransaction: "NoSuchTransaction",
		codeTransactionCommitted: "TransactionCommitted", codeInvalidResumeToken: "InvalidResumeToken",
		codeNotInTransaction:  "OperationNotSupportedInTransaction",
		codeChangeStreamFatal: "ChangeStreamFatalError", codeHistoryLost: "ChangeStreamHistoryLost",
		codeNotWritablePrimary: "NotWritablePrimary", codeTooLarge: "BSONObjectTooLarge",
		codeDuplicateKey: "DuplicateKey", codeInterruptedByState: "InterruptedDueToReplStateChange",
		codeNotPrimaryNoSecond: "NotPrimaryNoSecondaryOk",
		6:                      "HostUnreachable", 7: "HostNotFound", 63: "StaleShardVersion", 64: "WriteConcernFailed", 89: "NetworkTimeout",
		91: "ShutdownInProgress", 115: "CommandNotSupported", 133: "FailedToSatisfyReadPreference", 150: "StaleEpoch",
		189: "PrimarySteppedDown", 234: "RetryChangeStream", 262: "ExceededTimeLimit", 9001: "SocketException",
		11600: "InterruptedAtShutdown", 13436: "NotPrimaryOrSecondary",
	}
}

// Error labels of the specifications.
const (
	labelTransient = "TransientTransactionError"
	labelRetryable = "RetryableWriteError"
	labelResumable = "ResumableChangeStreamError"
	labelFinal     = "NonResumableChangeStreamError"
)

// failure is an error that a command is answered with.
type failure struct {
	code    int32
	message string
	labels  []string
	final   bool   // the labels are all there are to be
	more    bson.D // further fields of the answer
}

// Error implements error.
func (f *failure) Error() string {
	return fmt.Sprintf("(%s) %s", codeName(f.code), f.message)
}

func failf(code int32, format string, args ...any) *failure {
	return &failure{code: code, message: fmt.Sprintf(format, args...)}
}

// reply is the answer.
func (f *failure) reply() bson.D {
	d := bson.D{
		{Key: "ok", Value: 0.0}, {Key: "errmsg", Value: f.message},
		{Key: "code", Value: f.code}, {Key: "codeName", Value: codeName(f.code)},
	}
	if len(f.labels) > 0 {
		d = append(d, bson.E{Key: "errorLabels", Value: f.labels})
	}
	return append(d, f.more...)
}

// stateCodes are errors of who is no primary or is on its way out. Their answer
// has the topology version, by which a client tells whether they are news
// (server discovery and monitoring: stale errors).
func stateCodes() []int32 { return []int32{91, 189, 10058, 10107, 11600, 11602, 13435, 13436} }

// retryableCodes say that the server could not serve at that moment: the list of
// the retryable writes specification.
func retryableCodes() []int32 {
	return []int32{6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436}
}

// resumableCodes are those of the change streams specification for which a
// server labels an error as resumable. A cursor that is not found needs none.
func resumableCodes() []int32 {
	return append(retryableCodes(), 63, 133, 150, 234, 13388)
}

// transientCodes are those that end a transaction which may be tried again as a
// whole (transactions specification, TransientTransactionError).
func transientCodes() []int32 {
	return append(retryableCodes(), codeWriteConflict, codeNoSuchTransaction, 24, 246)
}

// label adds the labels that a server gives an error of this command.
func (c *call) label(f *failure) {
	if f.final {
		return
	}
	add := func(label string, codes []int32) {
		if slices.Contains(codes, f.code) && !slices.Contains(f.labels, label) {
			f.labels = append(f.labels, label)
		}
	}
	ending := c.name == "commitTransaction" || c.name == "abortTransaction"
	switch {
	case c.has("autocommit") && !ending:
		add(labelTransient, transientCodes())
	case ending:
		add(labelRetryable, retryableCodes())
		add(labelTransient, []int32{codeNoSuchTransaction})
	case c.has("txnNumber"):
		add(labelRetryable, retryableCodes())
	}
	if c.streaming {
		add(labelResumable, resumableCodes())
	}
}
