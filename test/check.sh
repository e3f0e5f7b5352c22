#!/usr/bin/env bash
# Checks that need no sandbox: format, vet, staticcheck, known vulnerabilities,
# generated files, tidy modules, leftovers.
set -euo pipefail
cd "$(dirname "$0")/.."
tools="$PWD/bin/tools"

say() { printf '== %s\n' "$*"; }

# tool MODULE VERSION: install a pinned checker and print its path.
tool() {
	local bin="$tools/$2/$(basename "$1")"
	[ -x "$bin" ] || GOBIN="$tools/$2" go install "$1@$2" >&2
	echo "$bin"
}

say gofmt
unformatted=$(gofmt -l client cmd internal packaging sdk test)
[ -z "$unformatted" ] || { echo "not formatted: $unformatted"; exit 1; }

# The client is a module of its own, and is looked at as its users get it: with the
# versions in its own go.mod.
say go vet
go vet ./...
go -C client vet ./...

say client and command line on other systems
for system in darwin windows; do
	CGO_ENABLED=0 GOOS=$system go -C client build ./...
	CGO_ENABLED=0 GOOS=$system go build -o /dev/null ./cmd/drowse
done

say staticcheck
staticcheck=$(tool honnef.co/go/tools/cmd/staticcheck v0.8.2)
"$staticcheck" ./...
(cd client && "$staticcheck" ./...)

say tidy modules
go mod tidy -diff
go -C client mod tidy -diff
go -C client list -m all >/dev/null # test/client looks at them where there is no network

say govulncheck
vuln=$(tool golang.org/x/vuln/cmd/govulncheck v1.1.4)
if out=$("$vuln" ./... 2>&1); then
	echo "$out" | tail -3
elif grep -qE 'vuln\.go\.dev|fetching vulnerabilities' <<<"$out"; then
	echo "its database cannot be reached from here: not checked"
else
	echo "$out"
	exit 1
fi

say generated files
command -v protoc >/dev/null || { echo "protoc is missing: apt-get install protobuf-compiler"; exit 1; }
before=$(git status --porcelain)
go generate ./...
after=$(git status --porcelain)
[ "$before" = "$after" ] || { echo "generated files are out of date; run make generate:"; git diff --stat; exit 1; }

say bounds of types and packages
go test ./test/house

say what is linked in
# A program of 47 MB for amd64, embedded by gVisor's package of commands.
if go list -deps ./cmd/drowse | grep -x 'gvisor.dev/gvisor/runsc/checkpointgofer'; then
	echo "cmd/drowse imports this: register gVisor's commands without runsc/cli/maincli"
	exit 1
fi

say host names of registries
if git grep -nE 'registry\.npmjs\.org|pypi\.org|proxy\.golang\.org|deb\.debian\.org' -- . ':!test/check.sh'; then
	echo "no registry host names in the tree"
	exit 1
fi
say ok
