#!/usr/bin/env bash
# "go test" for script/test: prints one line for each package and the output of
# tests that fail, and keeps the results.
#
#   gotest.sh DIR ARGS...      go test ARGS, with its results in DIR
#   gotest.sh --summary DIR    how many tests there were, those that were skipped,
#                              and the ten slowest
#
# RUNNER is gotestsum's binary.
set -euo pipefail

if [ "$1" != --summary ]; then
	results=$1
	shift
	exec "$RUNNER" --format pkgname-and-test-fails --format-hide-empty-pkg --hide-summary=output,skipped \
		--jsonfile "$(mktemp "$results/XXXXXX.json")" -- "$@"
fi

cd "$2"
count() { cat ./*.json | grep -F '"Test":' | grep -cF "\"Action\":\"$1\"" || true; }
printf '\n== %s tests passed, %s failed, %s were skipped\n' "$(count pass)" "$(count fail)" "$(count skip)"
cat ./*.json | jq -r 'select(.Test and .Action == "skip") | "\(.Package) \(.Test | split("/")[0])"' |
	sort | uniq -c | awk '{ print "skipped: " $2 " " $3 ", " $1 " of its cases" }'
echo "the ten slowest, in seconds:"
cat ./*.json | jq -r 'select(.Test and .Action != "run" and .Elapsed and (.Test | contains("/") | not)) | "\(.Elapsed) \(.Package | split("/") | last).\(.Test)"' |
	sort -rn | awk 'NR <= 10' # not head: sort would end with an error
