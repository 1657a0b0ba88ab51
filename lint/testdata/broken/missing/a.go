package missing

import (
	"promethean/event"
	"promethean/nowhere"
)

var e = event.New("a.b", nowhere.Payload())
