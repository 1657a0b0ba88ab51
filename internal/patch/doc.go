// Package patch changes and compares JSON values without touching what it does
// not have to: texts and numbers that stay keep their bytes, and members their
// order.
//
// [Value] is one that is changed by merge patches (RFC 7386), one after the
// other, and written once at the end. [Diff] says what differs between two, in
// the manner of JSON Patch (RFC 6902). Numbers are compared by value and never
// rounded: 1 and 1.0 are equal, 9007199254740993 and 9007199254740992 are not.
package patch
