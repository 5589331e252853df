//! Whole configurations: what is reported, in which order and on which line; and that anything can be read.

use proptest::prelude::*;

use super::*;
use crate::source::has_wildcard;
use crate::tree;

fn bundle(files: &[(&str, &str)]) -> Bundle {
    let mut bundle = Bundle::default();
    for (path, text) in files {
        bundle.add_file(path, *text);
    }
    bundle
}

fn lines_of(files: &[(&str, &str)], globals: &str) -> Vec<String> {
    let (tree, mut problems) = load(&bundle(files), "/c/nginx.conf".as_ref(), "/c".as_ref(), globals.as_bytes());
    let in_order = problems.clone();
    tree.sort(&mut problems);
    assert_eq!(problems, in_order, "problems are found in reading order");
    problems.iter().map(|problem| problem.render_line(&tree.sources)).collect()
}

#[track_caller]
fn says(text: &str, expected: &[&str]) {
    assert_eq!(lines_of(&[("/c/nginx.conf", text)], ""), expected, "{text}");
}

#[track_caller]
fn words(text: &str, expected: &[&str]) {
    let (tree, problems) = parse(format!("events {{}} http {{ types {{ {text} }} }}").as_bytes());
    assert_eq!(problems, []);
    let row = &tree.nodes[1].children()[0].children()[0];
    let read: Vec<_> = std::iter::once(&row.name).chain(&row.args).map(|word| word.as_str()).collect();
    assert_eq!(read, expected, "{text}");
}

#[test]
fn quotes_and_escapes() {
    words(r#"a "b c" 'd "e' ;"#, &["a", "b c", "d \"e"]);
    words(r#"a\"b\'c\\d e\tf\rg\nh i\.j\;k;"#, &["a\"b'c\\d", "e\tf\rg\nh", "i\\.j\\;k"]);
    words(r#""a\"b" 'c\'d' "" ;"#, &["a\"b", "c'd", ""]);
    words("a${b}c $d;", &["a${b}c", "$d"]);
    words("a#b # c;\n d;", &["a#b", "d"]);
    words("a\"b c\"d;", &["a\"b", "c\"d"]);
    words("(\"a\") b;", &["(\"a\")", "b"]);
    words("x \"a\") b;", &["x", "a", ")", "b"]);
}

#[test]
fn variables_hold_braces_and_others_open_blocks() {
    says("events{}", &[]);
    says("events {} http { if_x${a} b; }", &["unknown directive \"if_x${a}\" in /c/nginx.conf:1"]);
}

#[test]
fn errors_of_the_text() {
    says(
        "events {}\n;\nworker_processes 1;;",
        &["unexpected \";\" in /c/nginx.conf:2", "unexpected \";\" in /c/nginx.conf:3"],
    );
    says(
        "events {}\n{ a; { b; } }\nuser x",
        &[
            "unexpected \"{\" in /c/nginx.conf:2",
            "unexpected \"{\" in /c/nginx.conf:2",
            "unexpected end of file, expecting \";\" or \"}\" in /c/nginx.conf:3",
        ],
    );
    says("events {}\n}\npid a;", &["unexpected \"}\" in /c/nginx.conf:2"]);
    says("http {\n server {\n listen 80\n }\n}\n", &["unexpected \"}\" in /c/nginx.conf:4"]);
    says("http {\n server {\n", &["unexpected end of file, expecting \"}\" in /c/nginx.conf:3"]);
    says(
        "pid \"a\"b c;\nuser \"x\"}",
        &[
            "unexpected \"b\" in /c/nginx.conf:1",
            "unexpected \"}\" in /c/nginx.conf:2",
            "unexpected \"}\" in /c/nginx.conf:2",
        ],
    );
    says("pid\n a\n b\n;", &["invalid number of arguments in \"pid\" directive in /c/nginx.conf:4"]);
    says("pid a; # no newline", &[]);
}

#[test]
fn parameters_fit_a_buffer() {
    let word = "x".repeat(4095);
    says(&format!("pid {word};"), &[]);
    says(&format!("pid {word}x;"), &["too long parameter \"xxxxxxxxxx...\" started in /c/nginx.conf:1"]);
    says(&format!("pid \"{}\";", "y\n".repeat(2047)), &[]);
    let message = "too long parameter, probably missing terminating \"\"\" character in /c/nginx.conf:2";
    says(&format!("\npid \"{}\n;", "y\n".repeat(2048)), &[message]);
    let comment = "#".repeat(4096);
    says(&format!("{comment}\npid a;"), &["too long parameter \"##########...\" started in /c/nginx.conf:1"]);
    assert!(lines_of(&[("/c/nginx.conf", "")], &format!("pid {word}{word};")).is_empty());
}

#[test]
fn all_problems_in_order() {
    let text = "user a b c;\nfoo { bar; include x; }\nhttp {\n  root;\n  sendfile maybe;\n  location / { listen 1; }\n\
                  server { root a { x; } }\n  sendfile on; sendfile perhaps;\n  types { a { b c; } }\n}\nhttp x;\n";
    says(
        text,
        &[
            "invalid number of arguments in \"user\" directive in /c/nginx.conf:1",
            "unknown directive \"foo\" in /c/nginx.conf:2",
            "invalid number of arguments in \"root\" directive in /c/nginx.conf:4",
            "invalid value \"maybe\" in \"sendfile\" directive, it must be \"on\" or \"off\" in /c/nginx.conf:5",
            "\"location\" directive is not allowed here in /c/nginx.conf:6",
            "\"listen\" directive is not allowed here in /c/nginx.conf:6",
            "directive \"root\" is not terminated by \";\" in /c/nginx.conf:7",
            "\"sendfile\" directive is duplicate in /c/nginx.conf:8",
            "unexpected \"{\" in /c/nginx.conf:9",
            "directive \"http\" has no opening \"{\" in /c/nginx.conf:11",
        ],
    );
}

#[test]
fn includes_are_followed_everywhere() {
    let files = [
        (
            "/c/nginx.conf",
            "events { include e; }\nhttp {\n include m; types { include t; }\n include m;\n include none;\n}",
        ),
        ("/c/e", "use epoll;"),
        ("/c/m", "root a;\nfoo;\n"),
        ("/c/t", "text/html html;"),
    ];
    assert_eq!(
        lines_of(&files, ""),
        [
            "unknown directive \"foo\" in /c/m:2",
            "unknown directive \"foo\" in /c/m:2",
            "open() \"/c/none\" failed (2: No such file or directory) in /c/nginx.conf:5",
        ]
    );
    let (tree, _) = load(&bundle(&files), "/c/nginx.conf".as_ref(), "/c/".as_ref(), b"");
    let printed: Vec<_> = tree.files().map(|source| source.path.display().to_string()).collect();
    assert_eq!(printed, ["/c/nginx.conf", "/c/e", "/c/m", "/c/t"]);
    let http: Vec<_> = tree.nodes[1].children().iter().map(|node| node.name.as_str()).collect();
    assert_eq!(http, ["root", "types", "root"]);
    assert_eq!(tree.nodes[1].children()[1].children()[0].name, "text/html");
    assert_eq!(tree.nodes[1].close.line, 6);
}

#[test]
fn patterns_may_match_nothing() {
    let mut files = bundle(&[("/c/nginx.conf", "include d/*.conf; include /e/*;"), ("/c/d/a.conf", "pid a;")]);
    files.record_glob("/c/d/*.conf".as_ref(), &Ok(vec!["/c/d/a.conf".into()]));
    files.record_glob("/e/*".as_ref(), &Ok(vec![]));
    let (tree, problems) = load(&files, "/c/nginx.conf".as_ref(), "/c".as_ref(), b"");
    assert_eq!(problems, []);
    assert_eq!(tree.nodes[0].name, "pid");
    assert!(has_wildcard(b"a[b"));
}

#[test]
fn a_file_does_not_close_the_block_of_another() {
    let files = [("/c/nginx.conf", "http {\n include a;\n"), ("/c/a", "root x;\n}")];
    assert_eq!(
        lines_of(&files, ""),
        ["unexpected \"}\" in /c/a:2", "unexpected end of file, expecting \"}\" in /c/nginx.conf:3",]
    );
}

#[test]
fn the_command_line_comes_first() {
    let main = [("/c/nginx.conf", "daemon on;\nevents {}")];
    assert_eq!(lines_of(&main, "daemon off; pid x;"), ["\"daemon\" directive is duplicate in /c/nginx.conf:1"]);
    assert_eq!(lines_of(&main, "pid x"), ["unexpected end of parameter, expecting \";\" in command line"]);
    assert_eq!(
        lines_of(&main, "foo;}"),
        ["unknown directive \"foo\" in command line", "unexpected \"}\" in command line",]
    );
    let message = "block directives are not supported in -g option in command line";
    assert_eq!(lines_of(&main, "events { use epoll; } pid x;"), [message]);
    assert_eq!(lines_of(&[], ""), ["open() \"/c/nginx.conf\" failed (2: No such file or directory)"]);
}

#[test]
fn endless_includes_and_nesting_end() {
    let files = [("/c/nginx.conf", "include nginx.conf; include nginx.conf;")];
    let problems = lines_of_unsorted(&files);
    assert_eq!(problems.len(), MAX_PROBLEMS);
    assert_eq!(problems[0], "files are included deeper than 32 in /c/nginx.conf:1");
    let deep = format!("http {{ server {{ {}", "location / { ".repeat(100_000));
    let (_, problems) = parse(deep.as_bytes());
    assert_eq!(problems[0].message, "blocks are nested deeper than 64");
}

fn lines_of_unsorted(files: &[(&str, &str)]) -> Vec<String> {
    let (tree, problems) = load(&bundle(files), "/c/nginx.conf".as_ref(), "/c".as_ref(), b"");
    problems.iter().map(|problem| problem.render_line(&tree.sources)).collect()
}

#[test]
fn lua_is_kept_as_it_stands() {
    let text = "events {}\nhttp {\n server { location / {\n content_by_lua_block {\n ngx.say(\"}\") -- }\n } root a; } }\n \
                foo;\n init_by_lua_block }\n";
    let (tree, problems) = parse(text.as_bytes());
    let location = &tree.nodes[1].children()[0].children()[0];
    assert_eq!(location.children()[0].body, Body::Raw(b"\n ngx.say(\"}\") -- }\n ".to_vec()));
    assert_eq!(location.children()[1].name.span.line, 6);
    assert_eq!(problems[0].render_line(&tree.sources), "unknown directive \"foo\" in /nginx.conf:7");
    assert_eq!(problems[1].message, "unexpected \"}\"");
    let (_, problems) = parse(b"http { init_by_lua_block { x = '}'\n");
    assert_eq!(problems[0].message, "unexpected end of file, expecting terminating characters for lua code block");
    assert_eq!(problems.len(), 1);
}

#[test]
fn later_problems_are_sorted_in() {
    let files = [("/c/nginx.conf", "events {}\nhttp { include a; server_tokens off;\n}\n"), ("/c/a", "root x;")];
    let (tree, _) = load(&bundle(&files), "/c/nginx.conf".as_ref(), "/c".as_ref(), b"");
    let http = &tree.nodes[1];
    let at = |span, message: &str| Problem::emerg(span, message);
    let mut problems = vec![
        Problem::emerg(None, "5"),
        at(http.close, "4"),
        at(http.children()[1].name.span, "3"),
        at(http.children()[0].name.span, "2"),
        at(http.name.span, "1"),
    ];
    tree.sort(&mut problems);
    let order: Vec<_> = problems.iter().map(|problem| problem.message.as_str()).collect();
    assert_eq!(order, ["1", "2", "3", "4", "5"]);
}

/// Names, arguments and bodies without places and quotes.
fn shape(nodes: &[Node]) -> String {
    let shape_of = |node: &Node| {
        let words: Vec<_> = std::iter::once(&node.name).chain(&node.args).map(|word| &word.text).collect();
        let raw = if let Body::Raw(text) = &node.body { text.as_slice() } else { b"" };
        format!("{words:?} {raw:?} [{}]", shape(node.children()))
    };
    nodes.iter().map(shape_of).collect()
}

fn arb_row() -> impl Strategy<Value = Node> {
    let span = Span { file: FileId(0), line: 1, start: 0, end: 0 };
    let any_word = (proptest::collection::vec(any::<u8>(), 0..12), any::<bool>());
    let syntax_word = ("[a{}\"'\\\\;#$ \n]{0,8}".prop_map(String::into_bytes), any::<bool>());
    let word = prop_oneof![any_word, syntax_word].prop_map(move |(text, quoted)| Word { text, span, quoted });
    proptest::collection::vec(word, 1..5).prop_map(move |mut words| {
        let name = words.remove(0);
        Node { name, args: words, body: Body::None, close: span }
    })
}

proptest! {
    #[test]
    fn any_bytes_can_be_read(text in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (tree, problems) = parse(&text);
        problems.iter().for_each(|problem| { problem.render_excerpt(&tree.sources); });
    }

    #[test]
    fn any_mix_of_syntax_can_be_read_and_written(text in "(http|server|location|root|types|include|init_by_lua_block|on|[{};\"'\\\\#$ \n\\[\\]=-]){0,40}") {
        let (tree, problems) = parse(text.as_bytes());
        problems.iter().for_each(|problem| { problem.render_excerpt(&tree.sources); });
        let written = tree::write(&tree.nodes);
        let (again, problems) = parse(&written);
        prop_assert_eq!(problems, vec![]);
        prop_assert_eq!(shape(&again.nodes), shape(&tree.nodes));
    }

    #[test]
    fn written_words_read_back(rows in proptest::collection::vec(arb_row(), 0..6)) {
        prop_assume!(rows.iter().all(|row| row.name != "include"));
        let mut text = b"http { types {\n".to_vec();
        text.extend(tree::write(&rows));
        text.extend_from_slice(b"} }");
        let (tree, problems) = parse(&text);
        prop_assert_eq!(problems, vec![]);
        prop_assert_eq!(shape(tree.nodes[0].children()[0].children()), shape(&rows));
    }
}
