# drowse: make targets. "make" lists them.
#
# The agent is built first and embedded in the server's binary. Everything is
# static: the runtime starts this binary again inside an empty root.

export CGO_ENABLED := 0
LDFLAGS := -s -w
GO      ?= go
AGENT   := internal/agentbin/bin/drowse-agent
TOOLS   := $(CURDIR)/bin/tools

.PHONY: help
help:
	@echo 'build        build bin/drowse'
	@echo 'release      bin/release: binaries for amd64 and arm64, with SHA256SUMS'
	@echo 'packages     bin/packages: a .deb and a .rpm for each architecture, and try the .deb on a clean Debian (root)'
	@echo 'test-arm64   the arm64 filter, and tests that an emulator can run (qemu-user-static)'
	@echo 'demo         build, then show a sandbox falling asleep and waking (root)'
	@echo 'test         unit and contract tests (root: they mount, and run real sandboxes)'
	@echo 'e2e          the real binary: crashes, leaks, full disks (root)'
	@echo 'soak         hours of sleeping, waking and crashing: make soak SOAK="-soak.seed 1" (root)'
	@echo 'neighbours   what each of 20 attacks costs another tenant, and write docs/results/neighbours.md (root; some 20 minutes)'
	@echo 'faults       every fault at every step, and write docs/results/faults.md (root; some 20 minutes)'
	@echo 'conformance  the published E2B SDKs against a real server (root)'
	@echo 'openapi-clients  generate Go, Python and TypeScript clients of /v1, and compile them'
	@echo 'hosts        Debian releases, kernels, cgroup versions and file systems in virtual machines, and write docs/results/hosts.md (root; 10 minutes and more each)'
	@echo 'bench        ratios against the raw tools (root)'
	@echo 'check        format, vet, staticcheck, govulncheck, generated files, imports'
	@echo 'generate     protocol buffers and generated documents'

# gVisor is built with a few lines changed: internal/runtime/gvisor/overlay says
# which, and why. A drowse that is built without them works, and wakes large
# sandboxes later.
OVERLAY := bin/overlay
EDITED  := -trimpath -modfile=$(OVERLAY)/go.mod -overlay=$(OVERLAY)/overlay.json

.PHONY: overlay
overlay:
	$(GO) run ./internal/runtime/gvisor/overlay $(OVERLAY)

.PHONY: build
build: $(AGENT) overlay
	$(GO) build $(EDITED) -ldflags='$(LDFLAGS)' -o bin/drowse ./cmd/drowse

.PHONY: $(AGENT)
$(AGENT):
	$(GO) build -ldflags='$(LDFLAGS)' -o $@ ./cmd/drowse-agent

# The agent that is embedded is of the same architecture. Afterwards that of this
# machine is there again, for the tests.
.PHONY: release
release: overlay
	rm -rf bin/release && mkdir -p bin/release
	set -e; for arch in amd64 arm64; do \
		GOARCH=$$arch $(GO) build -trimpath -ldflags='$(LDFLAGS)' -o $(AGENT) ./cmd/drowse-agent; \
		GOARCH=$$arch $(GO) build $(EDITED) -ldflags='$(LDFLAGS)' -o bin/release/drowse-linux-$$arch ./cmd/drowse; \
	done
	cd bin/release && sha256sum drowse-linux-* >SHA256SUMS
	$(MAKE) $(AGENT)

# Packages of one commit are the same, byte by byte, wherever they are made.
VERSION ?= $(or $(shell git describe --tags --match 'v[0-9]*' 2>/dev/null | sed 's/^v//'),$(shell git log -1 --date=format:%Y%m%d%H%M%S --format=0.0.0~%cd.%h))
NFPM    := $(TOOLS)/v2.45.0/nfpm
.PHONY: packages
packages: release
	[ -x $(NFPM) ] || GOBIN=$(dir $(NFPM)) $(GO) install github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.0
	script/packages "$(VERSION)" $(NFPM)
	script/deps hosts
	test/packages.sh

# What runs in an emulator of user space: no sandbox, no mount.
ARM64 := GOARCH=arm64 $(GO)
.PHONY: test-arm64
test-arm64: generate-arm64
	git diff --exit-code internal/runtime/gvisor/sentryfilter_arm64.json
	$(ARM64) vet ./internal/... ./cmd/...
	$(ARM64) test -exec qemu-aarch64-static ./internal/agentbin ./internal/human

# The filter of system calls of the other architecture, after gVisor's module or
# the options of its runtime have changed. "go generate" writes this machine's.
.PHONY: generate-arm64
generate-arm64:
	cd internal/runtime/gvisor && $(ARM64) run -exec qemu-aarch64-static ./filtergen sentryfilter_arm64.json

.PHONY: demo
demo: build
	bin/drowse demo

# What runs tests: "go test", or script/test's runner that counts and times them.
GOTEST ?= $(GO) test

# "make -k test" goes on after a failure.
.PHONY: test test-virtual test-race test-gvisor test-planted test-short
test: test-virtual test-race test-gvisor test-planted

# Virtual time, virtual disks: nothing here waits or depends on how fast it is.
# Many histories need speed, which the race detector takes away.
test-virtual: $(AGENT)
	$(GOTEST) -timeout 30m ./internal/lifecycle
	$(GOTEST) -timeout 30m -run '^Test(Simulation|Histories|Deadlines.*|OverdueAtStart|Lateness|.*PowerCut)$$' ./internal/supervisor
	$(GOTEST) -timeout 30m -run PowerCut ./internal/layer ./internal/store ./internal/template

# The race detector needs cgo.
test-race: $(AGENT)
	CGO_ENABLED=1 $(GOTEST) -race -timeout 20m $$($(GO) list ./... | grep -v -e /runtime/gvisor -e '/test/e2e$$' -e '/lifecycle$$')

# A static test binary, because it becomes the sandbox's own processes.
test-gvisor: $(AGENT)
	$(GOTEST) ./internal/runtime/gvisor

# The bugs that tests must find need a build of their own.
test-planted: $(AGENT)
	$(GOTEST) -timeout 30m -tags plant -run TestPlantedBugs ./internal/planted

test-short: $(AGENT)
	$(GOTEST) -short -timeout 10m $$($(GO) list ./... | grep -v '/test/e2e$$')

.PHONY: e2e
e2e: build
	DROWSE_BINARY=$(CURDIR)/bin/drowse $(GOTEST) -v -count=1 -timeout=45m $(E2E) ./test/e2e

# Thousands of simulated machines and histories; then kills the server some 2,000
# times within 8,000 sleeps of real sandboxes, and creates and kills 5,000; then
# fuzzes the parsers of what guests and clients send for ten minutes.
.PHONY: soak
soak: build
	$(GO) test -v -count=1 -timeout=6h -run '^Test(Simulation|Histories)$$' ./internal/supervisor -sim.seeds 20000 -history.count 100000
	DROWSE_BINARY=$(CURDIR)/bin/drowse $(GO) test -v -count=1 -timeout=12h ./test/e2e -run '^(TestSoak|TestLeaks|TestRequestsOverPauses)$$' -drain.pauses 40 -soak.workers 8 -soak.cycles 1000 -leaks.sandboxes 5000 $(SOAK)
	DROWSE_BINARY=$(CURDIR)/bin/drowse $(GO) test -v -count=1 -timeout=3h ./test/e2e -run '^TestBadNeighbours$$' -neighbours.width 1 -neighbours.cycles 20
	test/fuzz.sh 600

.PHONY: neighbours
neighbours: build
	DROWSE_BINARY=$(CURDIR)/bin/drowse $(GO) test -v -count=1 -timeout=3h -run '^TestBadNeighbours$$' ./test/e2e -neighbours.width 1 -neighbours.cycles 20 -neighbours.table $(CURDIR)/docs/results/neighbours.md

.PHONY: faults
faults: build
	DROWSE_BINARY=$(CURDIR)/bin/drowse $(GO) test -v -count=1 -timeout=90m -run '^TestFaults$$' ./test/e2e -faults.table $(CURDIR)/docs/results/faults.md

.PHONY: conformance
conformance: build
	test/conformance/conformance.sh
	test/conformance/conformance.sh --domain

.PHONY: openapi-clients
openapi-clients:
	test/openapi/clients.sh

# The network is for the packages of the machines; the machines have none.
.PHONY: hosts
hosts: build
	script/deps hosts
	$(GO) run ./test/hosts -table docs/results/hosts.md $(HOSTS)

.PHONY: bench
bench: build
	script/deps bench
	bash test/bench/run.sh

.PHONY: generate
generate:
	$(GO) generate ./...

.PHONY: check
check: $(AGENT)
	bash test/check.sh
