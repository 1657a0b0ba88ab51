package plugin

import (
	"testing"

	"github.com/golangci/plugin-module-register/register"

	"promethean/lint/goscan"
)

func TestPlugin(t *testing.T) {
	t.Cleanup(func() {
		if err := goscan.Configure("", "", nil); err != nil {
			t.Error(err)
		}
	})
	build, err := register.GetPlugin("promethean")
	if err != nil {
		t.Fatal(err)
	}
	// As golangci-lint decodes them from its configuration.
	p, err := build(map[string]any{"schemas": "/abs/schemas", "allow": []any{"internal.**"}})
	if err != nil {
		t.Fatal(err)
	}
	list, err := p.BuildAnalyzers()
	if err != nil || len(list) != 1 || list[0] != goscan.Analyzer || p.GetLoadMode() != register.LoadModeTypesInfo {
		t.Errorf("it has %v, %v", list, err)
	}
	if got := goscan.Analyzer.Flags.Lookup("allow").Value.String(); got != "internal.**" {
		t.Errorf("allowed is %q", got)
	}
	if got := goscan.Analyzer.Flags.Lookup("schemas").Value.String(); got != "/abs/schemas" {
		t.Errorf("schemas are %q", got)
	}
	for _, bad := range []any{map[string]any{"allow": []any{"Not.A.Topic"}}, map[string]any{"alow": true}} {
		if _, err := build(bad); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
}
