// Package goscan finds calls to a hub in Go.
//
// Types decide what a call is: the functions, methods and structs of promethean,
// promethean/client, event, schema, deadletter, store and prometheantest that take
// a topic or the name of a header. A function whose parameter goes unchanged into
// such a place is one itself ([Wrapper]), in other packages too.
//
// A topic is known if it is a constant, or a variable that is set once, to
// a constant. A payload is known by its static type, as encoding/json would
// write it.
//
// [Analyzer] is for go vet, golangci-lint and other drivers of go/analysis. It
// finds the schemas by itself, and reports what is wrong in the package. [Load]
// is for who wants to judge a whole module: it type-checks the packages that can
// reach a hub, with the export data of all others.
//
// Test files are left out: they publish what is wrong on purpose.
package goscan
