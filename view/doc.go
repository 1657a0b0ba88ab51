// Package view turns topics into collections of documents that can be asked:
// read models. A changelog view holds the latest state of every key; a
// transactional view is a handler of yours that writes several collections.
//
//	v, err := view.Changelog(ctx, hub, view.ChangelogOptions{
//		Topic: "process.state", Collection: "processes",
//		Indexes: []store.Index{{Fields: []string{"host", "name"}}, {Fields: []string{"status"}}},
//	})
//	if err != nil { … }
//	defer v.Close()
//	http.Handle("/processes/", http.StripPrefix("/processes", view.Handler(v)))
//
// # What holds
//
// A view reads its topic in the order of seqs and commits documents together
// with its place, so each event takes effect once, whatever crashes. Documents
// are made durable about once a second: after a crash the view is where it was
// a moment ago, and comes to the same documents again, because the log is the
// truth. An event that cannot be projected (a function or a handler fails, the
// outcome is no object, a unique index refuses it) becomes a dead letter of the
// view's group before the view passes it, and concerns no other event. If the
// engine fails, the view waits and goes on by itself; see [Status].
//
// The view's place is kept with the documents. Its group, changelog:<collection>
// or the name of a transactional view, shows it to people: moving or deleting
// the group changes nothing about the view.
//
// # Documents
//
// A document begins with _key and _ts, the time of the event that made it, and
// goes on with the fields of the mapped object in their own order and bytes; of
// these _key, _ts, _seq and _v are left out. Publishing the same state with
// another time makes another document.
//
// # Change of mind
//
// A view remembers its kind, topic, collections and Definition. If one of them
// is another when it starts, it is built anew: the old documents are served
// until the new ones take their place in one step. [View.Rebuild] does the same
// on demand. A view that is further than its topic goes belongs to another log,
// and is built anew too. Events that fail in a rebuild are counted, and become no
// dead letters again.
//
// # Several hubs
//
// On an engine that hubs share with its documents, one of them projects, and the
// others serve what it wrote and follow within about half a second. Where every
// hub has documents of its own, each projects for itself.
package view
