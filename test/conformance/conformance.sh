#!/usr/bin/env bash
# Runs the published E2B SDKs and command line, and the SDKs of other servers,
# unmodified, against a server of this build.
#
#   conformance.sh [--write]   by E2B_SANDBOX_URL, and compares what they could do
#                              with docs/results/conformance.md, or writes that anew
#   conformance.sh --domain    by E2B_DOMAIN: host names below it, TLS by a private
#                              authority, a name server, in namespaces of their own
#   conformance.sh --servers   by E2B_SANDBOX_URL, with three servers that share a
#                              database and object storage: each request to any of them
#
# If E2B_API_KEY and either E2B_DOMAIN, or E2B_API_URL and E2B_SANDBOX_URL, are
# set, the server that they name is tested instead. DROWSE_SDK_SUITES says which
# of js, js-old, python, python-old, cli, relatives-js, relatives-python, sandbox0-js,
# sandbox0-python and sandbox0-python-old to run:
# all, or with --domain the first of each language. The document is for all of them,
# with all of their cases, and left alone with others.
# DROWSE_SDK_RUNNER runs one, if it is not run.sh beside this. FAILURES is a
# directory for the output of suites that fail.
set -uo pipefail
cd "$(dirname "$0")/../.."

all="js js-old python python-old cli relatives-js relatives-python sandbox0-js sandbox0-python sandbox0-python-old"
style=url write=
case "${1:-}" in
--write) write=-write ;;
--domain) exec unshare --net --mount -- "$0" --isolated ;;
--isolated) style=domain ;;
--servers) style=servers ;;
"") ;;
*) echo "usage: conformance.sh [--write | --domain | --servers]" >&2; exit 2 ;;
esac

work=$(mktemp -d "${TMPDIR:-/tmp}/dwsdk.XXXXXX")
log=$work.log
children=()

# serve starts a server of this build and waits until it answers at a URL.
serve() {
	api=$1
	shift
	bin/drowse serve --state-dir "$work/state" --max-timeout 24h "$@" >>"$log" 2>&1 &
	children+=($!)
	await "$api/health"
}

# await waits until the last child answers at a URL.
await() {
	for _ in $(seq 600); do # a cold start makes the template of the host first
		curl -sf "$1" >/dev/null && return
		kill -0 "${children[-1]}" 2>/dev/null || break
		sleep 0.2
	done
	cat "$log"
	exit 1
}

# share starts servers of this build, and what passes requests on to any of them at an
# address.
share() {
	local n servers=()
	for n in 1 2 3; do servers+=("127.0.0.1:$((20000 + 1000 * n + RANDOM % 1000))"); done
	mkdir "$work/blobs"
	go build -o "$work/several" ./test/conformance/several || exit 1
	"$work/several" -dir "$work" -listen "$1" "${servers[@]/#/http://}" >>"$log" 2>&1 &
	children+=($!)
	until [ -s "$work/database" ]; do
		kill -0 $! 2>/dev/null || { cat "$log"; exit 1; }
		sleep 0.1
	done
	DROWSE_STORE=$(cat "$work/database")
	export DROWSE_STORE
	for n in 1 2 3; do
		serve "http://${servers[n - 1]}" --state-dir "$work/state.$n" --listen "${servers[n - 1]}" --peer-listen "127.0.0.1:$((25000 + 1000 * n + RANDOM % 1000))" --blobs "$work/blobs"
	done
	unset DROWSE_STORE
	api=http://$1
}

# join makes the network in which everything below a domain is here.
join() {
	local domain=sbx.test
	ip link set lo up
	echo nameserver 127.0.0.1 >"$work/resolv.conf"
	mount --bind "$work/resolv.conf" /etc/resolv.conf
	go build -o "$work/lan" ./test/conformance/lan || exit 1
	"$work/lan" -domain $domain -dir "$work" &
	children+=($!)
	until [ -s "$work/cert.pem" ]; do
		kill -0 $! 2>/dev/null || exit 1
		sleep 0.1
	done
	unset E2B_API_URL E2B_SANDBOX_URL
	export E2B_DOMAIN=$domain
	export SSL_CERT_FILE=$work/ca.pem NODE_EXTRA_CA_CERTS=$work/ca.pem CURL_CA_BUNDLE=$work/ca.pem
}

clean() {
	if [ -n "${api:-}" ]; then
		ids=$(bin/drowse ls --url "$api" -o json 2>/dev/null | grep -o '"i[0-9a-z]\{20\}"' | tr -d '"')
		[ -z "$ids" ] || bin/drowse kill --url "$api" $ids
	fi
	local i # the last first: it may need the others to end
	for ((i = ${#children[@]} - 1; i >= 0; i--)); do
		kill "${children[i]}" 2>/dev/null
		wait "${children[i]}"
	done
	wait
	rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [ $style != url ] || [ -z "${E2B_SANDBOX_URL:-}${E2B_DOMAIN:-}" ]; then
	DROWSE_API_KEY=e2b_$(od -An -N20 -tx1 /dev/urandom | tr -d ' \n')
	export DROWSE_API_KEY E2B_API_KEY=$DROWSE_API_KEY
fi
if [ $style = domain ]; then
	join
	serve "https://api.$E2B_DOMAIN" --listen 127.0.0.1:443 --domain "$E2B_DOMAIN" --tls-cert "$work/cert.pem" --tls-key "$work/key.pem"
	suites=${DROWSE_SDK_SUITES:-js python relatives-js relatives-python sandbox0-js sandbox0-python}
elif [ $style = servers ]; then
	address=127.0.0.1:$((20000 + RANDOM % 1000))
	export E2B_API_URL=http://$address E2B_SANDBOX_URL=http://$address
	share "$address"
	suites=${DROWSE_SDK_SUITES:-js python cli relatives-js relatives-python sandbox0-js sandbox0-python}
else
	if [ -z "${E2B_SANDBOX_URL:-}${E2B_DOMAIN:-}" ]; then
		address=127.0.0.1:$((20000 + RANDOM % 10000))
		export E2B_API_URL=http://$address E2B_SANDBOX_URL=http://$address
		serve "$E2B_API_URL" --listen "$address"
	fi
	suites=${DROWSE_SDK_SUITES:-$all}
	[ "$suites" != "$all" ] || export DROWSE_TEST_ALL=1
fi

# Side by side: they wait much, and must not disturb each other. The long ones begin
# at once; the others take turns.
declare -A running
for suite in $suites; do
	turn=test/slot.sh
	case $suite in js | js-old | python | python-old) turn= ;; esac
	$turn "${DROWSE_SDK_RUNNER:-test/conformance/run.sh}" --no-install --results "$work/$suite.jsonl" "$suite" >"$work/$suite.out" 2>&1 &
	running[$suite]=$!
done
failed=()
for suite in $suites; do
	if ! wait "${running[$suite]}"; then
		failed+=("$suite")
		[ -z "${FAILURES:-}" ] || cp "$work/$suite.out" "$FAILURES/$suite by $style"
	fi
	printf '\n== SDK: %s, by %s\n' "$suite" $style
	cat "$work/$suite.out"
done
if [ ${#failed[@]} -gt 0 ]; then
	echo "failed: ${failed[*]}"
	if [ -e "$log" ]; then
		echo "last lines of the server's log:"
		tail -40 "$log"
	fi
	exit 1
fi
if [ $style = url ] && [ "$suites" = "$all" ]; then
	results=()
	for suite in $suites; do results+=("$work/$suite.jsonl"); done
	go run ./test/conformance/report $write docs/results/conformance.md "${results[@]}" || exit 1
fi
rm -f "$log"
