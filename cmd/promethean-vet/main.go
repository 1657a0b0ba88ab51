// Command promethean-vet checks topics, headers and payloads in Go as a tool of go
// vet:
//
//	go vet -vettool=$(which promethean-vet) ./...
//
// Schemas are those of the nearest promethean.yaml above a package, or of the
// nearest directory schemas; -promethean.schemas=DIR and -promethean.config=FILE,
// as absolute paths, name others. The go command keeps what was found until sources
// or flags change, so give it a checksum of the schemas as -promethean.stamp.
// "promethean lint" needs none, and checks the rest of a project too.
package main

import (
	"golang.org/x/tools/go/analysis/unitchecker"

	"promethean/lint/goscan"
)

func main() { unitchecker.Main(goscan.Analyzer) }
