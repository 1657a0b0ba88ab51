package storetest

import "testing"

func docsReference() DocsHarness {
	return DocsHarness{Name: "reference", Open: func(t testing.TB) DocsEngine {
		d := NewDocsReference()
		t.Cleanup(func() { _ = d.Close() })
		return d
	}}
}

func TestDocsReference(t *testing.T) { RunDocs(t, docsReference()) }

func TestDocsReferenceModel(t *testing.T) { DocsModel(t, docsReference()) }
