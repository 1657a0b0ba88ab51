// Package schema keeps the schemas of topics, and lets them change without
// breaking those who write and those who read.
//
// A topic has versions of its schema, JSON Schema 2020-12, counted upwards. A
// [Registry] keeps them in the log, so that they survive a restart and every hub
// on a shared engine sees them. A new version is checked against those before it
// (package compat), and may come with an upcaster, which makes a payload of the
// version before into one of its own.
//
//	reg, err := schema.Open(ctx, hub, schema.Options{})
//	if err != nil { … }
//	defer reg.Close()
//	_, err = reg.Register(ctx, schema.Definition{Topic: "heartbeat.received", Schema: v1})
//
//	bus := schema.Validate(hub, reg)     // refuses what is not valid, stamps the rest
//	bus = schema.DualWrite(bus, reg)     // writes topic and topic.vN, where that is on
//	sub, err := schema.SubscribeNormalised(ctx, bus, reg, "heartbeat.received", "ops", handler)
//
// # Guarantees
//
// What was published through [Validate] is valid under the version that its
// header x-schema-version names. An event that was stored keeps its payload and
// its stamp for ever; reading it normalised gives one of the latest version, or
// an error: it is never passed on half done, and never skipped.
package schema
