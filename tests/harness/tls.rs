//! Certificates made by the openssl command, and a client that speaks TLS with rustls: an independent end of the
//! connection it is not (the server uses the same library), so interoperability is checked with curl and openssl.

use super::{Site, find};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

impl Site {
    /// Makes `name.crt` and `name.key`: a certificate for the host `name`, signed by itself.
    pub fn certificate(self, name: &str) -> Site {
        self.self_signed(name, &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"])
    }

    /// The same with an RSA key.
    pub fn rsa_certificate(self, name: &str) -> Site {
        self.self_signed(name, &["-newkey", "rsa:2048"])
    }

    fn self_signed(self, name: &str, key: &[&str]) -> Site {
        let host = name.trim_start_matches("rsa-");
        let (subject, other) = (format!("/CN={host}"), format!("subjectAltName=DNS:{host}"));
        let mut arguments = vec!["req", "-x509", "-nodes", "-days", "30", "-subj", &subject, "-addext", &other];
        arguments.extend(key);
        let (crt, key) = (format!("{name}.crt"), format!("{name}.key"));
        arguments.extend(["-keyout", &key, "-out", &crt]);
        openssl(self.path(), &arguments);
        readable(&self.path().join(key));
        self
    }

    /// Makes `name.crt` and `name.key`, signed by `issuer`, whose files are there. `days` may be over already.
    pub fn issued(self, name: &str, issuer: &str, days: &str) -> Site {
        self.issued_with(name, issuer, days, &format!("subjectAltName=DNS:{name}"))
    }

    /// The same with extensions as openssl's configuration has them, a line each.
    pub fn issued_with(self, name: &str, issuer: &str, days: &str, extensions: &str) -> Site {
        let subject = format!("/O=Test/CN={name}");
        let (crt, key, csr) = (format!("{name}.crt"), format!("{name}.key"), format!("{name}.csr"));
        let new = ["req", "-new", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-subj", &subject];
        openssl(self.path(), &[&new[..], &["-keyout", &key, "-out", &csr]].concat());
        let (ca, ca_key) = (format!("{issuer}.crt"), format!("{issuer}.key"));
        let sign = ["x509", "-req", "-in", &csr, "-out", &crt, "-CA", &ca, "-CAkey", &ca_key, "-CAcreateserial"];
        let site = self.file(&format!("{name}.ext"), format!("{extensions}\n"));
        let extensions = format!("{name}.ext");
        openssl(site.path(), &[&sign[..], &["-days", days, "-extfile", &extensions]].concat());
        readable(&site.path().join(key));
        site
    }
}

/// Certificates whose names have variables are read by workers, who may be somebody else.
fn readable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).expect("it is ours");
}

/// Whether the openssl and curl commands are there; said aloud where they are not.
pub fn has_tools() -> bool {
    let there =
        |name: &str| Command::new(name).arg(if name == "curl" { "--version" } else { "version" }).output().is_ok();
    let all = there("openssl") && there("curl");
    if !all {
        println!("openssl or curl is not installed: left out");
    }
    all
}

/// Runs the openssl command; what it wrote.
pub fn openssl(dir: &Path, arguments: &[&str]) -> String {
    let out = Command::new("openssl").args(arguments).current_dir(dir).output().expect("openssl is installed");
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "openssl {arguments:?}: {said}");
    said
}

/// Runs curl, which takes any certificate; what it wrote.
pub fn curl(arguments: &[&str]) -> String {
    let all = ["--silent", "--insecure", "--max-time", "20"];
    let out = Command::new("curl").args(all).args(arguments).output().expect("curl is installed");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// How a client speaks. Clients of one setup share sessions.
#[derive(Clone)]
pub struct Setup {
    config: Arc<ClientConfig>,
}

impl Setup {
    /// A client without a certificate.
    pub fn new() -> Setup {
        Setup { config: Arc::new(builder().with_no_client_auth()) }
    }

    /// Speaks TLS 1.2 at most.
    pub fn tls12() -> Setup {
        let versions =
            ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS12]);
        let builder = versions.expect("the provider has it").dangerous();
        let config = builder.with_custom_certificate_verifier(Arc::new(Anybody)).with_no_client_auth();
        Setup { config: Arc::new(config) }
    }

    /// Shows `name.crt` of a directory.
    pub fn with_certificate(dir: &Path, name: &str) -> Setup {
        let chain = CertificateDer::pem_file_iter(dir.join(format!("{name}.crt"))).expect("it is there");
        let chain = chain.map(|c| c.expect("a certificate")).collect();
        let key = PrivateKeyDer::from_pem_file(dir.join(format!("{name}.key"))).expect("a key");
        let key = provider().key_provider.load_private_key(key).expect("a key");
        // Not looked at here: the server is to judge.
        let pair = SingleCertAndKey::from(CertifiedKey::new(chain, key));
        Setup { config: Arc::new(builder().with_client_cert_resolver(Arc::new(pair))) }
    }

    /// Speaks this protocol within TLS.
    pub fn speaks(self, protocol: &[u8]) -> Setup {
        let mut config = Arc::unwrap_or_clone(self.config);
        config.alpn_protocols = vec![protocol.to_vec()];
        Setup { config: Arc::new(config) }
    }

    /// What a QUIC client of one protocol speaks TLS by. It takes any certificate and sends early data where it may.
    pub fn quic(self, protocol: &[u8]) -> ClientConfig {
        let mut config = Arc::unwrap_or_clone(self.config);
        config.alpn_protocols = vec![protocol.to_vec()];
        config.enable_early_data = true;
        config
    }

    /// A client that asks for a server by name, for those who carry its bytes themselves.
    pub fn client(&self, name: &str) -> ClientConnection {
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        ClientConnection::new(self.config.clone(), name).expect("a configuration")
    }

    /// Connects and asks for a server by name.
    pub fn connect(&self, port: u16, name: &str) -> SecureClient {
        self.try_connect(port, name).expect("the handshake goes well")
    }

    /// The same; the error is the alert.
    pub fn try_connect(&self, port: u16, name: &str) -> std::io::Result<SecureClient> {
        let mut connection = self.client(name);
        let mut socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_nodelay(true)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut socket)?;
        }
        Ok(SecureClient { stream: StreamOwned::new(connection, socket), buffer: Vec::new() })
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn builder() -> rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert> {
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.expect("the provider has them").dangerous();
    builder.with_custom_certificate_verifier(Arc::new(Anybody))
}

/// A connection with TLS.
pub struct SecureClient {
    pub stream: StreamOwned<ClientConnection, TcpStream>,
    buffer: Vec<u8>,
}

impl SecureClient {
    /// `GET` with a Host; status and body.
    pub fn get(&mut self, target: &str, host: &str) -> (u16, String) {
        self.send(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        self.response()
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).expect("the server reads");
    }

    /// The next response, which must have a length.
    pub fn response(&mut self) -> (u16, String) {
        let head = loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                break String::from_utf8_lossy(&self.buffer.drain(..at + 4).collect::<Vec<u8>>()).into_owned();
            }
            assert!(self.fill(), "an answer, not the end: {}", self.buffer.escape_ascii());
        };
        let status = head[9..12].parse().expect("a status");
        let length = head.to_ascii_lowercase();
        let length = length.lines().find_map(|l| l.strip_prefix("content-length: ")).map_or(0, |n| n.parse().unwrap());
        while self.buffer.len() < length {
            assert!(self.fill(), "the whole body");
        }
        (status, String::from_utf8_lossy(&self.buffer.drain(..length).collect::<Vec<u8>>()).into_owned())
    }

    /// Whether the server has said goodbye and closed.
    pub fn is_closed(&mut self) -> bool {
        self.buffer.is_empty() && !self.fill()
    }

    fn fill(&mut self) -> bool {
        let mut piece = [0; 16384];
        let n = self.stream.read(&mut piece).unwrap_or(0);
        self.buffer.extend_from_slice(&piece[..n]);
        n > 0
    }
}

/// Believes everybody.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
