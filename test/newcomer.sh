#!/usr/bin/env bash
# Goes the way of a newcomer who has only README, on a clean Debian with Go: the
# first command, then a server and the Python program of "First use". Prints how
# long each step took. Root. The network is for packages alone: Debian's, Go's,
# npm's and PyPI's.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${DROWSE_TEST_CACHE:-/var/tmp/drowse-test-cache}/newcomer
root=${NEWCOMER_ROOT:-}
if [ -z "$root" ]; then
	mkdir -p "$cache"
	tar=$cache/bookworm.tar
	if [ ! -e "$tar" ]; then
		mmdebstrap --variant=minbase --include=git,ca-certificates,iproute2 bookworm "$tar.new.tar"
		mv "$tar.new.tar" "$tar"
	fi
	NEWCOMER_ROOT=$(mktemp -d "$cache/root.XXXXXX")
	export NEWCOMER_ROOT
	trap 'rm -rf --one-file-system "$NEWCOMER_ROOT"' EXIT
	tar -C "$NEWCOMER_ROOT" -xf "$tar"
	git clone -q . "$NEWCOMER_ROOT/root/drowse"
	# Processes and mounts end with the namespaces.
	unshare --mount-proc --pid --fork --kill-child -- "$0"
	exit
fi

mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mkdir usr/local/go host
mount --bind -o ro "$(go env GOROOT)" usr/local/go
# How this machine reaches its registries.
for f in /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt /etc/pip.conf /etc/npmrc /root/.npmrc; do
	[ ! -e "$f" ] || cp -L "$f" ".$f"
done
pivot_root . host
umount -l host
cd /root/drowse
unset NEWCOMER_ROOT
export HOME=/root PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

step() { # step NAME COMMAND...: do it, and say how long it took
	local name=$1 begin=$SECONDS
	shift
	"$@" >/tmp/step.log 2>&1 || { echo "FAIL  $name" >&2; tail -40 /tmp/step.log >&2; exit 1; }
	echo "ok    $name: $((SECONDS - begin)) s"
}
# block N LANGUAGE: the nth piece of README in that language.
block() { awk -v n="$1" -v fence="\`\`\`$2" '$0 == fence { i++; in_ = i == n; next } /^```$/ { in_ = 0 } in_' README.md; }

step "script/demo, with packages and the first build" script/demo
grep -E 'asleep|woke|same|ok' /tmp/step.log | tail -5 || true
step "pip install e2b" sh -c 'apt-get install -y -qq python3-venv && python3 -m venv /venv && /venv/bin/pip install -q e2b'
block 1 python >/tmp/first.py
grep -q 'sbx.pause()' /tmp/first.py || { echo "FAIL  README has no program in Python" >&2; exit 1; }
cat >/tmp/use.sh <<'USE'
set -eu
ip link set lo up
install bin/drowse /usr/local/bin/
drowse doctor
: >/tmp/serve.log
drowse serve >/tmp/serve.log 2>&1 &
until grep -q E2B_VOLUME_API_URL /tmp/serve.log; do sleep 0.1; done
eval "$(grep '^ *export ' /tmp/serve.log)"
/venv/bin/python /tmp/first.py >/tmp/first.out
cat /tmp/first.out
grep -qx 'still here' /tmp/first.out
drowse ls
drowse kill --all
kill $!
wait
USE
step "doctor, serve, and the program in Python" unshare --net -- sh /tmp/use.sh
cat /tmp/step.log
