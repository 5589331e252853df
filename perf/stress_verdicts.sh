#!/bin/sh
# The verdict of `ironweir stress` where the answer is known: perf/stress_verdicts.sh IRONWEIR. Root, nginx, iproute2, two cores.
# Prints a line for each case: what was expected, what was said. Changes nothing outside its own network namespaces. On a machine that
# is not quiet, RUN='chrt -f 10' gives generator and target real-time priority, but where spinning neighbours are the case.
set -u
program=${1:?usage: perf/stress_verdicts.sh IRONWEIR}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cat >"$dir/nginx.conf" <<END
daemon off; worker_processes 1; pid $dir/pid; error_log $dir/error.log; worker_rlimit_nofile 8192;
events { worker_connections 4096; }
http { access_log off; keepalive_requests 1000000;
  server { listen 7811 backlog=4096; location / { return 200 "hello"; } location /slow { limit_rate 10; return 200 "hello, slowly"; } }
  server { listen 7812 backlog=8; location / { return 200 "hello"; } } }
END
say() { # expected, name; the summary comes in
    said=$(sed -n 's/^Verdict: //p')
    [ "$said" = "$1" ] && word=right || word=WRONG
    printf '%-6s %-40s expected %-10s said %s\n' "$word" "$2" "$1" "$said"
}
run=${RUN:-}
serve() { $run taskset -c 0 nginx -c "$dir/nginx.conf" 2>/dev/null & server=$!; sleep 0.5; }
stop() { kill "$server" && wait "$server" 2>/dev/null; }
load() { $run taskset -c 1 "$program" stress -q --no-preflight -t1 "$@"; }

unshare -n sh -c "ip link set lo up; echo 32768 33067 >/proc/sys/net/ipv4/ip_local_port_range
    nginx -c $dir/nginx.conf & sleep 0.5
    $program stress -q --no-preflight -t1 -c64 -d3s --close client http://127.0.0.1:7811/; kill \$!" | say generator "300 local ports"

serve
spinners= real=$run run=
for _ in 1 2 3 4; do taskset -c 1 sh -c 'while :; do :; done' & spinners="$spinners $!"; done
load -c64 -d4s http://127.0.0.1:7811/ | say generator "four spinning neighbours, closed loop"
load -c64 -d4s -R5000 http://127.0.0.1:7811/ | say generator "four spinning neighbours, open loop"
kill $spinners
run=$real
load -c64 -d3s http://127.0.0.1:7811/slow | say target "a slow target"
load -c512 -d4s --close rst http://127.0.0.1:7812/ | say target "a target with backlog=8"
load -c64 -d3s -R2000 http://127.0.0.1:7811/ | say none "a healthy run"
stop

ip netns add stress-verdicts && ip link add sv0 type veth peer name sv1 netns stress-verdicts
ip addr add 10.213.7.1/24 dev sv0 && ip link set sv0 up
ip -n stress-verdicts addr add 10.213.7.2/24 dev sv1 && ip -n stress-verdicts link set sv1 up
ip netns exec stress-verdicts tc qdisc add dev sv1 root tbf rate 10mbit burst 10kb latency 50ms
ip netns exec stress-verdicts $run taskset -c 0 nginx -c "$dir/nginx.conf" & server=$!
sleep 0.5
load -c64 -d4s http://10.213.7.2:7811/ | say path "a veth of 10 Mbit/s, closed loop"
load -c64 -d4s -R20000 http://10.213.7.2:7811/ | say path "a veth of 10 Mbit/s, open loop"
stop
ip netns del stress-verdicts
