#!/usr/bin/env bash
# Installs the .deb of bin/packages on a clean Debian, without systemd, upgrades it
# with a sandbox asleep and one that runs, removes it, installs it again and purges
# it. Does the same with the install script of bin/release. Then unpacks the container
# image, makes it again, and runs it as an engine would. Root. The network is for
# Debian's packages alone.
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
	# The image is the same when it is made again of what is in it.
	image=$(ls bin/release/drowse-*-image-"$(dpkg --print-architecture)".tar)
	test/image.py "$image" "$cache/image"
	go run ./packaging/container -version "$(<"$cache/image/version")" -created "$(<"$cache/image/created")" -arch "$(dpkg --print-architecture)" \
		-root "$cache/image/0.tar" -binary "bin/release/drowse-linux-$(dpkg --print-architecture)" "$cache/image/again.tar"
	cmp "$image" "$cache/image/again.tar"
	echo "ok    the image is the same, byte by byte, when it is made again"
	# Processes and mounts end with the namespaces.
	exec unshare --net --mount-proc --pid --fork --kill-child -- "$0" --isolated
fi

ip link set lo up
root=$(mktemp -d "${TMPDIR:-/tmp}/dwpackages.XXXXXX")
trap 'umount -R -l "$root" 2>/dev/null; rm -rf --one-file-system "$root" "$cache/image"; rmdir "$root" 2>/dev/null || true' EXIT

# fresh TAR...: $root becomes what the archives have, and is mounted like a machine.
fresh() {
	mount -t tmpfs -o size=4g none "$root"
	for tar; do tar -C "$root" -xf "$tar"; done
	mount -t proc proc "$root/proc"
	mount --rbind /sys "$root/sys"
	mount --rbind /dev "$root/dev"
}
# boot makes a mount namespace whose root this is: the kernel makes no user namespaces
# in a chroot. enter and inside run programs in it.
boot() {
	touch "$root/booted"
	unshare --mount sh -c 'cd "$0" && mkdir -p host && pivot_root . host && umount -l host && exec sleep infinity' "$root" &
	holder=$!
	until nsenter -t $holder -m test -e /booted && ! nsenter -t $holder -m test -e /host/etc; do sleep 0.1; done
	enter=(nsenter -t "$holder" -m env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root)
}

fresh "$cache/bookworm.tar"
# The same program as an older package: what an upgrade does is up to the scripts.
arch=$(dpkg --print-architecture)
new=$(ls bin/packages/drowse_*_"$arch".deb)
cp "$new" "$root/new.deb"
mkdir "$root/old" && dpkg-deb -R "$new" "$root/old"
sed -i 's/^Version: .*/Version: 0.0.0~0/' "$root/old/DEBIAN/control"
dpkg-deb -b "$root/old" "$root/old.deb" >/dev/null
rm -r "${root:?}/old"

boot
inside() { "${enter[@]}" "$@"; }
say() { printf 'ok    %s\n' "$*"; }
fail() { echo "FAIL  $*" >&2; [ ! -e "$root/tmp/serve.log" ] || tail -20 "$root/tmp/serve.log" >&2; exit 1; }
# Not where it listens by default: the command line and the scripts of the package find it.
program=(drowse serve --listen 127.0.0.1:3333)
serve() {
	"${enter[@]}" "${program[@]}" >>"$root/tmp/serve.log" 2>&1 &
	server=$!
	for _ in $(seq 600); do
		inside drowse ls >/dev/null 2>&1 && return
		sleep 0.1
	done
	fail "the server does not answer"
}
stop() {
	local pid=$server
	[ "${program[0]}" = drowse ] || pid=$(pgrep -xf "${entry[*]}") # the container's first process
	kill "$pid"
	wait "$server" || true
}
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
	for _ in $(seq 600); do
		now=$(count "$1" 2>/dev/null || true)
		[ "${now:-0}" -le "$before" ] || return 0
		sleep 0.1
	done
	fail "the counter of $1 is at ${now:-nothing}, and was at $before"
}

# two starts the server and two sandboxes, of which one sleeps.
two() {
	local id
	serve
	sleeper=$(inside drowse create --timeout none)
	runner=$(inside drowse create --timeout none)
	for id in "$sleeper" "$runner"; do
		inside drowse exec "$id" -- sh -c 'nohup python3 -c "$0" >/dev/null 2>&1 &' "$counter"
		goes "$id" 0
	done
	slept=$(count "$sleeper") ran=$(count "$runner")
	inside drowse pause "$sleeper" >/dev/null
}
# none waits until nothing of a sandbox runs.
none() {
	for _ in $(seq 600); do
		[ "$(sandboxes)" != 0 ] || return 0
		sleep 0.1
	done
	fail "$1 $(sandboxes) processes of sandboxes run"
}

inside dpkg -i /old.deb >/dev/null
inside drowse doctor >"$root/tmp/doctor" || { cat "$root/tmp/doctor"; fail "doctor"; }
inside drowse version | grep -q '^drowse' || fail "version"
say "installed; doctor finds nothing wrong"

two
inside dpkg -i /new.deb >/dev/null
stop
serve
goes "$runner" "$ran"
inside drowse resume "$sleeper" >/dev/null
goes "$sleeper" "$slept"
say "upgraded: the sandbox that ran runs on, the one that slept wakes with its memory"

# Without a key that is good, nothing is removed that sandboxes need.
slept=$(count "$sleeper")
cp "$root/var/lib/drowse/api-key" "$root/tmp/api-key"
echo e2b_00000000000000000000000000000000 >"$root/var/lib/drowse/api-key"
! inside dpkg -r drowse >"$root/tmp/remove" 2>&1 || fail "removed while sandboxes run"
grep -q "sandboxes run that could not be paused" "$root/tmp/remove" || fail "$(cat "$root/tmp/remove")"
cp "$root/tmp/api-key" "$root/var/lib/drowse/api-key"
goes "$runner" "$ran"
say "not removed while sandboxes run that cannot be paused"

inside dpkg -r drowse >/dev/null
stop
none "after the removal"
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

# The install script. The older program is the same, a byte longer.
release=$root/release older=$root/older
mkdir "$release" "$older"
cp bin/release/{SHA256SUMS,install.sh,drowse-*-linux-"$arch".tar.gz} "$release"
cp "bin/release/drowse-linux-$arch" "$older"
printf x >>"$older/drowse-linux-$arch"
script/archives 0.0.0 "$older"
refused() { # refused WHY ARGUMENT...
	local why=$1 out
	shift
	if out=$(inside sh /release/install.sh "$@" 2>&1); then fail "install.sh $*: $out"; fi
	grep -qF "$why" <<<"$out" || fail "install.sh $*: $out"
}
inside sh /older/install.sh >"$root/tmp/install" || fail "$(cat "$root/tmp/install")"
grep -q 'no systemd. Start "drowse serve"' "$root/tmp/install" || fail "$(cat "$root/tmp/install")"
cmp "$root/usr/local/bin/drowse" "$older/drowse-linux-$arch"
two
inside sh /release/install.sh >"$root/tmp/install" || fail "$(cat "$root/tmp/install")"
grep -q "^A server of the version before runs: process [0-9]*$" "$root/tmp/install" || fail "$(cat "$root/tmp/install")"
cmp "$root/usr/local/bin/drowse" "bin/release/drowse-linux-$arch"
stop
serve
goes "$runner" "$ran"
inside drowse resume "$sleeper" >/dev/null
goes "$sleeper" "$slept"
inside sh /release/install.sh >"$root/tmp/install"
! grep -q "A server" "$root/tmp/install" || fail "the server is of this version: $(cat "$root/tmp/install")"
say "install.sh: upgraded, the sandbox that ran runs on, the one that slept wakes with its memory"

refused "a server still runs: process" --uninstall
stop
refused "sandboxes still run, without a server" --uninstall --purge
serve
inside drowse pause --all >/dev/null
stop
none "after the pause"
inside sh /usr/local/share/drowse/install.sh --uninstall >/dev/null
[ -e "$root/var/lib/drowse/drowse.db" ] && [ ! -e "$root/usr/local/bin/drowse" ] || fail "install.sh kept or took the wrong files"
inside sh /release/install.sh >/dev/null
serve
inside drowse resume "$sleeper" >/dev/null
goes "$sleeper" "$slept"
inside drowse kill --all --yes >/dev/null
stop
inside sh /release/install.sh --uninstall --purge >/dev/null
[ ! -e "$root/var/lib/drowse" ] && [ ! -e "$root/etc/default/drowse" ] || fail "install.sh --purge left files"
say "install.sh: refused to leave sandboxes behind, removed, installed again and purged"

# The image, as an engine runs it: a PID namespace, and the state directory a volume.
kill "$holder"
umount -R -l "$root"
fresh "$cache"/image/[0-9].tar
mkdir -p "$root/var/lib/drowse"
mount -t tmpfs none "$root/var/lib/drowse"
boot
mapfile -t environment <"$cache/image/env"
mapfile -t entry <"$cache/image/command"
inside drowse version | grep -qF "$(<"$cache/image/version")" || fail "version of the image"
enter+=("${environment[@]}")
program=(unshare --pid --fork --kill-child --mount-proc "${entry[@]}")
inside drowse doctor >"$root/tmp/doctor" || { cat "$root/tmp/doctor"; fail "doctor in the image"; }
two
inside drowse run -- python3 -c 'print("hello")' | grep -qx hello || fail "python3 in the image"
inside drowse run -- git --version | grep -q git || fail "git in the image"
stop
none "after the container"
serve
for id in "$sleeper" "$runner"; do inside drowse resume "$id" >/dev/null; done
goes "$sleeper" "$slept"
goes "$runner" "$ran"
inside drowse kill --all --yes >/dev/null
stop
say "image: doctor finds nothing wrong; sandboxes sleep when the container stops, and wake in the next with their memory"
