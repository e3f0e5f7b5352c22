#!/usr/bin/env bash
# Generates clients from docs/api/openapi.json with the generators that people
# use, in Go, Python and TypeScript, and compiles each together with a program
# that uses it.
#
#   clients.sh [--install-only]
#
# Installing needs the network, the rest does not. What is installed is kept in
# DROWSE_TEST_CACHE, by default /var/tmp/drowse-test-cache, and installed again
# when a pin changes.
set -euo pipefail
cd "$(dirname "$0")"

description=$PWD/../../docs/api/openapi.json
cache=${DROWSE_TEST_CACHE:-/var/tmp/drowse-test-cache}
codegen=v2.8.2
key=$({ echo $codegen && python3 --version && cat testdata/go/go.mod testdata/go/go.sum python/requirements.txt ts/package.json ts/package-lock.json; } | sha256sum | cut -c1-12)
tools=$cache/openapi-$key

# The mark is written last, so an interrupted installation is done again.
if [ ! -e "$tools/installed" ]; then
	rm -rf "$tools"
	mkdir -p "$tools/ts"
	GOBIN=$tools go install github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@$codegen
	(cd testdata/go && go mod download)
	python3 -m venv "$tools/python"
	"$tools/python/bin/python" -m pip install --quiet --disable-pip-version-check --requirement python/requirements.txt
	cp ts/package.json ts/package-lock.json ts/.npmrc "$tools/ts"
	(cd "$tools/ts" && npm ci --silent --ignore-scripts --no-audit --no-fund)
	touch "$tools/installed"
fi
[ "${1:-}" != --install-only ] || exit 0

work=$(mktemp -d "$tools/${DROWSE_TEST_RUN:-run}.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
ln -s ../ts/node_modules "$work/node_modules" # Node looks for packages beside the importing file

echo "== Go: oapi-codegen $codegen"
cp -r testdata/go "$work/go"
mkdir -p "$work/go/drowse"
"$tools/oapi-codegen" -generate types,client -package drowse -o "$work/go/drowse/drowse.go" "$description"
(cd "$work/go" && GOWORK=off GOFLAGS=-mod=readonly go vet ./... && GOWORK=off go build -o /dev/null .)

echo "== Python: openapi-python-client"
# It warns, and goes on, where it leaves something out.
"$tools/python/bin/openapi-python-client" generate --path "$description" --config python/config.yaml --meta none \
	--fail-on-warning --output-path "$work/drowse" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cp python/use.py "$work"
(cd "$work" && "$tools/python/bin/python" use.py)

echo "== TypeScript: openapi-typescript"
cp ts/use.ts "$work"
"$tools/ts/node_modules/.bin/openapi-typescript" "$description" -o "$work/generated/drowse.d.ts" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
(cd "$work" && "$tools/ts/node_modules/.bin/tsc" --noEmit --strict --skipLibCheck --target es2022 --module esnext --moduleResolution bundler use.ts)
echo "the clients compile"
