#!/bin/bash
# Runs a script as root in a copy of this machine that is thrown away: own files (an overlay; /tmp and /run are empty), own
# network (loopback alone), own processes with systemd as their first one. All of it ends with the script, whose status is this
# one's. What the script writes never reaches the machine.
#   run.sh FOLDER IRONWEIR SCRIPT [GIVEN]
# FOLDER: an empty directory. IRONWEIR: a binary, /tmp/ironweir inside, and with INSTALLED=yes /usr/sbin/ironweir as well. GIVEN: a
# folder that is /tmp/given inside. This repository is where it is, and cannot be written. Status 77: this machine cannot do it.
set -eu
folder=$1 binary=$2 script=$3 given=${4:-}
repository=$(cd "$(dirname "$0")/../.." && pwd)
if [ -z "${INSIDE:-}" ]; then
    [ "$(id -u)" = 0 ] && [ -x /lib/systemd/systemd ] && command -v ip >/dev/null || exit 77
    unshare --net --mount --pid --cgroup --fork true 2>/dev/null || exit 77
    export INSIDE=yes
    # A control group of its own, since systemd makes groups below the one it finds itself in.
    groups=/sys/fs/cgroup
    [ -e $groups/cgroup.procs ] || groups=$groups/unified
    group=$groups$(sed -n 's/^0:://p' /proc/self/cgroup)/disposable.$$
    status=0
    # Longer than anything here takes: what hangs ends.
    (
        if mkdir "$group" 2>/dev/null; then echo "$BASHPID" >"$group/cgroup.procs" || true; fi
        exec timeout -k 5 "${PATIENCE:-240}" unshare --net --mount --pid --ipc --uts --cgroup --fork --kill-child --mount-proc \
            --propagation private "$0" "$@"
    ) || status=$?
    for _ in $(seq 20); do
        [ -d "$group" ] || break
        find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.05
    done
    exit "$status"
fi

mount -t tmpfs none "$folder"
mkdir "$folder"/{up,work,root,proc}
root=$folder/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/up,workdir=$folder/work" "$root" 2>/dev/null || exit 77

# Settings of the kernel that are not this network's belong to the machine: they can be read.
mount -t proc proc "$root/proc"
mount -t proc proc "$folder/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount --bind "$folder/proc/sys/net" "$root/proc/sys/net"
mount -t tmpfs none "$root/dev"
for device in null zero full random urandom tty; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o ptmxmode=666 none "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs -o mode=1777 none "$root/dev/shm"
: >"$root/dev/console"
mount -t sysfs none "$root/sys"
mount -t cgroup2 none "$root/sys/fs/cgroup" || exit 77
mount -t tmpfs -o mode=1777 none "$root/tmp"
mount -t tmpfs -o mode=755 none "$root/run"
mkdir -p "$root/run/lock"

# No unit of the machine's begins by itself: none of them sets its clock, its modules or its kernel here.
find "$root"/{etc,lib}/systemd/system -mindepth 1 -maxdepth 1 -name '*.wants' -exec rm -rf {} +
find "$root"/{etc,lib}/systemd/system-generators -type f ! -name "postgresql*" -delete 2>/dev/null || true
# A package of the machine that is being installed right now is none of ours.
rm -f "$root/usr/sbin/policy-rc.d" "$root"/var/lib/dpkg/updates/*
install -m 755 "$script" "$root/tmp/.script"
read_only() { # from, to: a file or a folder of the machine's, wherever that is mounted
    if [ -d "$1" ]; then mkdir -p "$2"; else : >"$2"; fi
    mount --bind "$1" "$2"
    mount -o remount,bind,ro "$2"
}
read_only "$repository" "$root$repository"
read_only "$binary" "$root/tmp/ironweir"
[ -z "$given" ] || read_only "$given" "$root/tmp/given"
rm -f "$root/usr/sbin/ironweir"
[ "${INSTALLED:-}" != yes ] || read_only "$binary" "$root/usr/sbin/ironweir"
cat >"$root/tmp/.begin" <<'BEGIN'
#!/bin/bash
until systemctl is-system-running >/dev/null 2>&1; do sleep 0.05; done
status=0
/bin/bash /tmp/.script || status=$?
exec systemctl --force exit "$status"
BEGIN
ip link set lo up
cd "$root"
pivot_root . mnt
umount -l /mnt
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
env -i HOME=/root TERM=dumb LC_ALL=C.UTF-8 PATH=$path DEBIAN_FRONTEND=noninteractive /bin/bash /tmp/.begin </dev/null &
exec env -i container=disposable PATH=$path /lib/systemd/systemd --system --unit=sysinit.target --log-target=null --show-status=0
