//! Plans that change while flows are there, and large ones.

use super::{ACK_FLAG, CLIENT, FIN_ACK, SYN_FLAG, Verdict, between, ends, forget_table, indexed, namespace, run, show};
use l4::keeper::Keeper;
use l4::kernel::Kernel;
use l4::layout::Flow;
use l4::plan::Plan;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// All flows had their last packet so long before.
fn age(kernel: &mut Kernel, by: Duration) {
    let all: Vec<_> = kernel.maps.flows.iter().map(|entry| entry.unwrap()).collect();
    for (key, bytes) in all {
        let mut flow = Flow::decode(&bytes);
        flow.last = flow.last.saturating_sub(by.as_nanos() as u64);
        kernel.maps.flows.insert(key, flow.encode(), 0).unwrap();
    }
    l4::forget_recent(&mut kernel.maps).unwrap();
}

#[test]
fn a_virtual_server_that_leaves_the_plan_goes_with_its_last_flow() {
    if !namespace::enter("plans::a_virtual_server_that_leaves_the_plan_goes_with_its_last_flow") {
        return;
    }
    let (mut kernel, _network) = indexed();
    let text = super::INDEXED.replace("\"mode\": \"nat\"", "\"mode\": \"nat\", \"idle_s\": 16");
    let plan = Plan::read(&text).unwrap();
    l4::apply(&mut kernel.maps, &plan).unwrap();
    let (service, client) = (([10, 9, 0, 1], 80), (CLIENT, 3000));
    let (own, real) = ends(&run(&mut kernel, &between(client, service, SYN_FLAG)));
    let mut less = plan.clone();
    less.services.remove(0);
    l4::apply(&mut kernel.maps, &less).unwrap();
    let new = between((CLIENT, 3001), service, SYN_FLAG);
    assert!(matches!(run(&mut kernel, &new), Verdict::Pass(_)), "who opens is the stack's guest");
    assert_eq!(ends(&run(&mut kernel, &between(client, service, ACK_FLAG))).1, real);
    assert_eq!(ends(&run(&mut kernel, &between(real, own, ACK_FLAG))), (service, client));
    // It is there again before it has gone.
    l4::apply(&mut kernel.maps, &plan).unwrap();
    ends(&run(&mut kernel, &new));
    l4::apply(&mut kernel.maps, &less).unwrap();
    for port in [3000, 3001] {
        let (own, real) = ends(&run(&mut kernel, &between((CLIENT, port), service, FIN_ACK)));
        run(&mut kernel, &between(real, own, FIN_ACK));
    }
    let mut keeper = Keeper::new();
    keeper.sweep(&mut kernel.maps).unwrap();
    assert_eq!(kernel.maps.service_ids.keys().count(), 2, "its flows have ended a moment ago");
    age(&mut kernel, Duration::from_secs(100));
    let end = Instant::now() + Duration::from_secs(60);
    while kernel.maps.service_ids.keys().count() > 1 {
        assert!(Instant::now() < end, "it is still there");
        keeper.sweep(&mut kernel.maps).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(kernel.maps.flows.keys().count(), 0);
    // Its numbers are free, and what had them is forgotten.
    l4::apply(&mut kernel.maps, &plan).unwrap();
    ends(&run(&mut kernel, &new));
}

#[test]
fn flows_of_a_virtual_server_that_has_left_end_when_their_time_is_over() {
    if !namespace::enter("plans::flows_of_a_virtual_server_that_has_left_end_when_their_time_is_over") {
        return;
    }
    let (mut kernel, _network) = indexed();
    let plan = Plan::read(super::INDEXED).unwrap();
    let (service, client) = (([10, 9, 0, 1], 80), (CLIENT, 3000));
    ends(&run(&mut kernel, &between(client, service, SYN_FLAG)));
    l4::apply(&mut kernel.maps, &Plan { services: plan.services[1..].to_vec(), ..plan }).unwrap();
    let mut keeper = Keeper::new();
    keeper.end_retired_after(Some(Duration::ZERO));
    keeper.sweep(&mut kernel.maps).unwrap();
    assert_eq!(kernel.maps.service_ids.keys().count(), 1);
    assert!(matches!(run(&mut kernel, &between(client, service, ACK_FLAG)), Verdict::Pass(_)));
}

#[test]
fn a_flow_that_was_idle_for_an_hour_is_reset_as_one_that_was_for_a_minute() {
    if !namespace::enter("plans::a_flow_that_was_idle_for_an_hour_is_reset_as_one_that_was_for_a_minute") {
        return;
    }
    let plan = r#"{"interfaces": ["lan"], "flows": 1000, "services": [
        {"address": "10.9.0.1:80", "mode": "nat", "idle_s": 20, "reset": true, "reals": [{"address": "10.9.1.2:8080"}]}]}"#;
    let plan = Plan::read(plan).unwrap();
    let _network = namespace::Network::make(&plan);
    let mut kernel = Kernel::load(&plan, None).unwrap();
    l4::apply(&mut kernel.maps, &plan).unwrap();
    let (service, client) = (([10, 9, 0, 1], 80), (CLIENT, 3000));
    let mut keeper = Keeper::new();
    for idle in [60, 3600] {
        ends(&run(&mut kernel, &between(client, service, SYN_FLAG)));
        age(&mut kernel, Duration::from_secs(idle));
        keeper.sweep(&mut kernel.maps).unwrap();
        let answer = run(&mut kernel, &between(client, service, ACK_FLAG));
        let is_reset = matches!(&answer, Verdict::Turn(frame) if frame[47] & 4 != 0);
        assert!(is_reset, "idle for {idle} s: {}", show(&answer));
    }
}

#[test]
fn more_than_a_thousand_virtual_servers_keep_their_flows_apart() {
    const SERVICES: u16 = 1200;
    if !namespace::enter("plans::more_than_a_thousand_virtual_servers_keep_their_flows_apart") {
        return;
    }
    let mut text = r#"{"interfaces": ["lan"], "flows": 1000, "services": ["#.to_owned();
    for n in 0..SERVICES {
        let choice = if n % 400 == 0 { "maglev" } else { "round_robin" };
        let comma = if n == 0 { "" } else { "," };
        let _ = write!(
            text,
            r#"{comma}{{"address": "10.9.0.1:{}", "mode": "nat", "choice": "{choice}", "reals": [{{"address": "10.9.1.2:{}"}}, {{"address": "10.9.1.3:{}"}}]}}"#,
            1000 + n,
            20_000 + n,
            20_000 + n
        );
    }
    let mut plan = Plan::read(&format!("{text}]}}")).unwrap();
    let few = Plan { services: plan.services[..1].to_vec(), ..plan.clone() };
    let _network = namespace::Network::make(&few);
    std::process::Command::new("ip")
        .args("neigh replace 10.9.1.3 lladdr 02:00:00:00:09:03 nud permanent dev lan".split(' '))
        .status()
        .unwrap();
    let mut kernel = Kernel::load(&plan, None).unwrap();
    l4::apply(&mut kernel.maps, &plan).unwrap();
    let places = [0, 1, 255, 256, 257, 400, 1023, SERVICES - 1];
    let mut begun = Vec::new();
    for n in places {
        let service = ([10, 9, 0, 1], 1000 + n);
        let (_, real) = ends(&run(&mut kernel, &between((CLIENT, 3000), service, SYN_FLAG)));
        assert_eq!(real.1, 20_000 + n, "a real server of its own");
        begun.push((service, real));
    }
    for (service, real) in &begun {
        assert_eq!(ends(&run(&mut kernel, &between((CLIENT, 3000), *service, ACK_FLAG))).1, *real);
    }
    // Lists that grow move to another part of the map, and none is in two.
    for service in plan.services.iter_mut().filter(|s| s.choice == l4::plan::Choice::RoundRobin).step_by(7) {
        service.reals[0].weight = 100;
    }
    l4::apply(&mut kernel.maps, &plan).unwrap();
    for n in 0..SERVICES {
        let service = ([10, 9, 0, 1], 1000 + n);
        for client in [4000, 4001] {
            assert_eq!(ends(&run(&mut kernel, &between((CLIENT, client), service, SYN_FLAG))).1.1, 20_000 + n);
        }
        if n % 200 == 199 {
            forget_table(&mut kernel);
        }
    }
}

#[test]
fn a_file_system_that_was_mounted_for_pins_goes_with_them() {
    if !namespace::enter("plans::a_file_system_that_was_mounted_for_pins_goes_with_them") {
        return;
    }
    let pins = std::env::temp_dir().join(format!("l4-pins-{}", std::process::id()));
    std::fs::create_dir(&pins).unwrap();
    std::fs::write(pins.join("notes"), "mine").unwrap();
    let plan = Plan::read(super::INDEXED).unwrap();
    let refused = Kernel::load(&plan, Some(&pins)).err().unwrap();
    assert!(refused.contains("hide what is in the folder"), "{refused}");
    std::fs::remove_file(pins.join("notes")).unwrap();
    let kernel = Kernel::load(&plan, Some(&pins)).unwrap();
    let is_mounted = || std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(pins.to_str().unwrap());
    assert!(is_mounted());
    drop(kernel);
    l4::kernel::clear(&pins).unwrap();
    assert!(!is_mounted());
    std::fs::remove_dir(&pins).unwrap();
}
