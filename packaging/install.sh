#!/bin/sh
# Installs drowse from a release, upgrades it or removes it: see usage below. Nothing
# of the machine is changed before all that is needed is here, verified and known to
# start. POSIX sh, with the tools of Debian, Red Hat, Alpine or BusyBox.
set -eu
umask 022

bin=/usr/local/bin/drowse
unit=/usr/local/lib/systemd/system/drowse.service
defaults=/etc/default/drowse
share=/usr/local/share/drowse
bash=/usr/local/share/bash-completion/completions/drowse
zsh=/usr/local/share/zsh/site-functions/_drowse
fish=/usr/local/share/fish/vendor_completions.d/drowse.fish
state=/var/lib/drowse

usage() {
	cat <<'END'
usage: install.sh [--sums DIGEST] [--no-start] [SOURCE]
       install.sh --uninstall [--purge]

SOURCE is a directory or an https:// address that has a release: SHA256SUMS and the
archives that it lists. An unpacked archive is one too. Without SOURCE it is the
directory of this script.

  --sums DIGEST   the SHA-256 that SHA256SUMS itself must have, from a place that you
                  trust; SOURCE may then be an http:// address
  --no-start      install, and leave the service as it is
  --uninstall     pause all sandboxes, stop the service and remove the program; the
                  state directory and the settings stay
  --purge         with --uninstall: delete all sandboxes, keys and settings as well
END
}

# What has happened to the machine so far.
now='Nothing was changed.'

# die WHAT NEXT: what happened, the state now, the next step.
die() {
	printf 'install.sh: %s\n%s\nNext: %s\n' "$1" "$now" "$2" >&2
	exit 1
}

say() { printf '%s\n' "$*"; }

has() { command -v "$1" >/dev/null 2>&1; }

systemd() { [ -d /run/systemd/system ] && has systemctl; }

# servers prints the ids of the processes that serve with the program, or with one
# that lay in its place.
servers() {
	for p in /proc/[0-9]*; do
		case $(readlink "$p/exe" 2>/dev/null) in "$bin" | "$bin (deleted)") ;; *) continue ;; esac
		case $(tr '\000' ' ' <"$p/cmdline" 2>/dev/null) in *"drowse serve "*) printf '%s ' "${p#/proc/}" ;; esac
	done
}

# stale says whether a server runs that is not the program as it is now.
stale() {
	for p in $(servers); do
		[ "$(readlink "/proc/$p/exe" 2>/dev/null)" = "$bin" ] || return 0
	done
	return 1
}

# runtimes prints the ids of the processes of sandboxes that run.
runtimes() {
	for p in /proc/[0-9]*; do
		case $(tr '\000' ' ' <"$p/cmdline" 2>/dev/null) in "runsc-sandbox "*"root=$dir/"*) printf '%s ' "${p#/proc/}" ;; esac
	done
}

# digest FILE: its SHA-256.
digest() { sha256sum <"$1" | cut -d' ' -f1; }

# version PROGRAM: its name and version.
version() { "$1" version 2>/dev/null | awk 'NR == 1 {print $1, $2}'; }

# fetch NAME: a file of the release, to $work/NAME.
fetch() {
	case $source in
	https://* | http://*)
		if has curl; then
			proto='=https'
			[ "${source#http://}" = "$source" ] || proto='=http,https'
			curl -fsSL --proto "$proto" --retry 2 -o "$work/$1" "$source/$1"
		else
			wget -q -O "$work/$1" "$source/$1"
		fi || die "$source/$1 could not be fetched" "look at the address, which must be that of the directory with SHA256SUMS, and run this again"
		;;
	*)
		[ -f "$source/$1" ] || die "$source has no file $1" "give the directory of a whole release, such as bin/release after \"make release\""
		cp "$source/$1" "$work/$1" || die "$source/$1 could not be read" "look at the directory, and run this again"
		;;
	esac
}

# verify NAME: $work/NAME is what SHA256SUMS says.
verify() {
	want=$(awk -v name="$1" '$2 == name {print $1}' "$work/SHA256SUMS")
	got=$(digest "$work/$1")
	[ "$got" = "$want" ] || die "$1 is damaged or incomplete: its SHA-256 is $got, and SHA256SUMS says $want" "fetch the release again; if that does not help, do not use it"
}

# put FILE TO MODE: TO becomes FILE in one step; sets changed if it was another.
put() {
	! cmp -s "$1" "$2" || return 0
	now='Some files are of the new version, some may not be; the server was not restarted.'
	{ mkdir -p "$(dirname "$2")" && cp "$1" "$2.new" && chmod "$3" "$2.new" && mv -f "$2.new" "$2"; } ||
		{ rm -f "$2.new" 2>/dev/null || true; die "$2 could not be written" "make room or the directory writable, and run this again"; }
	changed=yes
}

# check_source refuses what is no trusted place.
check_source() {
	case $source in
	https://*)
		# wget may follow to http://, and that of BusyBox does not look at certificates.
		has curl || [ -n "$sums" ] || die "curl is missing, which verifies who answers for $source" "install curl, give --sums DIGEST from a place that you trust, or give a directory"
		;;
	http://*)
		[ -n "$sums" ] || die "$source can be changed on the way here" "use https://, or give --sums DIGEST from a place that you trust"
		;;
	*://*) die "$source is no address that this can fetch" "give a directory, or an address with https://" ;;
	*)
		[ -d "$source" ] || die "$source is no directory" "give the directory or the address of a release"
		return 0
		;;
	esac
	has curl || has wget || die "neither curl nor wget is here to fetch $source" "install curl, or give a directory"
}

# unpack makes $tree: the verified files of the release for this machine.
unpack() {
	fetch SHA256SUMS
	if [ -n "$sums" ] && [ "$(digest "$work/SHA256SUMS")" != "$sums" ]; then
		die "SHA256SUMS of $source has another SHA-256 than --sums says" "look for the digest of this release; if it is right, do not use what is there"
	fi
	if [ ! -s "$work/SHA256SUMS" ] || grep -qvE '^[0-9a-f]{64}  [A-Za-z0-9][A-Za-z0-9./+~_-]*$' "$work/SHA256SUMS" || grep -q '\.\.' "$work/SHA256SUMS"; then
		die "SHA256SUMS of $source is no list of digests" "look at the address, which must be that of the directory with SHA256SUMS"
	fi
	if grep -q '  drowse$' "$work/SHA256SUMS"; then # an unpacked archive
		tree=$work
		cut -c67- "$work/SHA256SUMS" >"$work/.names"
		while read -r name; do
			mkdir -p "$(dirname "$work/$name")"
			fetch "$name"
			verify "$name"
		done <"$work/.names"
	else
		archive=$(sed -nE "s/^[0-9a-f]{64}  (drowse-[^/]*-linux-$arch\\.tar\\.gz)\$/\\1/p" "$work/SHA256SUMS")
		[ "$(printf '%s\n' "$archive" | grep -c .)" = 1 ] || die "$source does not have exactly one archive for linux-$arch" "give a release that has, or build drowse from its source"
		fetch "$archive"
		verify "$archive"
		tar -C "$work" -xzf "$work/$archive" || die "$archive could not be unpacked" "make room in ${TMPDIR:-/tmp}, or set TMPDIR to a directory with more"
		tree=$work/${archive%.tar.gz}
	fi
	for name in drowse drowse.service drowse.default drowse.cil LICENSE INSTALL install.sh; do
		[ -f "$tree/$name" ] || die "the release has no file $name" "give a whole release: this one is of another version of install.sh"
	done
}

# start restarts the service for what has changed, or says what to do.
start() {
	if ! systemd; then
		pids=$(servers)
		if [ -z "$pids" ]; then
			say "This machine has no systemd. Start \"drowse serve\" as root in the way of your system, with a limit of 100,000 descriptors or more."
		elif stale; then
			say "A server of the version before runs: process $pids" | sed 's/ $//'
			say "Sandboxes go on without it. End it with SIGTERM, and start \"drowse serve\" again in the way that it was started."
		fi
		return 0
	fi
	now="drowse is installed, and the service is not as it should be."
	{ systemctl daemon-reload && systemctl enable drowse.service >/dev/null 2>&1; } || die "systemd does not take the unit $unit" "see \"systemctl status drowse\", and run this again"
	if [ "$changed" = yes ] || stale || ! systemctl is-active --quiet drowse.service; then
		systemctl restart drowse.service || die "the server does not start" "see \"drowse doctor\" and \"journalctl -u drowse\", then \"systemctl start drowse\"; sandboxes that ran go on meanwhile"
	fi
}

install_drowse() {
	case $(uname -s)-$(uname -m) in
	Linux-x86_64) arch=amd64 ;;
	Linux-aarch64) arch=arm64 ;;
	*) die "drowse's server does not run on $(uname -s) on $(uname -m)" "use Linux on x86_64 or aarch64" ;;
	esac
	[ ! -e /usr/bin/drowse ] || die "a package has installed drowse: /usr/bin/drowse" "upgrade the package, or remove it first (apt remove drowse, or rpm -e drowse), which keeps the sandboxes"
	check_source
	work=$(mktemp -d) || die "no temporary directory could be made" "set TMPDIR to a directory with 200 MB of room"
	trap 'rm -rf "$work" "$bin.try"' EXIT
	trap 'exit 130' INT TERM HUP
	unpack

	# Where it will lie, as the temporary directory may be noexec.
	mkdir -p "$(dirname "$bin")"
	{ cp "$tree/drowse" "$bin.try" && chmod 755 "$bin.try"; } || die "$bin cannot be written" "make 100 MB of room in $(dirname "$bin")"
	new=$(version "$bin.try") || true
	[ -n "$new" ] || die "the program does not start on this machine" "look at the kernel, which must be 5.10 or later, and whether $(dirname "$bin") is mounted noexec"
	old=
	[ ! -x "$bin" ] || old=$(version "$bin") || true

	changed=no
	put "$tree/drowse.service" $unit 644
	service=$changed changed=no
	for name in drowse.cil LICENSE INSTALL; do put "$tree/$name" "$share/$name" 644; done
	put "$tree/install.sh" $share/install.sh 755
	for file in "$tree"/monitoring/*; do put "$file" "$share/monitoring/${file##*/}" 644; done
	for shell in "bash $bash" "zsh $zsh" "fish $fish"; do
		"$bin.try" completion "${shell%% *}" >"$work/.completion" 2>/dev/null && put "$work/.completion" "${shell#* }" 644
	done
	[ -e $defaults ] || put "$tree/drowse.default" $defaults 644
	changed=$service
	put "$bin.try" "$bin" 755
	rm -f "$bin.try"
	now='drowse is installed, and the server was not restarted.'

	if [ -z "$old" ]; then
		say "installed: $new"
	elif [ "$changed" = no ]; then
		say "installed already: $new"
	else
		say "upgraded: $old -> $new"
	fi
	if [ -e /etc/systemd/system/drowse.service ]; then
		say "systemd uses /etc/systemd/system/drowse.service instead of the unit of this release. If it has no settings of yours, remove it."
	fi
	if [ "$start" = yes ]; then start; fi
	say "Next: drowse doctor, then drowse run -- uname -a"
}

uninstall_drowse() {
	dir=$(sed -n 's/^DROWSE_STATE_DIR=//p' $defaults 2>/dev/null | tail -n 1) || true
	dir=$(readlink -f "${dir:-$state}" 2>/dev/null) || dir=$state
	[ -e "$bin" ] || [ ! -e /usr/bin/drowse ] || die "a package has installed drowse: /usr/bin/drowse" "remove the package: apt remove drowse, or apt purge drowse, or rpm -e drowse"
	if [ -e "$bin" ]; then
		if systemd && systemctl is-active --quiet drowse.service; then
			if [ "$purge" = yes ]; then
				env -i PATH="$PATH" "$bin" kill --all --yes --state-dir "$dir" >/dev/null || die "not all sandboxes could be ended" "see \"drowse ls\", end them, and run this again"
			else
				env -i PATH="$PATH" "$bin" pause --all --state-dir "$dir" >/dev/null || die "not all sandboxes could be paused" "see \"drowse ls\" and \"drowse why ID\", pause or end those that run, and run this again"
			fi
			now='The sandboxes were paused or ended; the program is still installed.'
			systemctl disable --now drowse.service 2>/dev/null || die "the service does not stop" "see \"systemctl status drowse\", and run this again"
		fi
		pids=$(servers)
		[ -z "$pids" ] || die "a server still runs: process ${pids% }" "pause its sandboxes with \"drowse pause --all\", end it in the way that it was started, and run this again"
		pids=$(runtimes)
		[ -z "$pids" ] || die "sandboxes still run, without a server: processes ${pids% }" "start the server, pause them with \"drowse pause --all\", stop the server, and run this again"
	fi
	if [ "$purge" = yes ]; then
		! cut -d' ' -f2 /proc/mounts 2>/dev/null | grep -q "^$dir/" || die "something is still mounted below $dir" "unmount it or restart the machine, and run this again"
	fi

	now='The program is removed in part.'
	if systemd; then systemctl disable drowse.service >/dev/null 2>&1 || true; fi
	rm -f "$bin" "$unit" "$bash" "$zsh" "$fish" || die "not all files could be removed" "run this again"
	rm -rf "$share" || die "$share could not be removed" "run this again"
	if systemd; then systemctl daemon-reload || true; fi
	[ ! -e /etc/systemd/system/drowse.service ] || say "/etc/systemd/system/drowse.service is not of this installation, and stays."
	if [ "$purge" = no ]; then
		say "removed; sandboxes and keys stay in $dir, the settings in $defaults"
		return 0
	fi
	now='The program is removed; the sandboxes and keys are not all deleted.'
	rm -f $defaults
	if [ "$dir" != $state ]; then
		say "removed, with the settings; delete the sandboxes and keys by hand, as the settings named another directory than $state: $dir"
		return 0
	fi
	for file in "$state"/* "$state"/.[!.]*; do
		[ ! -e "$file" ] || rm -rf "$file" || die "$file could not be deleted" "delete $state by hand"
	done
	rmdir $state 2>/dev/null || true # it may be a mount
	say "removed, with all sandboxes, keys and settings"
}

source='' sums='' start=yes uninstall=no purge=no
while [ $# -gt 0 ]; do
	case $1 in
	-h | --help)
		usage
		exit
		;;
	--sums)
		sums=${2:-}
		printf '%s\n' "$sums" | grep -qE '^[0-9a-f]{64}$' || die "--sums takes a SHA-256: 64 digits of 0-9 and a-f" "print it where you trust it: sha256sum SHA256SUMS"
		shift
		;;
	--no-start) start=no ;;
	--uninstall) uninstall=yes ;;
	--purge) purge=yes ;;
	-*) die "there is no option $1" "see install.sh --help" ;;
	*)
		[ -z "$source" ] || die "there is more than one SOURCE: $source and $1" "see install.sh --help"
		source=${1%/}
		;;
	esac
	shift
done
[ "$purge" = no ] || [ "$uninstall" = yes ] || die "--purge deletes all sandboxes, and goes with --uninstall" "see install.sh --help"
[ "$uninstall" = no ] || [ -z "$source$sums" ] || die "--uninstall takes no SOURCE" "see install.sh --help"
[ "$(id -u)" = 0 ] || die "this needs root" "run it with sudo, or as root"
if [ "$uninstall" = yes ]; then
	uninstall_drowse
else
	[ -n "$source" ] || source=$(cd "$(dirname "$0")" && pwd)
	install_drowse
fi
