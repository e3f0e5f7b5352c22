#!/usr/bin/env bash
# Installs agents' frameworks, runs each against a server of this build in a network
# of their own, and writes docs/results/frameworks.md of what they did.
#
#   frameworks.sh [FRAMEWORK...]     all, or with some the page is left alone
set -euo pipefail
cd "$(dirname "$0")/../.."

all="agents harbor langchain mastra mcp smolagents"
export DROWSE_SDK_SUITES="${*:-$all}"
for name in $DROWSE_SDK_SUITES; do
	echo "== install $name"
	test/frameworks/run.sh --install-only "$name"
done
DROWSE_FRAMEWORK_RESULTS=$(mktemp)
export DROWSE_FRAMEWORK_RESULTS
trap 'rm -f "$DROWSE_FRAMEWORK_RESULTS"' EXIT
DROWSE_SDK_RUNNER=test/frameworks/run.sh test/conformance/conformance.sh --domain
[ "$DROWSE_SDK_SUITES" = "$all" ] || exit 0
python3 test/frameworks/report.py "$DROWSE_FRAMEWORK_RESULTS" >docs/results/frameworks.md
