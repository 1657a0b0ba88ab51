package mongostore

import (
	"context"

	"promethean/store"
)

// HookDocs has f called before every write of documents or readers; an error
// takes the place of the write.
func HookDocs(d store.Docs, f func() error) { base(d).hook = f }

// CommitUnbound has commits take the steps that they take on a server with
// transactions, without one around them.
func CommitUnbound(d store.Docs) {
	x := base(d)
	x.asOne = true
	x.begin = func(ctx context.Context, f func(context.Context) error) error { return f(ctx) }
}

func base(d store.Docs) *docs {
	if x, ok := d.(*transactions); ok {
		return x.docs
	}
	return d.(*docs)
}
