//! The kernel's balancer over a change of the binary: flows stay where both have the same maps, and service stays where they have not.

use crate::harness::l4_lab::{Gateway, Inside, Lab};
use crate::harness::wait;
use crate::l4_stream::{FOUR, Site, site, site_in, stream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Another process of the same binary takes over; the old one is gone when this returns.
fn upgrade(site: &mut Site) {
    let root = site.lab.folder.path().join("lb1");
    let pid = root.join("logs/nginx.pid");
    let read = || std::fs::read_to_string(&pid).unwrap_or_default().trim().to_owned();
    let old = read();
    let words = ["-p", root.to_str().unwrap(), "-c", "nginx.conf", "-s", "upgrade"];
    let _command = site.lab.run("lb1", env!("CARGO_BIN_EXE_ironweir"), &words);
    let has_gone = wait(|| {
        let now = read();
        !now.is_empty() && now != old && !PathBuf::from(format!("/proc/{old}/exe")).exists()
    });
    assert!(has_gone, "{}", site.lab.log("lb1"));
}

fn is_balanced(site: &mut Site) -> bool {
    wait(|| site.kernel()["services"][0]["path"] == "kernel")
}

fn counted(site: &Site, text: &str) -> usize {
    site.lab.count_logged("lb1", text)
}

#[test]
fn flows_stay_where_they_are_when_the_binary_changes() {
    // In turns: a flow that the table did not know would be nobody's.
    let Some(mut site) = site(&stream(FOUR, "").replace("maglev;", "")) else { return };
    site.until_it_works();
    let opened = site.open(20);
    upgrade(&mut site);
    assert!(is_balanced(&mut site), "{}", site.lab.log("lb1"));
    assert_eq!(site.talk(), opened);
    assert!(site.open(8).iter().all(|name| name.starts_with('r')));
    assert_eq!(counted(&site, "the maps that were there are of"), 0, "{}", site.lab.log("lb1"));
}

/// Before a binary with other maps comes: what this one has pinned is made to look like that of another version.
fn with_older_maps(make_older: impl Fn(&Path), said: &str) {
    let Some(mut site) = site(&stream(FOUR, "")) else { return };
    site.until_it_works();
    let opened = site.open(20);
    make_older(&site.lab.folder.path().join("pins-lb1"));
    assert_eq!(site.talk(), opened, "packets go by what the kernel has");
    upgrade(&mut site);
    assert!(is_balanced(&mut site), "{}", site.lab.log("lb1"));
    assert!(wait(|| counted(&site, said) == 1), "{}", site.lab.log("lb1"));
    // The hash says the same of them, and new ones are served.
    assert_eq!(site.talk(), opened);
    assert!(site.open(8).iter().all(|name| name.starts_with('r')));
    assert!(site.lab.table("lb1", &["list"]).contains("TCP  10.9.9.1:80 mh"));
    // It is the new one's table that they are in.
    assert!(wait(|| site.kernel()["events"]["adopted"].as_u64() >= Some(20)), "{}", site.kernel());
    assert!(site.lab.on("lb1", "ip link show front").contains("prog/xdp"));
}

#[test]
fn maps_of_another_version_are_made_anew_and_service_stays() {
    let make_older = |pins: &Path| std::fs::rename(pins.join("v2"), pins.join("v1")).unwrap();
    with_older_maps(make_older, "the maps that were there are of version v1, this one's is v2");
}

#[test]
fn maps_with_values_of_another_size_are_made_anew_and_service_stays() {
    // Each has the other's size of values.
    let make_older = |pins: &Path| {
        let at = |name: &str| pins.join("v2").join(name);
        std::fs::rename(at("services"), at("aside")).unwrap();
        std::fs::rename(at("reals"), at("services")).unwrap();
        std::fs::rename(at("aside"), at("reals")).unwrap();
    };
    with_older_maps(make_older, "of another version (\"services\" has another size)");
}

#[test]
fn accept_queues_are_heard_of_after_an_upgrade() {
    let Some(mut lab) = Lab::new(Gateway::Balancer) else { return };
    let mut servers: Vec<Inside> = Vec::new();
    for host in ["r1", "r2", "r3", "r4"] {
        let report = "xdp_report_to 10.9.1.11:7000 key=only-for-this-test;";
        lab.configure(host, &format!("{report} server {{ listen 80; return \"{host}\n\"; }}"), "");
        servers.push(lab.ironweir(host));
    }
    let worker = lab.on("r2", &format!("pgrep -P {}", servers[1].id())).trim().to_owned();
    let text = format!("xdp_reports 10.9.1.11:7000 key=only-for-this-test; {}", stream(FOUR, ""));
    let mut site = site_in(lab, servers, &text);
    upgrade(&mut site);
    assert!(is_balanced(&mut site), "{}", site.lab.log("lb1"));
    let full = |site: &mut Site| {
        let kernel = site.kernel();
        kernel["services"][0]["servers"].as_array().unwrap().iter().filter(|r| r["full"] == true).count()
    };
    let stop = |site: &Site, name: &str| site.lab.on("r2", &format!("kill -{name} {worker}"));
    // Who has said nothing to the new process yet is not avoided: it stops until it was heard of before.
    let is_avoided = wait(|| {
        stop(&site, "STOP");
        let end = Instant::now() + Duration::from_secs(2);
        let mut seen = false;
        while !seen && Instant::now() < end {
            seen = full(&mut site) == 1;
        }
        stop(&site, "CONT");
        seen
    });
    assert!(is_avoided, "{} {}", site.kernel(), site.lab.log("lb1"));
    assert!(wait(|| full(&mut site) == 0), "{}", site.kernel());
}
