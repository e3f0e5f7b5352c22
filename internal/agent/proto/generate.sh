#!/bin/sh
# Generates client/agentpb from the proto files beside this script. The plug-ins
# come from go.mod; only protoc (Debian: protobuf-compiler and libprotobuf-dev)
# is the machine's, and its version is cut from the output so that any recent
# one gives the same bytes.
set -eu

cd "$(dirname "$0")"
root=$(cd ../../.. && pwd)
module=$(cd "$root" && go list -m)
plugins=$(mktemp -d)
trap 'rm -rf "$plugins"' EXIT

command -v protoc >/dev/null || {
	echo "generate.sh: protoc is missing: apt-get install protobuf-compiler libprotobuf-dev" >&2
	exit 1
}
(cd "$root" && go build -o "$plugins/" \
	google.golang.org/protobuf/cmd/protoc-gen-go \
	connectrpc.com/connect/cmd/protoc-gen-connect-go)

# Paths from the module root make the file names in the global protobuf
# registry unique within any program that links this package.
cd "$root"
PATH="$plugins:$PATH" protoc -I . \
	--go_out=. --go_opt=module="$module" \
	--connect-go_out=. --connect-go_opt=module="$module" \
	internal/agent/proto/process.proto internal/agent/proto/filesystem.proto

find client/agentpb -name '*.go' -exec \
	sed -i -E '/^\/\/[[:space:]]+protoc[[:space:]]+v?[0-9(]/d' {} +
