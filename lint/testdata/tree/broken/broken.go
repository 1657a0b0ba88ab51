// Package broken does not type-check.
package broken

import "promethean/event"

var e event.Event = "no event"
