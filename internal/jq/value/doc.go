// Package value turns JSON into Go values and back, for those who look into
// payloads: the validator and jq.
//
// Values are nil, bool, string, []any, map[string]any and, as numbers,
// [encoding/json.Number] with the digits as they were written, so that neither
// a large integer nor a decimal loses anything on the way. [Append] writes
// those, and the numbers that jq computes. Objects are maps: the order of their
// names is not kept, and they are written in the order of their bytes.
package value
