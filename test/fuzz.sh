#!/usr/bin/env bash
# Runs every fuzz test of the tree for a part of the time that is given, such as
# 600 (seconds). The first input that fails ends it and is left in testdata.
#
#   fuzz.sh SECONDS            fuzz
#   fuzz.sh --keep MOST        copy the inputs that reached new code, up to MOST for
#                              each test, from Go's cache into testdata/fuzz
set -euo pipefail
cd "$(dirname "$0")/.."

# tests prints each fuzz test and the directory of its package.
tests() {
	grep -rn --include=*_test.go -o '^func Fuzz[A-Za-z0-9]*' . | sed -E 's|^(.*)/[^/]*:[0-9]+:func (.*)$|\2 \1|' | sort
}

if [ "$1" = --keep ]; then
	module=$(go list -m) cache=$(go env GOCACHE)/fuzz
	tests | while read -r name dir; do
		from=$cache/$module/${dir#./}/$name to=$dir/testdata/fuzz/$name
		[ -d "$from" ] || continue
		mkdir -p "$to"
		# The shortest say the same as the longest, and are read faster.
		find "$from" -type f -size -2k -printf '%s %p\n' | sort -n | sed -n "1,$2p" | while read -r _ file; do cp "$file" "$to/"; done
	done
	exit
fi

# An input that reaches new code is made shorter first, for a minute each, in which
# nothing else is tried: archives then took all of the time. 20 tries are enough.
each=$(($1 / $(tests | wc -l)))
built=$(mktemp -d)
trap 'rm -r "$built"' EXIT
module=$(go list -m) cache=$(go env GOCACHE)/fuzz
tests | while read -r name dir; do
	# Building with counters is not part of the time: all that a package imports is
	# built anew, the database as well, which takes minutes the first time.
	echo "fuzz $name in $dir for ${each}s"
	go test -c -fuzz "^$name\$" -o "$built/test" "$dir"
	(cd "$dir" && timeout $((each + 300)) "$built/test" -test.run '^$' -test.fuzz "^$name\$" \
		-test.fuzztime "${each}s" -test.fuzzminimizetime 20x -test.fuzzcachedir "$cache/$module/${dir#./}" </dev/null)
done
