// Command promethean is the program: the hub, its command line client and the
// tools for its data directories. "promethean --help" lists the commands.
//
//	promethean check ./data
package main

import (
	"os"

	"promethean/internal/app"
)

// version is set when a release is built: -ldflags "-X main.version=v1.2.3".
var version = "dev"

func main() { os.Exit(app.Main(version)) }
