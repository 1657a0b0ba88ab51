// Package web holds the page that a hub serves to people. It is plain HTML,
// CSS and a script of its own: nothing is built, and nothing is loaded from
// elsewhere.
//
// The page is a client like any other. It reads what the hub answers to
// everybody, with a token where the hub asks for one, and puts what it got into
// the document as text, never as markup: payloads are other people's.
package web

import (
	"embed"
	"io/fs"
)

//go:embed console
var files embed.FS

// Console holds the files of the page; index.html is the page itself.
func Console() fs.FS {
	sub, err := fs.Sub(files, "console")
	if err != nil {
		panic(err) // the folder is embedded
	}
	return sub
}
