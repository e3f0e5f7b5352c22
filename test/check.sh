#!/usr/bin/env bash
# Checks that need no sandbox: format, vet, staticcheck, known vulnerabilities,
# generated files, tidy modules, leftovers.
set -euo pipefail
cd "$(dirname "$0")/.."
tools="$PWD/bin/tools"
export CGO_ENABLED=0 # as "make build" has it, so that what it compiled is not compiled again

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

# A copy of the tree as "make build" has it, with gVisor edited, so that gVisor is
# compiled once for both. Others may be compiling the tree itself meanwhile. It is
# always in the same place, because vet and staticcheck look again at what is elsewhere.
cache=${DROWSE_TEST_CACHE:-/var/tmp/drowse-test-cache}
mkdir -p "$cache"
exec 9>"$cache/check.lock"
flock 9 # one at a time
copy=$cache/check
trap 'rm -rf "$copy"' EXIT
rm -rf "$copy"
mkdir "$copy"
{ git ls-files -z --cached --others --exclude-standard; printf '%s\0' internal/agentbin/bin/* internal/ui/dist/*; } |
	rsync -a --from0 --files-from=- --ignore-missing-args . "$copy"
edited() { (cd "$copy" && GOFLAGS=-trimpath "$@"); }
(
	cd "$copy"
	go run ./internal/runtime/gvisor/overlay bin/overlay
	# Staticcheck knows no overlay: the files are put in their places.
	cp -rL --no-preserve=mode bin/overlay/gvisor bin/edited
	rm bin/overlay/gvisor
	mv bin/edited bin/overlay/gvisor
	jq -r '.Replace | to_entries[] | .value, .key' bin/overlay/overlay.json | xargs -n 2 cp
	cp bin/overlay/go.mod bin/overlay/go.sum .
)

say go vet
edited go vet ./...
# The client is a module of its own, and is looked at as its users get it: with the
# versions in its own go.mod.
go -C client vet ./...

say client and command line on other systems
for system in darwin windows; do
	CGO_ENABLED=0 GOOS=$system go -C client build ./...
	CGO_ENABLED=0 GOOS=$system go build -o /dev/null ./cmd/drowse
done

say staticcheck
staticcheck=$(tool honnef.co/go/tools/cmd/staticcheck v0.8.2)
edited "$staticcheck" ./...
(cd client && "$staticcheck" ./...)

say tidy modules
go mod tidy -diff
go -C client mod tidy -diff

say govulncheck
# Its database is asked for first: it would look through all packages before.
db=${GOVULNDB:-https://vuln.go.dev}
if ! curl -sfL -m 30 -o /dev/null "$db/index/db.json"; then
	echo "its database cannot be reached from here: not checked"
else
	vuln=$(tool golang.org/x/vuln/cmd/govulncheck v1.1.4)
	"$vuln" -db "$db" ./...
fi

say generated files
command -v protoc >/dev/null || { echo "protoc is missing: apt-get install protobuf-compiler"; exit 1; }
edited go generate ./...
rm -r "$copy/bin"
cp --parents go.mod go.sum internal/runtime/gvisor/edited.go "$copy" # which were edited
changed=$(diff -rq "$copy" . | grep -v '^Only in \.') || true # grep finds none
[ -z "$changed" ] || { echo "generated files are out of date; run make generate: $changed"; exit 1; }

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
