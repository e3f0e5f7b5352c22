#!/bin/sh
# Runs one agents' framework against a server of which E2B_API_KEY and E2B_DOMAIN
# are told, as test/conformance/conformance.sh --domain does it:
#
#   run.sh --install-only FRAMEWORK
#   run.sh --no-install --results FILE FRAMEWORK
#
# FRAMEWORK is agents, harbor, langchain, mastra, mcp or smolagents. Installing needs
# the network, and is kept as test/conformance/run.sh keeps its packages. Harbor
# wants Python 3.12, from PYTHON312 or the path.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${DROWSE_TEST_CACHE:-/var/tmp/drowse-test-cache}
install=no
[ "$1" != --install-only ] || { install=yes; shift; }
[ "$1" != --no-install ] || shift
[ "$1" != --results ] || shift 2 # each step writes down that it is done
name=$1

if [ "$name" = mastra ]; then
	key=$(sha256sum "$here/mastra/package-lock.json" | cut -c1-12)
else
	key=$(sha256sum "$here/$name.txt" | cut -c1-12)
fi
dir=$cache/framework-$name-$key
if [ $install = yes ]; then
	[ ! -e "$dir/installed" ] || exit 0
	rm -rf "$dir"
	mkdir -p "$dir"
	if [ "$name" = mastra ]; then
		cp "$here/mastra/package.json" "$here/mastra/package-lock.json" "$here/../conformance/js/.npmrc" "$dir"
		(cd "$dir" && npm ci --ignore-scripts --no-audit --no-fund)
	else
		python=python3
		[ "$name" != harbor ] || python=${PYTHON312:-python3.12}
		"$python" -m venv "$dir/venv"
		"$dir/venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$here/$name.txt"
		# For the sandbox, where Python is the machine's own.
		[ "$name" != smolagents ] || /usr/bin/python3 -m pip download --quiet --disable-pip-version-check --only-binary :all: --dest "$dir/wheels" numpy==2.4.6 pillow==12.0.0
	fi
	touch "$dir/installed"
	exit 0
fi
[ -e "$dir/installed" ] || { echo "$name is not installed: run.sh --install-only $name" >&2; exit 2; }

unset E2B_DEBUG E2B_VALIDATE_API_KEY E2B_HTTP_VERSION
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
export DO_NOT_TRACK=1 MASTRA_TELEMETRY_DISABLED=1 OPENAI_AGENTS_DISABLE_TRACING=1 PYTHONDONTWRITEBYTECODE=1
export DROWSE_WHEELS="$dir/wheels"
work=$(mktemp -d "$dir/run.XXXXXX")
trap 'rm -rf "$work"' EXIT
if [ "$name" = mastra ]; then
	cp "$here/mastra/main.mjs" "$work"
	ln -s "$dir/node_modules" "$work/node_modules"
	cd "$work"
	timeout -k 10 900 node main.mjs
else
	timeout -k 10 900 "$dir/venv/bin/python" "$here/${name}_case.py"
fi
