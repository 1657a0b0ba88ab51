package docstore_test

import (
	"context"
	"errors"
	"testing"

	"promethean/internal/crashfs"
	"promethean/store/docstore"
	"promethean/store/storetest"
)

func crashes() storetest.DocsCrashHarness[*crashfs.FS] {
	return storetest.DocsCrashHarness[*crashfs.FS]{
		Name: "docstore",
		New:  crashfs.New,
		Open: func(fs *crashfs.FS) (storetest.DocsEngine, error) {
			o := small
			o.FS = fs
			s, err := docstore.Open("views", o)
			if err != nil {
				return nil, err
			}
			return s, nil
		},
		Check: func(fs *crashfs.FS) error {
			var errs []error
			_, err := docstore.Check(context.Background(), "views", docstore.Options{FS: fs}, func(what string) {
				errs = append(errs, errors.New(what))
			})
			return errors.Join(append(errs, err)...)
		},
	}
}

func TestCrash(t *testing.T) {
	storetest.DocsCrash(t, crashes(), storetest.CrashOptions{})
	storetest.DocsCrash(t, crashes(), storetest.CrashOptions{Seed: 2})
}

func TestCrashFaults(t *testing.T) { storetest.DocsFaults(t, crashes(), storetest.CrashOptions{}) }

func TestModel(t *testing.T) {
	o := small
	storetest.DocsModel(t, harness("small", o, false))
}
