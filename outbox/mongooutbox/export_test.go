package mongooutbox

// DatabaseName is the name of the database, for tests.
func (b *Outbox) DatabaseName() string { return b.db.Name() }
