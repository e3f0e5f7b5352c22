#!/usr/bin/env bash
# Installs the .deb of bin/packages on a clean Debian, without systemd, upgrades it
# with a sandbox asleep and one that runs, removes it, installs it again and purges
# it. Root. The network is for Debian's packages alone.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${DROWSE_TEST_CACHE:-/var/tmp/drowse-test-cache}/packages
if [ "${1:-}" != --isolated ]; then
	mkdir -p "$cache"
	root=$cache/bookworm.tar
	if [ ! -e "$root" ]; then
		mmdebstrap --variant=minbase --include=iproute2,nftables,procps,python3-minimal bookworm "$root.new.tar"
		mv "$root.new.tar" "$root"
	fi
	# Processes and mounts end with the namespaces.
	exec unshare --net --mount-proc --pid --fork --kill-child -- "$0" --isolated
fi

ip link set lo up
root=$(mktemp -d /tmp/dwpackages.XXXXXX)
trap 'umount -R -l "$root" 2>/dev/null; rm -rf --one-file-system "$root"; rmdir "$root" 2>/dev/null || true' EXIT
mount -t tmpfs -o size=4g none "$root"
tar -C "$root" -xf "$cache/bookworm.tar"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
# The same program as an older package: what an upgrade does is up to the scripts.
arch=$(dpkg --print-architecture)
new=$(ls bin/packages/drowse_*_"$arch".deb)
cp "$new" "$root/new.deb"
mkdir "$root/old" && dpkg-deb -R "$new" "$root/old"
sed -i 's/^Version: .*/Version: 0.0.0~0/' "$root/old/DEBIAN/control"
dpkg-deb -b "$root/old" "$root/old.deb" >/dev/null
rm -r "${root:?}/old"

# A mount namespace whose root this is: the kernel makes no user namespaces in a chroot.
unshare --mount sh -c 'cd "$0" && mkdir -p host && pivot_root . host && umount -l host && exec sleep infinity' "$root" &
holder=$!
until nsenter -t $holder -m test -e /new.deb && ! nsenter -t $holder -m test -e /host/etc; do sleep 0.1; done
enter=(nsenter -t $holder -m env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root)
inside() { "${enter[@]}" "$@"; }
say() { printf 'ok    %s\n' "$*"; }
fail() { echo "FAIL  $*" >&2; [ ! -e "$root/tmp/serve.log" ] || tail -20 "$root/tmp/serve.log" >&2; exit 1; }
serve() {
	"${enter[@]}" drowse serve >>"$root/tmp/serve.log" 2>&1 &
	server=$!
	for _ in $(seq 300); do
		inside drowse ls >/dev/null 2>&1 && return
		sleep 0.1
	done
	fail "the server does not answer"
}
stop() { kill "$server"; wait "$server" || true; }
sandboxes() { pgrep -fc 'runsc-sandbox|drowse-agent' || true; }
counter='import time
n = 0
while True:
    n += 1
    open("/tmp/count", "w").write(str(n))
    time.sleep(0.05)'
count() { inside drowse exec "$1" -- cat /tmp/count; }
goes() { # its counter goes on, and never back
	local before=$2 now=
	for _ in $(seq 100); do
		now=$(count "$1" 2>/dev/null || true)
		[ "${now:-0}" -le "$before" ] || return 0
		sleep 0.1
	done
	fail "the counter of $1 is at ${now:-nothing}, and was at $before"
}

inside dpkg -i /old.deb >/dev/null
inside drowse doctor >"$root/tmp/doctor" || { cat "$root/tmp/doctor"; fail "doctor"; }
inside drowse version | grep -q '^drowse' || fail "version"
say "installed; doctor finds nothing wrong"

serve
sleeper=$(inside drowse create --timeout none)
runner=$(inside drowse create --timeout none)
for id in "$sleeper" "$runner"; do
	inside drowse exec "$id" -- sh -c 'nohup python3 -c "$0" >/dev/null 2>&1 &' "$counter"
	goes "$id" 0
done
slept=$(count "$sleeper") ran=$(count "$runner")
inside drowse pause "$sleeper" >/dev/null

inside dpkg -i /new.deb >/dev/null
stop
serve
goes "$runner" "$ran"
inside drowse resume "$sleeper" >/dev/null
goes "$sleeper" "$slept"
say "upgraded: the sandbox that ran runs on, the one that slept wakes with its memory"

slept=$(count "$sleeper")
inside dpkg -r drowse >/dev/null
stop
for _ in $(seq 100); do
	[ "$(sandboxes)" != 0 ] || break
	sleep 0.1
done
[ "$(sandboxes)" = 0 ] || fail "after the removal $(sandboxes) processes of sandboxes run"
[ -e "$root/var/lib/drowse/drowse.db" ] && [ ! -e "$root/usr/bin/drowse" ] || fail "the removal kept or took the wrong files"
say "removed: nothing runs, and the state is kept"

inside dpkg -i /new.deb >/dev/null
serve
inside drowse resume "$sleeper" >/dev/null
goes "$sleeper" "$slept"
inside drowse kill --all >/dev/null
say "installed again: a sandbox wakes with its memory"

stop
inside dpkg -P drowse >/dev/null
[ ! -e "$root/var/lib/drowse" ] && [ ! -e "$root/etc/default/drowse" ] || fail "the purge left files"
say "purged: nothing is left"
