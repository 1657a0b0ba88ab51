// Package lint holds the rules of topics, headers and schemas that can be checked
// without a hub, by looking at sources. It judges; those who look are beside it:
//
//   - goscan finds calls in Go, by types; it is a go/analysis analyzer too
//   - jsscan finds calls in TypeScript and JavaScript, by parsing
//   - yamlscan finds topics in promethean.yaml
//   - tree puts them together over directories
//
// What they find is a [Use]: a place that names a topic. [Known] holds the schemas
// and says what is wrong with a use; the answer is a list of [Finding], each under
// one of the [Rules].
//
//	known := lint.NewKnown()
//	findings := known.ReadTree("schemas")
//	findings = append(findings, known.Judge(use)...)
//	err := lint.Write(os.Stdout, lint.Text, findings)
//
// # Guarantees
//
// A finding says what is wrong, where, and what to do. Nothing that is looked at
// is run. The same files give the same findings in the same order.
//
// A comment "promethean:allow reason" takes findings away ([Allows]); it is
// a finding itself if it has no reason, or if it takes nothing away.
package lint
