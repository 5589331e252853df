//! A network namespace of the test's own: one veth with the addresses of all next hops known, so that the kernel's routes
//! say what the model's table says.

use crate::model::Mac;
use l4::plan::Plan;
use std::collections::HashMap;
use std::net::IpAddr;
use std::process::Command;

const INSIDE: &str = "L4_TEST_INSIDE";

/// True inside. Outside, runs the test once more in a namespace, and answers false when it has passed, or where a namespace
/// or the program's file cannot be had: then it says so.
pub(crate) fn enter(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let root = Command::new("unshare").args(["--net", "true"]).status().is_ok_and(|s| s.success());
    if !root || Command::new("ip").arg("-V").output().is_err() {
        eprintln!("LEFT OUT: {test}: needs root rights, unshare and ip");
        return false;
    }
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", test, "--nocapture", "--test-threads=1"];
    let status = Command::new("unshare").arg("--net").arg(program).args(arguments).env(INSIDE, "1").status().unwrap();
    assert!(status.success(), "the test inside its namespace failed");
    false
}

fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

pub(crate) struct Network {
    pub(crate) neighbours: HashMap<IpAddr, Mac>,
    pub(crate) gateway: Mac,
    pub(crate) own: Mac,
}

fn text(mac: Mac) -> String {
    mac.map(|b| format!("{b:02x}")).join(":")
}

impl Network {
    /// Every real server of the plan is on the link; all others are behind one gateway.
    pub(crate) fn make(plan: &Plan) -> Network {
        let own = [2, 0, 0, 0, 9, 1];
        let gateway = [2, 0, 0, 0, 9, 0xfe];
        ip("link set lo up");
        ip(&format!("link add lan address {} type veth peer name far", text(own)));
        for file in ["ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding"] {
            std::fs::write(format!("/proc/sys/net/{file}"), "1").unwrap();
        }
        ip("link set far up");
        ip("link set lan up");
        ip("addr add 10.9.1.1/24 dev lan");
        ip("addr add fd00:9:1::1/64 dev lan nodad");
        ip(&format!("neigh replace 10.9.1.254 lladdr {} nud permanent dev lan", text(gateway)));
        ip(&format!("neigh replace fd00:9:1::fe lladdr {} nud permanent dev lan", text(gateway)));
        ip("route add default via 10.9.1.254");
        ip("route add default via fd00:9:1::fe dev lan");
        let mut neighbours = HashMap::new();
        for real in plan.services.iter().flat_map(|s| &s.reals) {
            let address = real.address.ip();
            let octets = Addr::from(address).0.octets();
            let mac = [2, 0, if address.is_ipv6() { 6 } else { 4 }, octets[13], octets[14], octets[15]];
            ip(&format!("neigh replace {address} lladdr {} nud permanent dev lan", text(mac)));
            neighbours.insert(address, mac);
        }
        Network { neighbours, gateway, own }
    }
}

use l4::layout::Addr;
