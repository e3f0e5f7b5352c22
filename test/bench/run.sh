#!/bin/bash
# Measures drowse beside the raw tool and writes the tables of
# docs/results/benchmarks.md.
#
#   run.sh [--quick | --short] [--only create,exec,inside,idle,sleep,written,early,light,atonce,pressure,deltas,forks,snapshots,started,edge,postgres,lists,deadlines,start] [--docs FILE]
#
# --short makes a tenth of the runs, some 40 minutes, and --quick these with small guests, to see
# that everything works. --quick and --only leave the documentation alone unless --docs names a
# file. DROWSE is the binary to measure (bin/drowse),
# DROWSE_BENCH_DIR the directory to work in, which must be on a disk (/var/tmp).
# Needs root, Go, node and, for the first installation of the SDK, the network.
#
# Everything is measured in network, mount and PID namespaces of its own, with
# no route to anywhere. When the first process of the PID namespace ends, the
# kernel ends all others, and mounts and interfaces go with them.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)

fail() {
	echo "run.sh: $*" >&2
	exit 2
}

args=() docs=$repo/docs/results/benchmarks.md
while [ $# -gt 0 ]; do
	case $1 in
	--short) args+=(-few) ;;
	--quick) args+=(-few -small) docs= ;;
	--only) args+=(-only "${2:?}") docs= && shift ;;
	--docs) args+=(-docs "$(realpath "${2:?}")") docs= && shift ;;
	*) fail "unknown argument $1" ;;
	esac
	shift
done
[ -z "$docs" ] || args+=(-docs "$docs")

[ "$(id -u)" = 0 ] || fail "must run as root, as drowse itself"
drowse=$(realpath "${DROWSE:-$repo/bin/drowse}")
[ -x "$drowse" ] || fail "$drowse is not there: make build"
for tool in go node unshare; do
	command -v $tool >/dev/null || fail "$tool not found"
done

# Short, because the paths of sockets below it may not be long.
work=$(mktemp -d "${DROWSE_BENCH_DIR:-/var/tmp}/db.XXXXXX")
sdk= child=

# remove tries again for as long as the kernel may need to end what still ran.
remove() {
	for _ in $(seq 50); do
		rm -rf "$work" 2>/dev/null && break
		sleep 0.1
	done
	[ ! -e "$work" ] || echo "run.sh: $work could not be removed" >&2
}

clean() {
	status=$?
	trap - EXIT INT TERM
	if [ -n "$child" ]; then
		kill -KILL "$child" 2>/dev/null || true # unshare takes all others with it
		wait "$child" 2>/dev/null || true
	fi
	# Cgroups are all that namespaces do not take with them. A run that was
	# not interrupted has left none.
	gv=$work/s/run/gv
	for id in $(ls "$gv/bundles" 2>/dev/null; ls "$gv/waiting" 2>/dev/null; grep -hs . "$gv"/bundles/*/container-id); do
		left+=(/sys/fs/cgroup/drowse/"$id" /sys/fs/cgroup/*/drowse/"$id")
	done
	left+=(/sys/fs/cgroup/drowse-bench/* /sys/fs/cgroup/*/drowse-bench/* /sys/fs/cgroup/drowse-bench /sys/fs/cgroup/*/drowse-bench)
	for group in "${left[@]}"; do
		for _ in $(seq 20); do
			[ -d "$group" ] && ! rmdir "$group" 2>/dev/null || break
			sleep 0.1
		done
	done
	[ -z "$sdk" ] || rm -rf "$sdk"
	remove
	exit $status
}
left=()
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# What needs the network comes first.
"$repo/test/conformance/run.sh" --install-only js
cache=${DROWSE_TEST_CACHE:-/var/tmp/drowse-test-cache}
for dir in "$cache"/js-*; do
	if [ -e "$dir/installed" ] && cmp -s "$dir/package-lock.json" "$repo/test/conformance/js/package-lock.json"; then
		# Node looks for packages above the importing file.
		sdk=$(mktemp -d "$dir/bench.XXXXXX")
		cp "$here/sdk.mjs" "$sdk"
		break
	fi
done
[ -n "$sdk" ] || fail "the SDK's installation in $cache was not found"
(cd "$repo" && CGO_ENABLED=0 go build -o "$work/" ./test/bench ./test/bench/guest ./test/bench/edgeserver)

# What would change what is measured.
unset "${!E2B_@}" "${!DROWSE_@}" http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY

# The shell in between is the first process, which must wait for orphans. It
# does not become the program, because something follows.
unshare --net --mount --pid --fork --kill-child --mount-proc -- \
	sh -c '"$@"; exit $?' sh \
	"$work/bench" -drowse "$drowse" -guest "$work/guest" -sdk "$sdk" -work "$work" "${args[@]}" &
child=$!
status=0
wait "$child" || status=$?
child=
exit $status
