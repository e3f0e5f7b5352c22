# drowse: make targets. "make" lists them.
#
# The agent is built first and embedded, compressed, in the server's binary. Everything is
# static: the runtime starts this binary again inside an empty root.

export CGO_ENABLED := 0

# Of the last tag, or of the commit; empty outside of a checkout, where the binary says
# what Go knows of it.
VERSION ?= $(or $(shell git describe --tags --match 'v[0-9]*' 2>/dev/null | sed 's/^v//'),$(shell git log -1 --date=format:%Y%m%d%H%M%S --format=0.0.0~%cd.%h 2>/dev/null))
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS := -s -w -X github.com/drowse-dev/drowse/internal/version.linked=$(VERSION) -X github.com/drowse-dev/drowse/internal/version.commit=$(COMMIT)
GO      ?= go
AGENT   := internal/agentbin/bin/drowse-agent.zst
TOOLS   := $(CURDIR)/bin/tools

.PHONY: help
help:
	@echo 'build        build bin/drowse'
	@echo 'release      bin/release: binaries and archives for amd64 and arm64, the install script, and SHA256SUMS'
	@echo 'image        bin/release: a container image of drowse for this architecture (root, mmdebstrap)'
	@echo 'packages     bin/packages: a .deb and a .rpm for each architecture'
	@echo 'test-packages  the .deb, the install script and the image, made and tried on a clean Debian (root)'
	@echo 'test-arm64   the arm64 filter, and tests that an emulator can run (qemu-user-static)'
	@echo 'demo         build, then show a sandbox falling asleep and waking (root)'
	@echo 'newcomer     the way that README goes, on a clean Debian, with its times (root; builds for minutes)'
	@echo 'test         unit and contract tests (root: they mount, and run real sandboxes)'
	@echo 'e2e          the real binary: crashes, leaks, full disks (root)'
	@echo 'e2e-servers  the same with three servers behind one address (root); all with DROWSE_TEST_ALL=1'
	@echo 'soak         hours of sleeping, waking and crashing: make soak SOAK="-soak.seed 1" (root)'
	@echo 'neighbours   what each of 22 attacks costs another tenant, and write docs/results/neighbours.md (root; some 20 minutes)'
	@echo 'faults       every fault at every step, and write docs/results/faults.md (root; some 20 minutes)'
	@echo 'conformance  the published E2B SDKs against a real server (root)'
	@echo 'test-ui      the dashboard in Chromium, against a real server (root)'
	@echo 'test-sdk     drowse'"'"'s own SDKs, built, installed from file, and run against a real server (root)'
	@echo 'frameworks   agents'"'"' frameworks that use E2B, and write docs/results/frameworks.md (root; installs for minutes)'
	@echo 'openapi-clients  generate Go, Python and TypeScript clients of /v1, and compile them'
	@echo 'hosts        Debian releases, kernels, cgroup versions and file systems in virtual machines, and write docs/results/hosts.md (root; 10 minutes and more each)'
	@echo 'bench        ratios against the raw tools: hours, or BENCH=--quick (root)'
	@echo 'docs         the documentation as a site in bin/site, with its links checked (installs for seconds)'
	@echo 'picture      record the demo as docs/demo.svg (root)'
	@echo 'check        format, vet, staticcheck, govulncheck, generated files, imports'
	@echo 'generate     protocol buffers and generated documents'

# gVisor is built with a few lines changed: internal/runtime/gvisor/overlay says
# which, and why. A drowse that is built without them works, wakes large sandboxes
# later, and lets root inside kill the first process.
OVERLAY := bin/overlay
EDITED  := -trimpath -modfile=$(OVERLAY)/go.mod -overlay=$(OVERLAY)/overlay.json

.PHONY: overlay
overlay:
	$(GO) run ./internal/runtime/gvisor/overlay $(OVERLAY)

# The dashboard's terminal. "make build TERMINAL=" leaves it out, and needs no npm.
TERMINAL := internal/ui/dist/xterm.js.gz
$(TERMINAL): internal/ui/package-lock.json script/terminal
	script/terminal

# gVisor is most of what is compiled: for minutes where Go's cache is empty, for
# seconds after that.
.PHONY: build
build: $(AGENT) overlay $(TERMINAL)
	script/progress $(GO) build $(EDITED) -ldflags='$(LDFLAGS)' -o bin/drowse ./cmd/drowse

.PHONY: $(AGENT)
$(AGENT):
	$(GO) build -trimpath -ldflags='$(LDFLAGS)' -o bin/drowse-agent ./cmd/drowse-agent
	$(GO) run ./internal/agentbin/pack bin/drowse-agent $@

# The agent that is embedded is of the same architecture. Afterwards that of this
# machine is there again, for the tests.
.PHONY: release
release: overlay $(TERMINAL)
	rm -rf bin/release && mkdir -p bin/release
	set -e; for arch in amd64 arm64; do \
		GOARCH=$$arch $(GO) build -trimpath -ldflags='$(LDFLAGS)' -o bin/drowse-agent ./cmd/drowse-agent; \
		$(GO) run ./internal/agentbin/pack bin/drowse-agent $(AGENT); \
		GOARCH=$$arch $(GO) build $(EDITED) -ldflags='$(LDFLAGS)' -o bin/release/drowse-linux-$$arch ./cmd/drowse; \
	done
	script/archives "$(VERSION)"
	$(MAKE) $(AGENT)

# Images of one commit, and of the same versions of Debian's packages, are the same,
# byte by byte.
.PHONY: image
image: release
	script/image "$(VERSION)"

# Packages of one commit are the same, byte by byte, wherever they are made.
NFPM    := $(TOOLS)/v2.45.0/nfpm
.PHONY: packages
packages: release
	[ -x $(NFPM) ] || GOBIN=$(dir $(NFPM)) $(GO) install github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.0
	script/packages "$(VERSION)" $(NFPM)

.PHONY: test-packages
test-packages: packages
	script/deps hosts
	script/image "$(VERSION)"
	test/packages.sh

# What runs in an emulator of user space: no sandbox, no mount, and nothing that
# must be fast.
ARM64 := GOARCH=arm64 $(GO)
ARM64_TESTS := ./internal/agentbin ./internal/cgroup ./internal/edge/h1 ./internal/errdef ./internal/human ./internal/pagemap ./internal/ration
.PHONY: test-arm64
test-arm64: generate-arm64
	git diff --exit-code internal/runtime/gvisor/sentryfilter_arm64.json
	$(ARM64) vet ./internal/... ./cmd/...
	$(ARM64) test -exec qemu-aarch64-static $(ARM64_TESTS)

# The filter of system calls of the other architecture, after gVisor's module or
# the options of its runtime have changed. "go generate" writes this machine's.
.PHONY: generate-arm64
generate-arm64:
	cd internal/runtime/gvisor && $(ARM64) run -exec qemu-aarch64-static ./filtergen sentryfilter_arm64.json

.PHONY: docs
docs:
	test/site/site.sh

.PHONY: demo picture
demo: build
	bin/drowse demo

picture: build
	$(GO) run ./test/picture -o docs/demo.svg -title 'sudo drowse demo' unshare --net -- sh -c 'ip link set lo up; exec bin/drowse demo'

# All packages: those of this module and those of the client's, with the versions of
# their dependencies that this module has.
ALL := ./... github.com/drowse-dev/drowse/client/...

# Those that have tests: "go test" compiles the others too, gVisor among them.
TESTED := $(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' $(ALL)

# What runs tests: "go test", or script/test's runner that counts and times them.
# "make check" vets all: to vet again here, in another way of building for each target,
# would take minutes.
GOTEST ?= $(GO) test
TEST   := $(GOTEST) -vet=off -count=1
CPUS   := $(shell nproc)

# Without the race detector: what links gVisor, which would have to be compiled once
# more; what has virtual time, as many histories need speed; and, but for a release,
# what works on files one after the other, or runs other programs.
MODULE  := github.com/drowse-dev/drowse
UNRACED := internal/runtime/gvisor.*|internal/serve|internal/lifecycle
ifeq ($(DROWSE_TEST_ALL),)
UNRACED := $(UNRACED)|internal/(backup|bundle|cli|errdef|failpoint|image|layer|powercut|store|template|tree|ui|volume)|packaging|test/.*
endif

# The longest first, so that none is left alone at the end. Some wait for much of their
# time: one more than there are CPUs run side by side.
LONGEST := $(addprefix $(MODULE)/internal/,runtime/gvisor supervisor interpreter agent edge layer image cli)

# "make -k test" goes on after a failure.
.PHONY: test test-virtual test-race test-plain test-planted test-short
test: test-race test-plain test-virtual test-planted

# The race detector needs cgo. It waits a second at the end of each program, unless told
# otherwise: for what its other threads have to say.
test-race: $(AGENT)
	GORACE=atexit_sleep_ms=50 CGO_ENABLED=1 $(TEST) -race -p $$(($(CPUS) + 1)) -timeout 20m \
		$$({ printf '%s\n' $(LONGEST); $(TESTED); } | grep -vxE '$(MODULE)/($(UNRACED)|test/e2e)')

# As in what is built, with gVisor edited: static binaries, because they become the
# sandbox's own processes.
test-plain: $(AGENT) overlay
	$(TEST) $(EDITED) -p $$(($(CPUS) + 1)) -timeout 20m $$({ printf '%s\n' $(LONGEST); $(TESTED); } | grep -xE '$(MODULE)/($(UNRACED))' | grep -v '/test/e2e$$')

# Virtual time, virtual disks: nothing here waits or depends on how fast it is. The
# race detector leaves only the short form of these.
test-virtual: $(AGENT) overlay
	$(TEST) $(EDITED) -timeout 30m -run '^Test(Simulation|Histories|HistoriesOfServers|Deadlines.*|OverdueAtStart|Lateness|.*PowerCut)$$' ./internal/supervisor

# The bugs that tests must find need a build of their own.
test-planted: $(AGENT)
	$(TEST) -timeout 30m -tags plant -run TestPlantedBugs ./internal/planted

test-short: $(AGENT) overlay
	$(TEST) $(EDITED) -short -timeout 10m $$({ printf '%s\n' $(LONGEST); $(TESTED); } | grep -v '/test/e2e$$')

# The tests that may run side by side wait about half of their time.
.PHONY: e2e
e2e: build
	DROWSE_BINARY=$(CURDIR)/bin/drowse $(TEST) -v -timeout=60m -parallel $$((2 * $(CPUS))) $(E2E) ./test/e2e

# The same with three servers behind one address, without the tests that look at one server
# (test/alone.txt): for a release those that take no minutes each, else a few that show the most.
BALANCED := $(if $(DROWSE_TEST_ALL),,-run '^Test(AsleepWithoutAutoResume|Fork|SSHConnection|StreamAcrossPause|UploadAddressesEnd)$$')
.PHONY: e2e-servers
e2e-servers: build
	DROWSE_TEST_SERVERS=3 DROWSE_BINARY=$(CURDIR)/bin/drowse $(TEST) -v -timeout=60m -parallel $$((2 * $(CPUS))) $(BALANCED) $(E2E) ./test/e2e

# Thousands of simulated machines and histories; then kills the server some 2,000
# times within 8,000 sleeps of real sandboxes, and creates and kills 5,000; then
# fuzzes the parsers of what guests and clients send for ten minutes.
.PHONY: soak
soak: export DROWSE_TEST_SEED := $(or $(DROWSE_TEST_SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d ' '))
soak: build
	@echo 'random tests begin with DROWSE_TEST_SEED=$(DROWSE_TEST_SEED)'
	$(GO) test -v -count=1 -timeout=6h -run '^Test(Simulation|Histories|HistoriesOfServers)$$' ./internal/supervisor -sim.seeds 20000 -history.count 100000
	DROWSE_BINARY=$(CURDIR)/bin/drowse $(GO) test -v -count=1 -timeout=12h ./test/e2e -run '^(TestSoak|TestManyWakeAtOnce|TestDeltaWalk|TestLeaks|TestRequestsOverPauses|TestSSH|TestServices|TestForkOfHeap|TestHistoriesOfThreeServers)$$' -servers.rounds 200 -fork.children 32 -wakes.sandboxes 100 -ssh.wakes 30 -services.sleeps 30 -drain.pauses 40 -soak.workers 8 -soak.cycles 1000 -deltas.cycles 10000 -leaks.sandboxes 5000 $(SOAK)
	DROWSE_BINARY=$(CURDIR)/bin/drowse $(GO) test -v -count=1 -timeout=3h ./test/e2e -run '^TestBadNeighbours$$' -neighbours.width 1 -neighbours.cycles 20
	test/fuzz.sh 600

.PHONY: neighbours
neighbours: build
	DROWSE_BINARY=$(CURDIR)/bin/drowse $(GO) test -v -count=1 -timeout=3h -run '^TestBadNeighbours$$' ./test/e2e -neighbours.width 1 -neighbours.cycles 20 -neighbours.table $(CURDIR)/docs/results/neighbours.md

.PHONY: faults
faults: build
	DROWSE_BINARY=$(CURDIR)/bin/drowse $(GO) test -v -count=1 -timeout=90m -run '^TestFaults$$' ./test/e2e -faults.table $(CURDIR)/docs/results/faults.md

.PHONY: conformance conformance-url conformance-domain conformance-servers
conformance: conformance-url conformance-domain conformance-servers
conformance-url: build
	test/conformance/conformance.sh
conformance-domain: build
	test/conformance/conformance.sh --domain
conformance-servers: build
	test/conformance/conformance.sh --servers

# The dashboard, in a real Chromium.
.PHONY: test-ui
test-ui: build
	test/slot.sh test/ui/run.sh --no-install

# drowse's own SDKs.
.PHONY: test-sdk
test-sdk: build
	test/slot.sh test/sdk/run.sh --no-install

# Outside of script/test: they install for minutes.
.PHONY: frameworks
frameworks: build
	test/frameworks/frameworks.sh $(FRAMEWORKS)

.PHONY: openapi-clients
openapi-clients:
	test/openapi/clients.sh

# The network is for the packages of the machines; the machines have none.
.PHONY: hosts
hosts: build
	script/deps hosts
	$(GO) run ./test/hosts -table docs/results/hosts.md $(HOSTS)

.PHONY: newcomer
newcomer:
	command -v mmdebstrap >/dev/null || script/deps hosts
	test/newcomer.sh

.PHONY: bench
bench: build
	script/deps bench
	bash test/bench/run.sh $(BENCH)

.PHONY: generate
generate:
	$(GO) generate ./...

.PHONY: check
check: $(AGENT) overlay
	bash test/check.sh
