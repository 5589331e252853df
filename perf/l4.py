#!/usr/bin/env python3
"""What the balancer of layer 4 costs: ns a packet for each mode, growth with the table of flows, packets for a second of CPU.

Needs root rights; all of it happens in a network namespace that this makes. ns a packet are BPF_PROG_TEST_RUN's, medians, less what
a run of a program costs that does nothing: in a row, as packets come when there are many, and one by one, with a system call before each. Packets for a second of CPU: frames that come by a veth pair and leave by another (parse, look
up, rewrite, route, send, and the other end's NAPI), by the CPU of the process that makes the kernel send them, less what sending takes; beside it nginx `stream`
between a client and a server that say small words to each other, by the CPU of its worker alone, each word being one packet
that a balancer would have forwarded.
Asked for: 150 ns a packet; 1,000,000 flows at most 1.3 times 1,000; 10 times nginx's packets for a second of CPU; one real server of a
hundred that comes or goes moves at most 1.1 % and its own share of new flows, and no established one.
"""
import argparse
import json
import os
import pathlib
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Set where the network is one of its own already.
INSIDE = "L4_INSIDE"
OWN, GATEWAY = "02:00:00:00:09:01", "02:00:00:00:09:fe"
NGINX = """worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log crit;
events {{ worker_connections 1024; }}
stream {{ server {{ listen 127.0.0.1:{port}; proxy_pass 127.0.0.1:{server}; tcp_nodelay on; }} }}
"""
CONNECTIONS = 16


def main():
    """Measures, prints a line for each, then the ratios asked for."""
    options = parse()
    if INSIDE not in os.environ:
        if not cost_program(options).exists():
            subprocess.run(["cargo", "build", "-q", "--workspace", "--locked", "--example", "packet_cost"], cwd=ROOT, check=True)
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--net", "--mount", "--propagation", "private", sys.executable, *sys.argv])
    network()
    rows = run_cost(options, "rows")
    if options.rows:
        return report_rows(rows)
    stats = pathlib.Path("/proc/sys/kernel/bpf_stats_enabled")
    was = stats.read_text()
    try:
        stats.write_text("1")
        lines = rows + run_cost(options)
    finally:
        stats.write_text(was)
    nginx = {size: nginx_packets(options, size) for size in (64, 1400)}
    report(lines, nginx)


def cost_program(options):
    """crates/l4/examples/packet_cost.rs, beside the server that is named."""
    folder = pathlib.Path(options.ironweir).resolve().parent / "examples" if options.ironweir else ROOT / "target/debug/examples"
    program = folder / "packet_cost"
    return program if program.exists() else ROOT / "target/debug/examples/packet_cost"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ironweir", help="server whose `examples/packet_cost` is used if there is one beside it; else this tree's is built if it is not there")
    parser.add_argument("--rows", action="store_true", help="packets in a row only: the program in each mode, and the floor of the machine")
    parser.add_argument("--nginx", default="nginx", help="program to compare with")
    parser.add_argument("--modules", default="/usr/lib/nginx/modules", help="where ngx_stream_module.so is, if it is not built in")
    parser.add_argument("--seconds", type=float, default=5, help="for nginx, each size")
    return parser.parse_args()


def ip(line):
    subprocess.run(["ip", *line.split()], check=True)


def network():
    """One veth with real servers as neighbours and all else behind a gateway, and one that clients' packets come by."""
    # /sys shows the interfaces of the namespace it was mounted in.
    subprocess.run(["mount", "-t", "sysfs", "sysfs", "/sys"], check=True)
    for line in ["link set lo up", f"link add lan address {OWN} type veth peer name far", "link set far up", "link set lan up",
                 "link add gen type veth peer name wan", "link set gen up", "link set wan up",
                 "addr add 10.9.1.1/24 dev lan", "addr add fd00:9:1::1/64 dev lan nodad"]:
        ip(line)
    for name in ["ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding"]:
        pathlib.Path("/proc/sys/net", name).write_text("1")
    for n in range(2, 104):
        ip(f"neigh replace 10.9.1.{n} lladdr 02:00:04:00:00:{n:02x} nud permanent dev lan")
    for n in range(2, 6):
        ip(f"neigh replace fd00:9:1::{n} lladdr 02:00:06:00:00:{n:02x} nud permanent dev lan")
    ip(f"neigh replace 10.9.1.254 lladdr {GATEWAY} nud permanent dev lan")
    ip("route add default via 10.9.1.254")
    # Answers of real servers go to clients that are behind it.
    ip(f"neigh replace fd00:9:1::fe lladdr {GATEWAY} nud permanent dev lan")
    ip("-6 route add default via fd00:9:1::fe dev lan")


def run_cost(options, *words):
    """The lines of crates/l4/examples/packet_cost.rs."""
    program = cost_program(options)
    lines = []
    with subprocess.Popen([program, *words], stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            lines.append(json.loads(line))
            print(line.strip(), flush=True)
    if child.returncode:
        sys.exit(f"{program} failed")
    return lines


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def nginx_packets(options, size):
    """Words that nginx forwards for a second of its worker's CPU."""
    server = socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS)
    stop = threading.Event()
    threading.Thread(target=answer, args=(server, size, stop), daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        module = pathlib.Path(options.modules, "ngx_stream_module.so")
        if b"--with-stream=dynamic" in subprocess.run([options.nginx, "-V"], stderr=subprocess.PIPE, check=True).stderr and not module.exists():
            sys.exit(f"{options.nginx} has no stream module (Debian: libnginx-mod-stream); see --modules")
        text = f"load_module {module};\n" if module.exists() else ""
        configuration = pathlib.Path(folder, "nginx.conf")
        configuration.write_text(text + NGINX.format(folder=folder, port=port, server=server.getsockname()[1]))
        with subprocess.Popen([options.nginx, "-c", configuration, "-p", folder]) as master:
            try:
                clients = connect(port)
                worker = int(subprocess.run(["pgrep", "-P", str(master.pid)], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[0])
                converse(clients, size, 0.5)
                before = cpu(worker)
                words = converse(clients, size, options.seconds)
                used = cpu(worker) - before
            finally:
                stop.set()
                master.terminate()
    server.close()
    # A word and its answer: two packets for a balancer.
    return round(2 * words / used)


def connect(port):
    end = time.monotonic() + 10
    while True:
        try:
            clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
            for client in clients:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return clients
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise


def cpu(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def answer(server, size, stop):
    selector = selectors.DefaultSelector()
    selector.register(server, selectors.EVENT_READ)
    while not stop.is_set():
        for key, _ in selector.select(0.1):
            if key.fileobj is server:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connection, selectors.EVENT_READ)
            else:
                data = key.fileobj.recv(65536)
                if data:
                    key.fileobj.sendall(data)
                else:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()


def converse(clients, size, seconds):
    """Each connection says a word as soon as its last one was answered; how many were."""
    # As much as fits into a frame of that size.
    word = b"x" * max(1, size - 66)
    selector = selectors.DefaultSelector()
    for client in clients:
        selector.register(client, selectors.EVENT_READ, [0])
        client.sendall(word)
    words, end = 0, time.monotonic() + seconds
    waiting = len(clients)
    while waiting:
        for key, _ in selector.select(5):
            key.data[0] += len(key.fileobj.recv(65536))
            if key.data[0] < len(word):
                continue
            key.data[0] = 0
            words += 1
            if time.monotonic() < end:
                key.fileobj.sendall(word)
            else:
                waiting -= 1
    return words


def report_rows(lines):
    """What the program costs in a row, beside the floor."""
    rows = {(l["row"], l["ipv6"], l["flows"], l["bytes"]): l for l in lines if "row" in l}
    floor = {l["floor"]: l for l in lines if "floor" in l}
    for (mode, ipv6, flows, size), line in rows.items():
        few = rows[(mode, ipv6, 1000, size)]["ns"]
        print(f"{mode}{' IPv6' if ipv6 else ''}, {flows:,} flows, {size} bytes, in a row: {line['ns']} ns (asked for: 150), {line['ns'] / max(few, 1):.2f} of 1,000 flows "
              f"(asked for: at most 1.30); by the table alone {line['ns_by_table']} ns; a new flow {line['ns_new']} ns")
    for flows, line in floor.items():
        print(f"the floor with {flows:,} flows: {line['ns_line']} ns for a word of an array, {line['ns_table']} ns for one look into an LRU table of the kernel's")
    print(f"load average {os.getloadavg()[0]:.1f} of {os.cpu_count()} CPUs")


def report(lines, nginx):
    report_rows(lines)
    costs = {(l["mode"], l["ipv6"], l["flows"], l["bytes"]): l for l in lines if "mode" in l}
    few, many = costs[("nat", False, 1000, 64)], costs[("nat", False, 1_000_000, 64)]
    row = {l["flows"]: l["program_ns"] for l in lines if l.get("live") == "nat" and l["bytes"] == 64}
    print(f"nat: {row[1000]:.0f} ns a packet in a row, {few['ns']} ns one by one (asked for: 150)")
    print(f"1,000,000 flows: {row[1_000_000]:.0f} ns in a row, {row[1_000_000] / row[1000]:.2f} of 1,000 flows, one by one {many['ns']} ns, "
          f"{many['ns'] / few['ns']:.2f} (asked for: at most 1.30), table {many['table_mb']} MB")
    for line in lines:
        if "become" in line:
            most = line["own_share_percent"] + 1.1
            print(f"{line['reals']} real servers become {line['become']}: {line['new_flows_moved_percent']:.2f} % of new flows move (asked for: at most {most:.2f}), "
                  f"{line['established_moved']} established ones (asked for: 0)")
        if "live" in line:
            size = line["bytes"]
            ratio = line["packets_per_cpu_s"] / nginx[size]
            print(f"{line['live']}, {line['flows']:,} flows, {size} bytes: {line['program_ns']:.0f} ns in the program, {line['packets_per_cpu_s']:,.0f} packets a CPU second, nginx {nginx[size]:,}: {ratio:.1f} times "
                  f"(asked for: 10), {line['arrived']:,} of {line['sent']:,} arrived")
    print(f"load average {os.getloadavg()[0]:.1f} of {os.cpu_count()} CPUs")


main()
