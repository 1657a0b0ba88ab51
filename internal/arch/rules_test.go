package arch

// The names of packages below are relative to the module, and the root package
// goes by the name of the module. In a pattern, "*" stands for any text within
// one segment and a trailing "/..." for the folder and all below it.
//
// The part of a name that the pattern fixes is the package's room: under
// "store/*/...", the room of store/logstore/internal/frame is store/logstore.
// Packages of one room may import each other whatever the tables say.

const root = "promethean"

// anything is a pattern for every package of the module.
const anything = "..."

// placement says what the packages of some rooms may import of ours.
type placement struct {
	rule     string
	packages []string
	mayUse   []string
	reason   string
}

// capabilities each add one thing over the hub.
var capabilities = []string{
	"partition/...", "schema/...", "deadletter/...", "outbox/...",
	"changefeed/...", "view/...", "timetravel/...", "compact/...", "cluster/...",
}

// shared packages are internal ones that any room from group upwards may use.
// The room internal/app is kept out of their reach by the rule about importers.
const shared = "internal/..."

// placements is read from the top: the first entry that fits a package decides.
// It goes from the leaf to the programs, so that an entry uses what stands above it.
var placements = []placement{
	{
		rule:     "event is a leaf",
		packages: []string{"event/..."},
		mayUse:   nil,
		reason:   "the vocabulary is shared by hub, engines and clients, so it must not drag any of them along",
	},
	{
		rule:     "store holds ports only",
		packages: []string{"store"},
		mayUse:   []string{"event"},
		reason:   "the ports are what engines are written against, so they must not know an engine or a user of one",
	},
	{
		rule:     "storetest knows the ports only",
		packages: []string{"store/storetest/..."},
		mayUse:   []string{"event", "store"},
		reason:   "one suite judges every engine, so it must not know any of them",
	},
	{
		rule:     "what engines share knows the ports only",
		packages: []string{"store/internal/..."},
		mayUse:   []string{"event", "store"},
		reason:   "it decides for every engine what a port means, or guards the disk that several stand on, so it must not know any of them",
	},
	{
		rule:     "the embedded engine keeps documents too",
		packages: []string{"store/logstore/..."},
		mayUse:   []string{"event", "store", "store/internal/...", "store/docstore"},
		reason:   "its directory, its backups and its checks are those of log and documents together",
	},
	{
		rule:     "an engine knows the ports only",
		packages: []string{"store/*/..."},
		mayUse:   []string{"event", "store", "store/internal/..."},
		reason:   "an engine can be replaced only while it knows neither its users nor another engine",
	},
	{
		rule:     "group stands on the ports",
		packages: []string{"group/..."},
		mayUse:   []string{"event/...", "store", shared},
		reason:   "delivery must work over any engine and without a hub around it",
	},
	{
		rule:     "the hub stands on delivery",
		packages: []string{root},
		mayUse:   []string{"event/...", "store", "group/...", "store/intent", "store/logstore", shared},
		reason:   "an embedder who imports the hub gets the embedded engine, and no capability, driver or server that was not asked for",
	},
	{
		rule:     "metrics are told by the hub",
		packages: []string{"metrics/...", "tracing/..."},
		mayUse:   []string{"event/...", "store", "group/...", root, shared},
		reason:   "the hub speaks to interfaces, so that who does not want Prometheus or OpenTelemetry does not get them",
	},
	{
		rule:     "a capability stands on the hub",
		packages: capabilities,
		mayUse:   join([]string{"event/...", "store", "group/...", root, "wire/...", shared}, capabilities),
		reason:   "capabilities decorate the bus and must work embedded, without a server",
	},
	{
		rule:     "wire is a leaf",
		packages: []string{"wire/..."},
		mayUse:   nil,
		reason:   "the table of codes is shared by the two ends of a connection, so it must drag neither of them along",
	},
	{
		rule:     "the client knows the wire, not the server",
		packages: []string{"client/..."},
		mayUse:   []string{"event/...", "wire/..."},
		reason:   "it is linked into other people's programs, which want neither engines nor a filter language",
	},
	{
		rule:     "a client in another language is tested from outside",
		packages: []string{"clients/..."},
		mayUse:   nil,
		reason:   "it meets the hub as the program that people run",
	},
	{
		rule:     "the console is a leaf",
		packages: []string{"web/..."},
		mayUse:   nil,
		reason:   "it holds embedded files; whatever serves them decides how",
	},
	{
		rule:     "lint knows the rules it checks",
		packages: []string{"lint/..."},
		mayUse:   []string{"event/...", "schema/...", shared},
		reason:   "an analyzer runs in editors and builds, far from any hub",
	},
	{
		rule:     "the gateway stands on capabilities",
		packages: []string{"gateway/..."},
		mayUse:   join([]string{"event/...", "store", "group/...", root, "wire/...", "web/...", shared}, capabilities),
		reason:   "handlers serve whatever hub they are given, and never choose an engine",
	},
	{
		rule:     "the harness is made of public rooms",
		packages: []string{"prometheantest/..."},
		mayUse: join([]string{"event/...", "store/...", "group/...", root, "wire/...", "gateway/...", "client/...", "examples/process", shared},
			capabilities),
		reason: "users import it in their own tests and must be able to build the same by hand; the process example is the projector that the harness comes with",
	},
	{
		rule:     "the application composes everything",
		packages: []string{"internal/app/..."},
		mayUse:   []string{anything},
		reason:   "configuration decides which engine and which capabilities are put together, in one room only",
	},
	{
		rule:     "shared internals are leaves",
		packages: []string{"internal/*/..."},
		mayUse:   []string{"event/...", "internal/jq/value"}, // the latter is JSON values with exact numbers, a leaf itself
		reason:   "what many rooms use must not depend on any of them",
	},
	{
		rule:     "the vet tool is a shell around the analyzer",
		packages: []string{"cmd/promethean-vet/..."},
		mayUse:   []string{"lint/..."},
		reason:   "it is installed beside people's linters, which want neither engines nor a server",
	},
	{
		rule:     "a command is a shell around the application",
		packages: []string{"cmd/*/..."},
		mayUse:   []string{"internal/app/..."},
		reason:   "what a command does has to be testable without starting a process",
	},
	{
		rule:     "programs beside the product use it as an embedder does",
		packages: []string{"bench/...", "chaos/...", "examples/...", "docs/..."},
		mayUse:   []string{anything},
		reason:   "comparisons, trials and examples put together a hub of their own choosing",
	},
}

// restriction says who alone may import some packages.
type restriction struct {
	rule     string
	packages []string
	usedBy   []string
	remedy   string
	reason   string
}

var restrictions = []restriction{
	{
		rule:     "drivers are chosen by programs",
		packages: []string{"store/*store/...", "outbox/*outbox/...", "changefeed/*feed/..."},
		usedBy:   []string{root, "store/logstore/...", "internal/app/...", "cmd/...", "bench/...", "chaos/...", "examples/...", "prometheantest/..."}, // the hub the embedded one alone, which keeps its documents in another
		remedy:   "take the port as a parameter and let internal/app pass the driver in",
		reason:   "a driver brings a database client with it, which no library user asked for",
	},
	{
		rule:     "only commands start the application",
		packages: []string{"internal/app/..."},
		usedBy:   []string{"cmd/..."},
		remedy:   "move what is needed into the room that it is about",
		reason:   "the application imports every driver, and so would whoever imports it",
	},
}

// maxLines is the length at which a file is no longer read in one sitting.
const maxLines = 600

// emptyNames are package names that say nothing about what is inside.
var emptyNames = []string{"util", "utils", "common", "types", "helper", "helpers"}

// rules about single packages and files; the checks are in check_test.go.
const (
	rulePlace  = "every package has a place"
	ruleDoc    = "every package has a package comment"
	ruleName   = "a package is named for what it holds"
	ruleLength = "a file can be read in one sitting"
	ruleCgo    = "no cgo"
)
