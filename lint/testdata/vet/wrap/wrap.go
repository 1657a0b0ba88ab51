// Package wrap is used by others.
package wrap

import "promethean/event"

// Event makes an event of a topic.
func Event(topic string) event.Event { return event.New(topic, nil) }
