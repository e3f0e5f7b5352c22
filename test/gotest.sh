#!/usr/bin/env bash
# "go test" for script/test: prints one line for each package and the output of
# tests that fail, and keeps the results.
#
#   gotest.sh DIR ARGS...      go test ARGS, with its results in DIR, and without the
#                              tests that test/long.txt lists, unless DROWSE_TEST_ALL
#                              is set; with DROWSE_TEST_SERVERS without those in any
#                              case, and without those of test/alone.txt. Tests that
#                              fail do not make it fail: their results are there for
#                              --again. Anything else does
#   gotest.sh --again DIR      runs each test that failed once more, alone, and writes
#                              what passed then to DIR/again/unsteady, with what it had
#                              said to bin/unsteady, and what did not to DIR/again/failed
#   gotest.sh --summary DIR    how many tests there were, those that were skipped,
#                              and the ten slowest, and what those said that
#                              failed; fails if a test was skipped that
#                              test/skips.txt does not list
#
# RUNNER is gotestsum's binary.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
module=github.com/drowse-dev/drowse/
most=5 # failures that are tried again

# skipping ARGS...: the tests of the packages in ARGS that are left out, as a pattern for
# -skip.
skipping() {
	local lists=(/dev/null)
	[ -n "${DROWSE_TEST_ALL:-}" ] && [ -z "${DROWSE_TEST_SERVERS:-}" ] || lists+=("$here/long.txt")
	[ -z "${DROWSE_TEST_SERVERS:-}" ] || lists+=("$here/alone.txt")
	local package test names=()
	while read -r package test; do
		for arg in "$@"; do
			[ "${arg#"$module"}" != "$package" ] && [ "${arg#./}" != "$package" ] || names+=("$test")
		done
	done < <(sed -n '/^#/d; s/: .*//p' "${lists[@]}")
	[ ${#names[@]} -eq 0 ] || { local IFS='|'; echo "^(${names[*]})\$"; }
}

# run JSON ARGS...: go test ARGS, with its results in the file JSON.
run() {
	"$RUNNER" --format pkgname-and-test-fails --format-hide-empty-pkg --hide-summary=output,skipped --jsonfile "$@"
}

# finished JSON PACKAGE: whether the tests of a package ran to their end. Where one
# panics, or a deadline ends all, the others have not been tried.
finished() {
	jq -e -s --arg package "$2" 'any(.[]; .Package == $package and .Action == "output" and (.Test | not) and .Output == "FAIL\n")' "$1" >/dev/null
}

case $1 in
--again)
	dir=$2
	: >"$dir/again/unsteady"
	: >"$dir/again/failed"
	# JSON, package, and test, or "-" for the whole package.
	todo=()
	for json in "$dir"/*.json; do
		[ -e "$json" ] || continue
		while IFS= read -r package; do
			tests=-
			if finished "$json" "$package"; then
				tests=$(jq -r --arg package "$package" 'select(.Package == $package and .Action == "fail" and .Test) | .Test | split("/")[0]' "$json" | sort -u)
			fi
			for test in ${tests:--}; do todo+=("$json $package $test"); done
		done < <(jq -r 'select(.Action == "fail" and .Package and (.Test | not)) | .Package' "$json" | sort -u)
	done
	for one in "${todo[@]}"; do
		read -r json package test <<<"$one"
		name=${package#"$module"}
		[ "$test" = - ] || name+=" $test"
		if [ ${#todo[@]} -gt $most ]; then
			echo "$name" >>"$dir/again/failed" # so many that something else is wrong
			continue
		fi
		# As before, without the other packages and tests.
		mapfile -d '' -t args <"${json%.json}.args"
		with=() skip=no
		for arg in "${args[@]:3}"; do
			if [ $skip = yes ]; then skip=no; continue; fi
			case $arg in
			-run | -skip) [ "$test" = - ] && with+=("$arg") || skip=yes ;;
			-run=* | -skip=*) [ "$test" != - ] || with+=("$arg") ;;
			./* | "$module"*) ;;
			*) with+=("$arg") ;;
			esac
		done
		[ "$test" = - ] || with+=(-run "^$test\$")
		printf '\n== again, alone: %s\n' "$name"
		mkdir -p "$here/../bin/unsteady"
		jq -r --arg package "$package" --arg test "$test" 'select(.Action == "output" and .Package == $package and ($test == "-" or (.Test and (.Test | split("/")[0]) == $test))) | .Output' -j "$json" \
			>"$here/../bin/unsteady/$(tr / . <<<"${name// /.}")"
		if env "${args[@]:0:3}" "$0" "$dir/again" -count=1 "${with[@]}" "$package" &&
			! cat "$dir"/again/*.json | jq -e 'select(.Action == "fail")' >/dev/null; then
			echo "$name" >>"$dir/again/unsteady"
		else
			echo "$name" >>"$dir/again/failed"
		fi
		for json in "$dir"/again/*.json; do mv "$json" "$dir/again/$(basename "$json").done"; done
	done
	exit
	;;
--summary) ;;
*)
	json=$(mktemp "$1/XXXXXX.json")
	shift
	skip=$(skipping "$@")
	[ -z "$skip" ] || set -- -skip "$skip" "$@"
	printf '%s\0' "CGO_ENABLED=${CGO_ENABLED:-}" "DROWSE_BINARY=${DROWSE_BINARY:-}" "DROWSE_TEST_SERVERS=${DROWSE_TEST_SERVERS:-}" "$@" >"${json%.json}.args"
	status=0
	run "$json" -- "$@" || status=$?
	[ $status = 0 ] || jq -e -s 'any(.[]; .Action == "fail")' "$json" >/dev/null || exit $status
	exit
	;;
esac

skips=$here/skips.txt

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
printf '\n== %s tests passed, %s failed, %s skipped\n' "$(count pass)" "$(count fail)" "$(count skip)"
cat ./*.json | jq -r 'select(.Test and .Action == "skip") | "\(.Package) \(.Test | split("/")[0])"' |
	sort | uniq -c | awk '{ print "skipped: " $2 " " $3 ", " $1 " of its cases" }'
echo "the ten slowest, in seconds:"
# Of one with parts that run side by side, the sum of these: its own time has none of it.
cat ./*.json | jq -r 'select(.Test and .Action != "run" and .Elapsed) | (.Test | split("/")) as $name | select($name | length <= 2)
	| "\(.Elapsed) \(.Package | split("/") | last).\($name[0]) \($name | length)"' |
	awk '$3 == 1 { own[$2] = $1 } $3 == 2 { parts[$2] += $1 } { all[$2] } END { for (t in all) print (own[t] > parts[t] ? own[t] : parts[t]), t }' |
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
