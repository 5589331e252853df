//! `auth_oidc`: the whole way of a login against a provider that speaks HTTP and signs with RS256, and those who must not come in.

use crate::harness::{Backend, Reply, Response, Seen, Server, Site};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa;
use aws_lc_rs::signature::{KeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};
use wire::encoding::{Alphabet, base64_encode};
use wire::http1::escape::{Unescape, unescape};

fn b64(bytes: &[u8]) -> String {
    let mut out = Vec::new();
    base64_encode(bytes, Alphabet::Url, &mut out);
    String::from_utf8(out).unwrap().trim_end_matches('=').to_owned()
}

fn parameters(text: &str) -> HashMap<String, String> {
    let plain = |text: &str| {
        let mut out = Vec::new();
        unescape(text.as_bytes(), Unescape::Plain, &mut out);
        String::from_utf8(out).unwrap()
    };
    text.split('&').filter_map(|pair| pair.split_once('=')).map(|(n, v)| (plain(n), plain(v))).collect()
}

/// What the provider does wrong, for a login.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Wrong {
    #[default]
    Nothing,
    Audience,
    Nonce,
    Issuer,
    Expired,
    Signature,
    Algorithm,
}

/// A provider: discovery, keys, tokens for codes with PKCE, what it knows of users.
struct Provider {
    backend: Backend,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    port: u16,
    wrong: Wrong,
    /// Of a login: nonce and challenge by code.
    codes: HashMap<String, (String, String)>,
    redeemed: usize,
}

impl Provider {
    fn start() -> Provider {
        let key = RsaKeyPair::generate(rsa::KeySize::Rsa2048).unwrap();
        let state: Arc<Mutex<State>> = Arc::default();
        let theirs = state.clone();
        let backend = Backend::start(move |seen| answer(seen, &key, &mut theirs.lock().unwrap()));
        state.lock().unwrap().port = backend.port;
        Provider { backend, state }
    }

    fn issuer(&self) -> String {
        format!("http://127.0.0.1:{}", self.backend.port)
    }

    /// The user says yes: the provider sends the client back.
    fn agree(&self, location: &str) -> String {
        let (_, query) = location.split_once('?').unwrap();
        let asked = parameters(query);
        assert_eq!((asked["response_type"].as_str(), asked["client_id"].as_str()), ("code", "shop"));
        assert_eq!((asked["scope"].as_str(), asked["code_challenge_method"].as_str()), ("openid email", "S256"));
        assert_eq!(asked["prompt"], "login");
        let mut state = self.state.lock().unwrap();
        let code = format!("code+{}", state.codes.len());
        state.codes.insert(code.clone(), (asked["nonce"].clone(), asked["code_challenge"].clone()));
        format!("/oidc_callback?code={}&state={}", code.replace('+', "%2B"), asked["state"])
    }
}

fn json(status: u16, text: &str) -> Reply {
    let head =
        format!("HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", text.len());
    Reply::Keep((head + text).into())
}

fn answer(seen: &Seen, key: &RsaKeyPair, state: &mut State) -> Reply {
    let issuer = format!("http://127.0.0.1:{}", state.port);
    let path = seen.line().split(' ').nth(1).unwrap().to_owned();
    match path.as_str() {
        "/.well-known/openid-configuration" => json(
            200,
            &format!(
                r#"{{"issuer":"{issuer}","authorization_endpoint":"{issuer}/auth","token_endpoint":"{issuer}/token",
                    "jwks_uri":"{issuer}/keys","end_session_endpoint":"{issuer}/end","userinfo_endpoint":"{issuer}/user",
                    "code_challenge_methods_supported":["S256"]}}"#
            ),
        ),
        "/keys" => {
            let der = key.public_key().as_ref();
            json(200, &format!(r#"{{"keys":[{{"kty":"RSA","kid":"k","n":"{}","e":"AQAB"}}]}}"#, b64(&der[9..265])))
        }
        "/user" => {
            assert_eq!(seen.header("Authorization"), Some("Bearer access-1"));
            json(200, r#"{"sub":"u1","name":"Ada"}"#)
        }
        "/token" => token(seen, key, state, &issuer),
        _ => json(404, "{}"),
    }
}

fn token(seen: &Seen, key: &RsaKeyPair, state: &mut State, issuer: &str) -> Reply {
    let form = parameters(std::str::from_utf8(&seen.body).unwrap());
    // Basic, of "shop" and "s3cret:%".
    let secret = seen.header("Authorization") == Some("Basic c2hvcDpzM2NyZXQlM0ElMjU=");
    let known = state.codes.remove(&form["code"]);
    let proved = |challenge: &str| b64(digest(&SHA256, form["code_verifier"].as_bytes()).as_ref()) == challenge;
    let nonce = match known {
        Some((nonce, challenge)) if secret && proved(&challenge) => nonce,
        _ => return json(400, r#"{"error":"invalid_grant"}"#),
    };
    state.redeemed += 1;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let wrong = state.wrong;
    let (iss, aud) = (
        if wrong == Wrong::Issuer { "http://evil" } else { issuer },
        if wrong == Wrong::Audience { "other" } else { "shop" },
    );
    let nonce = if wrong == Wrong::Nonce { "x" } else { &nonce };
    let exp = if wrong == Wrong::Expired { now - 3600 } else { now + 300 };
    let claims = format!(
        r#"{{"iss":"{iss}","aud":"{aud}","sub":"u1","nonce":"{nonce}","exp":{exp},"iat":{now},"email":"ada@example.test"}}"#
    );
    let alg = if wrong == Wrong::Algorithm { "none" } else { "RS256" };
    let signed = format!("{}.{}", b64(format!(r#"{{"alg":"{alg}","kid":"k"}}"#).as_bytes()), b64(claims.as_bytes()));
    let mut signature = vec![0; key.public_modulus_len()];
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature).unwrap();
    if wrong == Wrong::Signature {
        signature[7] ^= 1;
    }
    json(
        200,
        &format!(r#"{{"id_token":"{signed}.{}","access_token":"access-1","token_type":"Bearer"}}"#, b64(&signature)),
    )
}

fn site(provider: &Provider) -> Server {
    Site::http(
        "keyval_zone zone=sessions:1m;
         oidc_provider op { issuer @ISSUER@; client_id shop; client_secret s3cret:%; scope openid email;
                            extra_auth_args prompt=login; logout_uri /logout; post_logout_uri /bye;
                            session_store sessions; userinfo on; }
         server { listen 127.0.0.1:@PORT@; auth_oidc op;
                  location / { echo -n \"$oidc_claim_sub $oidc_claim_email $oidc_access_token $oidc_userinfo\"; }
                  location /bye { auth_oidc off; return 200 bye; } }",
    )
    .set("ISSUER", provider.issuer())
    .start()
}

/// A browser, as far as cookies go.
#[derive(Default)]
struct Browser(HashMap<String, String>);

impl Browser {
    fn get(&mut self, server: &Server, target: &str) -> Response {
        let cookies: Vec<_> = self.0.iter().map(|(n, v)| format!("{n}={v}")).collect();
        let cookies = if cookies.is_empty() { String::new() } else { format!("Cookie: {}\r\n", cookies.join("; ")) };
        let port = server.port;
        let request = format!("GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{cookies}\r\n");
        let answer = server.connect().send(request).response();
        for (_, line) in answer.headers.iter().filter(|(name, _)| name == "Set-Cookie") {
            assert!(line.contains("; HttpOnly; SameSite=Lax"), "{line}");
            let (name, value) = line.split(';').next().unwrap().split_once('=').unwrap();
            if value.is_empty() {
                self.0.remove(name)
            } else {
                self.0.insert(name.to_owned(), value.to_owned())
            };
        }
        answer
    }

    fn log_in(&mut self, server: &Server, provider: &Provider, target: &str) -> Response {
        let sent = self.get(server, target);
        assert_eq!(sent.status, 302, "{}", sent.text());
        let back = provider.agree(sent.header("Location").unwrap());
        self.get(server, &back)
    }
}

#[test]
fn a_client_logs_in_stays_and_leaves() {
    let provider = Provider::start();
    let server = site(&provider);
    let mut browser = Browser::default();
    let came = browser.log_in(&server, &provider, "/shop?a=b");
    assert_eq!(came.status, 302, "{}\n{}", came.text(), server.error_log());
    assert_eq!(came.header("Location").unwrap(), format!("http://127.0.0.1:{}/shop?a=b", server.port));
    let shown = browser.get(&server, "/shop?a=b");
    assert_eq!(shown.text(), r#"u1 ada@example.test access-1 {"name":"Ada","sub":"u1"}"#);
    assert_eq!(browser.get(&server, "/other").status, 200);
    assert_eq!(provider.state.lock().unwrap().redeemed, 1, "one login is enough");
    assert_eq!(Browser::default().get(&server, "/other").status, 302, "another one has to log in");

    let mut stale = Browser(browser.0.clone());
    let left = browser.get(&server, "/logout");
    let location = left.header("Location").unwrap();
    assert!(
        location.starts_with(&format!("{}/end?client_id=shop&post_logout_redirect_uri=http%3A", provider.issuer())),
        "{location}"
    );
    assert_eq!(browser.0.len(), 0);
    assert_eq!(stale.get(&server, "/other").status, 302, "the session is gone, whoever has its name");
    assert_eq!(browser.get(&server, "/bye").text(), "bye");
    assert!(!server.error_log().contains("s3cret"), "no secrets in logs");
}

#[test]
fn who_brings_something_else_is_not_let_in() {
    let provider = Provider::start();
    let server = site(&provider);
    for wrong in [Wrong::Audience, Wrong::Nonce, Wrong::Issuer, Wrong::Expired, Wrong::Signature, Wrong::Algorithm] {
        provider.state.lock().unwrap().wrong = wrong;
        let mut browser = Browser::default();
        let came = browser.log_in(&server, &provider, "/");
        assert_eq!(came.status, 403, "{wrong:?}");
        assert_eq!(browser.get(&server, "/").status, 302, "{wrong:?}");
    }
    provider.state.lock().unwrap().wrong = Wrong::Nothing;
    // A login that another client has begun; a state that nobody has sent; a code twice; nothing at all.
    let sent = Browser::default().get(&server, "/");
    let back = provider.agree(sent.header("Location").unwrap());
    assert_eq!(Browser::default().get(&server, &back).status, 403);
    let mut browser = Browser::default();
    browser.get(&server, "/");
    assert_eq!(browser.get(&server, &back).status, 403);
    assert_eq!(browser.get(&server, "/oidc_callback").status, 403);
    let sent = browser.get(&server, "/");
    let state = parameters(sent.header("Location").unwrap().split_once('?').unwrap().1)["state"].clone();
    assert_eq!(browser.get(&server, &format!("/oidc_callback?error=access_denied&state={state}")).status, 403);
    let unknown = format!("/oidc_callback?code=unknown&state={state}");
    assert_eq!(browser.get(&server, &unknown).status, 403);
    let log = server.error_log();
    for text in [
        "for another client",
        "of another login",
        "another issuer's",
        "expired",
        "signature is wrong",
        "invalid_grant",
        "access_denied",
    ] {
        assert!(log.contains(text), "{text}\n{log}");
    }
}

#[test]
fn a_provider_that_is_not_there_is_an_error_of_ours() {
    let server = Site::http(
        "oidc_provider op { issuer http://127.0.0.1:1; client_id x; }
         server { listen 127.0.0.1:@PORT@; location / { auth_oidc op; } }",
    )
    .start();
    assert_eq!(server.get("/").status, 500);
    assert!(server.error_log().contains("connect() to 127.0.0.1:1 failed"), "{}", server.error_log());
}
