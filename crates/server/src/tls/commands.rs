//! `ssl_conf_command` and `proxy_ssl_conf_command`: OpenSSL's own names for settings (SSL_CONF_cmd(3)), as far as there is
//! something behind them.

use super::ciphers;
use crate::tls::settings::Protocols;
use rustls::SupportedCipherSuite;

/// What can be set twice: by a directive of its own, and by a command, which wins.
#[derive(Clone, Debug)]
pub struct Options {
    /// `Protocol`, `MinProtocol`, `MaxProtocol`
    pub protocols: Protocols,
    /// `CipherString`
    pub ciphers: String,
    /// `Ciphersuites`
    pub tls13: Vec<SupportedCipherSuite>,
    /// `Groups`, `Curves`
    pub groups: String,
    /// `Options ServerPreference`
    pub server_preference: bool,
    /// `Options PrioritizeChaCha`: who puts ChaCha first gets it, whatever the server prefers.
    pub chacha_first: bool,
    /// `Options SessionTicket`
    pub tickets: bool,
    /// `NumTickets`
    pub ticket_count: usize,
    /// `Certificate` and `PrivateKey`, in place of a certificate of the same kind.
    pub certificate: Option<(Vec<u8>, Vec<u8>)>,
}

impl Options {
    /// What the directives say.
    pub fn new(protocols: Protocols, ciphers: &[u8], groups: &[u8]) -> Options {
        Options {
            protocols,
            ciphers: String::from_utf8_lossy(ciphers).into_owned(),
            tls13: ciphers::all_tls13(),
            groups: String::from_utf8_lossy(groups).into_owned(),
            server_preference: false,
            chacha_first: false,
            tickets: true,
            ticket_count: 2,
            certificate: None,
        }
    }

    /// Applies commands in order; an error is nginx's text.
    pub fn apply(&mut self, commands: &[(Vec<u8>, Vec<u8>)]) -> Result<(), String> {
        for (name, value) in commands {
            let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
            if self.command(&name, &value).is_none() {
                return Err(format!("SSL_CONF_cmd(\"{name}\", \"{value}\") failed (SSL: unknown or unsupported here)"));
            }
        }
        Ok(())
    }

    fn command(&mut self, name: &str, value: &str) -> Option<()> {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        if is("Ciphersuites") {
            self.tls13 = ciphers::tls13(value)?;
        } else if is("CipherString") {
            self.ciphers = (!ciphers::tls12(value).suites.is_empty()).then(|| value.to_owned())?;
        } else if is("ECDHParameters") && value.trim_start_matches('+').eq_ignore_ascii_case("automatic") {
            // As it is.
        } else if is("Groups") || is("Curves") || is("ECDHParameters") {
            let list = ciphers::groups(value);
            self.groups = (list.unknown.is_empty() && !list.groups.is_empty()).then(|| value.to_owned())?;
        } else if is("MinProtocol") {
            self.protocols.tls12 &= version(value)? <= 2;
        } else if is("MaxProtocol") {
            self.protocols.tls13 &= !matches!(version(value)?, 1 | 2);
        } else if is("Protocol") {
            for word in value.split(',') {
                self.protocol(word)?;
            }
        } else if is("Options") {
            for word in value.split(',') {
                self.option(word)?;
            }
        } else if is("NumTickets") {
            self.ticket_count = value.parse().ok()?;
        } else if is("Certificate") {
            self.certificate.get_or_insert_default().0 = value.as_bytes().to_vec();
        } else if is("PrivateKey") {
            self.certificate.get_or_insert_default().1 = value.as_bytes().to_vec();
        } else {
            return None;
        }
        Some(())
    }

    fn protocol(&mut self, word: &str) -> Option<()> {
        let (on, name) = switch(word);
        match name.as_str() {
            "all" => (self.protocols.tls12, self.protocols.tls13) = (on, on),
            "tlsv1.2" => self.protocols.tls12 = on,
            "tlsv1.3" => self.protocols.tls13 = on,
            "sslv3" | "tlsv1" | "tlsv1.1" if !on => {}
            _ => return None,
        }
        Some(())
    }

    fn option(&mut self, word: &str) -> Option<()> {
        let (on, name) = switch(word);
        match name.as_str() {
            "sessionticket" => self.tickets = on,
            "serverpreference" => self.server_preference = on,
            "prioritizechacha" => self.chacha_first = on,
            // What they ask for is always so, or about things that are not there at all.
            "norenegotiation"
            | "noresumptiononrenegotiation"
            | "emptyfragments"
            | "bugs"
            | "dhsingle"
            | "ecdhsingle"
            | "encryptthenmac"
            | "antireplay"
            | "extendedmastersecret"
            | "middleboxcompat" => {}
            "compression" | "unsafelegacyrenegotiation" | "unsafelegacyserverconnect" | "ktls" if !on => {}
            _ => return None,
        }
        Some(())
    }
}

/// A word of a list that switches something on or off; its name in lower case.
fn switch(word: &str) -> (bool, String) {
    let word = word.trim();
    let name = word.strip_prefix(['-', '+']).unwrap_or(word);
    (!word.starts_with('-'), name.to_ascii_lowercase())
}

/// 0: none named, 1: older, 2: TLS 1.2, 3: TLS 1.3.
fn version(name: &str) -> Option<u8> {
    Some(match name {
        "None" | "" => 0,
        "SSLv3" | "TLSv1" | "TLSv1.1" => 1,
        "TLSv1.2" => 2,
        "TLSv1.3" => 3,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(commands: &[(&str, &str)]) -> Result<Options, String> {
        let mut options = Options::new(Protocols { tls12: true, tls13: true }, b"HIGH", b"auto");
        let commands: Vec<_> = commands.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())).collect();
        options.apply(&commands).map(|()| options)
    }

    #[test]
    fn commands_are_applied() {
        let o = options(&[("Options", "-SessionTicket,ServerPreference"), ("MinProtocol", "TLSv1.3")]).expect("known");
        assert!(!o.tickets && o.server_preference && !o.protocols.tls12 && o.protocols.tls13);
        let o = options(&[("Protocol", "-ALL,TLSv1.2"), ("ciphersuites", "TLS_AES_128_GCM_SHA256")]).expect("known");
        assert!(o.protocols.tls12 && !o.protocols.tls13 && o.tls13.len() == 1);
        let o = options(&[("options", "-sessionticket"), ("ECDHParameters", "Automatic")]).expect("known");
        assert!(!o.tickets && o.groups == "auto");
        for bad in [("Nonsense", "1"), ("Options", "KTLS"), ("Ciphersuites", "RC4"), ("MinProtocol", "TLSv9")] {
            assert!(options(&[bad]).is_err(), "{bad:?}");
        }
        for bad in [("CipherString", "AES128-SHA"), ("Groups", "X25519:what"), ("Groups", "X448")] {
            let text = format!("SSL_CONF_cmd(\"{}\", \"{}\") failed (SSL: unknown or unsupported here)", bad.0, bad.1);
            assert_eq!(options(&[bad]).err(), Some(text));
        }
    }
}
