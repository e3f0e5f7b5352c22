#!/usr/bin/env bash
# Looks at the dashboard of this build in a real Chromium.
#
#   run.sh [--install-only | --no-install] [--screenshots] [runner arguments]
#
# Installing needs the network, running does not: it starts a server of its own on
# the loopback address. --screenshots writes docs/ui/*.png anew. What is installed
# is kept in DROWSE_TEST_CACHE, by default /var/tmp/drowse-test-cache.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=$PWD/test/ui
cache=${DROWSE_TEST_CACHE:-/var/tmp/drowse-test-cache}
limit=${DROWSE_TEST_LIMIT:-900} # seconds, against hanging

install=yes run=yes
while [ $# -gt 0 ]; do
	case $1 in
	--install-only) run=no ;;
	--no-install) install=no ;;
	--screenshots) export DROWSE_SCREENSHOTS=$PWD/docs/ui ;;
	*) break ;;
	esac
	shift
done
key=$(cat "$here/package.json" "$here/package-lock.json" | sha256sum | cut -c1-12)
dir=$cache/ui-$key
if [ $install = yes ] && [ ! -e "$dir/installed" ]; then
	rm -rf "$dir"
	mkdir -p "$dir"
	cp "$here/package.json" "$here/package-lock.json" "$here/.npmrc" "$dir"
	(cd "$dir" && npm ci --ignore-scripts --no-audit --no-fund)
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

CGO_ENABLED=0 go build -o "$work/many" ./test/ui/many
DROWSE_API_KEY=e2b_$(od -An -N20 -tx1 /dev/urandom | tr -d ' \n')
address=127.0.0.1:$((20000 + RANDOM % 10000))
export DROWSE_API_KEY DROWSE_URL=http://$address DROWSE_BINARY=$PWD/bin/drowse DROWSE_MANY=$work/many DROWSE_STATE=$work/state
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY E2B_API_URL E2B_SANDBOX_URL DROWSE_SANDBOX_URL
bin/drowse serve --state-dir "$work/state" --listen "$address" >"$work/log" 2>&1 &
server=$!
for _ in $(seq 300); do
	curl -sf "$DROWSE_URL/readyz" >/dev/null && break
	kill -0 "$server" 2>/dev/null || { cat "$work/log"; exit 1; }
	sleep 0.1
done
cp "$here"/*.js "$here/package.json" "$work"
status=0
(cd "$work" && timeout --foreground -k 10 "$limit" node --test --test-reporter=spec --test-concurrency=2 --test-force-exit "$@" ./*.test.js) || status=$?
if [ $status -ne 0 ]; then
	echo "last lines of the server's log:"
	tail -30 "$work/log"
fi
exit $status
