# Everything a contributor runs. "make" alone lists it.

## GO: the go command
GO ?= go
## VERSION: what the binary reports as its version; by default what git describe says
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
## PACKAGES: the packages that test and race run
PACKAGES ?= ./...
## TESTFLAGS: more flags for go test, such as -v or -run=Name
TESTFLAGS ?=
## TESTTIMEOUT: how long one package's tests may take before they count as hung
TESTTIMEOUT ?= 20m
## RACETIMEOUT: the same under the race detector, which is slow
RACETIMEOUT ?= 40m
## RESULTS: where test runs are kept until they are added up
RESULTS ?= bin/test-results
## FUZZTIME: how long each fuzz target runs
FUZZTIME ?= 10s
## SOAK: how long the soak test runs
SOAK ?= 10m
## CHAOS_FOR: how long faults are made by chaos
CHAOS_FOR ?= 5m
## CHAOS_SEED: what their plan follows from; 0 is by chance
CHAOS_SEED ?= 0
## CHAOS_STEPS: how many steps churn takes
CHAOS_STEPS ?= 10000
## CHAOSFLAGS: more flags for chaos, such as -keep or -plan=20
CHAOSFLAGS ?=
## DEMOFLAGS: more flags for the demo, such as --listen=127.0.0.1:0
DEMOFLAGS ?=
## CLUSTERFLAGS: more flags for the cluster, such as -hubs=127.0.0.1:0,127.0.0.1:0
CLUSTERFLAGS ?=
## BENCHFLAGS: more flags for the benchmarks
BENCHFLAGS ?=
## VULNDB: address of the database that vuln asks; by default the public one
VULNDB ?=

export GO RESULTS TESTTIMEOUT FUZZTIME VULNDB

.DEFAULT_GOAL := help
.PHONY: help build demo cluster dist test test-all race fuzz crash soak chaos churn bench bench-short lint vuln fmt clean testreport

help: ## list targets and variables
	@echo 'targets:'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo 'variables:'
	@awk '/^## [A-Z_]+: / { name = $$2; sub(/^## [A-Z_]+: /, ""); sub(/:$$/, "", name); text = $$0; \
		getline; sub(/^[A-Z_]+ \?= ?/, ""); printf "  %-12s %s%s\n", name, text, ($$0 == "" || /\$$/ ? "" : " (" $$0 ")") }' $(firstword $(MAKEFILE_LIST))

# The program's main package keeps the version in the variable "version".
# Without -trimpath, which dist has, so that what tests have compiled is reused.
build: ## build bin/promethean, static and without cgo
	CGO_ENABLED=0 $(GO) build -ldflags '-s -w -X main.version=$(VERSION)' -o bin/promethean ./cmd/promethean

# Ctrl-C ends the demo, and make with it.
demo: build ## run a hub with live events, and a page on http://127.0.0.1:7070
	@bin/promethean demo $(DEMOFLAGS)

# Ctrl-C ends all of them, and make with it.
cluster: build ## run three NATS servers and two hubs on loopback, to try
	@$(GO) build -o bin/cluster ./examples/cluster
	@bin/cluster -promethean bin/promethean $(CLUSTERFLAGS)

dist: ## build static programs for linux and darwin into bin/dist, with checksums
	@scripts/dist "$(VERSION)"

test: testreport ## run all tests that need nothing but Go
	@bin/testreport -results $(RESULTS) -suite go -- -timeout $(TESTTIMEOUT) $(TESTFLAGS) $(PACKAGES)

# The suites with servers run also when the first ones failed, so that one run
# shows all there is to repair.
test-all: ## run the tests, then the suites that need a server
	@rm -rf $(RESULTS)
	@status=0; $(MAKE) --no-print-directory test || status=1; scripts/test-servers || status=1; exit $$status

race: testreport ## run the tests under the race detector (needs a C compiler)
	@CGO_ENABLED=1 bin/testreport -- -race -timeout $(RACETIMEOUT) $(TESTFLAGS) $(PACKAGES)

fuzz: ## run every fuzz target for FUZZTIME
	@scripts/fuzz

# A folder that is not there yet is left out: the go command refuses to look into it.
CRASHED := $(patsubst %,./%/...,$(wildcard store group partition outbox client examples cmd))
crash: ## run the crash tests, and the model of delivery, at full length
	$(if $(CRASHED),PROMETHEAN_CRASH=long $(GO) test -run 'Crash|^TestModel$$' -count=1 -timeout 60m $(TESTFLAGS) $(CRASHED),@echo 'crash: no package has crash tests')

soak: ## let a hub work for ten minutes with good clients and bad ones (SOAK)
	PROMETHEAN_SOAK=$(SOAK) $(GO) test ./cmd/promethean -run '^TestSoak$$' -count=1 -timeout 60m -v

chaos: build ## hurt three NATS servers and three hubs for five minutes, and check all promises (CHAOS_FOR, CHAOS_SEED)
	$(GO) run ./chaos -hub bin/promethean -for $(CHAOS_FOR) -seed $(CHAOS_SEED) $(CHAOSFLAGS)

churn: build ## have members of partitioned groups join, leave, die and stall as processes for 10,000 steps (CHAOS_STEPS, CHAOS_SEED)
	$(GO) run ./chaos -hub bin/promethean -steps $(CHAOS_STEPS) -seed $(CHAOS_SEED) $(CHAOSFLAGS)

bench: ## measure us and our peers, and print the ratios
	$(GO) run ./bench $(BENCHFLAGS)

bench-short: ## the same, each measurement once and short
	$(GO) run ./bench -short $(BENCHFLAGS)

lint: ## check formatting and run the linters
	@scripts/lint

vuln: ## look for known vulnerabilities (asks a database in the network)
	@scripts/vuln

fmt: ## format all Go files
	@scripts/fmt

clean: ## remove what was built, and the pinned tools
	rm -rf bin .tools

testreport:
	@$(GO) build -o bin/testreport ./internal/testreport
