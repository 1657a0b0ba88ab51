// Package use has something wrong that is seen only by who knows package wrap.
package use

import "promethean/lint/testdata/vet/wrap"

var (
	_ = wrap.Event("orders.placed")
	_ = wrap.Event("Orders.Placed")
	_ = wrap.Event("orders.lost")
	_ = wrap.Event("orders.old") //promethean:allow it goes away
)
