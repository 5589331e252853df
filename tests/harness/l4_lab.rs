//! Network namespaces for the balancer of layer 4: a client, a router, two balancers and four real servers, joined by veth
//! pairs. All of it is the test's own and goes with it.
//!
//! ```text
//! client 10.9.2.2 ── router ── front 10.9.0.0/24 ── balancers .11, .12 ── servers 10.9.1.0/24: real servers .1 to .4
//!                       └────────────────────────────────────────────────────────┘ .254
//! ```
//! The same in IPv6 with `fd00:9:N::` for `10.9.N.`. Services are on 10.9.9.1 and fd00:9:9::1, which the router sends to a
//! balancer.

use super::Folder;
use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

pub const SERVICE4: &str = "10.9.9.1";
pub const SERVICE6: &str = "fd00:9:9::1";
const HOSTS: [&str; 8] = ["client", "router", "lb1", "lb2", "r1", "r2", "r3", "r4"];
/// Longer than anything takes on a machine with much else to do.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where real servers send what is not on their network.
#[derive(Clone, Copy, PartialEq)]
pub enum Gateway {
    /// The first balancer, which NAT needs.
    Balancer,
    /// The router; the service's address is on the real servers, too.
    Router,
}

pub struct Lab {
    tag: String,
    pub folder: Folder,
    children: Vec<Child>,
    mounts: Vec<PathBuf>,
}

/// A process inside, with what it prints.
pub struct Inside {
    id: u32,
    lines: Receiver<String>,
    input: Option<ChildStdin>,
}

impl Inside {
    /// Its process id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Waits for a line that contains a text.
    pub fn expect(&self, text: &str) -> String {
        let end = Instant::now() + PATIENCE;
        let mut all = String::new();
        while let Ok(line) = self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            if line.contains(text) {
                return line;
            }
            all.push_str(&line);
            all.push('\n');
        }
        panic!("\"{text}\" was not printed, but:\n{all}");
    }

    /// A command to `l4_peer.py ask`, and its answer.
    pub fn ask(&mut self, command: &str) -> serde_json::Value {
        self.tell(command);
        self.hear()
    }

    /// A command whose answer takes its time.
    pub fn tell(&mut self, command: &str) {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{command}").unwrap();
        input.flush().unwrap();
    }

    /// The answer to [`Inside::tell`].
    pub fn hear(&mut self) -> serde_json::Value {
        let line = self.lines.recv_timeout(PATIENCE * 4).unwrap_or_else(|_| panic!("no answer to a command"));
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("a command was answered: {line}"))
    }

    /// As `ask`, of a list of names.
    pub fn names(&mut self, command: &str) -> Vec<String> {
        let answer = self.ask(command);
        answer.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
    }
}

/// What is missing for a lab, if anything.
pub fn missing() -> Option<&'static str> {
    let works = |program: &str, arguments: &[&str]| {
        let status = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|s| s.success())
    };
    if !works("unshare", &["--net", "--mount", "true"]) {
        return Some("root rights");
    }
    let tools = [("ip", "-V"), ("nsenter", "--version"), ("ethtool", "--version"), ("python3", "--version")];
    tools.iter().find(|(program, version)| !works(program, &[version])).map(|(program, _)| *program)
}

impl Lab {
    /// `None`, said aloud, where one cannot be had.
    pub fn new(gateway: Gateway) -> Option<Lab> {
        if let Some(what) = missing() {
            println!("LEFT OUT: a test of the balancer in the kernel needs {what}");
            return None;
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let tag = format!("iw{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut lab = Lab { tag, folder: Folder::new(), children: Vec::new(), mounts: Vec::new() };
        lab.build(gateway);
        Some(lab)
    }

    fn name(&self, host: &str) -> String {
        format!("{}-{host}", self.tag)
    }

    /// A command inside a host; it must succeed.
    pub fn on(&self, host: &str, command: &str) -> String {
        let mut words = command.split(' ');
        let done = self.command(host, words.next().unwrap()).args(words).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{host}: {command}: {said}");
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    fn command(&self, host: &str, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name(host))).arg("--").arg(program);
        command
    }

    fn batch(&self, host: &str, lines: &str) {
        let mut child = self.command(host, "ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "{host}: ip -batch:\n{lines}");
    }

    fn build(&mut self, gateway: Gateway) {
        for host in HOSTS {
            let done = Command::new("ip").args(["netns", "add", &self.name(host)]).status().unwrap();
            assert!(done.success());
            self.on(host, "ip link set lo up");
            for (file, value) in
                [("ipv4/ip_forward", 1), ("ipv6/conf/all/forwarding", 1), ("ipv6/conf/default/accept_dad", 0)]
            {
                self.on(host, &format!("sysctl -q -w net.{}={value}", file.replace('/', ".")));
            }
        }
        self.batch(
            "router",
            "link add front type bridge mcast_snooping 0\nlink add back type bridge mcast_snooping 0\n",
        );
        self.join("client", "eth0", 2, 2, None);
        for (n, host) in [(11, "lb1"), (12, "lb2")] {
            self.join(host, "front", 0, n, Some("front"));
            self.join(host, "back", 1, n, Some("back"));
            self.batch(host, &both("addr add @9.1/H dev lo nodad\nroute add default via @0.254\n"));
        }
        for n in 1..=4 {
            let host = format!("r{n}");
            self.join(&host, "eth0", 1, n, Some("back"));
            let via = if gateway == Gateway::Balancer { "@1.11" } else { "@1.254" };
            self.batch(&host, &both(&format!("route add default via {via}\n")));
            if gateway == Gateway::Router {
                self.batch(&host, &both("addr add @9.1/H dev lo nodad\n"));
            }
        }
        self.batch("router", &both("addr add @0.254/N dev front nodad\naddr add @1.254/N dev back nodad\n"));
        self.batch("router", "link set front up\nlink set back up\n");
        self.batch("client", &both("route add default via @2.254\n"));
        // What a program sends back by the link that it came by (XDP_TX) waits in the other end's ring until something else
        // comes, unless that end of the veth pair has a program, too.
        for balancer in ["lb1", "lb2"] {
            self.table("router", &["pass", &format!("{balancer}-front")]);
        }
        self.route_to(11);
    }

    /// A veth pair from a host to the router, to a bridge there or, for the client, to the router itself.
    fn join(&self, host: &str, device: &str, network: u32, n: u32, bridge: Option<&str>) {
        let (far, router) = (format!("{host}-{device}"), self.name("router"));
        self.batch(host, &format!("link add {device} type veth peer name {far} netns {router}\n"));
        for (host, device) in [(host, device), ("router", &far)] {
            // Frames that XDP sends carry no mark of a checksum to be made; GRO gives the receiver the NAPI that they need.
            self.on(host, &format!("ethtool -K {device} tx off gro on"));
        }
        self.batch(host, &both(&format!("addr add @{network}.{n}/N dev {device} nodad\n")));
        self.batch(host, &format!("link set {device} up\n"));
        match bridge {
            Some(bridge) => self.batch("router", &format!("link set {far} master {bridge}\nlink set {far} up\n")),
            None => {
                self.batch("router", &both(&format!("addr add @{network}.254/N dev {far} nodad\n")));
                self.batch("router", &format!("link set {far} up\n"));
            }
        }
    }

    /// Clients' packets go to this balancer.
    pub fn route_to(&self, balancer: u32) {
        self.batch("router", &both(&format!("route replace @9.1/H via @0.{balancer}\n")));
    }

    /// Real servers' packets go to this balancer.
    pub fn back_to(&self, balancer: u32) {
        for n in 1..=4 {
            self.batch(&format!("r{n}"), &both(&format!("route replace default via @1.{balancer}\n")));
        }
    }

    fn start(&mut self, mut command: Command) -> Inside {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (send, lines) = channel();
        let output = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| send.send(line))
        });
        let inside = Inside { id: child.id(), lines, input: child.stdin.take() };
        self.children.push(child);
        inside
    }

    /// `ironweir l4 run` on a balancer, with a plan.
    pub fn balance(&mut self, host: &str, plan: &str) -> Inside {
        self.write_plan(host, plan);
        let file = self.folder.path().join(format!("{host}.json"));
        let mut command = self.l4(host);
        command.arg("run").arg(file);
        let inside = self.start(command);
        inside.expect("balancing");
        inside
    }

    /// Writes a configuration for a host. `stream`: what stands in the block; `@PINS@` is where the balancer's maps are pinned.
    pub fn configure(&mut self, host: &str, stream: &str, http: &str) {
        self.configure_with(host, "", stream, http);
    }

    /// The same with directives of the main level.
    pub fn configure_with(&mut self, host: &str, main: &str, stream: &str, http: &str) {
        let pins = self.pins(host);
        let root = self.folder.path().join(host);
        std::fs::create_dir_all(root.join("logs")).unwrap();
        let flows = if stream.contains("xdp_flows") { "" } else { "xdp_flows 10000;" };
        let text = format!(
            "daemon off; pid logs/nginx.pid; error_log logs/error.log info; worker_processes 1; {main}\nevents {{}}\n\
             stream {{ xdp_pins {pins}; {flows} {stream} }}\nhttp {{ access_log off; {http} }}\n",
            pins = pins.display(),
        );
        std::fs::write(root.join("nginx.conf"), text).unwrap();
    }

    /// Ironweir on a host, by what [`Lab::configure`] wrote; it serves when this returns.
    pub fn ironweir(&mut self, host: &str) -> Inside {
        let root = self.folder.path().join(host);
        let mut command = self.command(host, env!("CARGO_BIN_EXE_ironweir"));
        command.arg("-p").arg(&root).args(["-c", "nginx.conf"]);
        let inside = self.start(command);
        // Who answers is asked of it; here it is enough that it began.
        let pid = root.join("logs/nginx.pid");
        assert!(super::wait(|| pid.exists()), "it did not start: {}", self.log(host));
        inside
    }

    /// A host's error log.
    pub fn log(&self, host: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(host).join("logs/error.log")).unwrap_or_default()
    }

    /// What `-t` says of a host's configuration, and whether it is good.
    pub fn test(&self, host: &str) -> (bool, String) {
        let root = self.folder.path().join(host);
        let mut command = self.command(host, env!("CARGO_BIN_EXE_ironweir"));
        let done = command.arg("-t").arg("-p").arg(&root).args(["-c", "nginx.conf"]).output().unwrap();
        (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
    }

    /// Lines of a host's error log that contain a text.
    pub fn count_logged(&self, host: &str, text: &str) -> usize {
        self.log(host).lines().filter(|line| line.contains(text)).count()
    }

    /// Sends a signal to a process of ours.
    pub fn signal(&self, inside: &Inside, name: &str) {
        assert!(Command::new("kill").args([&format!("-{name}"), &inside.id.to_string()]).status().unwrap().success());
    }

    /// Waits for the end of a process of ours.
    pub fn ended(&mut self, inside: &Inside) -> bool {
        let child = self.children.iter_mut().find(|child| child.id() == inside.id).unwrap();
        super::wait(|| child.try_wait().unwrap().is_some())
    }

    /// Somebody on a host who can be asked to connect and to send requests.
    pub fn asker(&mut self, host: &str) -> Inside {
        let mut command = self.command(host, "python3");
        command.arg(script()).arg("ask");
        self.start(command)
    }

    pub fn write_plan(&self, host: &str, plan: &str) {
        let file = self.folder.path().join(format!("{host}.json"));
        let fresh = file.with_extension("new");
        std::fs::write(&fresh, plan).unwrap();
        std::fs::rename(fresh, file).unwrap();
    }

    fn pins(&mut self, host: &str) -> PathBuf {
        let pins = self.folder.path().join(format!("pins-{host}"));
        if !self.mounts.contains(&pins) {
            self.mounts.push(pins.clone());
        }
        pins
    }

    fn l4(&mut self, host: &str) -> Command {
        let pins = self.pins(host);
        let mut command = self.command(host, env!("CARGO_BIN_EXE_ironweir"));
        command.args(["l4", "--pins"]).arg(pins);
        command
    }

    /// What `ironweir l4` prints.
    pub fn table(&mut self, host: &str, arguments: &[&str]) -> String {
        let done = self.l4(host).args(arguments).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// What `ironweir l4 COMMAND PLAN` complains of.
    pub fn failure(&mut self, host: &str, command: &str) -> String {
        let file = self.folder.path().join(format!("{host}.json"));
        let done = self.l4(host).arg(command).arg(file).output().unwrap();
        assert!(!done.status.success());
        String::from_utf8_lossy(&done.stderr).into_owned()
    }

    /// A server on every real server's host, named as its host.
    pub fn serve(&mut self, family: u8, port: u16) -> Vec<Inside> {
        let script = script();
        let one = |lab: &mut Lab, host: String| {
            let mut command = lab.command(&host, "python3");
            command.arg(&script).args(["serve", &host, &family.to_string(), &port.to_string()]);
            let inside = lab.start(command);
            inside.expect("ready");
            inside
        };
        (1..=4).map(|n| one(self, format!("r{n}"))).collect()
    }

    pub fn client(&mut self) -> Inside {
        self.asker("client")
    }

    /// A socket for datagrams on a host, for a client of the test's own.
    pub fn datagrams(&self, host: &str) -> UdpSocket {
        let file = std::fs::File::open(format!("/run/netns/{}", self.name(host))).unwrap();
        // A thread of its own, since it stays where it went.
        let made = std::thread::spawn(move || {
            let kind = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(file.as_fd(), kind).unwrap();
            UdpSocket::bind("0.0.0.0:0").unwrap()
        });
        made.join().unwrap()
    }

    /// Any program on a host, for as long as the lab is there.
    pub fn run(&mut self, host: &str, program: &str, arguments: &[&str]) -> Inside {
        let mut command = self.command(host, program);
        command.args(arguments);
        self.start(command)
    }

    /// On the real servers: takes off the headers of tunnels.
    pub fn open_tunnels(&mut self) {
        for n in 1..=4 {
            self.table(&format!("r{n}"), &["decap", "eth0"]);
        }
    }

    /// Ends a process of ours at once, and waits for it.
    pub fn kill(&mut self, inside: &Inside) {
        let child = self.children.iter_mut().find(|child| child.id() == inside.id).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/l4_peer.py")
}

/// The lines for IPv4, and for IPv6: `@1.2` is an address, `/N` the length of a network, `/H` that of a host.
fn both(lines: &str) -> String {
    let mut text = String::new();
    for line in lines.lines() {
        let v4 = line.replace('@', "10.9.").replace("/N", "/24").replace("/H", "/32").replace(" nodad", "");
        let v6 = line.split(' ').map(|word| match word.strip_prefix('@') {
            Some(rest) => format!("fd00:9:{}", rest.replacen('.', "::", 1).replace("/N", "/64").replace("/H", "/128")),
            None => word.to_owned(),
        });
        let v6 = v6.collect::<Vec<_>>().join(" ");
        text.push_str(&format!("{v4}\n{v6}\n"));
    }
    text
}

impl Drop for Lab {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        // A server whose master was killed serves on: whoever is still in a host goes with it.
        for host in HOSTS {
            let Ok(said) = Command::new("ip").args(["netns", "pids", &self.name(host)]).output() else { continue };
            for pid in String::from_utf8_lossy(&said.stdout).split_whitespace() {
                let _ = Command::new("kill").args(["-9", pid]).stderr(Stdio::null()).status();
            }
        }
        for mount in &self.mounts {
            let _ = Command::new("umount").arg("-l").arg(mount).stderr(Stdio::null()).status();
        }
        for host in HOSTS {
            let _ = Command::new("ip").args(["netns", "del", &self.name(host)]).stderr(Stdio::null()).status();
        }
    }
}
