package main

import "testing"

func TestRun(t *testing.T) {
	if err := run(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func Example() {
	main()
	// Output:
	// 2 × bread, attempt 2
	// dead: {"item":"cake","count":0}: 0 pieces of cake
	// 1 × cake, attempt 2
}
