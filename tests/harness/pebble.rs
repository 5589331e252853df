//! Let's Encrypt's test authority (https://github.com/letsencrypt/pebble), which does all that a real one does: it asks
//! servers for their proofs, refuses some nonces, and forgets everything when it ends.

use super::{Dns, Folder, Port, Site, curl, openssl, wait};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// An authority that is running.
pub struct Pebble {
    child: Child,
    port: u16,
    management: u16,
    _ports: [Port; 2],
}

/// Where it is; said aloud where it is not installed.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let home = std::env::var_os("HOME").unwrap_or_default();
    let go = Path::new(&home).join("go/bin");
    let found = std::env::split_paths(&path).chain([go]).map(|d| d.join("pebble")).find(|p| p.exists());
    if found.is_none() {
        println!("pebble is not installed (.ci/setup peers): left out");
    }
    found
}

/// Whether tests with an authority can run here.
pub fn has_pebble() -> bool {
    super::has_tools() && program().is_some()
}

/// A directory with the authority's own certificate; `ca.crt` is whom to trust for it.
pub fn pebble_files() -> Folder {
    Site::http("").certificate("ca").issued("localhost", "ca", "30").into_folder()
}

/// What an authority is like.
#[derive(Default)]
pub struct Ways<'w> {
    /// Accounts need a key of this name: 32 zero bytes.
    pub external_account: Option<&'w str>,
    /// Of a hundred nonces so many are refused.
    pub bad_nonces: u32,
    /// Chains to other roots beside the usual one.
    pub other_roots: u32,
}

impl Pebble {
    /// Starts one that asks for proofs on these ports: for files, and in handshakes.
    pub fn start(directory: &Path, [http, tls]: [u16; 2], dns: &Dns, ways: &Ways) -> Pebble {
        let ports = [Port::reserve(), Port::reserve()];
        let (port, management) = (ports[0].number, ports[1].number);
        let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        let external = match ways.external_account {
            Some(id) => format!("true, \"externalAccountMACKeys\": {{\"{id}\": \"{key}\"}}"),
            None => "false".to_owned(),
        };
        let path = |name: &str| directory.join(name).display().to_string();
        let text = format!(
            "{{\"pebble\": {{\"listenAddress\": \"127.0.0.1:{port}\", \"managementListenAddress\": \"127.0.0.1:{management}\",
              \"certificate\": \"{}\", \"privateKey\": \"{}\", \"httpPort\": {http}, \"tlsPort\": {tls},
              \"externalAccountBindingRequired\": {external}, \"domainBlocklist\": [\"blocked.test\"],
              \"retryAfter\": {{\"authz\": 0, \"order\": 0}},
              \"profiles\": {{\"default\": {{\"validityPeriod\": 7776000}}, \"short\": {{\"validityPeriod\": 518400}}}}}}}}",
            path("localhost.crt"),
            path("localhost.key"),
        );
        std::fs::write(directory.join("pebble.json"), text).expect("written");
        let mut command = Command::new(program().expect("asked before"));
        command.arg("-config").arg(directory.join("pebble.json"));
        command.arg("-dnsserver").arg(format!("127.0.0.1:{}", dns.port));
        command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_WFE_NONCEREJECT", ways.bad_nonces.to_string());
        command.env("PEBBLE_ALTERNATE_ROOTS", ways.other_roots.to_string());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started");
        let ready = |port| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
        assert!(wait(|| ready(port) && ready(management)), "pebble did not come up");
        Pebble { child, port, management, _ports: ports }
    }

    /// The address of its directory.
    pub fn directory(&self) -> String {
        format!("https://localhost:{}/dir", self.port)
    }

    /// The common name of one of its roots.
    pub fn root(&self, directory: &Path, number: u32) -> String {
        let url = format!("https://localhost:{}/roots/{number}", self.management);
        std::fs::write(directory.join("root.pem"), curl(&[&url])).expect("written");
        let shown = openssl(directory, &["x509", "-noout", "-subject", "-nameopt", "multiline", "-in", "root.pem"]);
        shown.lines().find_map(|l| l.split_once("commonName")).expect("a name").1.trim_matches([' ', '=']).to_owned()
    }

    /// Says from now on when a certificate (PEM) is to be renewed.
    pub fn renew(&self, certificate: &str, start: &str, end: &str) {
        let window = format!("{{\"suggestedWindow\": {{\"start\": \"{start}\", \"end\": \"{end}\"}}}}");
        let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\\\"").replace('\n', "\\n"));
        let body = format!("{{\"Certificate\": {}, \"ARIResponse\": {}}}", quoted(certificate), quoted(&window));
        let url = format!("https://localhost:{}/set-renewal-info/", self.management);
        assert_eq!(curl(&["--data", &body, "--write-out", "%{http_code}", &url]), "200");
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
