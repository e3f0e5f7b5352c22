#!/bin/sh
# Runs the cases of one published E2B SDK, in its newest or in an older version,
# of E2B's command line, or of the SDKs of other servers: of Novita's and
# CubeSandbox's, which speak E2B's API, of mitos', and of sandbox0's, in either
# generation.
#
#   run.sh [--install-only | --no-install] [--results FILE] js|js-old|python|python-old|cli|relatives-js|relatives-python|sandbox0-js|sandbox0-python|sandbox0-python-old [runner arguments]
#
# The cases need a running server of which E2B_API_KEY and either E2B_DOMAIN, or
# E2B_API_URL and E2B_SANDBOX_URL, are told; in the second case E2B_DOMAIN is not
# looked at. Installing needs the network, running does not; what is installed is
# kept in DROWSE_TEST_CACHE, by default /var/tmp/drowse-test-cache, and installed
# again when a pin changes. FILE gets what the cases called, for the report.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${DROWSE_TEST_CACHE:-/var/tmp/drowse-test-cache}
limit=${DROWSE_TEST_LIMIT:-1800} # seconds for one run, against hanging

fail() {
	echo "run.sh: $*" >&2
	exit 2
}

usage="usage: run.sh [--install-only | --no-install] [--results FILE] js|js-old|python|python-old|cli|relatives-js|relatives-python|sandbox0-js|sandbox0-python|sandbox0-python-old [runner arguments]"
install=yes run=yes results= suite=
while [ $# -gt 0 ]; do
	case $1 in
	--install-only) run=no ;;
	--no-install) install=no ;;
	--results)
		[ $# -gt 1 ] || fail "$usage"
		results=$2
		shift
		;;
	js | js-old | python | python-old | cli | relatives-js | relatives-python | sandbox0-js | sandbox0-python | sandbox0-python-old)
		[ -z "$suite" ] || break
		suite=$1
		;;
	--)
		shift
		break
		;;
	*)
		[ -n "$suite" ] || fail "$usage"
		break
		;;
	esac
	shift
done
[ -n "$suite" ] || fail "$usage"
[ $install = yes ] || [ $run = yes ] || fail "--install-only and --no-install exclude each other"

need() {
	command -v "$1" >/dev/null 2>&1 || fail "$1 not found: apt-get install $2"
}

case $suite in
js | js-old | cli | relatives-js | sandbox0-js)
	need node nodejs
	[ $install = no ] || need npm npm
	version=$(node -p 'const [a, b] = process.versions.node.split(".").map(Number); a > 20 || (a === 20 && b >= 18)')
	[ "$version" = true ] || fail "node $(node --version) is too old: 20.18 or newer is needed"
	case $suite in
	js) pins=$here/js cases=$here/js/test ;;
	js-old) pins=$here/js/old cases=$here/js/test ;;
	cli) pins=$here/cli cases=$here/cli ;;
	relatives-js) pins=$here/relatives/js cases=$pins ;;
	sandbox0-js) pins=$here/sandbox0/js cases=$pins ;;
	esac
	key=$(cat "$pins/package.json" "$pins/package-lock.json" | sha256sum | cut -c1-12)
	;;
python | python-old | relatives-python | sandbox0-python | sandbox0-python-old)
	need python3 "python3 python3-venv"
	python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
		fail "$(python3 --version) is too old: 3.11 or newer is needed"
	python3 -c 'import ensurepip, venv' 2>/dev/null || fail "python3 has no venv: apt-get install python3-venv"
	case $suite in
	python) cases=$here/python pins=$cases/requirements.txt ;;
	python-old) cases=$here/python pins=$cases/requirements-2.45.1.txt ;;
	relatives-python) cases=$here/relatives/python pins=$cases/requirements.txt ;;
	sandbox0-python) cases=$here/sandbox0/python pins=$cases/requirements.txt ;;
	sandbox0-python-old) cases=$here/sandbox0/python pins=$cases/requirements-0.9.5.txt ;;
	esac
	key=$({ python3 --version && cat "$pins"; } | sha256sum | cut -c1-12)
	;;
esac
mkdir -p "$cache" && cache=$(cd "$cache" && pwd)
dir=$cache/$suite-$key

# The mark is written last, so an interrupted installation is done again.
if [ $install = yes ] && [ ! -e "$dir/installed" ]; then
	rm -rf "$dir"
	mkdir -p "$dir"
	if [ -e "$pins/package.json" ]; then
		cp "$pins/package.json" "$pins/package-lock.json" "$here/js/.npmrc" "$dir"
		(cd "$dir" && npm ci --ignore-scripts --no-audit --no-fund)
	else
		python3 -m venv "$dir/venv"
		"$dir/venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$pins"
	fi
	touch "$dir/installed"
fi
[ -e "$dir/installed" ] || fail "$suite is not installed in $cache: run.sh --install-only $suite"
[ $run = yes ] || exit 0

[ -n "${E2B_API_KEY:-}" ] || fail "E2B_API_KEY is not set: the cases need a running server"
if [ -n "${E2B_SANDBOX_URL:-}" ]; then
	[ -n "${E2B_API_URL:-}" ] || fail "E2B_API_URL is not set"
	unset E2B_DOMAIN
	export E2B_VOLUME_API_URL="${E2B_VOLUME_API_URL:-$E2B_API_URL}"
else
	[ -n "${E2B_DOMAIN:-}" ] || fail "neither E2B_SANDBOX_URL nor E2B_DOMAIN is set"
	unset E2B_VOLUME_API_URL
fi
# The same for those that are no E2B clients. CubeSandbox's knows plain HTTP only:
# without a URL there are no cases of it.
export NOVITA_API_KEY="$E2B_API_KEY" CUBE_API_KEY="$E2B_API_KEY" MITOS_API_KEY="$E2B_API_KEY" CUBE_TEMPLATE_ID=base
unset NOVITA_DOMAIN NOVITA_API_URL NOVITA_SANDBOX_URL NOVITA_DEBUG NOVITA_ACCESS_TOKEN
unset CUBE_API_URL CUBE_SANDBOX_DOMAIN CUBE_PROXY_NODE_IP CUBE_PROXY_PORT_HTTP
if [ -n "${E2B_SANDBOX_URL:-}" ]; then
	export NOVITA_API_URL="$E2B_API_URL" NOVITA_SANDBOX_URL="$E2B_SANDBOX_URL" CUBE_API_URL="$E2B_API_URL"
	address=${E2B_SANDBOX_URL#http://} && address=${address%%/*}
	export CUBE_PROXY_NODE_IP="${address%:*}" CUBE_PROXY_PORT_HTTP="${address##*:}"
	export MITOS_BASE_URL="$E2B_API_URL/mitos"
else
	export NOVITA_DOMAIN="$E2B_DOMAIN" MITOS_BASE_URL="https://api.$E2B_DOMAIN/mitos"
fi
export SANDBOX0_TOKEN="$E2B_API_KEY"
if [ -n "${E2B_SANDBOX_URL:-}" ]; then
	export SANDBOX0_BASE_URL="$E2B_API_URL"
else
	export SANDBOX0_BASE_URL="https://api.$E2B_DOMAIN"
fi
[ -z "$results" ] || export DROWSE_CONFORMANCE_RESULTS="$(realpath "$results")"

# The pages whose examples are run.
DROWSE_PAGES=$(cd "$here/../.." && pwd)
export DROWSE_PAGES

# What would send the SDKs elsewhere than to the server.
unset E2B_DEBUG E2B_VALIDATE_API_KEY E2B_HTTP_VERSION
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY

# Node looks for packages beside and above the importing file, so the tests are
# copied to where the packages are; Python would leave its caches in the tree.
work=$(mktemp -d "$dir/${DROWSE_TEST_RUN:-run}.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

status=0
if [ -e "$pins/package.json" ]; then
	cp "$cases"/*.js "$pins/package.json" "$work"
	cd "$work"
	[ ! -e surface.js ] || node --input-type=module -e 'import { offer } from "./surface.js"; offer()'
	timeout --foreground -k 10 "$limit" \
		node --test --test-reporter=spec --test-concurrency=1 --test-force-exit "$@" ./*.test.js || status=$?
else
	cp "$cases"/*.py "$cases/pytest.ini" "$work"
	cd "$work"
	timeout --foreground -k 10 "$limit" "$dir/venv/bin/python" -m pytest "$@" || status=$?
fi
[ $status -ne 124 ] || echo "run.sh: stopped after $limit s" >&2
exit $status
