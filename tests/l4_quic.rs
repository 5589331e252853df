//! QUIC before several servers, balanced by the kernel: connection ids name the real server (`quic_server_id`, `xdp_quic_ids`),
//! so that a client whose address changes finds it again.

use crate::harness::l4_lab::{Gateway, Lab, SERVICE4};
use crate::harness::quic::{Requests, ask, client_config, get, run, speak};
use crate::harness::{Setup, has_tools, openssl};
use crate::l4_stream::{HTTP, Site, site_in};
use quinn::{Endpoint, EndpointConfig, TokioRuntime};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const CLIENTS: usize = 8;
/// Who is lost gets no answer in this time.
const LOST: Duration = Duration::from_secs(2);

/// In turns: where nothing else says where a flow belongs, the next one goes to the next server.
fn balancer(more: &str) -> String {
    let servers: String = (1..=4).map(|n| format!("server 10.9.1.{n}:443 route={};", 700 + n)).collect();
    format!(
        "upstream web {{ zone web 64k; {servers} }}
         server {{ listen {SERVICE4}:443 udp xdp=nat; proxy_pass web; {more} }}"
    )
}

fn site(more: &str) -> Option<Site> {
    if !has_tools() {
        return None;
    }
    let mut lab = Lab::new(Gateway::Balancer)?;
    let folder = lab.folder.path().to_owned();
    let words = "req -x509 -nodes -days 30 -subj /CN=localhost -newkey ec -pkeyopt ec_paramgen_curve:P-256 -keyout localhost.key -out localhost.crt";
    openssl(&folder, &words.split(' ').collect::<Vec<_>>());
    let pair = format!("ssl_certificate {0}/localhost.crt; ssl_certificate_key {0}/localhost.key;", folder.display());
    let servers = (1..=4)
        .map(|n| {
            let host = format!("r{n}");
            let server = format!("listen 443 quic; {pair} quic_server_id {}; location / {{ return 200 \"{host} $connection $remote_port\"; }}", 700 + n);
            lab.configure(&host, "", &format!("server {{ {server} }}"));
            lab.ironweir(&host)
        })
        .collect();
    Some(site_in(lab, servers, &balancer(more)))
}

async fn client(site: &Site) -> (Endpoint, Requests) {
    let socket = site.lab.datagrams("client");
    let mut endpoint = Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(TokioRuntime)).unwrap();
    endpoint.set_default_client_config(client_config(Setup::new(), b"h3"));
    let to: SocketAddr = format!("{SERVICE4}:443").parse().unwrap();
    // Until the balancer knows its neighbours, and the servers serve.
    for _ in 0..20 {
        let connecting = endpoint.connect(to, "localhost").unwrap();
        if let Ok(Ok(connection)) = tokio::time::timeout(LOST, connecting).await {
            return (endpoint, speak(connection).await);
        }
    }
    panic!("no handshake: {}", site.lab.log("lb1"));
}

/// Server and connection, and the client's port as the server sees it.
async fn who(requests: &mut Requests) -> (String, u16) {
    let text = ask(requests, get("/"), b"").await.text();
    let (who, port) = text.rsplit_once(' ').unwrap();
    (who.to_owned(), port.parse().unwrap())
}

#[test]
fn a_client_that_moves_finds_its_server_by_the_connection_id() {
    let Some(site) = site("xdp_quic_ids on;") else { return };
    run(async {
        let mut servers = std::collections::BTreeSet::new();
        for _ in 0..CLIENTS {
            let (endpoint, mut requests) = client(&site).await;
            let (before, old) = who(&mut requests).await;
            servers.insert(before[..2].to_owned());
            let socket = site.lab.datagrams("client");
            let new = socket.local_addr().unwrap().port();
            endpoint.rebind(socket).unwrap();
            loop {
                // The old address is answered until it is certain that the client is at the new one.
                let (after, port) = who(&mut requests).await;
                assert_eq!(after, before, "the same connection at the same server");
                if port == new {
                    break;
                }
                assert_eq!(port, old);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        assert_eq!(servers.len(), 4, "{servers:?}");
    });
}

#[test]
fn without_server_ids_a_client_that_moves_is_lost() {
    let Some(site) = site("") else { return };
    run(async {
        let (endpoint, mut requests) = client(&site).await;
        who(&mut requests).await;
        endpoint.rebind(site.lab.datagrams("client")).unwrap();
        let answer = tokio::time::timeout(LOST, who(&mut requests)).await;
        assert!(answer.is_err(), "{answer:?}");
    });
}

#[test]
fn servers_without_a_number_or_with_the_same_are_named() {
    let Some(mut lab) = Lab::new(Gateway::Balancer) else { return };
    let text = balancer("xdp_quic_ids on;");
    lab.configure("lb1", &text.replace("route=702", "route=701").replace("route=703", ""), HTTP);
    let (good, said) = lab.test("lb1");
    assert!(
        good && said.contains("10.9.1.2:443: another server has its number in connection ids (\"route\")"),
        "{said}"
    );
    assert!(said.contains("10.9.1.3:443: clients that move are lost to it: it needs \"route=NUMBER\""), "{said}");
    lab.configure("lb1", &text.replace(" udp", ""), HTTP);
    let (good, said) = lab.test("lb1");
    assert!(!good && said.contains("\"xdp_quic_ids\" is for UDP"), "{said}");
}
