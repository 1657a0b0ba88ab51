package client

// Error is a refusal by the hub. Go by Code, which never changes its meaning;
// docs/api.md lists all of them.
type Error struct {
	// Code is the stable name of what is wrong, such as "seq_conflict".
	Code string
	// Status is the HTTP status, 0 where the refusal came over a WebSocket.
	Status int
	// Message says it for people.
	Message string
	// Index is the row of a batch that is wrong, counted from 0; nil where the
	// refusal is not about a row.
	Index *int
}

// Error implements error.
func (e *Error) Error() string {
	if e.Message == "" {
		return e.Code
	}
	return e.Code + ": " + e.Message
}

// Is lets errors.Is(err, &Error{Code: "not_found"}) find a refusal by its code
// alone.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code != "" && t.Code == e.Code && t.Status == 0 && t.Message == ""
}
