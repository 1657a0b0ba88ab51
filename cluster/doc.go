// Package cluster keeps the list of hubs that share an engine.
//
//	c, err := cluster.Join(hub, cluster.Options{URL: "http://10.0.0.5:7070"})
//	defer c.Close(ctx)
//	c.OnGone(func(id string) { … })
//
// # Promises
//
// A hub is in the list from the moment at which Join returns until Close does,
// or until its lease ends. The list is one document in the engine, which all
// hubs change by compare-and-set; a hub keeps nothing of it on its disk. That a
// hub lives is said by a lease in its name, which it renews in time. The
// engine's clock decides when that is over, so hubs with different clocks agree.
//
// A hub that was cut off for longer than its lease lasts is gone for the others,
// who take it off the list. It puts itself back as soon as it reaches the engine
// again.
//
// On an engine that is not shared there is one hub, and nothing is stored.
package cluster
