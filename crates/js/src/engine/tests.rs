use super::*;
use crate::{Import, Sources};
use std::io;
use std::path::Path;

fn engine(text: &str) -> Rc<Engine> {
    let text = text.as_bytes().to_vec();
    let read = move |path: &Path| {
        if path == Path::new("/m.js") { Ok(text.clone()) } else { Err(io::ErrorKind::NotFound.into()) }
    };
    let imports = [Import { name: "main".to_owned(), path: "m.js".to_owned() }];
    let sources = Sources { imports: &imports, preloads: &[], base: Path::new("/"), paths: &[], read: &read };
    let program = Arc::new(Program::compile(&sources).expect("well formed"));
    Engine::new(&program, Parts { now: &[], later: &[] }, |_, raw| {
        raw.set("log", rquickjs::prelude::Func::from(|_: i32, _: String| {}))?;
        raw.set("now", rquickjs::prelude::Func::from(|| 1.5))?;
        raw.set(
            "sleep",
            rquickjs::prelude::Func::from(|ctx: Ctx<'_>, ms: f64| {
                use crate::value::OrThrow;
                let operation: Operation = Box::pin(std::future::ready(Ok(Item::Number(ms))));
                current().and_then(|e| e.begin(operation)).or_throw(&ctx)
            }),
        )
    })
    .expect("it begins")
}

/// What `main.f` gives back when all that it waits for is there.
fn value(text: &str) -> Result<String, String> {
    let engine = engine(&format!("{text}\nexport default {{f}};"));
    run(&engine, "main.f")
}

fn run(engine: &Rc<Engine>, name: &str) -> Result<String, String> {
    engine.call(name, |ctx, _| Array::new(ctx.clone()))?;
    let mut cx = task::Context::from_waker(task::Waker::noop());
    match engine.poll(&mut cx) {
        Poll::Ready(done) => done?,
        Poll::Pending => return Err("it waits".to_owned()),
    }
    engine.returned().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn says(expression: &str, expected: &str) {
    let got = value(&format!(
        "import fs from 'fs'; import crypt from 'crypto'; import qs from 'querystring'; import b from 'buffer';\n\
         async function f() {{ return ({expression}); }}"
    ));
    assert_eq!(got.as_deref(), Ok(expected), "{expression}");
}

#[test]
fn a_function_is_called_by_its_name() {
    assert_eq!(value("function f() { return 1 + 1; }").as_deref(), Ok("2"));
    assert_eq!(value("async function f() { return await Promise.resolve('x'); }").as_deref(), Ok("x"));
    assert_eq!(value("function f() { return new Uint8Array([104, 105]); }").as_deref(), Ok("hi"));
    assert!(run(&engine("export default {}"), "main.g").unwrap_err().contains("js function \"main.g\" not found"));
    let text = value("function f() {\n  throw new TypeError('no');\n}").unwrap_err();
    assert!(text.starts_with("TypeError: no\n    at f (/m.js:2"), "{text}");
}

#[test]
fn modules_are_required_as_they_are_imported() {
    says("require('fs') === fs && require('crypto') === crypt", "true");
    says("require('querystring') === qs && require('buffer') === b", "true");
    says("require('crypto').createHash('md5').update('a').digest('hex')", "0cc175b9c0f1b6a831c399e269772661");
    says("require.length + require.name", "1require");
    assert_eq!(
        value("const fs = require('fs'); function f() { return typeof fs.readFileSync; }").as_deref(),
        Ok("function")
    );
    for (call, error) in
        [("require()", "TypeError: missing path"), ("require('./x.js')", "Error: Cannot load module \"./x.js\"")]
    {
        let text = value(&format!("function f() {{ {call}; }}")).unwrap_err();
        assert!(text.starts_with(error), "{text}");
    }
}

#[test]
fn what_is_waited_for_comes() {
    assert_eq!(
        value("const f = () => new Promise(r => setTimeout((a) => r('late ' + a), 5, 1));").as_deref(),
        Ok("late 1")
    );
    assert_eq!(
        value("function f() { clearTimeout(setTimeout(() => { throw 1 }, 5)); return 'off'; }").as_deref(),
        Ok("off")
    );
    let text = value("function f() { setTimeout(() => { throw new Error('later') }, 5); }").unwrap_err();
    assert!(text.starts_with("Error: later"), "{text}");
}

#[test]
fn a_rejection_that_nobody_takes_is_told() {
    let engine = engine("function f() { Promise.reject(new Error('lost')); } export default {f}");
    assert!(run(&engine, "main.f").is_ok());
    let (said, reusable) = engine.reset();
    assert!(reusable && said.len() == 1 && said[0].starts_with("unhandled rejection: Error: lost"), "{said:?}");
    assert!(run(&engine, "main.f").is_ok());
}

#[test]
fn a_program_that_does_not_end_is_ended() {
    let text = value("function f() { for (;;) {} }").unwrap_err();
    assert!(text.contains("interrupted"), "{text}");
    let text = value("function f() { const a = []; for (;;) { a.push(new Uint8Array(1e7)); } }").unwrap_err();
    assert!(text.contains("out of memory"), "{text}");
    let text = value("function f() { return f() + 1; }").unwrap_err();
    assert!(text.contains("stack"), "{text}");
}

#[test]
fn the_library_of_texts() {
    says("btoa('hello') + atob('aGk=')", "aGVsbG8=hi");
    says("new TextDecoder().decode(new TextEncoder().encode('äö'))", "äö");
    says(
        "qs.stringify({a: [1, 2], b: 'x y'}) + ' ' + JSON.stringify(qs.parse('a=1&a=2&b=%41+c&d'))",
        r#"a=1&a=2&b=x%20y {"a":["1","2"],"b":"A c","d":""}"#,
    );
    says("Buffer.from('aGVsbG8', 'base64url').toString() + Buffer.from('hi').toString('hex')", "hello6869");
    says(
        "Buffer.concat([Buffer.from('a'), Buffer.from([98])]).toString() + Buffer.from('abcabc').indexOf('c', 3)",
        "ab5",
    );
    says("(b => (b.writeUInt32BE(0x01020304, 0), b.readUInt16LE(1)))(Buffer.alloc(4))", "770");
    says("njs.dump({a: [1, 'x'], b: {}})", "{a:[1,'x'],b:{}}");
    says("b.Buffer === Buffer", "true");
}

#[test]
fn the_library_of_digests() {
    says("crypt.createHash('md5').update('a').update('b').digest('hex')", "187ef4436122d1cc2f40dc2b92f0eba0");
    says(
        "crypt.createHmac('sha256', 'k').update('a').digest('base64url')",
        "eNqRUR5nVYf1ud94vt669VYNoqu4gWLuh13N90SVHZ4",
    );
    says("Buffer.from(await crypto.subtle.digest('SHA-256', 'a')).toString('hex').slice(0, 8)", "ca978112");
    says(
        "await (async () => { const k = await crypto.subtle.importKey('raw', 'key', {name: 'HMAC', hash: 'SHA-256'}, false, ['sign', 'verify']); \
          const s = await crypto.subtle.sign({name: 'HMAC'}, k, 'data'); return await crypto.subtle.verify('HMAC', k, s, 'data'); })()",
        "true",
    );
    says(
        "await (async () => { const k = await crypto.subtle.generateKey({name: 'AES-GCM', length: 256}, true, ['encrypt', 'decrypt']); \
          const iv = crypto.getRandomValues(new Uint8Array(12)); \
          const c = await crypto.subtle.encrypt({name: 'AES-GCM', iv}, k, 'secret'); \
          return Buffer.from(await crypto.subtle.decrypt({name: 'AES-GCM', iv}, k, c)).toString(); })()",
        "secret",
    );
    says(
        "await (async () => { const p = await crypto.subtle.generateKey({name: 'ECDSA', namedCurve: 'P-256'}, true, ['sign', 'verify']); \
          const o = {name: 'ECDSA', hash: 'SHA-256'}; const s = await crypto.subtle.sign(o, p.privateKey, 'x'); \
          return await crypto.subtle.verify(o, p.publicKey, s, 'x') + '' + await crypto.subtle.verify(o, p.publicKey, s, 'y'); })()",
        "truefalse",
    );
}

#[test]
fn the_library_of_files() {
    let path = std::env::temp_dir().join(format!("ironweir-js-{}", std::process::id()));
    let path = path.display();
    says(
        &format!(
            "(fs.writeFileSync('{path}', 'ab'), fs.appendFileSync('{path}', 'c'), fs.readFileSync('{path}', 'utf8') + \
         fs.statSync('{path}').size + (await fs.promises.readFile('{path}')).length)"
        ),
        "abc33",
    );
    says(
        &format!(
            "(() => {{ const f = fs.openSync('{path}', 'r+'); const b = Buffer.alloc(2); fs.readSync(f, b, 0, 2, 1); fs.closeSync(f); \
         try {{ fs.readSync(f, b) }} catch (e) {{ return b + e.code }} }})()"
        ),
        "bcEBADF",
    );
    says(&format!("(fs.unlinkSync('{path}'), fs.existsSync('{path}'))"), "false");
    says(
        &format!(
            "(() => {{ try {{ fs.readFileSync('{path}') }} catch (e) {{ return [e.code, e.syscall, e.message] }} }})()"
        ),
        "ENOENT,open,No such file or directory",
    );
}
