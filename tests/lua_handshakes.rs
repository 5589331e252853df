//! Programs in TLS handshakes: `ssl_client_hello_by_lua*`, `ssl_certificate_by_lua*` with clients, `proxy_ssl_*_by_lua*` with peers.

use crate::harness::{Port, Setup, Site, has_tools};

/// A server that shows `localhost`, with another pair beside it.
fn secure(server: &str) -> Site {
    let text = format!(
        "server {{ listen 127.0.0.1:@PORT@ ssl; server_name localhost other; ssl_certificate localhost.crt;
           ssl_certificate_key localhost.key; {server} location / {{ return 200 \"$ssl_protocol $ssl_server_name\"; }} }}"
    );
    Site::http(&text).certificate("localhost").certificate("other")
}

/// The program's own pair, read from files.
const OWN: &str = r##"
    local ssl = require "ngx.ssl"
    local function read(name) local f = assert(io.open("@DIR@/" .. name)) local text = f:read("*a") f:close() return text end
    ngx.log(ngx.WARN, "name: ", ssl.server_name(), ", port: ", ssl.server_port() == @PORT@, ", from: ",
            select(2, ssl.raw_client_addr()), " ", #(ssl.raw_client_addr()), ", version: ", ssl.get_tls1_version_str())
    if ssl.server_name() == "other" then
      assert(ssl.clear_certs())
      ngx.sleep(0.01)
      if FORM == "der" then
        assert(ssl.set_der_cert(assert(ssl.cert_pem_to_der(read("other.crt")))))
        assert(ssl.set_der_priv_key(assert(ssl.priv_key_pem_to_der(read("other.key")))))
      else
        assert(ssl.set_cert(assert(ssl.parse_pem_cert(read("other.crt")))))
        assert(ssl.set_priv_key(assert(ssl.parse_pem_priv_key(read("other.key")))))
      end
    end "##;

fn common_name(port: u16, setup: &Setup, name: &str) -> Option<Vec<u8>> {
    let client = setup.try_connect(port, name).ok()?;
    Some(client.stream.conn.peer_certificates()?[0].to_vec())
}

#[test]
fn a_program_gives_the_certificate() {
    if !has_tools() {
        return;
    }
    for form in ["der", "pem"] {
        let program = OWN.replace("FORM", &format!("{form:?}"));
        let server = secure(&format!("ssl_certificate_by_lua_block {{ {program} }}")).start();
        let usual = common_name(server.port, &Setup::new(), "localhost").unwrap();
        let other = common_name(server.port, &Setup::tls12(), "other").unwrap();
        assert_ne!(usual, other);
        assert_eq!(Setup::new().connect(server.port, "other").get("/", "other").1, "TLSv1.3 other");
        let log = server.error_log();
        assert!(
            log.contains(
                "name: localhost, port: true, from: inet 4, version: TLSv1.3, context: ssl_certificate_by_lua*"
            ),
            "{log}"
        );
        assert!(log.contains("name: other, port: true, from: inet 4, version: TLSv1.2"), "{log}");
    }
}

#[test]
fn what_is_wrong_with_a_pair_is_told() {
    if !has_tools() {
        return;
    }
    let program = r##"
        local ssl = require "ngx.ssl"
        local function read(name) local f = assert(io.open("@DIR@/" .. name)) local text = f:read("*a") f:close() return text end
        local function tell(what, ok, why) ngx.log(ngx.WARN, what, ": ", ok, " ", why) end
        tell("no pem", ssl.cert_pem_to_der("nothing"))
        tell("no der", ssl.set_der_cert("nothing"))
        tell("no key", ssl.set_der_priv_key("nothing"))
        tell("cleared", ssl.clear_certs())
        tell("chain", ssl.set_cert(ssl.parse_pem_cert(read("localhost.crt"))))
        tell("not its key", ssl.set_priv_key(ssl.parse_pem_priv_key(read("other.key"))))
        tell("verify", ssl.verify_client())
        tell("no certificate", ssl.verify_client("nothing"))
        tell("pointer", ssl.get_req_ssl_pointer())
        tell("reused", ssl.ssl_session_reused())
        tell("master", ssl.get_session_master_key())
        local ocsp, pem = require "ngx.ocsp", ssl.cert_pem_to_der(read("localhost.crt"))
        tell("ocsp", ocsp.create_ocsp_request(pem))
        tell("no responder", ocsp.get_ocsp_responder_from_der_chain(pem .. pem))
        tell("question", #(ocsp.create_ocsp_request(pem .. pem)) > 40)
        tell("large", ocsp.create_ocsp_request(pem .. pem, 10))
        tell("no answer", ocsp.validate_ocsp_response("nothing", pem .. pem)) "##;
    let server = secure(&format!("ssl_certificate_by_lua_block {{ {program} }}")).start();
    assert!(Setup::new().try_connect(server.port, "localhost").is_err(), "no certificate is left");
    let log = server.error_log();
    for line in [
        "no pem: nil PEM_read_bio_X509_AUX() failed",
        "no der: nil d2i_X509_bio() failed",
        "no key: nil d2i_PrivateKey_bio() failed",
        "cleared: true nil",
        "chain: true nil",
        "not its key: nil SSL_use_PrivateKey() failed",
        "verify: true nil",
        "no certificate: nil d2i_X509_bio() failed",
        "pointer: nil ngx.ssl.get_req_ssl_pointer is not supported: there is no OpenSSL below",
        "reused: nil bad ssl",
        "master: nil ngx.ssl.get_session_master_key is not supported: rustls does not show it",
        "ocsp: nil no issuer certificate in chain",
        "no responder: nil nil",
        "question: true nil",
        "large: nil output buffer too small: ",
        "no answer: nil d2i_OCSP_RESPONSE() failed",
    ] {
        assert!(log.contains(line), "{line} in {log}");
    }
}

#[test]
fn a_program_refuses_handshakes() {
    if !has_tools() {
        return;
    }
    for (program, line) in [
        ("ngx.exit(ngx.ERROR)", "lua exit with code -1"),
        ("ngx.sleep(0.01) error('bad bad')", "runtime error: ssl_certificate_by_lua(nginx.conf:"),
        ("ngx.say('x')", "API disabled in the context of ssl_certificate_by_lua*"),
    ] {
        let server =
            secure(&format!("ssl_certificate_by_lua_block {{ {program} }} error_log logs/debug.log debug;")).start();
        assert!(Setup::new().try_connect(server.port, "localhost").is_err(), "{program}");
        server.wait_for("logs/debug.log", line);
        server.wait_for("logs/debug.log", "cert cb error");
    }
}

#[test]
fn a_program_looks_at_the_client_hello() {
    if !has_tools() {
        return;
    }
    let program = r##"
        local hello = require "ngx.ssl.clienthello"
        ngx.ctx.name = hello.get_client_hello_server_name()
        ngx.log(ngx.WARN, "versions: ", table.concat(hello.get_supported_versions() or {}, " "), ", sni: ", #hello.get_client_hello_ext(0),
                ", none: ", hello.get_client_hello_ext(0xffff), ", many: ", #hello.get_client_hello_ciphers() > 1)
        if ngx.ctx.name == "other" then assert(hello.set_protocols({ "TLSv1.2" })) end
        if ngx.ctx.name == "refused" then ngx.exit(ngx.ERROR) end "##;
    let server = secure(&format!(
        "ssl_client_hello_by_lua_block {{ {program} }}
         ssl_certificate_by_lua_block {{ ngx.log(ngx.WARN, 'still ', ngx.ctx.name) }}"
    ))
    .start();
    assert_eq!(Setup::new().connect(server.port, "localhost").get("/", "localhost").1, "TLSv1.3 localhost");
    assert_eq!(Setup::new().connect(server.port, "other").get("/", "other").1, "TLSv1.2 other");
    assert!(Setup::new().try_connect(server.port, "refused").is_err());
    let log = server.error_log();
    assert!(log.contains("versions: TLSv1.2 TLSv1.3, sni: "), "{log}");
    assert!(log.contains("none: nil, many: true, context: ssl_client_hello_by_lua*"), "{log}");
    assert!(log.contains("still other"), "{log}");
}

#[test]
fn a_program_takes_part_in_handshakes_with_peers() {
    if !has_tools() {
        return;
    }
    // The port that the harness waits for is opened last.
    let server = Site::http(
        r##"server { listen 127.0.0.1:@OTHER@ ssl; server_name localhost; ssl_certificate localhost.crt; ssl_certificate_key localhost.key;
             ssl_verify_client optional_no_ca; location / { return 200 "$ssl_client_s_dn"; } }
           server { listen 127.0.0.1:@PORT@; proxy_ssl_session_reuse off;
             location /shown { proxy_pass https://127.0.0.1:@OTHER@; proxy_ssl_protocols TLSv1.2; proxy_ssl_certificate_by_lua_block {
               ngx.log(ngx.WARN, "will speak ", require("ngx.proxyssl").get_tls1_version_str())
               local function read(name) local f = assert(io.open("@DIR@/" .. name)) local t = f:read("*a") f:close() return t end
               local ssl, peer = require "ngx.ssl", require "ngx.ssl.proxysslcert"
               ngx.sleep(0.01)
               assert(peer.clear_certs())
               assert(peer.set_cert(ssl.parse_pem_cert(read("other.crt"))))
               assert(peer.set_priv_key(ssl.parse_pem_priv_key(read("other.key"))))
             } }
             location /judged { proxy_pass https://127.0.0.1:@OTHER@; proxy_ssl_verify on; proxy_ssl_name localhost;
               proxy_ssl_trusted_certificate other.crt; proxy_ssl_verify_by_lua_block {
                 local verify = require "ngx.ssl.proxysslverify"
                 ngx.log(ngx.WARN, "result: ", verify.get_verify_result(), " ", type(verify.get_verify_cert()))
                 ngx.log(ngx.WARN, "speaks ", require("ngx.proxyssl").get_tls1_version_str())
                 if ngx.var.arg_trust then assert(verify.set_verify_result(0)) end
               } } }"##,
    )
    .certificate("localhost")
    .certificate("other")
    .start();
    let get = |target: &str| crate::harness::Client::connect(server.port).get(target);
    assert_eq!(get("/shown").text(), "CN=other");
    assert_eq!(get("/judged?trust=1").status, 200);
    assert_eq!(get("/judged").status, 502);
    for line in ["result: 18 userdata", "will speak TLSv1.2", "speaks TLSv1.3"] {
        assert!(server.error_log().contains(line), "{line}: {}", server.error_log());
    }
}

#[test]
fn sessions_are_of_all_servers() {
    let text = "server { listen 127.0.0.1:@PORT@; ssl_session_store_by_lua_block { } }";
    let (status, said) = Site::http(text).check();
    assert!(
        !status.success() && said.contains("\"ssl_session_store_by_lua_block\" directive is not allowed here"),
        "{said}"
    );
}

/// Sessions of TLS 1.2 are where the programs keep them: in a dictionary that knows nothing of TLS, by the client's number.
#[test]
fn programs_keep_sessions() {
    if !has_tools() {
        return;
    }
    let second = Port::reserve();
    let server = Site::http(
        r##"lua_shared_dict sessions 1m;
        ssl_session_fetch_by_lua_block {
          local session = require "ngx.ssl.session"
          ngx.sleep(0.01)
          local kept = ngx.shared.sessions:get(assert(session.get_session_id()))
          ngx.log(ngx.WARN, "fetch ", kept and "known" or "unknown", " in ", ngx.get_phase(), " ", select(2, session.set_serialized_session("x")))
          if kept then assert(session.set_serialized_session(kept)) end
        }
        ssl_session_store_by_lua_block {
          local session = require "ngx.ssl.session"
          ngx.shared.sessions:set(session.get_session_id(), assert(session.get_serialized_session()))
          ngx.log(ngx.WARN, "store ", #session.get_session_id(), " in ", ngx.get_phase(), " ", pcall(ngx.sleep, 0.1))
        }
        server { listen 127.0.0.1:@PORT@ ssl; server_name localhost; ssl_certificate localhost.crt; ssl_certificate_key localhost.key;
          ssl_session_tickets off; location / { return 200 "$ssl_session_reused"; } }
        server { listen 127.0.0.1:@SECOND@ ssl; server_name localhost; ssl_certificate localhost.crt; ssl_certificate_key localhost.key;
          ssl_session_cache none; ssl_protocols TLSv1.2; ssl_session_tickets off; location / { return 200 "$ssl_session_reused"; } }"##,
    )
    .set("SECOND", second.number)
    .certificate("localhost")
    .start();
    let setup = Setup::tls12();
    let get = || setup.connect(server.port, "localhost").get("/", "localhost").1;
    assert_eq!((get(), get()), (".".to_owned(), "r".to_owned()));
    let log = server.error_log();
    assert!(
        log.contains("store 64 in ssl_session_store falseAPI disabled in the context of ssl_session_store_by_lua*"),
        "{log}"
    );
    assert!(log.contains("fetch known in ssl_session_fetch d2i_SSL_SESSION() failed"), "{log}");
    // Later versions have no sessions that could be looked for.
    assert_eq!(Setup::new().connect(server.port, "localhost").get("/", "localhost").1, ".");
    assert_eq!(server.error_log().matches("store 64").count(), 1);
    // A server that does not speak them has sessions for clients that do.
    let older = Setup::new();
    let get = || older.connect(second.number, "localhost").get("/", "localhost").1;
    assert_eq!((get(), get()), (".".to_owned(), "r".to_owned()));
}

/// `ngx.ssl.verify_client`: who is asked for a certificate, and what that comes to, is the program's.
#[test]
fn a_program_asks_clients_for_their_certificates() {
    if !has_tools() {
        return;
    }
    let program = r##"
        local ssl = require "ngx.ssl"
        local function read(name) local f = assert(io.open("@DIR@/" .. name)) local text = f:read("*a") f:close() return text end
        local name = ssl.server_name()
        if name == "asks.test" then assert(ssl.verify_client(assert(ssl.parse_pem_cert(read("root.crt"))), 1)) end
        if name == "shallow.test" then assert(ssl.verify_client(ssl.parse_pem_cert(read("root.crt")), 0)) end
        if name == "others.test" then assert(ssl.verify_client(ssl.parse_pem_cert(read("localhost.crt")), 1)) end
        if name == "nobody.test" then assert(ssl.verify_client()) end "##;
    let server = Site::http(&format!(
        "server {{ listen 127.0.0.1:@PORT@ ssl; ssl_certificate localhost.crt; ssl_certificate_key localhost.key;
           ssl_certificate_by_lua_block {{ {program} }} location / {{ return 200 \"$ssl_client_verify\"; }} }}"
    ))
    .certificate("localhost")
    .certificate("root")
    .issued("client", "root", "30")
    .start();
    let dir = server.dir();
    for (name, mine, without) in [
        ("asks.test", "SUCCESS", "NONE"),
        // Nothing stands between the certificate and the trusted one.
        ("shallow.test", "SUCCESS", "NONE"),
        ("others.test", "FAILED:unable to verify the first certificate", "NONE"),
        ("nobody.test", "FAILED:unable to verify the first certificate", "NONE"),
        ("plain.test", "NONE", "NONE"),
    ] {
        let told = |setup: Setup| setup.connect(server.port, name).get("/", name).1;
        assert_eq!(told(Setup::with_certificate(dir, "client")), mine, "{name}");
        assert_eq!(told(Setup::new()), without, "{name}");
    }
}

/// `ngx.ctx` of the handshake belongs to the connection: each of its requests begins with it, and what one of them puts in is its own.
#[test]
fn requests_see_what_their_handshake_has_left() {
    if !has_tools() {
        return;
    }
    let say = |text: &str| format!("local text = {text} ngx.header['Content-Length'] = #text ngx.print(text)");
    let server = Site::whole(&format!(
        r##"error_log logs/debug.log debug; events {{}} http {{
           ssl_session_store_by_lua_block {{ ngx.ctx.stored = ngx.get_phase() }}
           server {{ listen 127.0.0.1:@PORT@ ssl; server_name localhost; ssl_certificate localhost.crt; ssl_certificate_key localhost.key;
             ssl_session_tickets off;
             ssl_client_hello_by_lua_block {{ ngx.ctx.count = 1 ngx.ctx.all = {{ 0 }} }}
             ssl_certificate_by_lua_block {{ ngx.sleep(0.001) ngx.ctx.count = ngx.ctx.count + 1 }}
             location = /one {{ content_by_lua_block {{
               ngx.ctx.count = ngx.ctx.count + 1
               ngx.ctx.all[1] = ngx.ctx.all[1] + 1
               {} }} }}
             location = /other {{ content_by_lua_block {{ ngx.ctx = {{ count = "mine" }} {} }} }} }} }}"##,
        say("ngx.ctx.count .. ' ' .. ngx.ctx.all[1] .. ' ' .. tostring(ngx.ctx.stored)"),
        say("ngx.ctx.count .. ' ' .. tostring(ngx.ctx.all)"),
    ))
    .certificate("localhost")
    .start();
    let mut client = Setup::new().connect(server.port, "localhost");
    assert_eq!(client.get("/one", "localhost").1, "3 1 nil");
    assert_eq!(client.get("/other", "localhost").1, "mine nil");
    // What stands in a table that it shares is shared.
    assert_eq!(client.get("/one", "localhost").1, "3 2 nil");
    assert!(!log_of(&server).contains("release ngx.ctx at ref 1"), "{}", log_of(&server));
    drop(client);
    server.wait_for("logs/debug.log", "lua release ngx.ctx at ref 1");
    assert!(log_of(&server).matches("lua release ngx.ctx at ref 2").count() >= 3, "{}", log_of(&server));
    // Programs that keep sessions have the same table.
    assert_eq!(Setup::tls12().connect(server.port, "localhost").get("/one", "localhost").1, "3 1 ssl_session_store");
}

fn log_of(server: &crate::harness::Server) -> String {
    std::fs::read_to_string(server.dir().join("logs/debug.log")).unwrap_or_default()
}

/// A kept connection goes on under a new configuration, whose machine is another: what the old one's handshake has left is not there.
#[test]
fn what_a_handshake_has_left_ends_with_its_configuration() {
    if !has_tools() {
        return;
    }
    let text = "local text = tostring(ngx.ctx.left) ngx.header['Content-Length'] = #text ngx.print(text)";
    let server = secure(&format!(
        "ssl_certificate_by_lua_block {{ ngx.ctx.left = 'there' }} location /t {{ content_by_lua_block {{ {text} }} }}"
    ))
    .start();
    let mut client = Setup::new().connect(server.port, "localhost");
    assert_eq!(client.get("/t", "localhost").1, "there");
    server.signal(rustix::process::Signal::HUP);
    assert!(crate::harness::wait(|| client.get("/t", "localhost").1 == "nil"));
    assert_eq!(Setup::new().connect(server.port, "localhost").get("/t", "localhost").1, "there");
}
