// Package plugin makes the analyzer a module plugin of golangci-lint. A linter with
// it is built by "golangci-lint custom" from a file .custom-gcl.yml that names this
// package; docs/lint.md has one. In .golangci.yml it is then
//
//	linters:
//	  enable: [promethean]
//	  settings:
//	    custom:
//	      promethean:
//	        type: module
//	        settings: {schemas: /abs/schemas, allow: ["internal.**"]}
package plugin

import (
	"github.com/golangci/plugin-module-register/register"
	"golang.org/x/tools/go/analysis"

	"promethean/lint/goscan"
)

// Settings are those of .golangci.yml. All of them may be left out.
type Settings struct {
	// Config is a configuration that names the schemas. The default is the nearest
	// promethean.yaml above a package.
	Config string `json:"config"`
	// Schemas is a directory that has a directory of schemas for each topic. The
	// default is the one beside the configuration, or the nearest above a package.
	Schemas string `json:"schemas"`
	// Allow are patterns of topics that may be without a schema. The default is
	// none.
	Allow []string `json:"allow"`
}

func init() { register.Plugin("promethean", New) }

// New makes the plugin from its settings.
func New(settings any) (register.LinterPlugin, error) {
	s, err := register.DecodeSettings[Settings](settings)
	if err != nil {
		return nil, err
	}
	if err := goscan.Configure(s.Config, s.Schemas, s.Allow); err != nil {
		return nil, err
	}
	return plugin{}, nil
}

type plugin struct{}

// BuildAnalyzers gives the analyzer.
func (plugin) BuildAnalyzers() ([]*analysis.Analyzer, error) {
	return []*analysis.Analyzer{goscan.Analyzer}, nil
}

// GetLoadMode says that types are needed.
func (plugin) GetLoadMode() string { return register.LoadModeTypesInfo }
