//! `auth_jwt`: tokens signed in every way that is known, and those that must not be let in.

use crate::harness::{Backend, Reply, Server, Site};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PSS_SHA256,
    RsaKeyPair,
};
use aws_lc_rs::{hmac, rsa};
use std::time::{SystemTime, UNIX_EPOCH};

fn b64(bytes: &[u8]) -> String {
    let mut out = Vec::new();
    wire::encoding::base64_encode(bytes, wire::encoding::Alphabet::Url, &mut out);
    String::from_utf8(out).unwrap()
}

const SECRET: &[u8] = b"a secret of more than thirty-two bytes";

struct Keys {
    rsa: RsaKeyPair,
    ec: EcdsaKeyPair,
    ed: Ed25519KeyPair,
}

impl Keys {
    fn new() -> Keys {
        Keys {
            rsa: RsaKeyPair::generate(rsa::KeySize::Rsa2048).unwrap(),
            ec: EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap(),
            ed: Ed25519KeyPair::generate().unwrap(),
        }
    }

    fn set(&self) -> String {
        // PKCS #1: a sequence of two numbers, of which the first has 256 bytes here.
        let der = self.rsa.public_key().as_ref();
        let (n, e) = (&der[9..265], [1, 0, 1]);
        let point = self.ec.public_key().as_ref();
        format!(
            r#"{{"keys":[{{"kty":"oct","kid":"h","k":"{}"}},{{"kty":"RSA","kid":"r","use":"sig","n":"{}","e":"{}"}},
                {{"kty":"EC","kid":"e","crv":"P-256","x":"{}","y":"{}"}},{{"kty":"OKP","kid":"d","crv":"Ed25519","x":"{}"}},
                {{"kty":"RSA","kid":"enc","use":"enc","n":"{}","e":"AQAB"}},{{"kty":"new","kid":"x"}}]}}"#,
            b64(SECRET),
            b64(n),
            b64(&e),
            b64(&point[1..33]),
            b64(&point[33..]),
            b64(self.ed.public_key().as_ref()),
            b64(n),
        )
    }

    /// A token whose header says `alg`, signed as that says.
    fn token(&self, header: &str, claims: &str) -> String {
        let alg = header.split("\"alg\":\"").nth(1).map_or("", |rest| rest.split('"').next().unwrap());
        let signed = format!("{}.{}", b64(header.as_bytes()), b64(claims.as_bytes()));
        let (message, random) = (signed.as_bytes(), SystemRandom::new());
        let rsa = |padding| {
            let mut out = vec![0; self.rsa.public_modulus_len()];
            self.rsa.sign(padding, &random, message, &mut out).unwrap();
            out
        };
        let signature = match alg {
            "HS256" => hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), message).as_ref().to_vec(),
            "HS512" => hmac::sign(&hmac::Key::new(hmac::HMAC_SHA512, SECRET), message).as_ref().to_vec(),
            "RS256" => rsa(&RSA_PKCS1_SHA256),
            "PS256" => rsa(&RSA_PSS_SHA256),
            "ES256" => self.ec.sign(&random, message).unwrap().as_ref().to_vec(),
            "EdDSA" => self.ed.sign(message).as_ref().to_vec(),
            _ => Vec::new(),
        };
        format!("{signed}.{}", b64(&signature))
    }
}

fn ask(server: &Server, target: &str, token: &str) -> (u16, String, Option<String>) {
    let line = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
    let r = server.connect().send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n{line}\r\n")).response();
    (r.status, r.text(), r.header("WWW-Authenticate").map(str::to_owned))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn tokens_of_every_kind() {
    let keys = Keys::new();
    let server = Site::http(
        "auth_jwt_claim_set $city address city; auth_jwt_header_set $kid kid;
         map $jwt_claim_role $is_admin { admin 1; default 0; }
         server { listen 127.0.0.1:@PORT@; root @DIR@/html; auth_jwt_key_file keys.json;
             location / { auth_jwt closed; try_files /none @said; }
             location @said { return 200 '$jwt_claim_sub|$jwt_claim_list|$jwt_claim_n|$city|$kid|$jwt_header_alg|$jwt_payload'; }
             location /arg { auth_jwt closed token=$arg_t; try_files /none @said; }
             location /admin { auth_jwt closed; auth_jwt_require $is_admin error=403; try_files /none @said; }
             location /strict { auth_jwt closed; auth_jwt_require $jwt_claim_sub $is_admin; }
             location /late { auth_jwt closed; auth_jwt_leeway 1h; try_files /none @said; }
             location /open { auth_jwt off; try_files /none @said; } }",
    )
    .file("keys.json", keys.set())
    .start();
    let claims = r#"{"sub":"me","list":["a",2],"n":1.5,"address":{"city":"Berlin"}}"#;
    for (alg, kid) in [("HS256", "h"), ("HS512", "h"), ("RS256", "r"), ("PS256", "r"), ("ES256", "e"), ("EdDSA", "d")] {
        let token = keys.token(&format!(r#"{{"alg":"{alg}","kid":"{kid}"}}"#), claims);
        let (status, text, _) = ask(&server, "/x", &token);
        assert_eq!((status, text), (200, format!("me|a,2|1.5|Berlin|{kid}|{alg}|{claims}")), "{alg}");
        // Without a name every key of its kind is tried.
        assert_eq!(ask(&server, "/x", &keys.token(&format!(r#"{{"alg":"{alg}"}}"#), claims)).0, 200, "{alg}");
    }
    let good = keys.token(r#"{"alg":"ES256"}"#, claims);
    assert_eq!(ask(&server, &format!("/arg?t={good}"), "").0, 200);
    assert_eq!(ask(&server, "/open", "").1, "||||||");
    assert_eq!(ask(&server, "/x", ""), (401, ask(&server, "/x", "").1, Some("Bearer realm=\"closed\"".into())));
    // What must not be let in.
    let tampered = {
        let mut t = good.clone();
        let at = t.find('.').unwrap() + 5;
        let c = if &t[at..=at] == "A" { "B" } else { "A" };
        t.replace_range(at..=at, c);
        t
    };
    let public_as_secret = {
        let signed = format!("{}.{}", b64(br#"{"alg":"HS256","kid":"e"}"#), b64(claims.as_bytes()));
        let key = hmac::Key::new(hmac::HMAC_SHA256, keys.ec.public_key().as_ref());
        format!("{signed}.{}", b64(hmac::sign(&key, signed.as_bytes()).as_ref()))
    };
    let other = Keys::new();
    let at = |name: &str, time: u64| keys.token(r#"{"alg":"HS256"}"#, &format!(r#"{{"{name}":{time}}}"#));
    let bad = [
        ("tampered", tampered),
        ("none", keys.token(r#"{"alg":"none"}"#, claims)),
        ("no algorithm", keys.token("{}", claims)),
        ("another key's name", keys.token(r#"{"alg":"ES256","kid":"r"}"#, claims)),
        ("public key as secret", public_as_secret),
        ("another's key", other.token(r#"{"alg":"RS256","kid":"r"}"#, claims)),
        ("critical", keys.token(r#"{"alg":"HS256","crit":["b64"],"b64":false}"#, claims)),
        ("expired", at("exp", now() - 10)),
        ("early", at("nbf", now() + 600)),
        ("no number", keys.token(r#"{"alg":"HS256"}"#, r#"{"exp":"tomorrow"}"#)),
        ("no object", keys.token(r#"{"alg":"HS256"}"#, "[]")),
        ("nonsense", "a.b".into()),
        ("encrypted", "a.b.c.d.e".into()),
        ("no base64", "e30.e30.%%%".into()),
        ("no JSON", format!("{}.e30.e30", b64(b"{"))),
    ];
    for (what, token) in bad {
        let (status, _, header) = ask(&server, "/x", &token);
        assert_eq!(
            (status, header.as_deref()),
            (401, Some("Bearer realm=\"closed\", error=\"invalid_token\"")),
            "{what}"
        );
    }
    assert_eq!(ask(&server, "/late", &at("exp", now() - 10)).0, 200);
    assert_eq!(ask(&server, "/x", &at("exp", now() + 600)).0, 200);
    assert_eq!(ask(&server, "/admin", &good).0, 403);
    assert_eq!(ask(&server, "/strict", &good).0, 401);
    assert_eq!(ask(&server, "/admin", &keys.token(r#"{"alg":"EdDSA"}"#, r#"{"role":"admin"}"#)).0, 200);
    // Keys that are taken away let nobody in from the next request on.
    std::fs::write(server.dir().join("keys.json"), other.set()).unwrap();
    assert_eq!(ask(&server, "/x", &good).0, 401);
    assert_eq!(ask(&server, "/x", &other.token(r#"{"alg":"ES256"}"#, claims)).0, 200);
    let log = server.error_log();
    assert!(!log.contains(&good) && log.contains("the signature is wrong"), "tokens do not get into the log");
}

/// A token that is encrypted with a secret itself (`dir`, A256GCM).
fn sealed(secret: &[u8; 32], content: &str) -> String {
    use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
    let protected = b64(br#"{"alg":"dir","enc":"A256GCM","kid":"s"}"#);
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, secret).unwrap());
    let (iv, mut bytes) = ([3; 12], content.as_bytes().to_vec());
    let nonce = Nonce::assume_unique_for_key(iv);
    let tag = key.seal_in_place_separate_tag(nonce, Aad::from(protected.as_bytes()), &mut bytes).unwrap();
    format!("{protected}..{}.{}.{}", b64(&iv), b64(&bytes), b64(tag.as_ref()))
}

#[test]
fn tokens_that_only_this_server_can_read() {
    let keys = Keys::new();
    let secret = [5; 32];
    let set =
        keys.set().replacen("[{", &format!(r#"[{{"kty":"oct","kid":"s","use":"enc","k":"{}"}},{{"#, b64(&secret)), 1);
    let server = Site::server(
        "auth_jwt closed; auth_jwt_key_file keys.json; add_header X $jwt_claim_sub; add_header Y $jwt_header_enc;
         location /e { auth_jwt_type encrypted; } location /n { auth_jwt_type nested; } location /s { }",
    )
    .file("keys.json", set)
    .file("html/e", "e")
    .file("html/n", "n")
    .file("html/s", "s")
    .start();
    let signed = keys.token(r#"{"alg":"RS256","kid":"r"}"#, r#"{"sub":"x"}"#);
    let plain = sealed(&secret, r#"{"sub":"x"}"#);
    let nested = sealed(&secret, &signed);
    for (target, token, status) in [
        ("/e", &plain, 200),
        ("/n", &nested, 200),
        ("/s", &signed, 200),
        ("/e", &signed, 401),
        ("/n", &plain, 401),
        ("/s", &nested, 401),
        ("/e", &sealed(&[6; 32], "{}"), 401),
        ("/e", &sealed(&secret, r#"{"exp":1}"#), 401),
        ("/n", &sealed(&secret, &Keys::new().token(r#"{"alg":"RS256","kid":"r"}"#, "{}")), 401),
    ] {
        assert_eq!(ask(&server, target, token).0, status, "{target} {token}");
    }
    let line = format!("GET /e HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {plain}\r\n\r\n");
    let answer = server.connect().send(line).response();
    assert_eq!((answer.header("X"), answer.header("Y")), (Some("x"), Some("A256GCM")));
}

#[test]
fn keys_that_a_subrequest_brings() {
    let keys = Keys::new();
    let set = keys.set();
    let backend = Backend::start(move |_| Reply::ok(&set));
    let server = Site::server(
        "location /keys { internal; proxy_pass http://127.0.0.1:@BACKEND@; }
         location / { auth_jwt r; auth_jwt_key_request /keys; auth_jwt_key_cache 1h; return 200 rewritten; }
         location /x { auth_jwt r; auth_jwt_key_request /keys; auth_jwt_key_cache 1h; }
         location /failing { auth_jwt r; auth_jwt_key_request /nothing; }",
    )
    .set("BACKEND", backend.port)
    .file("html/x", "inside")
    .start();
    let token = keys.token(r#"{"alg":"RS256"}"#, "{}");
    for _ in 0..3 {
        assert_eq!(ask(&server, "/x", &token).1, "inside");
    }
    assert_eq!(backend.seen().len(), 1);
    assert_eq!(ask(&server, "/failing", &token).0, 500);
    server.wait_for("logs/error.log", "JWT: no keys from \"/nothing\"");
}

#[test]
fn what_is_written_wrongly() {
    let check = |text: &str, keys: &str| Site::server(text).file("keys.json", keys).check().1;
    assert!(check("auth_jwt a; auth_jwt_key_file none.json;", "{}").contains("No such file"));
    assert!(check("auth_jwt a; auth_jwt_key_file keys.json;", "{}").contains("no list \"keys\""));
    assert!(check("auth_jwt a; auth_jwt_key_file keys.json;", "x").contains("it is no JSON"));
    assert!(check("auth_jwt_type sealed;", "").contains("invalid value \"sealed\""));
    assert!(check("auth_jwt a tokens=$x;", "").contains("invalid parameter \"tokens=$x\""));
}
