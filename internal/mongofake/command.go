package mongofake

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// command is one that the server knows.
type command struct {
	run    func(*call) (bson.D, error)
	fields string // those that it takes beside the general ones
	always bool   // it is answered by a secondary too
	inTxn  bool   // it may be part of a transaction
}

// commands is the table of all. Everything else is refused.
func commands() map[string]command {
	hail := command{run: hello, always: true, fields: "helloOk client compression loadBalanced topologyVersion maxAwaitTimeMS saslSupportedMechs speculativeAuthenticate backpressure"}
	build := command{run: buildInfo, always: true}
	modify := command{run: findAndModify, inTxn: true, fields: "query sort update remove new upsert fields bypassDocumentValidation hint"}
	return map[string]command{
		"hello": hail, "isMaster": hail, "ismaster": hail,
		"ping":        {run: ping, always: true},
		"buildInfo":   build,
		"buildinfo":   build,
		"endSessions": {run: endSessions, always: true},

		"insert":        {run: insert, inTxn: true, fields: "documents ordered bypassDocumentValidation"},
		"update":        {run: update, inTxn: true, fields: "updates ordered bypassDocumentValidation"},
		"delete":        {run: remove, inTxn: true, fields: "deletes ordered"},
		"findAndModify": modify,
		"findandmodify": modify,

		"find":        {run: find, inTxn: true, fields: "filter sort projection limit skip batchSize singleBatch hint min allowDiskUse"},
		"aggregate":   {run: aggregate, inTxn: true, fields: "pipeline cursor hint allowDiskUse"},
		"count":       {run: count, fields: "query limit skip hint"},
		"getMore":     {run: getMore, inTxn: true, fields: "collection batchSize"},
		"killCursors": {run: killCursors, always: true, inTxn: true, fields: "cursors"},

		"create":           {run: create, fields: "changeStreamPreAndPostImages viewOn pipeline"},
		"collMod":          {run: collMod, fields: "changeStreamPreAndPostImages"},
		"drop":             {run: drop},
		"dropDatabase":     {run: dropDatabase},
		"renameCollection": {run: renameCollection, fields: "to dropTarget"},
		"createIndexes":    {run: createIndexes, fields: "indexes commitQuorum"},
		"dropIndexes":      {run: dropIndexes, fields: "index"},
		"listIndexes":      {run: listIndexes, fields: "cursor"},
		"listCollections":  {run: listCollections, fields: "filter nameOnly authorizedCollections cursor"},

		"commitTransaction": {run: commitTransaction, inTxn: true, fields: "recoveryToken"},
		"abortTransaction":  {run: abortTransaction, inTxn: true, fields: "recoveryToken"},
	}
}

// general are the fields that any command may have.
func general() map[string]bool {
	return map[string]bool{
		"$db": true, "lsid": true, "txnNumber": true, "autocommit": true, "startTransaction": true, "$clusterTime": true,
		"$readPreference": true, "readConcern": true, "writeConcern": true, "comment": true, "maxTimeMS": true,
		"apiVersion": true, "apiStrict": true, "apiDeprecationErrors": true,
	}
}

// call is a command that is being answered.
type call struct {
	s         *Server
	ctx       context.Context // ends with the connection
	name, db  string
	body      bson.Raw
	seqs      map[string][]bson.Raw
	sess      *session
	txn       *txn
	streaming bool   // it reads a change stream
	f         *Fault // what is to go wrong with it
}

func (c *call) has(field string) bool {
	_, err := c.body.LookupErr(field)
	return err == nil
}

// number reads a whole number that may be left out.
func (c *call) number(field string) (int, error) {
	v, err := c.body.LookupErr(field)
	if err != nil {
		return 0, nil
	}
	if class(v.Type) != 2 || float(v) != float64(int64(float(v))) || float(v) < 0 {
		return 0, failf(codeBadValue, "BSON field '%s.%s' must be a whole number that is not negative, and is %s", c.name, field, v)
	}
	return int(float(v)), nil
}

// document reads a document that may be left out.
func (c *call) document(field string) (bson.Raw, error) {
	v, err := c.body.LookupErr(field)
	if err != nil || v.Type == bson.TypeNull {
		return nil, nil
	}
	doc, ok := v.DocumentOK()
	if !ok {
		return nil, failf(codeTypeMismatch, "BSON field '%s.%s' is the wrong type '%s', expected type 'object'", c.name, field, v.Type)
	}
	return doc, nil
}

// documents reads a list of documents, which may come as a sequence.
func (c *call) documents(field string) ([]bson.Raw, error) {
	if list, ok := c.seqs[field]; ok {
		return list, nil
	}
	v, err := c.body.LookupErr(field)
	if err != nil {
		return nil, failf(40414, "BSON field '%s.%s' is missing but a required field", c.name, field)
	}
	list, err := documents(v)
	if err != nil {
		return nil, failf(codeTypeMismatch, "BSON field '%s.%s' must be an array of documents: %v", c.name, field, err)
	}
	return list, nil
}

// namespace is the collection that the command names.
func (c *call) namespace() (namespace, error) {
	name, ok := c.body.Lookup(c.name).StringValueOK()
	if !ok || name == "" || c.db == "" {
		return namespace{}, failf(codeInvalidNamespace, "Invalid namespace specified '%s.%s'", c.db, name)
	}
	return namespace{db: c.db, coll: name}, nil
}

// deadline is when the command has had its time; zero if it may take any.
func (c *call) deadline() (time.Time, error) {
	ms, err := c.number("maxTimeMS")
	if err != nil || ms == 0 {
		return time.Time{}, err
	}
	return time.Now().Add(time.Duration(ms) * time.Millisecond), nil
}

// handle answers one request; not ok ends the connection.
func (s *Server) handle(ctx context.Context, m message) (reply bson.Raw, ok bool) {
	first, err := m.body.IndexErr(0)
	if err != nil {
		return nil, false
	}
	c := &call{s: s, ctx: ctx, name: first.Key(), body: m.body, seqs: m.seqs}
	c.db, _ = m.body.Lookup("$db").StringValueOK()
	if m.op == opQuery && strings.ToLower(c.name) != "ismaster" && c.name != "hello" {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[c.name]++
	s.wake()
	return c.answer()
}

// answer runs the command, with what is to go wrong.
func (c *call) answer() (bson.Raw, bool) {
	f := c.s.fault(c)
	c.f = f
	c.look()
	if f != nil {
		if cut, err := f.before(c); cut || err != nil {
			return c.failed(err), !cut
		}
	}
	again, d, err := c.run()
	if errors.Is(err, errGone) {
		return nil, false
	}
	if again != nil {
		return again, true // with no fault: it would have none the first time
	}
	if err == nil && f != nil {
		var cut bool
		if cut, d, err = f.after(c, d); cut {
			return nil, false
		}
	}
	if err != nil {
		return c.failed(err), true
	}
	return c.finish(append(d, bson.E{Key: "ok", Value: 1.0})), true
}

// look finds out what kind of command it is.
func (c *call) look() {
	switch c.name {
	case "getMore":
		id, _ := whole(c.body.Lookup("getMore"))
		x := c.s.cursors[id]
		c.streaming = x != nil && x.stream != nil
	case "aggregate":
		stages, _ := documents(c.body.Lookup("pipeline"))
		c.streaming = len(stages) > 0 && !stages[0].Lookup("$changeStream").IsZero()
	}
}

// run does the command, or finds the answer that it had before.
func (c *call) run() (again bson.Raw, d bson.D, err error) {
	cmd, known := c.s.commands[c.name]
	if !known {
		return nil, nil, failf(codeCommandNotFound, "no such command: '%s' (the fake does not know it)", c.name)
	}
	if err := c.checkFields(cmd); err != nil {
		return nil, nil, err
	}
	if err := c.checkPrimary(cmd); err != nil {
		return nil, nil, err
	}
	if err := c.checkView(); err != nil {
		return nil, nil, err
	}
	if again, err = c.enlist(); again != nil || err != nil {
		return again, nil, err
	}
	if c.txn != nil && !cmd.inTxn {
		c.s.abort(c.txn)
		return nil, nil, failf(codeNotInTransaction, "Cannot run '%s' in a multi-document transaction.", c.name)
	}
	d, err = cmd.run(c)
	ending := c.name == "commitTransaction" || c.name == "abortTransaction"
	if c.txn != nil && !ending && (err != nil || hasWriteErrors(d)) {
		c.s.abort(c.txn)
	}
	if err == nil && c.txn == nil && c.sess != nil && c.has("txnNumber") {
		c.sess.answered, c.sess.answer = c.sess.number, c.finish(append(slices.Clip(d), bson.E{Key: "ok", Value: 1.0}))
	}
	return nil, d, err
}

func hasWriteErrors(d bson.D) bool {
	return slices.ContainsFunc(d, func(e bson.E) bool { return e.Key == "writeErrors" })
}

// checkFields refuses what the command is not known to take.
func (c *call) checkFields(cmd command) error {
	elements, _ := c.body.Elements()
	allowed := strings.Fields(cmd.fields)
	check := func(key string) error {
		if c.s.general[key] || slices.Contains(allowed, key) {
			return nil
		}
		return failf(codeUnknownField, "BSON field '%s.%s' is an unknown field (the fake does not know it)", c.name, key)
	}
	for _, e := range elements[1:] {
		if err := check(e.Key()); err != nil {
			return err
		}
	}
	for key := range c.seqs {
		if err := check(key); err != nil {
			return err
		}
	}
	if v := c.body.Lookup("readConcern", "atClusterTime"); !v.IsZero() {
		return failf(codeInvalidOptions, "the fake does not read at a cluster time")
	}
	return nil
}

// checkPrimary refuses what a secondary does not do. Reads that say so may be
// answered by one (server discovery and monitoring: "not writable primary").
func (c *call) checkPrimary(cmd command) error {
	if c.s.stepped == 0 || cmd.always {
		return nil
	}
	read := slices.Contains([]string{"find", "aggregate", "count", "getMore", "listIndexes", "listCollections"}, c.name)
	mode, _ := c.body.Lookup("$readPreference", "mode").StringValueOK()
	if read && mode != "" && mode != "primary" {
		return nil
	}
	return c.s.notPrimary(read)
}

func (s *Server) notPrimary(read bool) *failure {
	if read && s.stepped == codeNotWritablePrimary {
		return failf(codeNotPrimaryNoSecond, "not primary and secondaryOk=false")
	}
	return failf(s.stepped, "not primary")
}

// failed is the answer to a command that failed.
func (c *call) failed(err error) bson.Raw {
	var f *failure
	if !errors.As(err, &f) {
		if err == nil {
			return nil
		}
		f = failf(8, "%v", err) // UnknownError
	}
	c.label(f)
	d := f.reply()
	if slices.Contains(stateCodes(), f.code) {
		d = append(d, bson.E{Key: "topologyVersion", Value: c.s.version()})
	}
	return c.finish(d)
}

// version counts the changes of what the server is.
func (s *Server) version() bson.D {
	return bson.D{{Key: "processId", Value: s.process}, {Key: "counter", Value: s.topology}}
}

// finish adds what every answer has: when it was (sessions specification).
func (c *call) finish(d bson.D) bson.Raw {
	if !c.s.o.Standalone {
		d = append(d,
			bson.E{Key: "operationTime", Value: c.s.time},
			bson.E{Key: "$clusterTime", Value: bson.D{
				{Key: "clusterTime", Value: c.s.time},
				{Key: "signature", Value: bson.D{
					{Key: "hash", Value: bson.Binary{Data: make([]byte, 20)}}, {Key: "keyId", Value: int64(0)},
				}},
			}})
	}
	return encode(d)
}

func ping(*call) (bson.D, error) { return bson.D{}, nil }

func buildInfo(*call) (bson.D, error) {
	return bson.D{
		{Key: "version", Value: "7.0.0"}, {Key: "versionArray", Value: bson.A{int32(7), int32(0), int32(0), int32(0)}},
		{Key: "gitVersion", Value: "mongofake"}, {Key: "bits", Value: int32(64)},
		{Key: "maxBsonObjectSize", Value: int32(maxDocument)}, {Key: "modules", Value: bson.A{}},
	}, nil
}

// wireVersion is that of a server of the version 7.0.
const wireVersion = 21

// hello tells what the server is. A client that names the topology version it
// knows waits for another one (server monitoring: the streaming protocol
// without its exhaust replies, which are the server's choice).
func hello(c *call) (bson.D, error) {
	s := c.s
	until := time.Now()
	if ms, err := c.number("maxAwaitTimeMS"); err != nil {
		return nil, err
	} else if ms > 0 {
		until = until.Add(time.Duration(ms) * time.Millisecond)
	}
	if known, ok := c.body.Lookup("topologyVersion").DocumentOK(); ok {
		process, _ := known.Lookup("processId").ObjectIDOK()
		for n, _ := whole(known.Lookup("counter")); process == s.process && n == s.topology; {
			if late, err := c.wait(until); err != nil {
				return nil, err
			} else if late {
				break
			}
		}
	}
	d := bson.D{{Key: "helloOk", Value: true}}
	primary := s.stepped == 0
	if c.name == "hello" {
		d = append(d, bson.E{Key: "isWritablePrimary", Value: primary})
	} else {
		d = append(d, bson.E{Key: "ismaster", Value: primary})
	}
	d = append(d,
		bson.E{Key: "topologyVersion", Value: s.version()},
		bson.E{Key: "maxBsonObjectSize", Value: int32(maxDocument)},
		bson.E{Key: "maxMessageSizeBytes", Value: int32(maxMessage)},
		bson.E{Key: "maxWriteBatchSize", Value: int32(100_000)},
		bson.E{Key: "localTime", Value: time.Now()},
		bson.E{Key: "logicalSessionTimeoutMinutes", Value: int32(30)},
		bson.E{Key: "connectionId", Value: int32(1)},
		bson.E{Key: "minWireVersion", Value: int32(0)},
		bson.E{Key: "maxWireVersion", Value: int32(wireVersion)},
		bson.E{Key: "readOnly", Value: false},
	)
	if s.o.Standalone {
		return d, nil
	}
	d = append(d,
		bson.E{Key: "setName", Value: setName}, bson.E{Key: "setVersion", Value: int32(1)},
		bson.E{Key: "hosts", Value: bson.A{s.addr}}, bson.E{Key: "me", Value: s.addr},
		bson.E{Key: "secondary", Value: !primary},
		bson.E{Key: "lastWrite", Value: bson.D{
			{Key: "opTime", Value: bson.D{{Key: "ts", Value: s.time}, {Key: "t", Value: s.election}}},
			{Key: "lastWriteDate", Value: time.Unix(int64(s.time.T), 0)},
		}},
	)
	if primary {
		id := bson.ObjectID{0: 0x7f, 11: byte(s.election)}
		d = append(d, bson.E{Key: "primary", Value: s.addr}, bson.E{Key: "electionId", Value: id})
	}
	return d, nil
}
