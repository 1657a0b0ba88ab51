package lint

import (
	"net/url"
	"path/filepath"
)

// The types below are what is used of SARIF 2.1.0, the Static Analysis Results
// Interchange Format of OASIS.

type sarifReport struct {
	Schema  string     `json:"$schema"`
	Version string     `json:"version"`
	Runs    []sarifRun `json:"runs"`
}

type sarifRun struct {
	Tool       sarifTool     `json:"tool"`
	ColumnKind string        `json:"columnKind"`
	Results    []sarifResult `json:"results"`
}

type sarifTool struct {
	Driver sarifDriver `json:"driver"`
}

type sarifDriver struct {
	Name  string      `json:"name"`
	Rules []sarifRule `json:"rules"`
}

type sarifRule struct {
	ID            string      `json:"id"`
	Short         sarifText   `json:"shortDescription"`
	Help          sarifText   `json:"help"`
	Configuration sarifConfig `json:"defaultConfiguration"`
}

type sarifConfig struct {
	Level Severity `json:"level"`
}

type sarifText struct {
	Text string `json:"text"`
}

type sarifResult struct {
	RuleID    string          `json:"ruleId"`
	RuleIndex int             `json:"ruleIndex"`
	Level     Severity        `json:"level"`
	Message   sarifText       `json:"message"`
	Locations []sarifLocation `json:"locations"`
}

type sarifLocation struct {
	Physical sarifPhysical `json:"physicalLocation"`
}

type sarifPhysical struct {
	Artifact sarifArtifact `json:"artifactLocation"`
	Region   *sarifRegion  `json:"region,omitempty"`
}

type sarifArtifact struct {
	URI string `json:"uri"`
}

type sarifRegion struct {
	StartLine   int `json:"startLine"`
	StartColumn int `json:"startColumn,omitempty"`
}

// sarifLog makes a report of one run. A severity has the name of its level.
func sarifLog(list []Finding) sarifReport {
	driver := sarifDriver{Name: "promethean lint"}
	index := make(map[string]int, len(Rules))
	for i, r := range Rules {
		index[r.ID] = i
		driver.Rules = append(driver.Rules, sarifRule{
			ID: r.ID, Short: sarifText{r.Summary}, Help: sarifText{r.Help}, Configuration: sarifConfig{r.Severity},
		})
	}
	results := make([]sarifResult, 0, len(list)) // not null: that would say that nothing was looked at
	for _, f := range list {
		at := sarifPhysical{Artifact: sarifArtifact{(&url.URL{Path: filepath.ToSlash(f.File)}).String()}}
		if f.Line > 0 {
			at.Region = &sarifRegion{StartLine: f.Line, StartColumn: f.Column}
		}
		results = append(results, sarifResult{
			RuleID: f.Rule, RuleIndex: index[f.Rule], Level: f.Severity,
			Message: sarifText{f.Message + "\nfix: " + f.Fix}, Locations: []sarifLocation{{at}},
		})
	}
	return sarifReport{
		Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0",
		Runs: []sarifRun{{Tool: sarifTool{driver}, ColumnKind: "unicodeCodePoints", Results: results}},
	}
}
