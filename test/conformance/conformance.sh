#!/usr/bin/env bash
# Runs the published E2B SDKs, unmodified, against a server of this build.
set -uo pipefail
cd "$(dirname "$0")/../.."

state=$(mktemp -d /tmp/dwsdk.XXXXXX)
DROWSE_API_KEY=e2b_$(od -An -N20 -tx1 /dev/urandom | tr -d ' \n')
port=$((20000 + RANDOM % 20000))
export DROWSE_API_KEY E2B_API_KEY=$DROWSE_API_KEY
export E2B_API_URL=http://127.0.0.1:$port E2B_SANDBOX_URL=http://127.0.0.1:$port

bin/drowse serve --listen "127.0.0.1:$port" --state-dir "$state" >"$state.log" 2>&1 &
server=$!

cleanup() {
	ids=$(bin/drowse ls --url "$E2B_API_URL" -o json 2>/dev/null | grep -o '"i[0-9a-z]\{20\}"' | tr -d '"')
	[ -z "$ids" ] || bin/drowse kill --url "$E2B_API_URL" $ids
	kill "$server" 2>/dev/null
	wait "$server" 2>/dev/null
	rm -rf "$state"
}
trap cleanup EXIT

for _ in $(seq 100); do
	curl -sf "$E2B_API_URL/health" >/dev/null && break
	kill -0 "$server" 2>/dev/null || { cat "$state.log"; exit 1; }
	sleep 0.1
done

failed=()
for suite in ${DROWSE_SDK_SUITES:-js python python-old}; do
	printf '\n== E2B SDK suite: %s\n' "$suite"
	test/conformance/run.sh --no-install "$suite" || failed+=("$suite")
done
if [ ${#failed[@]} -gt 0 ]; then
	echo "failed: ${failed[*]}; last lines of the server's log:"
	tail -40 "$state.log"
	exit 1
fi
rm -f "$state.log"
