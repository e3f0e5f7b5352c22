#!/usr/bin/env bash
# "go test" for script/test: prints one line for each package and the output of
# tests that fail, and keeps the results.
#
#   gotest.sh DIR ARGS...      go test ARGS, with its results in DIR
#   gotest.sh --summary DIR    how many tests there were, those that were skipped,
#                              and the ten slowest, and what those said that
#                              failed; fails if a test was skipped that
#                              test/skips.txt does not list
#
# RUNNER is gotestsum's binary.
set -euo pipefail

if [ "$1" != --summary ]; then
	results=$1
	shift
	exec "$RUNNER" --format pkgname-and-test-fails --format-hide-empty-pkg --hide-summary=output,skipped \
		--jsonfile "$(mktemp "$results/XXXXXX.json")" -- "$@"
fi

skips=$(cd "$(dirname "$0")" && pwd)/skips.txt

# may says whether a test may be skipped: "internal/layer TestX/case".
may() {
	local pattern
	while IFS= read -r pattern; do
		# shellcheck disable=SC2053 # it is a pattern
		[[ $1 != $pattern ]] || return 0
	done < <(sed -n '/^#/d; s/: .*//p' "$skips")
	return 1
}

cd "$2"
count() { cat ./*.json | grep -F '"Test":' | grep -cF "\"Action\":\"$1\"" || true; }
printf '\n== %s tests passed, %s failed, %s were skipped\n' "$(count pass)" "$(count fail)" "$(count skip)"
cat ./*.json | jq -r 'select(.Test and .Action == "skip") | "\(.Package) \(.Test | split("/")[0])"' |
	sort | uniq -c | awk '{ print "skipped: " $2 " " $3 ", " $1 " of its cases" }'
echo "the ten slowest, in seconds:"
cat ./*.json | jq -r 'select(.Test and .Action != "run" and .Elapsed and (.Test | contains("/") | not)) | "\(.Elapsed) \(.Package | split("/") | last).\(.Test)"' |
	sort -rn | awk 'NR <= 10' # not head: sort would end with an error

# Again, where a long log does not hide it: what a test says itself, without the
# logs of its servers.
cat ./*.json | jq -rs '(map(select(.Test and .Action == "fail") | "\(.Package) \(.Test)") | unique) as $failed
	| .[] | select(.Action == "output" and .Test) | select("\(.Package) \(.Test)" | IN($failed[])) | "\(.Test): \(.Output)"' |
	grep -E '_test\.go:[0-9]+: |: panic: ' | grep -v 'server answers .* after its start' | cut -c1-2000 | awk '++lines[$1] <= 10' || true # grep finds none

unlisted=0
while IFS= read -r skipped; do
	may "$skipped" || { echo "was skipped, and test/skips.txt does not list it: $skipped"; unlisted=1; }
done < <(cat ./*.json | jq -r 'select(.Test and .Action == "skip") | "\(.Package | ltrimstr("github.com/drowse-dev/drowse/")) \(.Test)"' | sort -u)
exit $unlisted
