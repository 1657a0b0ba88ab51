package store

// As finds an ability: of the engine, or of what it wraps and gives by a method
// Unwrap. It is for abilities that what wraps an engine neither has nor changes,
// such as [Compacts] and [HasDocs].
func As[T any](engine any) (T, bool) {
	for {
		if a, ok := engine.(T); ok {
			return a, true
		}
		w, ok := engine.(interface{ Unwrap() any })
		if !ok {
			var none T
			return none, false
		}
		engine = w.Unwrap()
	}
}
