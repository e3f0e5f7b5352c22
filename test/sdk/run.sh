#!/usr/bin/env bash
# Builds the SDKs, installs them from file into a clean environment and a clean
# project, checks their types, and runs them against a server of this build.
#
#   run.sh [--install-only | --no-install] [python | typescript]
#
# Installing needs the network, running does not: it starts a server of its own on
# the loopback address. What is installed is kept in DROWSE_TEST_CACHE, by default
# /var/tmp/drowse-test-cache, and installed again when a pin changes.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=$PWD/test/sdk
cache=${DROWSE_TEST_CACHE:-/var/tmp/drowse-test-cache}
limit=${DROWSE_TEST_LIMIT:-900} # seconds, against hanging

install=yes run=yes suites="python typescript"
while [ $# -gt 0 ]; do
	case $1 in
	--install-only) run=no ;;
	--no-install) install=no ;;
	python | typescript) suites=$1 ;;
	*) echo "usage: run.sh [--install-only | --no-install] [python | typescript]" >&2; exit 2 ;;
	esac
	shift
done

pins="$here/python/requirements.txt sdk/typescript/package.json sdk/typescript/package-lock.json"
key=$({ python3 --version && cat $pins; } | sha256sum | cut -c1-12)
dir=$cache/sdk-$key

# The mark is written last, so an interrupted installation is done again. The
# wheels stay: a clean environment is made of them in each run.
if [ $install = yes ] && [ ! -e "$dir/installed" ]; then
	rm -rf "$dir"
	mkdir -p "$dir"
	python3 -m venv "$dir/tools"
	"$dir/tools/bin/python" -m pip download --quiet --disable-pip-version-check --only-binary :all: --dest "$dir/wheels" --requirement "$here/python/requirements.txt"
	"$dir/tools/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --find-links "$dir/wheels" --requirement "$here/python/requirements.txt"
	cp sdk/typescript/package.json sdk/typescript/package-lock.json sdk/typescript/.npmrc "$dir"
	(cd "$dir" && npm ci --silent --ignore-scripts --no-audit --no-fund)
	touch "$dir/installed"
fi
[ -e "$dir/installed" ] || { echo "run.sh: the suite is not installed in $cache: run.sh --install-only" >&2; exit 2; }
[ $run = yes ] || exit 0

work=$(mktemp -d "$dir/${DROWSE_TEST_RUN:-run}.XXXXXX")
server=
clean() {
	if [ -n "$server" ]; then
		ids=$(bin/drowse ls -o json 2>/dev/null | grep -o '"i[0-9a-z]\{20\}"' | tr -d '"' | sort -u) || true # grep finds none
		[ -z "$ids" ] || bin/drowse kill $ids >/dev/null || true
		kill "$server" 2>/dev/null || true
		wait "$server" || true
	fi
	rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

unset http_proxy https_proxy all_proxy no_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY
unset E2B_API_URL E2B_SANDBOX_URL E2B_API_KEY DROWSE_SANDBOX_URL
DROWSE_API_KEY=e2b_$(od -An -N20 -tx1 /dev/urandom | tr -d ' \n')
address=127.0.0.1:$((20000 + RANDOM % 10000))
export DROWSE_API_KEY DROWSE_URL=http://$address DROWSE_BINARY=$PWD/bin/drowse
bin/drowse serve --state-dir "$work/state" --listen "$address" >"$work/log" 2>&1 &
server=$!

# python builds the wheel, installs it with what it depends on and nothing else
# but the runner of the tests, and checks it with mypy from outside.
python() {
	local venv=$work/venv mypy
	(cd sdk/python && "$dir/tools/bin/hatchling" build -t wheel -d "$work/dist" >/dev/null)
	"$dir/tools/bin/python" -m venv --without-pip "$venv"
	"$dir/tools/bin/python" -m pip --python "$venv/bin/python" install --quiet --disable-pip-version-check --no-index --find-links "$dir/wheels" \
		"$work"/dist/drowse-*.whl pytest pytest-asyncio
	cp -r "$here/python" "$work/python"
	cp sdk/python/README.md docs/sdk.md "$work/python"
	cd "$work/python"
	"$dir/tools/bin/mypy" --strict --no-error-summary --cache-dir "$dir/mypy" --python-executable "$venv/bin/python" -p drowse
	"$dir/tools/bin/mypy" --strict --no-error-summary --cache-dir "$dir/mypy" --python-executable "$venv/bin/python" ./*.py
	ready
	timeout --foreground -k 10 "$limit" "$venv/bin/python" -m pytest -p no:cacheprovider
}

# typescript packs the package and installs the archive into a project that has
# nothing else; the compiler and the types of Node are above it.
typescript() {
	local build=$work/build project=$work/project
	mkdir "$build" "$project"
	cp -r sdk/typescript/src sdk/typescript/*.json sdk/typescript/README.md "$build"
	(cd "$build" && "$dir/node_modules/.bin/tsc" && npm pack --silent --offline --ignore-scripts --pack-destination "$work" >/dev/null)
	cp "$here"/typescript/* "$project"
	cp sdk/typescript/README.md docs/sdk.md "$project"
	cd "$project"
	npm install --silent --offline --ignore-scripts --no-audit --no-fund --no-package-lock "$work"/drowse-*.tgz
	node examples.mjs README.md sdk.md
	"$dir/node_modules/.bin/tsc"
	ready
	timeout --foreground -k 10 "$limit" node --enable-source-maps --test --test-reporter=spec --test-concurrency=2 built/*.test.js
}

ready() {
	for _ in $(seq 300); do
		curl -sf "$DROWSE_URL/readyz" >/dev/null && return
		kill -0 "$server" 2>/dev/null || break
		sleep 0.1
	done
	cat "$work/log"
	return 1
}

declare -A running
for suite in $suites; do
	(set -e; $suite) >"$work/$suite.out" 2>&1 &
	running[$suite]=$!
done
failed=()
for suite in $suites; do
	wait "${running[$suite]}" || failed+=("$suite")
	printf '\n== SDK: drowse, %s\n' "$suite"
	cat "$work/$suite.out"
done
if [ ${#failed[@]} -gt 0 ]; then
	echo "failed: ${failed[*]}"
	echo "last lines of the server's log:"
	tail -30 "$work/log"
	exit 1
fi
