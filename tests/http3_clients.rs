//! HTTP/3 by clients of other descent, each left out, aloud, where it is not installed: ngtcp2's `gtlsclient` (Debian's
//! `ngtcp2-client`), aioquic (PyPI, found by `AIOQUIC_PYTHON` or `python3`), quic-go (built here, where Go is), Chromium.

use crate::harness::quic::quic_site;
use crate::harness::{Server, openssl};
use std::process::Command;

fn site() -> (Server, Vec<u8>) {
    let content: Vec<u8> = (0..50_000u32).flat_map(u32::to_le_bytes).collect();
    let server = quic_site("", "http2 on; location /v { return 200 \"$http3 $server_protocol\"; }").set("THREADS", 2);
    (server.file("html/f", &content).start(), content)
}

/// Runs a client; nothing where it is not installed.
fn client(program: &str, arguments: &[&str]) -> Option<String> {
    let ran = Command::new("timeout").arg("120").arg(program).args(arguments).output().expect("coreutils are there");
    if ran.status.code() == Some(127) {
        println!("{program} is not installed: left out");
        return None;
    }
    assert!(ran.status.success(), "{program}: {}", String::from_utf8_lossy(&ran.stderr));
    Some(String::from_utf8_lossy(&ran.stdout).into_owned())
}

#[test]
fn ngtcp2() {
    let (server, content) = site();
    let port = server.port.to_string();
    let url = |path: &str| format!("https://localhost:{port}/{path}");
    let download = format!("--download={}", server.dir().display());
    let arguments = ["-q", "--exit-on-all-streams-close", &download, "127.0.0.1", &port, &url("f"), &url("v")];
    if client("gtlsclient", &arguments).is_some() {
        assert!(std::fs::read(server.dir().join("f")).unwrap() == content);
        assert_eq!(server.read("v"), "h3 HTTP/3.0");
    }
}

const AIOQUIC: &str = r#"
import asyncio, hashlib, ssl, sys
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration

class Client(QuicConnectionProtocol):
    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        self.http, self.answers = H3Connection(self._quic), {}
    def quic_event_received(self, event):
        for e in self.http.handle_event(event):
            if isinstance(e, (HeadersReceived, DataReceived)):
                body, done = self.answers[e.stream_id]
                if isinstance(e, DataReceived):
                    body.update(e.data)
                if e.stream_ended:
                    done.set_result(body.hexdigest())
    async def get(self, path):
        stream = self._quic.get_next_available_stream_id()
        self.answers[stream] = hashlib.md5(), asyncio.get_running_loop().create_future()
        fields = {":method": "GET", ":scheme": "https", ":authority": "localhost", ":path": path, "x-same": "each time"}
        self.http.send_headers(stream, [(n.encode(), v.encode()) for n, v in fields.items()], end_stream=True)
        self.transmit()
        return await self.answers[stream][1]

async def main(port):
    how = QuicConfiguration(is_client=True, alpn_protocols=["h3"], verify_mode=ssl.CERT_NONE, server_name="localhost")
    async with connect("127.0.0.1", port, configuration=how, create_protocol=Client) as client:
        for path in ["/f", "/v", "/v"]:
            print(await client.get(path))

asyncio.run(main(int(sys.argv[1])))
"#;

#[test]
fn aioquic() {
    let python = std::env::var("AIOQUIC_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let there = Command::new(&python).args(["-c", "import aioquic"]).output().is_ok_and(|o| o.status.success());
    if !there {
        return println!("aioquic is not installed: left out");
    }
    let (server, content) = site();
    let said = client(&python, &["-c", AIOQUIC, &server.port.to_string()]).expect("it is there");
    std::fs::write(server.dir().join("expected"), &content).unwrap();
    let digest = |path: &str| openssl(server.dir(), &["md5", "-r", path]).split(' ').next().unwrap().to_owned();
    std::fs::write(server.dir().join("v"), "h3 HTTP/3.0").unwrap();
    let (file, text) = (digest("expected"), digest("v"));
    assert_eq!(said.lines().collect::<Vec<_>>(), [&file, &text, &text]);
}

#[test]
fn quic_go() {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/quic-go");
    let (server, content) = site();
    let program = server.dir().join("quic-go");
    let built = Command::new("go").args(["build", "-o"]).arg(&program).arg(".").current_dir(source).output();
    if !built.as_ref().is_ok_and(|o| o.status.success()) {
        return println!("Go, or what the client is built of, is not there: left out ({built:?})");
    }
    let program = program.display().to_string();
    std::fs::write(server.dir().join("expected"), &content).unwrap();
    let digest = openssl(server.dir(), &["md5", "-r", "expected"]).split(' ').next().unwrap().to_owned();
    for (protocol, name) in [("h3", "HTTP/3.0"), ("h2", "HTTP/2.0")] {
        let url = format!("https://localhost:{}/f", server.port);
        let many = ["-protocol", protocol, "-connections", "2", "-streams", "8", "-requests", "100", "-md5", &url];
        let said = client(&program, &many).expect("it was built");
        assert!(said.contains(&format!("\"protocol\":\"{name}\",\"requests\":100,")), "{said}");
        assert!(said.contains(&format!("\"errors\":0,\"status\":200,\"md5\":\"{digest}\"")), "{said}");
    }
}

#[test]
fn chromium() {
    let (server, _) = site();
    let port = server.port;
    let profile = format!("--user-data-dir={}", server.dir().join("chromium").display());
    let arguments = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        &profile,
        &format!("--ignore-certificate-errors-spki-list={}", key_digest(&server)),
        &format!("--origin-to-force-quic-on=localhost:{port}"),
        "--host-resolver-rules=MAP localhost 127.0.0.1",
        "--dump-dom",
        &format!("https://localhost:{port}/v"),
    ];
    if let Some(page) = client("chromium", &arguments) {
        assert!(page.contains("h3 HTTP/3.0"), "{page}");
    }
}

/// What Chromium knows a certificate by that it is to trust for once.
fn key_digest(server: &Server) -> String {
    let dir = server.dir();
    let key = openssl(dir, &["x509", "-in", "localhost.crt", "-pubkey", "-noout"]);
    std::fs::write(dir.join("key.pem"), key).unwrap();
    openssl(dir, &["pkey", "-pubin", "-in", "key.pem", "-outform", "der", "-out", "key.der"]);
    openssl(dir, &["dgst", "-sha256", "-binary", "-out", "key.digest", "key.der"]);
    openssl(dir, &["base64", "-in", "key.digest"]).trim().to_owned()
}
