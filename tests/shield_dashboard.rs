//! What an operator sees of refused requests: why each was, by the id that its page shows, in the API and on the dashboard in a browser.

use crate::dashboard::Browser;
use crate::harness::{Response, Server, Site};
use serde_json::Value;

fn server() -> Server {
    Site::http(
        "guard site { limit url 1r/m refuse; retry_after 3s; }
         server { listen 127.0.0.1:@PORT@; location = / { dashboard; } location /api { api; }
             location /guarded { guard site; return 200 fine; }
             location /judged { modsecurity on; return 200 fine; modsecurity_rules '
                 SecRuleEngine On
                 SecRule ARGS:q \"@contains evil\" \"id:7,phase:1,deny,status:403,log,msg:\\'No evil here\\'\"'; } }",
    )
    .start()
}

/// The id that a refused request's page shows.
fn id_of(response: &Response) -> String {
    let text = response.text();
    let (_, rest) = text.split_once("<center>Request ").unwrap_or_else(|| panic!("{text}"));
    rest.split('<').next().unwrap_or_default().to_owned()
}

fn refusals(server: &Server, path: &str) -> Value {
    serde_json::from_str(&server.get(&format!("/api/9/ironweir/refusals{path}")).text()).unwrap()
}

#[test]
fn a_refused_request_is_explained_by_its_id() {
    let server = server();
    let judged = server.get("/judged?q=evil");
    assert_eq!(judged.status, 403);
    assert_eq!(server.get("/guarded").status, 200);
    let guarded = server.get("/guarded");
    assert_eq!(guarded.status, 429);
    let (judged, guarded) = (id_of(&judged), id_of(&guarded));
    let said = refusals(&server, &format!("/{judged}"));
    assert_eq!((said["by"].as_str(), said["status"].as_u64()), (Some("modsecurity"), Some(403)), "{said}");
    assert_eq!(said["why"], "rule 7 (ARGS:q): No evil here");
    assert_eq!((said["request"].as_str(), said["client"].as_str()), (Some("GET /judged?q=evil"), Some("127.0.0.1")));
    let said = refusals(&server, &format!("/{guarded}"));
    assert_eq!((said["by"].as_str(), said["status"].as_u64()), (Some("guard"), Some(429)), "{said}");
    assert!(said["why"].as_str().unwrap().ends_with("above url 1r/m"), "{said}");
    let newest = refusals(&server, "");
    assert_eq!((&newest[0]["id"], &newest[1]["id"]), (&Value::from(guarded), &Value::from(judged.clone())));
    assert_eq!(server.get("/api/9/ironweir/refusals/0").status, 404);

    // The lists of who asks most are of one request in sixteen.
    for _ in 0..32 {
        server.get("/guarded");
    }
    let Some(mut browser) = Browser::start(&format!("http://127.0.0.1:{}/", server.port), server.dir()) else { return };
    browser.step("open");
    let shown = browser.step(&format!("why {judged}"));
    let text = shown["text"].as_str().unwrap();
    assert!(text.contains("rule 7 (ARGS:q): No evil here") && text.contains("403"), "{text}");
    assert_eq!(shown["typed"], Value::from(judged));
    // After this the browser complains of a 404.
    assert_eq!(browser.step("errors")["errors"], Value::Array(Vec::new()));
    let unknown = browser.step("why 00000000000000000000000000000000");
    assert!(unknown["text"].as_str().unwrap().contains("Not among the last refusals"), "{unknown}");
    let section = browser.step("text shield");
    let text = section["text"].as_str().unwrap().to_lowercase();
    for part in ["top rule", "most wanted page", "limit that was exceeded", "above url 1r/m"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    if let Some(folder) = std::env::var_os("PICTURES") {
        browser.step("picture shield 1280 light");
        let _ = std::fs::copy(server.dir().join("shield.png"), std::path::Path::new(&folder).join("shield.png"));
    }
}
