package syntax

import "promethean/event"

func (e event.Event
