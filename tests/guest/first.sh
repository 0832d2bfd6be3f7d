#!/busybox sh
# PID 1 of the initramfs: finds the disks and goes on in the root file system.
set -e
/busybox mount -t devtmpfs dev /dev
while read -r module; do /busybox insmod "/modules/$module"; done </modules/order
/busybox mount -t ext4 /dev/vda /root
/busybox mount -o move /dev /root/dev
# The project, and what to do with it, is a tar archive on the second disk.
exec /busybox switch_root /root /bin/sh -c \
    'mkdir /project && tar -C /project -xf /dev/vdb && exec sh /project/tests/guest/second.sh'
