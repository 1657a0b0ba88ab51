// Package config reads the settings of a hub: promethean.yaml, the environment
// and flags, of which the later count more.
//
//	c, err := config.Load(config.Source{File: "promethean.yaml", Env: os.LookupEnv})
//
// Every setting that is one value, or a list of texts, is a row of one table
// (settings.go). Its key in the file, such as log.level, gives the names of its
// variable, PROMETHEAN_LOG_LEVEL, and of its flag, --log-level. The rest, lists
// and maps of more than texts, is in the file only.
//
// # Guarantees
//
// Nothing is ignored: a key that is unknown, doubled or of the wrong kind, and a
// value that is refused, is a [Problem] that names the file and the line, and
// all of them are reported at once ([Problems]). Variables that name no setting
// are somebody else's.
//
// The file needs to hold no secrets, only the names of variables or files that do. What
// an address carries is left out by [Redact] wherever it is shown.
package config
