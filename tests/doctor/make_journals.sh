#!/bin/bash
# How compact.journal.zst (1) and regular.journal.zst (0) were made: systemd's own journald (252) writes what a program and a pipe in the
# kernel's place say. As root: unshare -m --propagation private make_journals.sh 1 FILE; then zstd -19 FILE.
set -e
mode=$1 out=$2
mount -t tmpfs none /run
mkdir -p /run/systemd/journal /run/log/journal/$(cat /etc/machine-id 2>/dev/null || echo 0123456789abcdef0123456789abcdef)
mount -t tmpfs none /dev 2>/dev/null || true
mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/urandom c 1 9; mkdir /dev/shm; mkfifo /dev/kmsg
mkdir -p /run/etc; echo 0123456789abcdef0123456789abcdef > /run/mid; mount --bind /run/mid /etc/machine-id 2>/dev/null || true
mkdir -p /run/systemd/journald.conf.d; printf '[Journal]\nStorage=volatile\nReadKMsg=yes\nForwardToSyslog=no\nAudit=no\n' > /run/systemd/journald.conf.d/x.conf
SYSTEMD_JOURNAL_COMPACT=$mode SYSTEMD_LOG_TARGET=null /lib/systemd/systemd-journald &
pid=$!
for i in $(seq 50); do [ -S /run/systemd/journal/socket ] && break; sleep 0.1; done
python3 - <<'P'
import socket,time,os
s=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM); s.connect('/run/systemd/journal/socket')
def send(**f): s.send(''.join(f'{k}={v}\n' for k,v in f.items()).encode())
for n in range(60): send(MESSAGE=f"a line {n} of no interest",PRIORITY=6,SYSLOG_IDENTIFIER="chatter",UNIT="chatter.service")
EXIT="98e322203f7a4ed290d09fe03c09fe15"
for pid in (811,812,813): send(MESSAGE_ID=EXIT,MESSAGE=f"nginx.service: Main process exited, code=killed, status=11/SEGV",PRIORITY=5,UNIT="nginx.service",EXIT_CODE="killed",EXIT_STATUS="11",COMMAND="ExecStart",SYSLOG_IDENTIFIER="systemd")
send(MESSAGE_ID=EXIT,MESSAGE="backup.service: Main process exited, code=exited, status=3/NOTIMPLEMENTED",PRIORITY=5,UNIT="backup.service",EXIT_CODE="exited",EXIT_STATUS="3",SYSLOG_IDENTIFIER="systemd")
send(MESSAGE_ID=EXIT,MESSAGE="tidy.service: Main process exited, code=exited, status=0/SUCCESS",PRIORITY=5,UNIT="tidy.service",EXIT_CODE="exited",EXIT_STATUS="0",SYSLOG_IDENTIFIER="systemd")
send(MESSAGE_ID="fe6faa94e7774663a0da52717891d8ef",MESSAGE="app.service: A process of this unit has been killed by the OOM killer.",PRIORITY=5,UNIT="app.service",SYSLOG_IDENTIFIER="systemd")
send(MESSAGE_ID="fc2e22bc6ee647b6b90729ab34a250b1",MESSAGE="Process 811 (nginx) of user 33 dumped core. "+"frame "*500,PRIORITY=2,COREDUMP_UNIT="nginx.service",COREDUMP_PID="811",COREDUMP_SIGNAL="11",COREDUMP_EXE="/usr/sbin/nginx",COREDUMP_FILENAME="/var/lib/systemd/coredump/core.nginx.33.811.zst",SYSLOG_IDENTIFIER="systemd-coredump")
for n in range(40): send(MESSAGE=f"[crit] {n}#0: bind() to 0.0.0.0:80 failed (98: Address already in use)",PRIORITY=2,UNIT="nginx.service",SYSLOG_IDENTIFIER="nginx")
send(MESSAGE="something of a unit that is nobody's business",PRIORITY=3,UNIT="other.service",SYSLOG_IDENTIFIER="other")
for n in range(20): send(MESSAGE=f"another line {n}",PRIORITY=6,SYSLOG_IDENTIFIER="chatter",UNIT="chatter.service")
k=os.open('/dev/kmsg',os.O_RDWR|os.O_NONBLOCK)
for line in (b"6,900,1000000,-;random: crng reseeded\n", b"6,901,2000000,-;nginx[811]: segfault at 10 ip 000055d0c0001234 sp 00007ffd00000000 error 4 in nginx[1234,55d0c0000000+1c8000] likely on CPU 0 (core 0, socket 0)\n"):
    os.write(k,line); time.sleep(0.3)
time.sleep(0.5)
P
journalctl -D /run/log/journal --sync 2>/dev/null || true
kill -RTMIN+1 $pid; sleep 1
kill $pid; wait $pid || true
cp /run/log/journal/*/*.journal $out
