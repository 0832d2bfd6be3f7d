# PID 1 of the guest: mounts what an init would, with cgroups as the kernel's command line says,
# runs /project/order and powers off. All that it says goes to the serial port.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
exec </dev/null >/dev/ttyS0 2>&1
ip link set lo up
modprobe tun

case $(cat /proc/cmdline) in
*guest.cgroups=v2*) mount -t cgroup2 cgroup2 /sys/fs/cgroup ;;
*guest.cgroups=v1*)
    mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
    for controllers in memory cpu,cpuacct pids freezer devices cpuset blkio; do
        mkdir "/sys/fs/cgroup/$controllers"
        mount -t cgroup -o "$controllers" cgroup "/sys/fs/cgroup/$controllers"
    done
    ;;
esac

cd /project || exit
sh order
echo "guest: the order ended with $?"
sync
echo o >/proc/sysrq-trigger
# PID 1 must not end before the machine does.
while :; do sleep 60; done
