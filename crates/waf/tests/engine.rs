//! Rules as operators write them, requests as they come: what a transaction says.

#![allow(missing_docs, reason = "tests")]

use std::path::PathBuf;
use std::sync::Arc;
use waf::{
    Bundle, Connection, Fault, Intervention, Memory, Now, Rules, Source, Store, Stored, Transaction, Update, Variables,
};

fn rules(text: &str) -> Arc<Rules> {
    let text = format!("SecRuleEngine On\nSecRequestBodyAccess On\n{text}");
    match Rules::load(&[Source { name: "test.conf", text: text.as_bytes() }], &Bundle::default()) {
        Ok(rules) => Arc::new(rules),
        Err(problems) => panic!("{problems:#?}"),
    }
}

#[derive(Default)]
struct Ask<'a> {
    uri: &'a str,
    headers: &'a [(&'a str, &'a str)],
    body: &'a [u8],
    store: Option<Arc<dyn Store>>,
    now_s: u64,
}

impl Ask<'_> {
    fn run(&self, rules: &Arc<Rules>) -> Transaction {
        let now = Now { epoch_ms: self.now_s * 1000, utc_offset_s: 0 };
        let mut t = Transaction::new(rules.clone(), self.store.clone(), now);
        t.unique_id(b"id-1");
        t.connection(&Connection { client: "192.0.2.1".parse().ok(), ..Connection::default() });
        t.uri(if self.body.is_empty() { b"GET" } else { b"POST" }, self.uri.as_bytes(), b"HTTP/1.1");
        t.request_headers(self.headers.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes())));
        for piece in self.body.chunks(7) {
            t.request_body(piece);
        }
        t.request_body_end();
        t
    }
}

fn get(rules: &Arc<Rules>, uri: &str) -> Transaction {
    Ask { uri, headers: &[("Host", "example.org")], ..Ask::default() }.run(rules)
}

fn refused(t: &Transaction) -> Option<(u16, u64)> {
    t.intervention().map(|i: &Intervention| (i.status, i.rule))
}

fn ids(t: &Transaction) -> Vec<u64> {
    t.matches().iter().map(|m| m.id).collect()
}

#[test]
fn disruptive_actions_say_what_the_server_does() {
    let rules = rules(
        "SecRule ARGS:a \"@streq deny\" \"id:1,phase:1,deny,status:404,msg:'no %{ARGS.a}'\"
         SecRule ARGS:a \"@streq away\" \"id:2,phase:1,redirect:'https://example.org/%{ARGS.a}'\"
         SecRule ARGS:a \"@streq drop\" \"id:3,phase:1,drop\"
         SecRule ARGS:a \"@streq allow\" \"id:4,phase:1,allow\"
         SecRule ARGS:a \"@rx .\" \"id:5,phase:2,deny\"",
    );
    let t = get(&rules, "/?a=deny");
    assert_eq!(refused(&t), Some((404, 1)));
    assert_eq!(t.matches()[0].msg, "no deny");
    let line = &t.intervention().unwrap().log;
    assert!(line.starts_with("ModSecurity: Access denied with code 404 (phase 1)."), "{line}");
    assert!(
        line.contains("[file \"test.conf\"] [line \"3\"] [id \"1\"]") && line.contains("[unique_id \"id-1\"]"),
        "{line}"
    );
    let away = get(&rules, "/?a=away");
    assert_eq!(away.intervention().unwrap().redirect.as_deref(), Some("https://example.org/away"));
    assert_eq!(refused(&away), Some((302, 2)));
    assert!(get(&rules, "/?a=drop").intervention().unwrap().drop);
    assert_eq!(refused(&get(&rules, "/?a=allow")), None);
    assert_eq!(refused(&get(&rules, "/?a=x")), Some((403, 5)));
    assert_eq!(refused(&get(&rules, "/")), None);
}

#[test]
fn what_is_allowed_ends_where_it_says() {
    let rules = rules(
        "SecRule ARGS:a \"@streq all\" \"id:1,phase:1,allow,nolog\"
         SecRule ARGS:a \"@streq request\" \"id:2,phase:1,allow:request,nolog\"
         SecRule ARGS:a \"@streq phase\" \"id:3,phase:1,allow:phase,nolog\"
         SecAction \"id:10,phase:1,pass,log\"
         SecAction \"id:20,phase:2,pass,log\"
         SecAction \"id:30,phase:3,pass,log\"
         SecAction \"id:31,phase:3,pass,log\"
         SecAction \"id:50,phase:5,pass,log\"",
    );
    let ask = |what: &str| {
        let mut t = get(&rules, &format!("/?a={what}"));
        t.response_headers(200, b"HTTP/1.1", []);
        t.response_body_end();
        t.logging(200);
        ids(&t)
    };
    assert_eq!(ask("all"), [50]);
    assert_eq!(ask("request"), [30, 31, 50]);
    assert_eq!(ask("phase"), [20, 30, 31, 50]);
    assert_eq!(ask("nothing"), [10, 20, 30, 31, 50]);
}

#[test]
fn detection_only_logs_and_refuses_nothing() {
    let rules = rules("SecRuleEngine DetectionOnly\nSecRule ARGS \"@rx x\" \"id:1,phase:1,deny\"");
    let mut t = get(&rules, "/?a=x%0d%0aforged");
    assert_eq!((refused(&t), ids(&t)), (None, vec![1]));
    let mut lines = Vec::new();
    t.log_lines(|_| true, |_, line| lines.push(line.to_owned()));
    assert!(lines[0].contains("x\\x0d\\x0aforged"), "nobody writes lines of his own: {}", lines[0]);
    t.log_lines(|_| true, |_, line| panic!("lines are given once: {line}"));
}

#[test]
fn scores_add_up_over_chains_and_skips() {
    let rules = rules(
        "SecAction \"id:1,phase:1,pass,nolog,setvar:tx.score=0,setvar:tx.step=5\"
         SecRule ARGS \"@contains evil\" \"id:2,phase:1,pass,chain,capture,setvar:tx.seen=+1\"
         SecRule MATCHED_VARS \"@rx (ev)il(\\d)\" \"capture,setvar:tx.score=+%{tx.step},setvar:'tx.name_%{tx.2}=%{MATCHED_VAR_NAME}'\"
         SecRule TX:score \"@eq 0\" \"id:3,phase:1,pass,nolog,skipAfter:END\"
         SecRule TX:score \"@ge 10\" \"id:4,phase:1,deny,skip:1\"
         SecMarker END
         SecRule &ARGS \"@gt 2\" \"id:5,phase:1,deny,status:400\"",
    );
    let t = get(&rules, "/?a=evil1&b=evil2");
    assert_eq!(refused(&t), Some((403, 4)));
    assert_eq!(t.tx("score"), Some(&b"10"[..]));
    assert_eq!(t.tx("name_2"), Some(&b"MATCHED_VARS:ARGS:b"[..]));
    assert_eq!(t.tx("SEEN"), Some(&b"2"[..]));
    let half = get(&rules, "/?a=evil&b=evil3");
    assert_eq!((refused(&half), half.tx("score")), (None, Some(&b"5"[..])));
    let other = get(&rules, "/?a=1&b=2&c=3");
    assert_eq!((refused(&other), other.tx("name_2")), (Some((400, 5)), None));
}

#[test]
fn transformations_apply_in_order_and_stages_one_by_one() {
    let rules = rules(
        "SecDefaultAction \"phase:1,pass,log,t:lowercase\"
         SecRule ARGS:a \"@streq <b>\" \"id:1,phase:1,deny,t:urlDecode,t:htmlEntityDecode\"
         SecRule ARGS:a \"@streq X\" \"id:2,phase:1,deny,t:none\"
         SecRule ARGS:m \"@streq %41\" \"id:3,phase:1,deny,t:none,t:urlDecode,multiMatch\"
         SecRule ARGS:n \"@streq a\" \"id:4,phase:1,deny,t:none,t:urlDecode,t:lowercase,multiMatch\"",
    );
    assert_eq!(refused(&get(&rules, "/?a=%2526LT%3BB%253E")), Some((403, 1)));
    assert_eq!(refused(&get(&rules, "/?a=X")), Some((403, 2)));
    assert_eq!(refused(&get(&rules, "/?m=%2541")), Some((403, 3)));
    assert_eq!(refused(&get(&rules, "/?n=%2541")), Some((403, 4)));
}

#[test]
fn rules_can_be_changed_while_loading_and_while_running() {
    let rules = rules(
        "SecRule REQUEST_URI \"@beginsWith /a\" \"id:1,phase:1,pass,nolog,ctl:ruleRemoveById=10-11\"
         SecRule REQUEST_URI \"@beginsWith /b\" \"id:2,phase:1,pass,nolog,ctl:ruleRemoveTargetByTag=T;ARGS:pass\"
         SecRule REQUEST_URI \"@beginsWith /c\" \"id:3,phase:1,pass,nolog,ctl:ruleEngine=DetectionOnly\"
         SecRule ARGS|!ARGS:ok \"@rx evil\" \"id:10,phase:2,deny,tag:'T'\"
         SecRule ARGS \"@rx never\" \"id:20,phase:2,deny\"
         SecRule ARGS \"@rx odd\" \"id:30,phase:2,deny\"
         SecRuleRemoveById 20
         SecRuleUpdateTargetById 30 \"!ARGS:/^x_/|REQUEST_HEADERS:Odd\"
         SecRuleUpdateActionById 30 \"status:418,msg:'changed'\"",
    );
    assert_eq!(refused(&get(&rules, "/?p=evil")), Some((403, 10)));
    assert_eq!(refused(&get(&rules, "/?OK=evil")), None);
    assert_eq!(refused(&get(&rules, "/a?p=evil")), None);
    assert_eq!(refused(&get(&rules, "/b?pass=evil")), None);
    assert_eq!(refused(&get(&rules, "/b?p=evil")), Some((403, 10)));
    assert_eq!((refused(&get(&rules, "/c?p=evil")), ids(&get(&rules, "/c?p=evil"))), (None, vec![10]));
    assert_eq!(refused(&get(&rules, "/?p=never")), None);
    assert_eq!(refused(&get(&rules, "/?X_1=odd")), None);
    assert_eq!(refused(&get(&rules, "/?p=odd")), Some((418, 30)));
    let by_header = Ask { uri: "/", headers: &[("odd", "odd")], ..Ask::default() }.run(&rules);
    assert_eq!((refused(&by_header), by_header.matches()[0].msg.as_str()), (Some((418, 30)), "changed"));
}

#[test]
fn bodies_of_all_kinds_become_variables() {
    let rules = rules(
        "SecRule REQUEST_HEADERS:Content-Type \"@beginsWith application/json\" \"id:1,phase:1,pass,nolog,ctl:requestBodyProcessor=JSON\"
         SecRule REQUEST_HEADERS:Content-Type \"@beginsWith text/xml\" \"id:2,phase:1,pass,nolog,ctl:requestBodyProcessor=XML\"
         SecRule REQBODY_ERROR \"!@eq 0\" \"id:3,phase:2,deny,status:400,msg:'%{REQBODY_ERROR_MSG}'\"
         SecRule ARGS_POST:a|ARGS:json.a.array_1|XML:/*|XML://@* \"@contains evil\" \"id:10,phase:2,deny\"
         SecRule FILES \"@endsWith .php\" \"id:11,phase:2,deny\"
         SecRule FILES_COMBINED_SIZE \"@gt 10\" \"id:12,phase:2,deny\"
         SecRule REQUEST_BODY \"@contains raw\" \"id:13,phase:2,deny\"",
    );
    let post = |kind: &str, body: &str| {
        let t =
            Ask { uri: "/", headers: &[("Content-Type", kind)], body: body.as_bytes(), ..Ask::default() }.run(&rules);
        refused(&t)
    };
    assert_eq!(post("application/x-www-form-urlencoded", "b=1&a=%65vil"), Some((403, 10)));
    assert_eq!(post("application/x-www-form-urlencoded", "b=raw"), Some((403, 13)));
    assert_eq!(post("application/json", "{\"a\": [1, \"evil\"]}"), Some((403, 10)));
    assert_eq!(post("application/json", "{\"b\": \"evil\"}"), None);
    assert_eq!(post("application/json", "{\"b\": "), Some((400, 3)));
    assert_eq!(post("text/xml", "<a><b>evil</b></a>"), Some((403, 10)));
    assert_eq!(post("text/xml", "<a b='evil'/>"), Some((403, 10)));
    assert_eq!(post("text/xml", "<a><b></a>"), Some((400, 3)));
    let part = |disposition: &str, content: &str| {
        let body = format!("--X\r\nContent-Disposition: form-data; {disposition}\r\n\r\n{content}\r\n--X--\r\n");
        post("multipart/form-data; boundary=X", &body)
    };
    assert_eq!(part("name=a", "evil"), Some((403, 10)));
    assert_eq!(part("name=f; filename=x.php", "1"), Some((403, 11)));
    assert_eq!(part("name=f; filename=x.txt", "evil evil evil"), Some((403, 12)));
    assert_eq!(part("name=f; filename=x.txt", "evil"), None);
    assert_eq!(part("filename=x.txt", "evil"), Some((400, 3)));
}

#[test]
fn bodies_have_limits() {
    let text = "SecRequestBodyLimit 20\nSecRule ARGS \"@contains evil\" \"id:1,phase:2,deny\"\n";
    let headers = &[("Content-Type", "application/x-www-form-urlencoded")];
    let long = |rules: &Arc<Rules>, body: &[u8]| refused(&Ask { uri: "/", headers, body, ..Ask::default() }.run(rules));
    let reject = rules(text);
    assert_eq!(long(&reject, b"a=0123456789012345678"), Some((413, 0)));
    assert_eq!(long(&reject, b"a=012345678901234567"), None);
    let partial = rules(&format!("{text}SecRequestBodyLimitAction ProcessPartial"));
    assert_eq!(long(&partial, b"a=evil&b=012345678901234567"), Some((403, 1)));
    assert_eq!(long(&partial, b"a=0123456789012345678evil"), None);
    let few = rules("SecArgumentsLimit 2\nSecRule REQBODY_ERROR \"@eq 1\" \"id:1,phase:2,deny,status:400\"");
    assert_eq!(refused(&get(&few, "/?a&b&c")), Some((400, 1)));
    assert_eq!(refused(&get(&few, "/?a&b")), None);
}

const FORM: &[(&str, &str)] = &[("Content-Type", "application/x-www-form-urlencoded")];

#[test]
fn sql_behind_thousands_of_blanks_is_found() {
    let rules =
        rules("SecRule ARGS \"@detectSQLi\" \"id:1,phase:2,deny,t:none,t:urlDecodeUni,capture,logdata:'%{TX.0}'\"");
    let form = |value: &str| {
        let body = format!("q={value}");
        let t = Ask { uri: "/", headers: FORM, body: body.as_bytes(), ..Ask::default() }.run(&rules);
        (refused(&t), t.matches().first().map(|m| m.data.clone()).unwrap_or_default())
    };
    let (plain, name) = form("x' or 2>1-- -");
    assert_eq!(plain, Some((403, 1)));
    for blanks in [" ".repeat(4_200), "\t\n".repeat(4_200), "/**/".repeat(4_200), "/* x */ ".repeat(4_200)] {
        assert_eq!(form(&format!("x'{blanks}or 2>1-- -")), (plain, name.clone()), "{}", &blanks[..8]);
    }
    assert_eq!(form(&format!("{}' or 2>1-- -", "x".repeat(4_200))).0, plain);
    assert_eq!(form(&format!("1{} union select a from b", "*1".repeat(4_200))).0, plain);
    assert_eq!(form(&"A line of a letter, and one more. ".repeat(4_200)).0, None);
}

#[test]
fn names_of_json_do_not_multiply_memory() {
    const JSON: &[(&str, &str)] = &[("Content-Type", "application/json")];
    let text = "SecAction \"id:9,phase:1,pass,nolog,ctl:requestBodyProcessor=JSON\"
         SecRule ARGS_NAMES|ARGS \"@rx (?:a|b)+c\" \"id:1,phase:2,deny,t:none,t:lowercase,t:urlDecodeUni,t:htmlEntityDecode,t:jsDecode\"";
    let body =
        |name: usize, leaves: usize| format!("{{\"{}\":[{}1]}}", "K".repeat(name), "1,".repeat(leaves)).into_bytes();
    let ask = |rules: &Arc<Rules>, body: &[u8]| Ask { uri: "/", headers: JSON, body, ..Ask::default() }.run(rules);
    let long = body(125_000, 900);
    let t = ask(&rules(text), &long);
    assert_eq!((refused(&t), t.fault()), (Some((400, 0)), None));
    assert!(t.memory() < 32 << 20, "{}", t.memory());
    // A rule has its say first.
    let asked = rules(&format!("{text}\nSecRule REQBODY_ERROR \"!@eq 0\" \"id:2,phase:2,deny,status:400\""));
    assert_eq!(refused(&ask(&asked, &long)), Some((400, 2)));
    let t = ask(&rules(&format!("{text}\nSecRuleEngine DetectionOnly")), &long);
    assert_eq!(refused(&t), None);
    assert_eq!(refused(&ask(&rules(text), &body(500, 900))), None);
}

#[test]
fn a_transaction_that_is_given_up_lets_go_of_its_texts() {
    let text = "SecRuleEngine DetectionOnly
        SecAuditEngine On
        SecAuditLogParts ABCFHZ
        SecRule ARGS \"@rx (?:a|b)+c\" \"id:1,phase:2,pass,setvar:tx.seen=%{MATCHED_VAR}\"\n";
    // As many rules as it takes.
    let more: String = (0..200)
        .map(|n| format!("SecRule ARGS \"@rx x{n}\" \"id:{},phase:2,pass,t:none,t:lowercase,t:urlDecodeUni,t:jsDecode,multiMatch\"\n", 10 + n))
        .collect();
    let rules = rules(&format!("{text}{more}"));
    let body = format!("a=abc&b={}", (0..200).map(|n| format!("X{n}%4")).collect::<String>().repeat(1_000));
    let headers = &[("Host", "example.org"), ("Content-Type", "application/x-www-form-urlencoded")];
    let mut t = Ask { uri: "/path?q=1", headers, body: body.as_bytes(), ..Ask::default() }.run(&rules);
    assert_eq!(t.fault(), Some(Fault::TooExpensive));
    assert!(t.memory() < 1 << 20, "{}", t.memory());
    assert_eq!(t.tx("seen"), Some(&b"abc"[..]));
    assert_eq!(t.tx("msc_pcre_limits_exceeded"), Some(&b"1"[..]));
    t.response_headers(200, b"HTTP/1.1", [(&b"Content-Type"[..], &b"text/html"[..])]);
    t.logging(200);
    let line = t.audit_line("test");
    for shown in ["/path?q=1", "example.org", "192.0.2.1", "id-1", "a=abc&b=X0%4", "TooExpensive"] {
        assert!(line.contains(shown), "{shown} in {}", &line[..400]);
    }
    t.recycle(rules.clone(), None, Now::default());
    assert_eq!(t.fault(), None);
}

#[test]
fn what_rules_do_not_see_is_refused_by_itself() {
    let few = "SecArgumentsLimit 2\nSecRule ARGS \"@streq evil\" \"id:1,phase:2,deny\"";
    assert_eq!(refused(&get(&rules(few), "/?a&b&c=evil")), Some((400, 0)));
    assert_eq!(refused(&get(&rules(few), "/?a&b=evil")), Some((403, 1)));
    assert_eq!(refused(&get(&rules(&format!("{few}\nSecRuleEngine DetectionOnly")), "/?a&b&c")), None);
    let allowed = format!("SecRule REQUEST_URI \"@beginsWith /free\" \"id:2,phase:1,allow:request\"\n{few}");
    assert_eq!(refused(&get(&rules(&allowed), "/free?a&b&c")), None);
    let form = |body: &str| {
        refused(&Ask { uri: "/", headers: FORM, body: body.as_bytes(), ..Ask::default() }.run(&rules(few)))
    };
    assert_eq!(form("a&b&c=evil"), Some((400, 0)));
    assert_eq!(form("a&b"), None);
    // More cookies than a transaction has room for.
    let cookies = "SecRule REQUEST_COOKIES \"@streq evil\" \"id:1,phase:2,deny\"";
    let cookie = |count: usize| format!("{}c=evil", "a;".repeat(count));
    let ask = |cookie: &str| {
        refused(&Ask { uri: "/", headers: &[("Cookie", cookie)], ..Ask::default() }.run(&rules(cookies)))
    };
    assert_eq!(ask(&cookie(10)), Some((403, 1)));
    assert_eq!(ask(&cookie(waf::limits::MAX_VALUES)), Some((400, 0)));
    let deep = "SecAction \"id:9,phase:1,pass,nolog,ctl:requestBodyProcessor=XML\"\nSecRule XML:/* \"@contains evil\" \"id:1,phase:2,deny\"";
    let body = format!("{}evil{}", "<a>".repeat(600), "</a>".repeat(600));
    let t = Ask { uri: "/", body: body.as_bytes(), ..Ask::default() }.run(&rules(deep));
    assert_eq!(refused(&t), Some((400, 0)));
}

#[test]
fn parts_that_others_take_for_fields_are_judged_as_fields() {
    let rules = rules(
        "SecRule ARGS \"@contains evil\" \"id:1,phase:2,deny\"
         SecRule REQBODY_ERROR \"!@eq 0\" \"id:2,phase:2,deny,status:400\"",
    );
    for (disposition, expected) in [
        ("name=\"q\"", Some((403, 1))),
        ("name=\"q\"; filename=\"\"", Some((403, 1))),
        ("name=\"q\"; filename=", Some((403, 1))),
        ("name=\"q\"; filename*=x", Some((403, 1))),
        ("name=\"q\"; x=a'; filename=f; y=b'", Some((400, 2))),
        ("name=\"q\"; filename=f", None),
        ("name=\"q\"; filename=f; filename*=UTF-8''f", None),
    ] {
        let body = format!("--X\r\nContent-Disposition: form-data; {disposition}\r\n\r\nevil\r\n--X--\r\n");
        let headers = &[("Content-Type", "multipart/form-data; boundary=X")];
        let t = Ask { uri: "/", headers, body: body.as_bytes(), ..Ask::default() }.run(&rules);
        assert_eq!(refused(&t), expected, "{disposition}");
    }
}

#[test]
fn xml_may_be_arguments() {
    let text = "SecAction \"id:9,phase:1,pass,nolog,ctl:requestBodyProcessor=XML\"
         SecRule REQUEST_URI \"@streq /on\" \"id:8,phase:1,pass,nolog,ctl:parseXmlIntoArgs=On\"
         SecRule REQUEST_URI \"@streq /only\" \"id:7,phase:1,pass,nolog,ctl:parseXmlIntoArgs=OnlyArgs\"
         SecRule ARGS:xml.a.b \"@streq evil\" \"id:1,phase:2,pass\"
         SecRule XML:/* \"@contains evil\" \"id:2,phase:2,pass\"";
    let ask = |rules: &Arc<Rules>, uri| ids(&Ask { uri, body: b"<a><b>evil</b></a>", ..Ask::default() }.run(rules));
    assert_eq!(ask(&rules(text), "/"), [2]);
    assert_eq!(ask(&rules(text), "/on"), [1, 2]);
    assert_eq!(ask(&rules(text), "/only"), [1]);
    assert_eq!(ask(&rules(&format!("SecParseXmlIntoArgs On\n{text}")), "/"), [1, 2]);
    assert_eq!(ask(&rules(&format!("SecParseXmlIntoArgs OnlyArgs\n{text}")), "/"), [1]);
    let noted = rules("SecAction \"id:1,phase:1,pass,ctl:debugLogLevel=9\"");
    assert!(noted.notes()[0].message.contains("debugLogLevel"));
}

#[test]
fn answers_are_judged_by_head_and_body() {
    let rules = rules(
        "SecResponseBodyAccess On\nSecResponseBodyLimit 30\nSecResponseBodyMimeType text/html
         SecRule RESPONSE_STATUS \"@rx ^5\" \"id:1,phase:3,deny,status:502\"
         SecRule RESPONSE_HEADERS:X-Powered-By \"@rx .\" \"id:2,phase:3,pass\"
         SecRule RESPONSE_BODY \"@contains ORA-\" \"id:3,phase:4,deny,status:500\"
         SecAction \"id:4,phase:5,pass,log\"",
    );
    let answer = |status: u16, kind: &str, body: &[u8]| {
        let mut t = get(&rules, "/");
        t.response_headers(status, b"HTTP/1.1", [(&b"Content-Type"[..], kind.as_bytes()), (b"X-Powered-By", b"x")]);
        for piece in body.chunks(5) {
            t.response_body(piece);
        }
        t.response_body_end();
        t.logging(status);
        (refused(&t), ids(&t))
    };
    assert_eq!(answer(200, "text/html; charset=utf-8", b"error ORA-1"), (Some((500, 3)), vec![2, 3, 4]));
    assert_eq!(answer(200, "image/png", b"error ORA-1"), (None, vec![2, 4]));
    assert_eq!(answer(503, "text/html", b""), (Some((502, 1)), vec![1, 4]));
    let long = [&b"0123456789012345678901234567890"[..], b"ORA-"].concat();
    assert_eq!(answer(200, "text/html", &long), (None, vec![2, 4]), "only what fits is looked at");
}

#[test]
fn stored_collections_outlive_requests() {
    let rules = rules(
        "SecAction \"id:1,phase:1,pass,nolog,initcol:ip=%{REMOTE_ADDR},setvar:ip.hits=+1\"
         SecRule IP:hits \"@eq 2\" \"id:2,phase:2,pass,nolog,setvar:ip.twice=1,expirevar:ip.twice=10\"
         SecRule IP:hits \"@gt 3\" \"id:3,phase:2,deny,status:429,chain\"
         SecRule IP:twice \"@eq 1\" \"setvar:tx.blocked=1\"",
    );
    let store: Arc<dyn Store> = Arc::new(Memory::default());
    let ask = |now_s: u64| refused(&Ask { uri: "/", store: Some(store.clone()), now_s, ..Ask::default() }.run(&rules));
    assert_eq!([ask(100), ask(101), ask(102), ask(103)], [None, None, None, Some((429, 3))]);
    assert_eq!(ask(112), None, "ip.twice has ended");
    assert_eq!(refused(&get(&rules, "/")), None, "without a store a record lasts as long as its transaction");
}

#[test]
fn what_is_wrong_is_named_with_file_and_line() {
    let mut files = Bundle::default();
    files
        .0
        .insert(PathBuf::from("/etc/waf/rules/a.conf"), b"# a comment\nSecRule NOTHING x id:7\nSecMarker\n".to_vec());
    files.0.insert(
        PathBuf::from("/etc/waf/rules/b.conf"),
        b"SecRule ARGS \"@rx (\" \\\n  \"id:8\"\nInclude b.conf\n".to_vec(),
    );
    let text = b"SecRuleEngine Perhaps\nSecSparkle On\nSecRule ARGS x \"id:1,t:sparkle\"\nInclude rules/*.conf\n\
        SecRule ARGS x \"phase:1\"\nSecAction id:5\nSecAction id:5\nSecRule ARGS x \"id:6,skipAfter:NOWHERE\"\n\
        Include missing.conf\nSecRule ARGS \"@pmFromFile no.data\" id:9\nSecRule ARGS x \"id:10,chain\"\n";
    let problems = Rules::load(&[Source { name: "/etc/waf/main.conf", text }], &files).unwrap_err();
    let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
    for (message, place) in [
        ("invalid value \"Perhaps\" of \"SecRuleEngine\"", "main.conf:1"),
        ("unknown directive \"SecSparkle\"", "main.conf:2"),
        ("unknown transformation \"sparkle\"", "main.conf:3"),
        ("unknown variable \"NOTHING\"", "rules/a.conf:2"),
        ("\"SecMarker\" takes one argument", "rules/a.conf:3"),
        ("cannot be compiled", "rules/b.conf:1"),
        ("included too deep", "rules/b.conf:3"),
        ("a rule needs an id", "main.conf:5"),
        ("rule id 5 is already used", "main.conf:7"),
        ("no SecMarker \"NOWHERE\"", "main.conf:8"),
        ("missing.conf\" cannot be read", "main.conf:9"),
        ("no.data\" cannot be read", "main.conf:10"),
        ("a chain has no last rule", "main.conf:11"),
    ] {
        let found = shown.iter().any(|s| s.contains(message) && s.ends_with(&format!(" in /etc/waf/{place}")));
        assert!(found, "{message} in {place}: {shown:#?}");
    }
}

#[test]
fn what_has_no_effect_is_noted() {
    let rules = rules("SecTmpDir /tmp");
    assert_eq!(rules.notes()[0].to_string(), "\"SecTmpDir\" has no effect: nothing is written to disk in test.conf:3");
}

#[test]
fn expressions_that_run_out_count_as_matches_and_end_in_a_refusal() {
    // The look-ahead keeps the linear engine from judging instead.
    let text = "SecRule ARGS:a \"@rx ^(a+)+(?!x)$\" \"id:1,phase:1,pass,msg:'%{MSC_PCRE_LIMITS_EXCEEDED}'\"\n";
    let uri = format!("/?a={}!", "a".repeat(64));
    let t = get(&rules(text), &uri);
    assert_eq!((ids(&t), t.matches()[0].msg.as_str(), t.fault()), (vec![1], "1", None));
    let many: String = (1..9).map(|id| text.replace("id:1", &format!("id:{id}"))).collect();
    let t = get(&rules(&many), &uri);
    assert_eq!((refused(&t), t.fault()), (Some((500, 0)), Some(Fault::TooExpensive)));
    let t = get(&rules(&format!("{many}SecRuleEngine DetectionOnly")), &uri);
    assert_eq!((refused(&t), t.fault()), (None, Some(Fault::TooExpensive)));
}

#[test]
fn what_needs_too_much_work_is_refused_or_said() {
    // The literal is there, so that no prefilter spares the expression, and each rule has one of its own.
    let text = |id: usize| format!("SecRule ARGS:a \"@rx ab{{0,{id}}}xyz$\" \"id:{id},phase:1,pass,nolog\"\n");
    let rule_set: String = (1..200).map(text).collect();
    let uri = format!("/?a=axyz{}", "x".repeat(60_000));
    let t = get(&rules(&rule_set), &uri);
    assert_eq!((refused(&t), t.fault()), (Some((500, 0)), Some(Fault::TooExpensive)));
    assert_eq!((t.tx("msc_pcre_limits_exceeded"), t.given_up()), (Some(&b"1"[..]), None));
    assert!(t.work() < waf::limits::WORK + 2 * uri.len() as u64, "it ends there: {}", t.work());
    let mut t = get(&rules(&format!("{rule_set}SecRuleEngine DetectionOnly\nSecAuditEngine RelevantOnly")), &uri);
    t.logging(200);
    assert_eq!((refused(&t), t.tx("msc_pcre_limits_exceeded")), (None, Some(&b"1"[..])));
    assert!(
        t.is_audited() && t.given_up().is_some_and(|line| line.contains("TooExpensive")),
        "it does not pass silently"
    );
    // A tenth of it is fine.
    let t = get(&rules(&rule_set), &uri[..6_000]);
    assert_eq!((refused(&t), t.fault(), t.tx("msc_pcre_limits_exceeded")), (None, None, None));
}

#[test]
fn an_upload_does_not_pay_for_what_its_fields_cost() {
    let text = |id: usize| format!("SecRule ARGS:a \"@rx ab?xyz$\" \"id:{id},phase:2,pass,nolog\"\n");
    let rules = rules(&(1..600).map(text).collect::<String>());
    let part = |name: &str, content: &str| {
        format!("--X\r\nContent-Disposition: form-data; name=\"{name}\r\n\r\n{content}\r\n")
    };
    let field = part("a\"", &format!("axyz{}", "x".repeat(30_000)));
    let file = part("f\"; filename=\"f.bin\"", &"f".repeat(2_000_000));
    let body = format!("{field}{file}--X--\r\n");
    let mut t = Transaction::new(rules.clone(), None, Now::default());
    t.uri(b"POST", b"/", b"HTTP/1.1");
    t.request_headers([(&b"Content-Type"[..], &b"multipart/form-data; boundary=X"[..])]);
    t.request_body(body.as_bytes());
    let refused = t.request_body_end().map(|refused| refused.status);
    assert_eq!((refused, t.fault()), (Some(500), Some(Fault::TooExpensive)), "{}", t.work());
}

#[test]
fn a_value_that_cannot_be_judged_spares_a_request_nothing() {
    let hard = format!("{}!", "a".repeat(64));
    let evil = "SecRule ARGS:b \"@streq evil\" \"id:9,phase:2,deny\"";
    for lenient in [
        "SecRule ARGS:a \"@rx ^(a+)+(?!x)$\" \"id:1,phase:1,allow,nolog\"",
        "SecRule ARGS:a \"!@rx ^(a+)+(?!x)$\" \"id:1,phase:1,pass,nolog,ctl:ruleEngine=Off\"",
        "SecRule ARGS:a \"@rx ^(a+)+(?!x)$\" \"id:1,phase:1,pass,nolog,ctl:ruleRemoveById=9\"",
        "SecRule ARGS:a \"@rx ^(a+)+(?!x)$\" \"id:1,phase:1,pass,nolog,chain\"\nSecRule ARGS:b \"@rx .\" \"ctl:ruleRemoveTargetById=9;ARGS:b\"",
        "SecRule ARGS:a \"@rx ^(a+)+(?!x)$\" \"id:1,phase:2,pass,nolog,skip:1\"",
    ] {
        let rules = rules(&format!("{lenient}\n{evil}"));
        let t = get(&rules, &format!("/?a={hard}&b=evil"));
        assert_eq!((refused(&t), t.tx("msc_pcre_limits_exceeded")), (Some((403, 9)), Some(&b"1"[..])), "{lenient}");
        // Whoever it is written for is spared all the same, where it says so without running out.
        let spared = get(&rules, "/?a=aaa&b=evil");
        assert_eq!(refused(&spared).is_none(), !lenient.contains("!@rx"), "{lenient}");
    }
}

#[test]
fn what_a_large_request_took_is_given_back() {
    let rules = rules("SecRule ARGS \"@streq evil\" \"id:1,phase:2,deny,t:lowercase\"");
    let mut t = Transaction::new(rules.clone(), None, Now::default());
    let mut ask = |body: &[u8]| {
        t.recycle(rules.clone(), None, Now::default());
        t.uri(b"POST", b"/", b"HTTP/1.1");
        t.request_headers([(&b"Content-Type"[..], &b"application/x-www-form-urlencoded"[..])]);
        t.request_body(body);
        let status = t.request_body_end().map(|refused| refused.status);
        let needed = t.memory();
        t.rest();
        (status, needed, t.memory())
    };
    let (status, needed, kept) = ask(&[b"a=".as_slice(), &[b'A'; 100_000]].concat().repeat(8));
    assert!(status.is_none() && needed > 800_000 && kept <= needed, "{needed} {kept}");
    let large = [b"a=".as_slice(), &[b'A'; 4_000_000]].concat();
    let (_, needed, kept) = ask(&large);
    assert!(needed > 4_000_000 && kept < 100_000, "{needed} {kept}");
    let (status, needed, kept) = ask(b"a=EVIL");
    assert_eq!((status, needed), (Some(403), kept), "what is small stays");
}

#[derive(Debug)]
struct Broken;

impl Store for Broken {
    fn open(&self, _: Stored, _: &[u8], _: u64, _: u64) -> Variables {
        panic!("a store that is broken")
    }

    fn change(&self, _: Stored, _: &[u8], _: &[u8], _: Update<'_>, _: u64) -> Option<Box<[u8]>> {
        None
    }
}

#[test]
fn a_panic_costs_the_request_and_nothing_else() {
    let rules = rules("SecRule ARGS:a \"@rx .\" \"id:1,phase:1,pass,nolog,initcol:ip=x\"");
    let ask = |uri| Ask { uri, store: Some(Arc::new(Broken)), ..Ask::default() }.run(&rules);
    let mut t = ask("/?a=1");
    assert_eq!((refused(&t), t.fault()), (Some((500, 0)), Some(Fault::Panic)));
    t.logging(500);
    let now = Now::default();
    t.recycle(rules.clone(), None, now);
    assert_eq!(t.uri(b"GET", b"/?a=1", b"HTTP/1.1"), None);
    assert_eq!((t.request_headers([]), t.fault()), (None, None), "the memory serves the next one");
    assert_eq!(refused(&ask("/")), None);
}

#[test]
fn the_audit_log_is_a_line_of_json() {
    let rules = rules(
        "SecAuditEngine RelevantOnly\nSecAuditLogParts ABCFHZ\nSecAuditLogRelevantStatus ^5\nSecComponentSignature test/1
         SecRule ARGS:q \"@contains evil\" \"id:1,phase:2,deny,log,auditlog,msg:'m',severity:CRITICAL,tag:'t/%{ARGS.n}',ver:'v'\"
         SecAction \"id:2,phase:1,pass,nolog,sanitiseArg:password,sanitiseRequestHeader:Authorization\"",
    );
    let headers =
        &[("Host", "h"), ("Authorization", "Basic secret"), ("Content-Type", "application/x-www-form-urlencoded")];
    let mut t =
        Ask { uri: "/x?password=secret&n=1", headers, body: b"q=evil&password=secret", ..Ask::default() }.run(&rules);
    t.logging(403);
    assert!(t.is_audited());
    let line = t.audit_line("Ironweir");
    assert!(!line.contains('\n') && !line.contains("secret"), "{line}");
    let json: serde_json::Value = serde_json::from_str(&line).unwrap();
    let t = &json["transaction"];
    assert_eq!(t["request"]["uri"], "/x?password=****&n=1");
    assert_eq!(t["request"]["body"], "q=evil&password=****");
    assert_eq!(t["request"]["headers"]["Authorization"], "****");
    assert_eq!((t["response"]["http_code"].as_u64(), t["unique_id"].as_str()), (Some(403), Some("id-1")));
    assert_eq!((t["client_ip"].as_str(), t["intervention"]["rule"].as_u64()), (Some("192.0.2.1"), Some(1)));
    let details = &t["messages"][0]["details"];
    assert_eq!((details["ruleId"].as_str(), details["severity"].as_str()), (Some("1"), Some("CRITICAL")));
    assert_eq!((details["tags"][0].as_str(), t["producer"]["components"][0].as_str()), (Some("t/1"), Some("test/1")));

    let json = &[("Content-Type", "application/json")];
    let other = Ask { uri: "/", headers: json, body: b"{\"password\": \"secret\"}", ..Ask::default() }.run(&rules);
    assert!(!other.audit_line("Ironweir").contains("secret"), "a body that cannot be searched is hidden");

    let mut plain = get(&rules, "/");
    plain.logging(200);
    assert!(!plain.is_audited());
    let mut failed = get(&rules, "/");
    failed.logging(503);
    assert!(failed.is_audited(), "its status is relevant");
}

/// Rules that set and ask `TX`, of which most are settled while they are loaded, and in between some that a request may change.
const SETTLED: &str = r#"
    SecRule &TX:level "@eq 0" "id:10,phase:1,pass,nolog,setvar:tx.level=2"
    SecRule &TX:limit "@eq 0" "id:11,phase:1,pass,nolog,setvar:tx.limit=%{tx.level}5"
    SecAction "id:12,phase:1,pass,nolog,setvar:tx.score=0,setvar:tx.sum=1,setvar:!tx.gone,setvar:tx.words=x yz"
    SecRule ARGS:level "@rx ^(\d)$" "id:13,phase:1,pass,nolog,capture,setvar:tx.level=%{tx.1}"
    SecRule ARGS:up "@rx ." "id:14,phase:1,pass,log,msg:'up %{tx.score}',setvar:tx.score=+%{tx.limit}"
    SecRule ARGS:skip "@rx ." "id:15,phase:1,pass,nolog,skip:1"
    SecAction "id:16,phase:1,pass,nolog,setvar:tx.sum=+10"
    SecRule ARGS:after "@rx ." "id:17,phase:1,pass,nolog,skipAfter:END"
    SecRule ARGS:jump "@rx ." "id:47,phase:1,pass,nolog,skipAfter:NEAR"
    SecRule TX:level "@lt 1" "id:48,phase:1,pass,nolog,skipAfter:END"
    SecRule TX:level "@lt 3" "id:49,phase:1,pass,nolog,skipAfter:NEAR"
    SecAction "id:50,phase:1,pass,nolog,setvar:tx.sum=+7"
    SecMarker NEAR
    SecRule ARGS:jump "@rx ." "id:51,phase:1,pass,nolog,skip:2"
    SecRule TX:level "@lt 9" "id:52,phase:1,pass,nolog"
    SecRule ARGS:name "@rx ." "id:53,phase:1,pass,log,msg:'not skipped'"
    SecRule TX:level "@lt 2" "id:18,phase:1,pass,nolog,skipAfter:END"
    SecRule TX:level "@ge 2" "id:19,phase:1,pass,nolog,setvar:tx.sum=+100,chain"
        SecRule TX:limit "@streq 25" "setvar:tx.chained=%{tx.sum}"
    SecRule TX:level "@ge 1" "id:20,phase:1,pass,nolog,setvar:tx.first_of_two=yes,chain"
        SecRule TX:limit "@streq none" "setvar:tx.second_of_two=yes"
    SecRule TX:level "@ge 1" "id:21,phase:1,pass,nolog,chain,setvar:tx.half=yes"
        SecRule ARGS:half "@rx ." "setvar:tx.sum=+1000"
    SecMarker END
    SecRule ARGS:other "@rx ." "id:41,phase:1,pass,nolog,setvar:tx.gone=1,setvar:tx.empty=1"
    SecAction "id:42,phase:1,pass,nolog,setvar:!tx.gone,setvar:tx.empty="
    SecRule &TX:nothing "@eq 0" "id:43,phase:1,pass,nolog"
    SecRule ARGS:other "@rx ." "id:44,phase:1,pass,nolog"
    SecRule &TX:nothing "@eq 0" "id:45,phase:1,pass,nolog"
    SecAction "id:46,phase:1,pass,log,msg:'last %{MATCHED_VAR} of %{MATCHED_VAR_NAME}'"
    SecRule ARGS:name "@rx ^[a-z]+$" "id:22,phase:1,pass,nolog,setvar:tx.made_%{MATCHED_VAR}=%{tx.sum}"
    SecRule ARGS:out "@streq 24" "id:23,phase:1,pass,nolog,ctl:ruleRemoveById=24"
    SecRule ARGS:out "@streq sum" "id:25,phase:1,pass,nolog,ctl:ruleRemoveTargetById=24;TX:sum"
    SecRule ARGS:out "@streq args" "id:26,phase:1,pass,nolog,ctl:ruleRemoveTargetById=24;ARGS:out"
    SecRule TX:sum|TX:score "@rx ^\d+$" "id:24,phase:1,pass,nolog,setvar:tx.seen=%{MATCHED_VAR_NAME}"
    SecAction "id:27,phase:1,pass,log,msg:'last %{MATCHED_VAR} of %{MATCHED_VAR_NAME}'"
    SecRule ARGS:words "@rx ." "id:54,phase:1,pass,nolog,setvar:tx.words=%{MATCHED_VAR}"
    SecRule ARGS:name "!@within %{tx.words}" "id:55,phase:1,pass,log,msg:'not %{MATCHED_VAR}'"
    SecRule REQUEST_METHOD "@within %{tx.words}" "id:56,phase:1,pass,log,msg:'a word'"
    SecRule ARGS:name "@rx ." "id:57,phase:1,pass,nolog,setvar:tx.kept=%{MATCHED_VAR},chain"
        SecRule TX:/^made_/ "!@within %{tx.sum}" "setvar:tx.kept=+1"
    SecRule ARGS:allow "@rx ." "id:28,phase:1,allow:phase,nolog"
    SecRule ARGS:deny "@streq 1" "id:29,phase:1,deny"
    SecAction "id:30,phase:2,pass,nolog,setvar:tx.sum=+%{tx.score}"
    SecRule TX:/^made_/ "@rx ." "id:31,phase:2,pass,log,msg:'%{MATCHED_VAR_NAME} %{MATCHED_VAR}'"
    SecRule TX:score "@gt 20" "id:32,phase:2,pass,log,msg:'score %{tx.score}'"
    SecRule TX:level "@eq 2" "id:33,phase:2,pass,log,severity:3,msg:'%{tx.sum} %{HIGHEST_SEVERITY}'"
    SecRule ARGS:deny "@streq 2" "id:34,phase:2,deny"
    SecRule ARGS:off "@rx ." "id:35,phase:2,pass,nolog,ctl:ruleEngine=Off"
    SecAction "id:36,phase:3,pass,nolog,setvar:tx.sum=-3"
    SecRule ARGS:deny "@streq 3" "id:37,phase:3,deny"
    SecRule TX:sum "@gt 5" "id:38,phase:4,pass,nolog,setvar:tx.four=%{tx.sum}"
    SecRule TX:sum "@lt 1000" "id:39,phase:5,pass,nolog,setvar:tx.five=%{tx.sum}"
    SecRule ARGS:name "@rx ." "id:40,phase:5,pass,log,msg:'%{tx.five} %{tx.four}'"
"#;

#[test]
fn what_is_settled_beforehand_is_what_the_rules_say() {
    let settled = rules(SETTLED);
    let text = format!("SecRuleEngine On\nSecRequestBodyAccess On\n{SETTLED}");
    let bare = Rules::load(&[Source { name: "test.conf", text: text.as_bytes() }], &Bundle::default()).unwrap();
    let bare = Arc::new(bare.without_prefilter());
    let arguments = [
        "",
        "level=1",
        "level=2",
        "level=3",
        "up=1",
        "skip=1",
        "after=1",
        "jump=1",
        "half=1",
        "other=1",
        "name=abc",
        "out=24",
        "out=sum",
        "out=args",
        "allow=1",
        "words=abc",
        "words=GET",
        "deny=1",
        "deny=2",
        "deny=3",
        "off=1",
    ];
    let (mut quick, mut slow) = (None, None);
    for (one, other) in arguments.iter().flat_map(|one| arguments.iter().map(move |other| (one, other))) {
        let uri = format!("/?{one}&{other}&name=x");
        let run = |rules: &Arc<Rules>, kept: &mut Option<Transaction>| {
            let mut t = kept.take().unwrap_or_else(|| Transaction::new(rules.clone(), None, Now::default()));
            t.recycle(rules.clone(), None, Now::default());
            t.uri(b"GET", uri.as_bytes(), b"HTTP/1.1");
            t.request_headers([(&b"Host"[..], &b"example.org"[..])]);
            t.request_body_end();
            t.response_headers(200, b"HTTP/1.1", [(&b"Server"[..], &b"x"[..])]);
            t.response_body_end();
            t.logging(200);
            let names = "level limit score sum gone empty kept words chained first_of_two second_of_two half made_abc made_x seen four five 0 1";
            let values: Vec<_> =
                names.split(' ').map(|name| t.tx(name).map(|v| String::from_utf8_lossy(v).into_owned())).collect();
            let said: Vec<_> = t.matches().iter().map(|m| (m.id, m.msg.clone(), m.variable.clone())).collect();
            let outcome = (refused(&t), said, values);
            *kept = Some(t);
            outcome
        };
        assert_eq!(run(&settled, &mut quick), run(&bare, &mut slow), "{uri}");
    }
}

#[test]
fn what_is_settled_is_not_run_for_a_request() {
    let rules = rules(
        "SecAction \"id:1,phase:1,pass,nolog,setvar:tx.a=1\"
         SecRule TX:a \"@eq 1\" \"id:2,phase:1,pass,nolog,setvar:tx.b=%{tx.a}0\"
         SecRule ARGS:up \"@rx .\" \"id:3,phase:1,pass,nolog,setvar:tx.a=2\"
         SecRule TX:a \"@eq 2\" \"id:4,phase:2,pass,nolog,setvar:tx.b=20\"
         SecRule ARGS:skip \"@rx .\" \"id:5,phase:2,pass,nolog,skipAfter:END\"
         SecRule TX:a \"@eq 3\" \"id:6,phase:2,pass,nolog,setvar:tx.b=30\"
         SecMarker END
         SecRule TX:a \"@eq 1\" \"id:7,phase:2,pass,nolog,setvar:tx.c=1\"",
    );
    let (t, other) = (get(&rules, "/"), get(&rules, "/?up=1"));
    assert_eq!((t.tx("b"), t.work()), (Some(&b"10"[..]), 0), "no value was looked at");
    assert_eq!(other.tx("b"), Some(&b"20"[..]));
    assert!(other.work() > 0);
    let skips = get(&rules, "/?skip=1");
    assert_eq!(
        (skips.tx("c"), skips.work() < other.work()),
        (Some(&b"1"[..]), true),
        "what is skipped has set nothing"
    );
}

#[test]
fn the_user_of_basic_authentication_is_a_variable() {
    let rules = rules("SecRule REMOTE_USER \"@streq ann\" \"id:1,phase:1,deny,status:403\"");
    let of = |value: &str| {
        let headers = [("Host", "h"), ("Authorization", value)];
        refused(&Ask { uri: "/", headers: &headers, ..Ask::default() }.run(&rules))
    };
    // ann:secret
    assert_eq!(of("Basic YW5uOnNlY3JldA=="), Some((403, 1)));
    assert_eq!(of("basic  YW5uOnNlY3JldA"), Some((403, 1)));
    assert_eq!(of("Bearer YW5uOnNlY3JldA=="), None);
    assert_eq!(of("Basic"), None);
    assert_eq!(of("Basic YW5u"), None);
}

#[test]
fn directives_that_are_documented_mean_something_or_are_refused_with_the_reason() {
    let problem = |text: &str| {
        let loaded = Rules::load(&[Source { name: "test.conf", text: text.as_bytes() }], &Bundle::default());
        loaded.err().map(|problems| problems[0].to_string()).unwrap_or_default()
    };
    for (text, why) in [
        ("SecConnEngine On", "limit_conn"),
        ("SecReadStateLimit 5", "client_header_min_rate"),
        ("SecWriteStateLimit 5", "send_min_rate"),
        ("SecGuardianLog |/bin/x", "no program is started"),
        ("SecTmpSaveUploadedFiles On", "uploads are not written to disk"),
        ("SecTmpSaveUploadedFiles maybe", "invalid value"),
        ("SecCookieFormat 1", "version 0"),
        ("SecCookieV0Separator ab", "invalid value"),
        ("SecHashEngine On", "links are not signed"),
        ("SecRulePerfTime 1000", "not measured"),
        ("SecRule PERF_RULES \"@gt 1\" \"id:1,deny\"", "not measured"),
        ("SecRule STREAM_INPUT_BODY \"x\" \"id:1,deny\"", "not rewritten"),
    ] {
        let said = problem(text);
        assert!(said.contains(why) && said.contains("test.conf:1"), "{text}: {said}");
    }
    for text in ["SecTmpSaveUploadedFiles Off", "SecCookieFormat 0", "SecSensorId edge-7"] {
        assert_eq!(problem(text), "");
    }
    let rules = rules(
        "SecCookieV0Separator ,
         SecSensorId edge-7
         SecAuditEngine On
         SecRule REQUEST_COOKIES:b \"@streq 2; c\" \"id:1,phase:1,pass,log\"
         SecRule STATUS \"@eq 404\" \"id:2,phase:5,pass,log\"",
    );
    let mut t = Ask { uri: "/", headers: &[("Host", "a"), ("Cookie", "a=1, b=2; c")], ..Ask::default() }.run(&rules);
    t.response_headers(404, b"HTTP/1.1", [(&b"Server"[..], &b"x"[..])]);
    t.logging(404);
    assert_eq!(ids(&t), [1, 2]);
    assert!(t.audit_line("test").contains("\"sensor_id\":\"edge-7\""), "{}", t.audit_line("test"));
}
