// Package fast says yes to valid documents without decoding them.
//
// The full validator needs the document as Go values, and walks it with an
// allocation or more for every value. Nearly all events are valid, so it is
// enough to know that quickly: a [Plan] is made of the same compiled schema,
// and walks the bytes once, without building anything.
//
//	plan := fast.Compile(tree) // nil if a keyword of it is not covered
//	if plan != nil && plan.Valid(doc) {
//		return nil
//	}
//	return tree.Validate(value) // lists what is wrong
//
// # Guarantees
//
// Where Valid says true, the full validator finds nothing wrong. Where it says
// false, the document is not valid, but for the few cases in which finding out
// would need what this package does not have; the full validator decides then:
//   - a const or enum with an object or array meets one,
//   - uniqueItems meets two objects or two arrays, or more than 64 items,
//   - multipleOf meets a number whose digits do not fit 64 bits,
//   - a number has an exponent beyond 100,000,
//   - the walk takes more than 64 looks at each byte, or goes deeper than 1000.
//
// Documents must be JSON as event.CheckJSON takes it. Other bytes give an
// answer without meaning, but always an answer.
//
// Numbers are compared digit by digit, never as floats. Patterns and all
// formats but the most common are judged by the schema's own functions.
package fast
