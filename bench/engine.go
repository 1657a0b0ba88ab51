package main

import (
	"promethean/store"
	"promethean/store/logstore"
)

// openLog opens the engine that the rows called us measure, as it is when
// nothing is configured. It is a variable so that tests can measure another.
var openLog = func(dir string) (store.Log, error) { return logstore.Open(dir, logstore.Options{}) }
