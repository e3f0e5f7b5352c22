# image.sh SUITE PACKAGES DIR: makes the files disk, vmlinuz and initrd in DIR, of
# the packages and of the sources.list on stdin. The disk is an ext4 file system
# that boots to systemd and then starts the checks from the second drive.
set -euo pipefail
suite=$1 packages=$2 dir=$3
root=$dir/root

# The initial file system has what these drives need, and not every driver: each
# megabyte of it takes a second to unpack under emulation.
modules='mkdir -p "$1/etc/initramfs-tools/conf.d" &&
	echo MODULES=list >"$1/etc/initramfs-tools/conf.d/hosts" &&
	printf "%s\n" virtio_pci virtio_blk ext4 >"$1/etc/initramfs-tools/modules"'

mmdebstrap --variant=minbase --format=dir --include="$packages" \
	--essential-hook="$modules" "$suite" "$root" -

echo hosts >"$root/etc/hostname"
echo '127.0.0.1 localhost hosts' >"$root/etc/hosts"
echo '/dev/vda / ext4 defaults 0 1' >"$root/etc/fstab"
: >"$root/etc/machine-id"
cat >"$root/etc/systemd/network/10-wired.network" <<-'END'
	[Match]
	Driver=virtio_net
	[Network]
	Address=10.0.2.15/24
	Gateway=10.0.2.2
END
cat >"$root/etc/systemd/system/hosts.service" <<-'END'
	[Unit]
	Description=the checks of drowse
	After=multi-user.target
	[Service]
	ExecStartPre=/bin/mkdir -p /media/hosts
	ExecStartPre=/bin/mount -o ro /dev/vdb /media/hosts
	ExecStart=/media/hosts/hosts --inside
	ExecStopPost=-/bin/umount /media/hosts
	KillMode=process
END
# After the others, and none of them waits for it.
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -s ../hosts.service "$root/etc/systemd/system/multi-user.target.wants/hosts.service"
ln -s /lib/systemd/system/systemd-networkd.service "$root/etc/systemd/system/multi-user.target.wants/systemd-networkd.service"
# Nobody logs in on the lines, which carry the console and the outcome; and
# nothing may begin by itself in the middle of a check.
for unit in serial-getty@ttyS0 serial-getty@ttyS1 getty@tty1 systemd-networkd-wait-online; do
	ln -sf /dev/null "$root/etc/systemd/system/$unit.service"
done
for timer in apt-daily apt-daily-upgrade dpkg-db-backup e2scrub_all fstrim systemd-tmpfiles-clean; do
	ln -sf /dev/null "$root/etc/systemd/system/$timer.timer"
done

# With SELinux, every file has its label from the first boot on.
if [ -e "$root/etc/selinux/config" ]; then
	sed -i 's/^SELINUX=.*/SELINUX=enforcing/' "$root/etc/selinux/config"
	mount -t proc proc "$root/proc" # setfiles names by it what it has opened
	chroot "$root" setfiles -F /etc/selinux/default/contexts/files/file_contexts /
	umount "$root/proc"
fi

mv "$root"/boot/vmlinuz-* "$dir/vmlinuz"
mv "$root"/boot/initrd.img-* "$dir/initrd"
mke2fs -q -t ext4 -d "$root" "$dir/disk" 8G
rm -rf "$root"
