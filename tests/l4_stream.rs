//! Servers of `stream` whose packets the kernel balances (`listen ... xdp=MODE`): one configuration, one set of health checks,
//! one API for both layers, in network namespaces of the test's own.

use crate::harness::l4_lab::{Gateway, Inside, Lab, SERVICE4};
use crate::harness::wait;
use serde_json::{Value, json};
use std::collections::HashMap;

pub(crate) const HTTP: &str =
    "server { listen 127.0.0.1:8080; location /api { api write=on; } location /metrics { prometheus; } }";

/// A `stream` block with one server before the four real ones.
pub(crate) fn stream(servers: &str, more: &str) -> String {
    format!(
        "upstream web {{ zone web 64k; maglev; {servers} }}
         server {{ listen {SERVICE4}:80 xdp=nat; proxy_pass web; status_zone front; {more} }}"
    )
}

pub(crate) const FOUR: &str = "server 10.9.1.1:80; server 10.9.1.2:80; server 10.9.1.3:80; server 10.9.1.4:80;";

/// A balancer with this `stream` block, servers behind it, a client before it, and who asks its API.
pub(crate) struct Site {
    pub(crate) lab: Lab,
    pub(crate) balancer: Inside,
    servers: Vec<Inside>,
    pub(crate) client: Inside,
    api: Inside,
}

pub(crate) fn site(text: &str) -> Option<Site> {
    let mut lab = Lab::new(Gateway::Balancer)?;
    let servers = lab.serve(4, 80);
    Some(site_in(lab, servers, text))
}

/// The same in a lab that has its servers.
pub(crate) fn site_in(mut lab: Lab, servers: Vec<Inside>, text: &str) -> Site {
    lab.configure("lb1", text, HTTP);
    let balancer = lab.ironweir("lb1");
    let (client, api) = (lab.client(), lab.asker("lb1"));
    let mut site = Site { lab, balancer, servers, client, api };
    let mut kernel = Value::Null;
    let all = wait(|| {
        kernel = site.kernel();
        let services = kernel["services"].as_array().cloned().unwrap_or_default();
        !services.is_empty() && services.iter().all(|s| s["path"] == "kernel")
    });
    assert!(all, "{kernel} {}", site.lab.log("lb1"));
    site
}

impl Site {
    pub(crate) fn call(&mut self, method: &str, path: &str, body: Value) -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.api.ask(&format!("http {method} 8080 {path} {body}"))
    }

    pub(crate) fn get(&mut self, endpoint: &str) -> Value {
        self.call("GET", &format!("/api/9/{endpoint}"), Value::Null)["body"].clone()
    }

    pub(crate) fn kernel(&mut self) -> Value {
        self.get("ironweir/l4")
    }

    pub(crate) fn open(&mut self, n: usize) -> Vec<String> {
        self.client.names(&format!("open {n} {SERVICE4} 80"))
    }

    pub(crate) fn talk(&mut self) -> Vec<String> {
        self.client.names("talk")
    }

    pub(crate) fn until_it_works(&mut self) {
        assert!(wait(|| self.open(1)[0].starts_with('r')), "nothing comes through");
        self.client.ask("close");
    }

    /// The servers of new connections, once this is so of them.
    fn until(&mut self, what: impl Fn(&[String]) -> bool) -> Vec<String> {
        let mut names = Vec::new();
        let so = wait(|| {
            let fresh = self.lab.client().names(&format!("open 20 {SERVICE4} 80"));
            names = fresh;
            what(&names)
        });
        assert!(so, "{names:?} {}", self.kernel());
        names
    }
}

pub(crate) fn spread(names: &[String]) -> HashMap<&str, usize> {
    let mut count = HashMap::new();
    for name in names {
        *count.entry(name.as_str()).or_default() += 1;
    }
    count
}

pub(crate) fn never(name: &'static str) -> impl Fn(&[String]) -> bool {
    move |names| names.iter().all(|n| n.starts_with('r') && n != name)
}

#[test]
fn a_server_of_stream_is_balanced_by_the_kernel_and_counted_like_any_other() {
    let Some(mut site) = site(&stream(FOUR, "proxy_timeout 90s; health_check;")) else { return };
    site.until_it_works();
    let opened = site.open(40);
    assert_eq!(spread(&opened).len(), 4, "{opened:?}");
    assert_eq!(site.talk(), opened);
    assert_eq!(site.client.ask("big 500000"), 500_000);
    let mut kernel = Value::Null;
    assert!(wait(|| {
        kernel = site.kernel();
        kernel["services"][0]["flows"].as_u64() >= Some(41)
            && kernel["services"][0]["bytes_out"].as_u64() > Some(500_000)
    }));
    let service = &kernel["services"][0];
    assert_eq!(
        (&service["address"], &service["mode"], &service["scheduler"], &service["zone"], &service["upstream"]),
        (&json!("10.9.9.1:80"), &json!("nat"), &json!("mh"), &json!("front"), &json!("web"))
    );
    assert!(
        service["sizes"]["<75"].as_u64() > Some(100) && service["sizes"]["<1515"].as_u64() > Some(100),
        "{service}"
    );
    assert_eq!(
        kernel["interfaces"],
        json!([{"name": "back", "native": true}, {"name": "front", "native": true}]),
        "found by the routes"
    );
    // The same in the places where sessions of the proxy are counted. None of these passed it.
    let zone = site.get("stream/server_zones/front");
    assert!(zone["connections"].as_u64() >= Some(41) && zone["sent"].as_u64() > Some(500_000), "{zone}");
    assert!(zone["processing"].as_u64() >= Some(40), "{zone}");
    let peers = site.get("stream/upstreams/web")["peers"].clone();
    let sum = |name: &str| peers.as_array().unwrap().iter().map(|p| p[name].as_u64().unwrap()).sum::<u64>();
    assert!(sum("connections") >= 41 && sum("active") >= 40 && sum("received") > 500_000, "{peers}");
    let metrics = site.call("GET", "/metrics", Value::Null)["body"].as_str().unwrap().to_owned();
    for line in [
        r#"ironweir_l4_flows{service="10.9.9.1:80/tcp",server="10.9.1.1:80"}"#,
        r#"ironweir_l4_packet_bytes_bucket{service="10.9.9.1:80/tcp",le="74"}"#,
        r#"ironweir_l4_interface_native{interface="front"} 1"#,
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    let table = site.lab.table("lb1", &["list"]);
    assert!(table.contains("TCP  10.9.9.1:80 mh") && table.matches("  -> ").count() == 5, "{table}");
    // An orderly end leaves nothing behind: the address is the stack's again, where nobody listens.
    site.lab.signal(&site.balancer, "TERM");
    assert!(site.lab.ended(&site.balancer));
    assert!(!site.lab.on("lb1", "ip link show front").contains("prog/xdp"));
    assert_eq!(site.open(1), ["ConnectionRefusedError"]);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let pins = site.lab.folder.path().join("pins-lb1").display().to_string();
    assert!(!mounts.contains(&pins), "what was mounted for the pins is gone");
}

#[test]
fn a_reload_that_takes_xdp_away_lets_flows_end() {
    let text = stream(FOUR, "");
    let Some(mut site) = site(&text) else { return };
    site.until_it_works();
    let opened = site.open(20);
    let has_program = |site: &Site| site.lab.on("lb1", "ip link show front").contains("prog/xdp");
    let reload = |site: &mut Site, text: &str, services: usize| {
        site.lab.configure("lb1", text, HTTP);
        site.lab.signal(&site.balancer, "HUP");
        assert!(wait(|| site.kernel()["services"].as_array().is_some_and(|s| s.len() == services)));
    };
    reload(&mut site, &text.replace(" xdp=nat", ""), 0);
    // By the kernel still, since the ordinary proxy knows nothing of them.
    assert_eq!(site.talk(), opened);
    let mut others = site.lab.client();
    let new = others.names(&format!("open 4 {SERVICE4} 80"));
    assert!(new.iter().all(|name| name.starts_with('r')), "the ordinary proxy's: {new:?}");
    assert!(has_program(&site));
    // It comes back before they have ended.
    reload(&mut site, &text, 1);
    assert!(wait(|| site.kernel()["services"][0]["path"] == "kernel"));
    assert_eq!(site.talk(), opened);
    assert!(site.until(|names| names.iter().all(|n| n.starts_with('r'))).len() == 20);
    reload(&mut site, &text.replace(" xdp=nat", ""), 0);
    assert_eq!(site.talk(), opened);
    site.client.ask("close");
    assert!(wait(|| !has_program(&site)), "it goes with the last flow: {}", site.lab.log("lb1"));
    assert_eq!(others.names("talk"), new);
}

#[test]
fn who_is_kept_out_by_a_program_is_not_let_in_by_the_kernel() {
    let Some(mut lab) = Lab::new(Gateway::Balancer) else { return };
    let _servers = lab.serve(4, 80);
    lab.configure("lb1", &stream(FOUR, "preread_by_lua_block { ngx.exit(403) }"), HTTP);
    let (good, said) = lab.test("lb1");
    assert!(good && said.contains("the ordinary proxy of \"stream\" serves it, not the kernel"), "{said}");
    let _balancer = lab.ironweir("lb1");
    let mut client = lab.client();
    let mut names = Vec::new();
    let is_closed = wait(|| {
        names = client.names(&format!("open 4 {SERVICE4} 80"));
        names.iter().all(|name| name.is_empty() || name == "ConnectionResetError")
    });
    assert!(is_closed, "{names:?}");
}

#[test]
fn the_api_and_reloads_change_the_kernels_servers_and_move_no_flow() {
    let three = "server 10.9.1.1:80; server 10.9.1.2:80; server 10.9.1.3:80;";
    let Some(mut site) = site(&stream(three, "")) else { return };
    site.until_it_works();
    let opened = site.open(30);
    assert_eq!(spread(&opened).len(), 3, "{opened:?}");
    let servers = "/api/9/stream/upstreams/web/servers";
    let added = site.call("POST", servers, json!({"server": "10.9.1.4:80", "weight": 5}));
    assert_eq!(added["status"], 201, "{added}");
    let names = site.until(|names| names.iter().filter(|n| *n == "r4").count() >= 8);
    assert!(names.iter().all(|n| n.starts_with('r')));
    let drained = site.call("PATCH", &format!("{servers}/0"), json!({"drain": true}));
    assert_eq!(drained["body"]["drain"], true, "{drained}");
    site.until(never("r1"));
    assert_eq!(site.call("PATCH", &format!("{servers}/1"), json!({"down": true}))["status"], 200);
    site.until(|names| never("r1")(names) && never("r2")(names));
    assert_eq!(site.talk(), opened, "whoever was there stays where it was");
    // What the kernel does is reported once in a while.
    let mut states = HashMap::new();
    let reported = wait(|| {
        let kernel = site.kernel();
        let servers = kernel["services"][0]["servers"].as_array().unwrap();
        let state = |r: &Value| (r["server"].as_str().unwrap().to_owned(), r["state"].as_str().unwrap().to_owned());
        states = servers.iter().map(state).collect();
        let is = |server: &str, state: &str| states.get(server).is_some_and(|is| is == state);
        is("10.9.1.1:80", "drain") && is("10.9.1.2:80", "drain") && is("10.9.1.4:80", "up")
    });
    assert!(reported, "{states:?}");
    assert_eq!(site.call("DELETE", &format!("{servers}/2"), Value::Null)["status"], 200);
    site.until(|names| names.iter().all(|n| n == "r4"));
    assert_eq!(site.talk(), opened);
    // A reload brings the servers of the text; what the operator said of a server that stays still holds.
    site.lab.configure("lb1", &stream("server 10.9.1.1:80; server 10.9.1.3:80;", "proxy_timeout 30s;"), HTTP);
    site.lab.signal(&site.balancer, "HUP");
    site.until(|names| names.iter().all(|n| n == "r3"));
    assert_eq!(site.talk(), opened);
    assert_eq!(site.lab.count_logged("lb1", "start balancer process"), 1);
}

#[test]
fn a_peer_that_fails_its_check_gets_no_new_flows_and_drops_those_it_has_if_told_so() {
    let checked = "health_check interval=200ms fails=1 passes=1 port=81; proxy_session_drop on;";
    // What is checked is another port of each server, so that only the check's verdict takes one out.
    let Some(mut site) = site(&stream(FOUR, checked)) else { return };
    let checked: Vec<_> = site.lab.serve(4, 81);
    assert!(wait(|| {
        let servers = site.kernel()["services"][0]["servers"].clone();
        servers.as_array().is_some_and(|all| all.iter().all(|p| p["state"] == "up"))
    }));
    site.until_it_works();
    let opened = site.open(30);
    assert_eq!(spread(&opened).len(), 4, "{opened:?}");
    site.lab.kill(&checked[1]);
    site.until(never("r2"));
    for (was, is) in opened.iter().zip(site.talk()) {
        assert_eq!(is, if was == "r2" { "ConnectionResetError" } else { was });
    }
}

#[test]
fn an_idle_flow_is_reset_at_both_ends_and_a_client_keeps_its_server() {
    let words = "proxy_timeout 2s; xdp_timeout_reset on; xdp_affinity 1m;";
    let Some(mut site) = site(&stream(FOUR, words).replace("maglev;", "")) else { return };
    site.until_it_works();
    let opened = site.open(12);
    assert_eq!(spread(&opened).len(), 1, "in turns they would be with four: {opened:?}");
    assert_eq!(site.talk(), opened);
    let idle = |line: &str| line.contains("ESTABLISHED") && line.split_whitespace().nth(1) >= Some("00:03");
    assert!(wait(|| site.lab.table("lb1", &["--connections"]).lines().filter(|line| idle(line)).count() >= 12));
    assert_eq!(site.talk(), vec!["ConnectionResetError"; 12]);
    let server = opened[0].trim_start_matches('r').parse::<usize>().unwrap() - 1;
    site.servers[server].expect("ConnectionResetError");
}

#[test]
fn what_the_kernel_balances_outlives_the_processes() {
    let Some(mut site) = site(&stream(FOUR, "")) else { return };
    site.until_it_works();
    let opened = site.open(20);
    // The worker dies and the balancer's process, then the master.
    let children = |site: &Site| {
        let all = site.lab.on("lb1", &format!("pgrep -P {}", site.balancer.id()));
        all.lines().map(|pid| pid.parse::<u32>().unwrap()).collect::<Vec<_>>()
    };
    for pid in children(&site) {
        site.lab.on("lb1", &format!("kill -9 {pid}"));
    }
    assert_eq!(site.talk(), opened);
    assert!(wait(|| site.lab.count_logged("lb1", "start balancer process") == 2));
    assert!(wait(|| site.kernel()["services"][0]["path"] == "kernel"));
    assert_eq!(site.open(10).iter().filter(|n| n.starts_with('r')).count(), 10);
    site.lab.kill(&site.balancer);
    let all = site.talk();
    assert_eq!(all[..20], opened);
    let next = site.lab.ironweir("lb1");
    assert!(wait(|| site.kernel()["services"][0]["path"] == "kernel"));
    assert_eq!(site.talk(), all);
    site.balancer = next;
}

/// What a flood of SYNs did.
struct Flooded {
    sent: u64,
    cookies: u64,
    proved: u64,
    /// In the kernel's table at the end of it.
    flows: u64,
    /// Of twenty real clients meanwhile, who had no word of a server.
    lost: usize,
}

/// How often a flood is made until all real clients were served during one.
const FLOODS: usize = 8;

/// What four seconds of SYNs from addresses that are nobody's do, at `xdp_syn_cookies WORD`.
fn flood(word: &str) -> Option<Flooded> {
    let mut site = site(&stream(FOUR, &format!("xdp_syn_cookies {word};")))?;
    site.until_it_works();
    let opened = site.open(20);
    let mut attacker = site.lab.client();
    attacker.tell(&format!("flood 4 {SERVICE4} 80"));
    let seen = if word == "off" { "forwarded" } else { "cookie" };
    assert!(wait(|| site.kernel()["events"][seen].as_u64() > Some(2000)), "it is there: {}", site.kernel());
    assert_eq!(site.talk(), opened, "whoever was there does not notice");
    let meanwhile = [format!("open 20 {SERVICE4} 80"), "talk".to_owned(), "big 300000".to_owned()];
    meanwhile.iter().for_each(|order| site.client.tell(order));
    let sent = attacker.hear().as_u64().unwrap();
    let kernel = site.kernel();
    let event = |name: &str| kernel["events"][name].as_u64().unwrap();
    let flows = kernel["services"][0]["active"].as_u64().unwrap();
    let during: Vec<String> = serde_json::from_value(site.client.hear()).unwrap();
    let lost = during.iter().filter(|name| !name.starts_with('r')).count();
    let (all, big) = (site.client.hear(), site.client.hear());
    if lost == 0 {
        assert_eq!(all.as_array().unwrap()[20..], during, "a flow that began with a cookie goes on with its server");
        assert_eq!(big, 300_000);
    }
    Some(Flooded { sent, cookies: event("cookie"), proved: event("proved"), flows, lost })
}

/// The flood with the cookies here. It is made as fast as one processor makes it; where a client of the test gets no processor in time
/// that says nothing of the balancer: it is tried again.
fn flood_until_all_are_served() -> Option<Flooded> {
    for _ in 1..FLOODS {
        let flooded = flood("500r/s")?;
        if flooded.lost == 0 {
            return Some(flooded);
        }
        println!("tried again: {} of 20 clients had no word", flooded.lost);
    }
    let last = flood("500r/s")?;
    assert_eq!(last.lost, 0, "the last of {FLOODS} floods");
    Some(last)
}

#[test]
fn a_flood_of_syns_leaves_flows_and_new_clients_alone() {
    let Some(ours) = flood_until_all_are_served() else { return };
    assert!(ours.proved >= 20 && ours.cookies > ours.sent / 2, "{} cookies, {} proved", ours.cookies, ours.proved);
    // What came before the flood was noticed is all that the table has of it.
    assert!(ours.flows < ours.sent / 4 && ours.flows < 2000, "{} flows of {} SYNs", ours.flows, ours.sent);
    // Beside it: the real servers' kernels with their own cookies, behind a balancer that notes each SYN as a flow. Every other flood here
    // takes the last segment of a real client's handshake on its way to them; a client that waits for the server's first word
    // does not send it again, and who keeps no state does not ask for it. That is theirs, and is said, not asked for.
    let Some(theirs) = flood("off") else { return };
    for (name, f) in [("cookies here", &ours), ("the kernel's own, on the servers", &theirs)] {
        println!("{name}: {} SYNs of nobody left {} flows; {} of 20 real clients had no word", f.sent, f.flows, f.lost);
    }
    assert!(theirs.flows > ours.flows * 4, "{} flows with cookies, {} without", ours.flows, theirs.flows);
}

#[test]
fn a_server_that_stops_is_avoided_before_clients_notice() {
    let Some(mut lab) = Lab::new(Gateway::Balancer) else { return };
    let text = stream(FOUR, "").replace("maglev;", "");
    lab.configure("lb1", &format!("xdp_reports 10.9.1.11:7000 key=only-for-this-test; {text}"), HTTP);
    let mut servers = Vec::new();
    for host in ["r1", "r2", "r3", "r4"] {
        let report = "xdp_report_to 10.9.1.11:7000 key=only-for-this-test;";
        lab.configure(host, &format!("{report} server {{ listen 80 backlog=64; return \"{host}\n\"; }}"), "");
        servers.push(lab.ironweir(host));
    }
    let _balancer = lab.ironweir("lb1");
    let (mut client, mut api) = (lab.client(), lab.asker("lb1"));
    // Until the program is there the ordinary proxy serves, which knows nothing of queues.
    let path = |api: &mut Inside| api.ask("http GET 8080 /api/9/ironweir/l4")["body"]["services"][0]["path"].clone();
    assert!(wait(|| path(&mut api) == "kernel"), "{}", lab.log("lb1"));
    assert!(wait(|| client.names(&format!("open 8 {SERVICE4} 80")).iter().all(|n| n.starts_with('r'))));
    client.ask("close");
    // Its worker stops for two seconds, with all its threads; the kernel goes on to fill its accept queue.
    let worker = lab.on("r2", &format!("pgrep -P {}", servers[1].id()));
    let worker = worker.trim().to_owned();
    client.tell(&format!("rate 400 3 {SERVICE4} 80"));
    let full = |api: &mut Inside| {
        let kernel = api.ask("http GET 8080 /api/9/ironweir/l4")["body"].clone();
        kernel["services"][0]["servers"].as_array().unwrap().iter().filter(|r| r["full"] == true).count()
    };
    lab.on("r2", &format!("kill -STOP {worker}"));
    assert!(wait(|| full(&mut api) == 1));
    std::thread::sleep(std::time::Duration::from_secs(2));
    lab.on("r2", &format!("kill -CONT {worker}"));
    assert!(wait(|| full(&mut api) == 0));
    let took = client.hear();
    println!("{took}");
    let (all, slow) = (took["all"].as_u64().unwrap(), took["slow"].as_u64().unwrap());
    // Round robin would be 25 in a hundred.
    assert!(all >= 600 && slow * 100 <= all, "{slow} of {all} took a second or more");
}

#[test]
fn without_xdp_nat_is_the_ordinary_proxys_and_other_modes_are_refused() {
    let Some(mut lab) = Lab::new(Gateway::Balancer) else { return };
    let text = stream(FOUR, "");
    lab.configure_with("lb1", "master_process off;", &text.replace("xdp=nat", "xdp=direct"), HTTP);
    let (good, said) = lab.test("lb1");
    assert!(!good && said.contains("\"xdp=direct\" has no other way"), "{said}");
    lab.configure_with("lb1", "master_process off;", &text, HTTP);
    let (good, said) = lab.test("lb1");
    assert!(good && said.contains("the ordinary proxy of \"stream\" serves it, not the kernel"), "{said}");
    let _servers = lab.serve(4, 80);
    let _server = lab.ironweir("lb1");
    let (mut client, mut api) = (lab.client(), lab.asker("lb1"));
    assert!(wait(|| client.names(&format!("open 4 {SERVICE4} 80")).iter().all(|n| n.starts_with('r'))));
    let kernel = api.ask("http GET 8080 /api/9/ironweir/l4")["body"].clone();
    assert_eq!(kernel["services"][0]["path"], "proxy", "{kernel}");
    let zone = api.ask("http GET 8080 /api/9/stream/server_zones/front")["body"].clone();
    assert!(zone["connections"].as_u64() >= Some(4), "{zone}");
}

#[test]
fn what_cannot_be_is_named_by_t_with_its_cure() {
    let Some(mut lab) = Lab::new(Gateway::Balancer) else { return };
    let mut said = |stream: &str| {
        lab.configure("lb1", stream, HTTP);
        let (good, said) = lab.test("lb1");
        assert!(!good, "{said}");
        said
    };
    let text = stream(FOUR, "");
    let no_interface = said(&format!("xdp_interfaces front bakc; {text}"));
    assert!(no_interface.contains("bakc: there is no such interface"), "{no_interface}");
    let foreign = said(&text.replace(SERVICE4, "10.9.7.7"));
    assert!(foreign.contains("10.9.7.7 is no address of this machine"), "{foreign}");
    assert!(foreign.contains("ip addr add 10.9.7.7/32 dev lo"), "{foreign}");
    let direct = said(&stream("server 10.9.2.2:80;", "").replace("xdp=nat", "xdp=direct"));
    assert!(direct.contains("behind a gateway, so \"direct\" cannot bring it a frame"), "{direct}");
    let method = said(&text.replace("maglev;", "random;"));
    assert!(method.contains("none of the kernel's"), "{method}");
    let own = said(&stream("server 10.9.1.11:80;", ""));
    assert!(own.contains("is an address of this machine"), "{own}");
    let full = said(&text.replace("xdp=nat", "xdp=full_nat"));
    assert!(full.contains("needs \"xdp_source\" with IPv4 addresses"), "{full}");
    let rules = said(&stream(FOUR, "deny 10.0.0.1;").replace("xdp=nat", "xdp=direct"));
    assert!(rules.contains("would let in whom \"allow\", \"deny\" may keep out"), "{rules}");
    let loopback = said(&text.replace(SERVICE4, "127.0.0.1"));
    assert!(loopback.contains("packets to a loopback address come by no interface"), "{loopback}");
    let inside = said(&format!("xdp_interfaces lo; {text}"));
    assert!(inside.contains("xdp_interfaces lo: no client's packet comes by"), "{inside}");
    let reports = said(&format!("xdp_reports 10.9.7.7:7000 key=only-for-this-test; {text}"));
    assert!(reports.contains("xdp_reports 10.9.7.7:7000: 10.9.7.7 is no address of this machine"), "{reports}");
    let folder = lab.folder.path().join("pins-lb1");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("notes"), "mine").unwrap();
    lab.configure("lb1", &text, HTTP);
    let (good, pins) = lab.test("lb1");
    assert!(!good && pins.contains("hide what is in the folder"), "{pins}");
    std::fs::remove_file(folder.join("notes")).unwrap();
    // What works otherwise than it may be meant.
    let mut doubtful = |stream: &str, text: &str| {
        lab.configure("lb1", stream, HTTP);
        let (good, said) = lab.test("lb1");
        assert!(good && said.contains(text), "{said}");
    };
    let other = text.replace(SERVICE4, "[fd00:9:9::1]");
    doubtful(&other, "the ordinary proxy of \"stream\" serves it, while no server of upstream \"web\" can get packets");
    doubtful(&stream(&format!("{FOUR} server 224.0.0.1:80;"), ""), "its address is not that of one machine");
    doubtful(&stream(FOUR, "deny 10.0.0.1;"), "which would let in whom \"allow\", \"deny\" may keep out");
    let full = |source: &str| stream(FOUR, &format!("xdp_source {source};")).replace("xdp=nat", "xdp=full_nat");
    doubtful(&full(SERVICE4), "xdp_source 10.9.9.1: clients connect to it (listen 10.9.9.1:80)");
    doubtful(&full("10.9.1.11"), "xdp_source 10.9.1.11: connections of this machine to 10.9.1.1:80 have it");
    lab.configure("lb1", &text, HTTP);
    let (good, said) = lab.test("lb1");
    assert!(good, "{said}");
    assert!(
        said.contains("listen 10.9.9.1:80 tcp: the kernel balances its packets (XDP, nat) on back, front"),
        "{said}"
    );
    lab.on("lb1", "sysctl -q -w net.ipv4.ip_forward=0");
    let (good, said) = lab.test("lb1");
    assert!(!good && said.contains("echo 1 > /proc/sys/net/ipv4/ip_forward"), "{said}");
}
