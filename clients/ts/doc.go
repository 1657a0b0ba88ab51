// Package ts has the TypeScript client of the hub: src holds it, test its tests,
// docs/client-ts.md describes it. There is no Go in it but the test that runs
// those of Node and Chromium against the program, so that they count among the
// others:
//
//	PROMETHEAN_TEST_NODE=$(command -v node) go test ./clients/ts
//
// It expects what "npm ci" installs and "npm run build:test" builds;
// "make test-all" does both.
package ts
