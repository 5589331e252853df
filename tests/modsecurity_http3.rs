//! The Core Rule Set over HTTP/3: the same verdicts as over HTTP/1, of query strings and of forms.

use crate::harness::quic::{ask, client, get, quic_site, run};
use crate::harness::{Backend, Site};
use crate::modsecurity::{ATTACKS, BENIGN, core_rule_set};
use http::Request;
use std::fmt::Write as _;

const BROWSER: &str = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0";
const FORM: &str = "application/x-www-form-urlencoded";

/// A target as every client may send it.
fn sendable(target: &str) -> String {
    let mut out = String::new();
    for c in target.chars() {
        match c {
            '<' | '>' | '{' | '}' | '"' | '^' | '`' | ' ' => {
                let _ = write!(out, "%{:02X}", c as u32);
            }
            c => out.push(c),
        }
    }
    out
}

#[test]
fn http3_has_the_verdicts_of_http1() {
    let Some(folder) = core_rule_set() else { return };
    let backend = Backend::ok("fine");
    let rules = format!(
        "Include {0}/@coraza.conf-recommended\nSecRuleEngine On\nSecAuditEngine Off\nInclude {0}/@crs-setup.conf.example\nInclude {0}/@owasp_crs/*.conf\n",
        folder.display()
    );
    let judged =
        "modsecurity on; modsecurity_rules_file main.conf; location / { proxy_pass http://127.0.0.1:@BACKEND@; }";
    let over_http1 = Site::server(judged).file("main.conf", &rules).set("BACKEND", backend.port).start();
    let over_http3 =
        quic_site("", judged).file("main.conf", &rules).set("BACKEND", backend.port).set("THREADS", 1).start();
    let targets: Vec<String> = ATTACKS.iter().chain(&BENIGN).map(|target| sendable(target)).collect();
    let forms: Vec<&str> = targets.iter().filter_map(|t| t.split_once('?')).map(|(_, query)| query).collect();
    let mut http1 = over_http1.connect();
    let head = format!("Host: localhost\r\nUser-Agent: {BROWSER}\r\nAccept: */*\r\n");
    let mut one = Vec::new();
    for target in &targets {
        one.push(http1.send(format!("GET {target} HTTP/1.1\r\n{head}\r\n")).response().status);
    }
    for form in &forms {
        let length = form.len();
        let text =
            format!("POST /form HTTP/1.1\r\n{head}Content-Type: {FORM}\r\nContent-Length: {length}\r\n\r\n{form}");
        one.push(over_http1.connect().send(text).response().status);
    }
    assert!(one[..ATTACKS.len()].iter().all(|s| *s == 403), "{one:?}");
    run(async {
        let (_endpoint, mut requests) = client(over_http3.port).await;
        let mut three = Vec::new();
        for target in &targets {
            let mut request = get(target);
            request.headers_mut().insert("user-agent", BROWSER.parse().unwrap());
            request.headers_mut().insert("accept", "*/*".parse().unwrap());
            three.push(ask(&mut requests, request, b"").await.status);
        }
        for form in &forms {
            let request = Request::post("https://localhost/form").header("user-agent", BROWSER).header("accept", "*/*");
            let request = request.header("content-type", FORM).header("content-length", form.len()).body(()).unwrap();
            three.push(ask(&mut requests, request, form.as_bytes()).await.status);
        }
        assert_eq!(three, one, "{}", over_http3.error_log());
    });
}
