#!/usr/bin/env bash
# What two disks give where there is one: two loop devices over files in FOLDER, each held to
# RATE bytes a second by the kernel (blkio, cgroup v1), and benchmarks/extents.py over both.
#
#     benchmarks/two_disks.sh FOLDER [RATE] [arguments of extents.py]
#
# As root; FOLDER needs 6 GiB, and a disk of well over twice RATE.  All is undone at the end.
set -euo pipefail
folder=$(realpath "$1")
rate=${2:-419430400}
group=/sys/fs/cgroup/blkio/zinf-two-disks
here=$(dirname "$(realpath "$0")")

undo() {
    echo $$ >/sys/fs/cgroup/blkio/cgroup.procs
    rmdir "$group" || true
    for each in "$folder"/disk[01]; do
        umount "$each" || true
        losetup -d "$(losetup -nO NAME -j "$each.img")" || true
        rm -rf "$each" "$each.img"
    done
}
trap undo EXIT

mkdir "$group"
for each in "$folder"/disk0 "$folder"/disk1; do
    truncate -s 3G "$each.img"
    device=$(losetup -f --show --direct-io=on "$each.img")
    mkfs.ext4 -q "$device"
    mkdir "$each"
    mount "$device" "$each"
    number=$(lsblk -dnro MAJ:MIN "$device")
    echo "$number $rate" >"$group/blkio.throttle.read_bps_device"
    echo "$number $rate" >"$group/blkio.throttle.write_bps_device"
done
echo $$ >"$group/cgroup.procs"
"${PYTHON:-python3}" "$here/extents.py" --folder "$folder/disk0" --folder "$folder/disk1" "${@:3}"
