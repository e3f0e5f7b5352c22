#!/bin/sh
# Builds the documentation as a site in bin/site, and fails for a link or an anchor
# that leads nowhere, and for a page that the navigation leaves out. Installing needs
# the network, and is kept as test/conformance/run.sh keeps its packages.
set -eu
cd "$(dirname "$0")/../.."
cache=${DROWSE_TEST_CACHE:-/var/tmp/drowse-test-cache}
mermaid=11.12.0
sum=93492e4d609be83653a41c435f4cbd7e74419f7fa6b4fc90a8c983195f64af82
dir=$cache/site-$({ cat test/site/requirements.txt && echo "$sum"; } | sha256sum | cut -c1-12)
if [ ! -e "$dir/installed" ]; then
	rm -rf "$dir"
	mkdir -p "$dir"
	python3 -m venv "$dir/venv"
	"$dir/venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement test/site/requirements.txt
	(cd "$dir" && npm pack --silent "mermaid@$mermaid" >/dev/null &&
		echo "$sum  mermaid-$mermaid.tgz" | sha256sum --quiet --check && tar xf "mermaid-$mermaid.tgz" package/dist/mermaid.min.js)
	touch "$dir/installed"
fi
export MERMAID="$dir/package/dist/mermaid.min.js" NO_MKDOCS_2_WARNING=1
exec "$dir/venv/bin/mkdocs" build --clean
