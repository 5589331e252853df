//! Requests that mean no harm, as sites get them: those of the field configurations (static files, a PHP application, a proxied one), a wiki, a JSON API,
//! uploads. Made from a seed, so that every run has the same; each is distinct.

use std::fmt::Write as _;

/// Browsers and honest programs.
const AGENTS: [&str; 16] = [
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/141.0.0.0 Safari/537.36",
    "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:144.0) Gecko/20100101 Firefox/144.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_6 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.6 Mobile/15E148 Safari/604.1",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 14_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.5 Safari/605.1.15",
    "Mozilla/5.0 (Linux; Android 15; Pixel 9) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Mobile Safari/537.36",
    "Mozilla/5.0 (Linux; Android 14; SM-S918B) AppleWebKit/537.36 (KHTML, like Gecko) SamsungBrowser/28.0 Chrome/130.0.0.0 Mobile Safari/537.36",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36 Edg/142.0.0.0",
    "Mozilla/5.0 (iPad; CPU OS 17_7 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) CriOS/142.0.7444.46 Mobile/15E148 Safari/604.1",
    "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
    "Mozilla/5.0 (compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)",
    "Opera/9.80 (Android; Opera Mini/36.2/191.326; U; en) Presto/2.12.423 Version/12.16",
    "okhttp/4.12.0",
    "Dart/3.9 (dart:io)",
    "MyShop/7.3.1 (iOS 18.6; iPhone15,3)",
];

/// What people look for and write about. Words that are commands of SQL or of shells as well are not among them, but among [`COMMAND_NOUNS`].
const NOUNS: [&str; 56] = [
    "garden",
    "order",
    "river",
    "summer holiday",
    "winter coat",
    "meeting",
    "invoice",
    "report",
    "house",
    "kitchen table",
    "red chair",
    "football club",
    "improvement",
    "index",
    "user manual",
    "password",
    "railway",
    "system",
    "group photo",
    "O'Brien",
    "rock 'n' roll",
    "Tom & Jerry",
    "AT&T",
    "R&D team",
    "C++",
    "C#",
    "e-mail",
    "café",
    "Müller",
    "Zürich",
    "São Paulo",
    "Łódź",
    "Αθήνα",
    "Москва",
    "東京",
    "서울",
    "مرحبا",
    "שלום",
    "photo.jpg",
    "report (final).pdf",
    "version 2.0",
    "No. 7",
    "l'eau",
    "naïve art",
    "50% off",
    "size 42",
    "coffee to go",
    "how to tie a tie",
    "shopping list",
    "town council",
    "green tea & honey",
    "piano (used)",
    "ice-cream",
    "children's books",
    "day/night",
    "bed and breakfast",
];

/// What they write, with something in the place of `{}`.
const SENTENCES: [&str; 32] = [
    "Thank you for the {} - it was great!",
    "Please choose a colour on the list, then press \"OK\".",
    "I don't know where the {} is. Can you help me?",
    "We met at the {} on Monday (10:30 am).",
    "The price is €20, or $25 with the {}.",
    "It's 5 o'clock; the {} closes at 6.",
    "Could you write to me about the {}?",
    "Our choir meets in the {} every Friday.",
    "He said: \"It's the {}, isn't it?\"",
    "See https://www.example.org/help?id=7 for the {}.",
    "My phone number is +49 30 1234567, my mail anna.smith@example.org.",
    "The {} costs 3.14 more than 2 years ago...",
    "Put the card into the {} and wait.",
    "Where are the {} and the keys?",
    "If you move the {}, tell us first.",
    "The repair of the {} took 10 minutes :-)",
    "Is there a table for 4, near the {}?",
    "She'd like to order the {} by Friday, 23 November 2026.",
    "1. Buy milk 2. Call the {} 3. Go home",
    "100% of us like the {}!",
    "What's the difference between a {} and a house?",
    "Das Treffen ist am 23.11.2026 um 10:30 Uhr (Raum 7).",
    "Où est la bibliothèque ? Je ne sais pas.",
    "The {} has 3 doors, 5 windows & 1 roof.",
    "I'd rather have the {} than nothing at all.",
    "Dear Sir or Madam, I am writing because of the {}.",
    "This is not true: the {} works like before.",
    "First aid, {}, umbrella, sun cream: all packed.",
    "Kind regards, Anna",
    "The file report_2026-11-23.pdf has the {} in it.",
    "Version 2.0 of the {} comes with a new index.",
    "Users of the {} can change their password in the settings.",
];

/// Ordinary English that rules take for commands of SQL or of a shell. Without it a corpus says that nothing else is in the way, and no more.
const COMMAND_NOUNS: [&str; 12] = [
    "time table",
    "select committee",
    "union of workers",
    "drop in centre",
    "cat food",
    "more or less",
    "sleep mode",
    "nice host family",
    "exec summary",
    "host and guest",
    "sort of cheese",
    "ping pong",
];

/// The same, as sentences.
const COMMAND_SENTENCES: [&str; 8] = [
    "Please select a {} from the list; then press \"OK\".",
    "Time: 10 minutes, place: the {}.",
    "The union will select a {} from all members.",
    "Where can I find the {}? Find it at home; sort it later.",
    "We can insert a {} into the plan, or delete it from there.",
    "Update the {} and set the clock, more or less.",
    "Who am I to say that the {} is nice; I pass.",
    "They drop the {} at the door, and then the host will sleep.",
];

const NAMES: [&str; 24] = [
    "category",
    "page",
    "sort",
    "q",
    "lang",
    "id",
    "utm_source",
    "utm_campaign",
    "ref",
    "color",
    "size",
    "from",
    "to",
    "date",
    "limit",
    "offset",
    "tab",
    "view",
    "token",
    "filter[price][gte]",
    "items[]",
    "user[name]",
    "include",
    "fields",
];

const SECTIONS: [&str; 16] = [
    "products", "news", "blog", "about", "shop", "help", "docs", "team", "events", "gallery", "forum", "archive",
    "contact", "de", "fr", "2026/11",
];

/// Where the next request comes from: SplitMix64.
pub(crate) struct Corpus {
    state: u64,
    serial: u64,
    nouns: Vec<&'static str>,
    sentences: Vec<&'static str>,
}

impl Corpus {
    pub(crate) fn new(seed: u64) -> Corpus {
        Corpus { state: seed, serial: 0, nouns: NOUNS.into(), sentences: SENTENCES.into() }
    }

    /// With words that are commands as well.
    pub(crate) fn with_commands(mut self) -> Corpus {
        self.nouns.extend(COMMAND_NOUNS);
        self.sentences.extend(COMMAND_SENTENCES);
        self
    }

    fn noun(&mut self) -> &'static str {
        let at = self.below(self.nouns.len() as u64);
        self.nouns[at as usize]
    }

    fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.number() % n
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len() as u64) as usize]
    }

    fn hex(&mut self, digits: usize) -> String {
        (0..digits).map(|_| char::from_digit(self.below(16) as u32, 16).unwrap_or('0')).collect()
    }

    fn base64(&mut self, length: usize) -> String {
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        (0..length).map(|_| char::from(ALPHABET[self.below(64) as usize])).collect()
    }

    fn uuid(&mut self) -> String {
        format!("{}-{}-4{}-a{}-{}", self.hex(8), self.hex(4), self.hex(3), self.hex(3), self.hex(12))
    }

    /// Something that a person looks for.
    fn phrase(&mut self) -> String {
        let (a, b) = (self.noun(), self.noun());
        match self.below(3) {
            0 => a.to_owned(),
            1 => format!("{a} {}", self.below(1000)),
            _ => format!("{a} {b}"),
        }
    }

    /// Some sentences that a person writes, in paragraphs.
    fn prose(&mut self, sentences: u64) -> String {
        let mut text = String::new();
        for at in 0..1 + self.below(sentences) {
            if at > 0 {
                text.push_str(if self.below(6) == 0 { "\n\n" } else { " " });
            }
            let noun = self.phrase();
            let at = self.below(self.sentences.len() as u64);
            text.push_str(&self.sentences[at as usize].replace("{}", &noun));
        }
        text
    }

    /// A form with so much prose in one field.
    pub(crate) fn long_form(&mut self, bytes: usize) -> Vec<u8> {
        let mut text = String::new();
        while text.len() < bytes {
            text.push_str(&self.prose(30));
            text.push_str("\n\n");
        }
        format!("a={}", escaped(&text)).into_bytes()
    }

    fn path(&mut self) -> String {
        let mut path = String::new();
        for _ in 0..1 + self.below(3) {
            path.push('/');
            path.push_str(self.one(&SECTIONS));
        }
        path
    }

    fn query(&mut self) -> String {
        let mut query = String::new();
        for at in 0..1 + self.below(5) {
            query.push(if at == 0 { '?' } else { '&' });
            let value = match self.below(4) {
                0 => self.below(1000).to_string(),
                1 => self.uuid(),
                _ => self.phrase(),
            };
            let name = self.one(&NAMES);
            let _ = write!(query, "{}={}", escaped(name), escaped(&value));
        }
        query
    }

    fn cookie(&mut self) -> String {
        let mut cookie = format!("sid={}", self.hex(32));
        if self.below(2) == 0 {
            let _ = write!(cookie, "; _ga=GA1.2.{}.{}", self.below(1 << 31), 1_700_000_000 + self.below(1 << 25));
        }
        if self.below(3) == 0 {
            let _ =
                write!(cookie, "; theme={}; lang={}", self.one(&["dark", "light"]), self.one(&["en", "de-DE", "fr"]));
        }
        if self.below(4) == 0 {
            let _ = write!(
                cookie,
                "; consent={}",
                escaped(&format!("{{\"stats\":true,\"ads\":false,\"id\":\"{}\"}}", self.uuid()))
            );
        }
        if self.below(5) == 0 {
            let _ = write!(cookie, "; jwt=eyJhbGciOiJIUzI1NiJ9.{}.{}", self.base64(80), self.base64(43));
        }
        cookie
    }

    /// A whole request.
    fn request(&mut self, method: &str, target: &str, more: &str, body: Option<(&str, &[u8])>) -> Vec<u8> {
        self.serial += 1;
        let mut head = format!(
            "{method} {target} HTTP/1.1\r\nHost: {}\r\n",
            self.one(&["www.example.org", "shop.example.com", "example.org:8080"])
        );
        let _ = write!(head, "User-Agent: {}\r\n", self.one(&AGENTS));
        let accept = [
            "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8",
            "*/*",
            "application/json, text/plain, */*",
            "image/avif,image/webp,image/png,image/svg+xml,image/*;q=0.8,*/*;q=0.5",
        ];
        let _ = write!(head, "Accept: {}\r\n", self.one(&accept));
        let _ = write!(
            head,
            "Accept-Language: {}\r\n",
            self.one(&["en-US,en;q=0.5", "de,en-US;q=0.7,en;q=0.3", "fr-CH, fr;q=0.9, en;q=0.8, *;q=0.5"])
        );
        let _ = write!(head, "Accept-Encoding: gzip, deflate, br, zstd\r\nX-Request-Id: {}\r\n", self.uuid());
        if self.below(3) > 0 {
            let _ = write!(head, "Cookie: {}\r\n", self.cookie());
        }
        if self.below(2) == 0 {
            let (path, query) = (self.path(), self.query());
            let _ = write!(head, "Referer: https://www.example.org{path}{query}\r\n");
        }
        head.push_str(more);
        let Some((kind, body)) = body else { return (head + "\r\n").into_bytes() };
        let _ = write!(head, "Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len());
        [head.as_bytes(), body].concat()
    }

    fn form(&mut self, fields: &[(&str, String)]) -> Vec<u8> {
        let pairs: Vec<String> =
            fields.iter().map(|(name, value)| format!("{}={}", escaped(name), escaped(value))).collect();
        pairs.join("&").into_bytes()
    }

    /// Files: `million-static.conf`.
    fn file(&mut self) -> Vec<u8> {
        let (section, hash) = (self.path(), self.hex(8));
        let file = self.one(&[
            "main.js",
            "app.css",
            "logo.svg",
            "photo-large.jpg",
            "inter.woff2",
            "video.mp4",
            "sitemap.xml",
            "Annual Report (2026).pdf",
        ]);
        let target = format!("{section}/{hash}/{}?v={}", file.replace(' ', "%20"), self.below(1000));
        let more = match self.below(4) {
            0 => format!("Range: bytes={}-{}\r\n", self.below(1000), 1000 + self.below(1 << 20)),
            1 => format!("If-None-Match: \"{}\"\r\n", self.hex(16)),
            2 => "If-Modified-Since: Sun, 22 Nov 2026 10:00:00 GMT\r\n".to_owned(),
            _ => String::new(),
        };
        let method = if self.below(16) == 0 { "HEAD" } else { "GET" };
        self.request(method, &target, &more, None)
    }

    /// An application in PHP: `php-fpm.conf`.
    fn application(&mut self) -> Vec<u8> {
        let (path, query) = (self.path(), self.query());
        if self.below(3) > 0 {
            return self.request("GET", &format!("{path}{query}"), "", None);
        }
        let fields = [
            ("name", self.phrase()),
            ("email", format!("{}@example.org", self.hex(6))),
            ("subject", self.phrase()),
            ("message", self.prose(12)),
            ("password", self.base64(14)),
            ("_token", self.base64(40)),
            ("birthday", "1980-02-29".to_owned()),
        ];
        let body = self.form(&fields);
        self.request("POST", &format!("/index.php{path}"), "", Some(("application/x-www-form-urlencoded", &body)))
    }

    /// A wiki's pages and forms, with its marks.
    fn wiki(&mut self) -> Vec<u8> {
        let page = format!(
            "{}:{}",
            self.one(&SECTIONS).replace('/', "_"),
            self.one(&["start", "syntax", "sidebar", "notes", "minutes", "how_to"])
        );
        let action = self.one(&["show", "edit", "revisions", "diff", "backlink", "recent", "search", "index", "media"]);
        if self.below(2) == 0 {
            let target =
                format!("/doku.php?id={}&do={action}&rev={}", escaped(&page), 1_700_000_000 + self.below(1 << 25));
            return self.request("GET", &target, "", None);
        }
        let mut text = format!("====== {} ======\n\n", self.phrase());
        for _ in 0..1 + self.below(6) {
            let (a, b) = (self.prose(4), self.phrase());
            let paragraph = match self.below(6) {
                0 => format!("  * {a}\n  * **{b}**\n"),
                1 => format!("[[{page}|{b}]] {a}\n"),
                2 => format!("^ {b} ^ {b} ^\n| {a} | //{b}// |\n"),
                3 => format!("{{{{ :photo.jpg?200 |{b}}}}} {a}\n"),
                4 => format!("{a} ((footnote: {b})) \\\\\n"),
                _ => format!("{a}\n"),
            };
            text.push_str(&paragraph);
        }
        let fields = [
            ("sectok", self.hex(32)),
            ("id", page),
            ("rev", "0".to_owned()),
            ("date", (1_700_000_000 + self.below(1 << 25)).to_string()),
            ("prefix", ".".to_owned()),
            ("changecheck", self.hex(32)),
            ("wikitext", text),
            ("summary", self.phrase()),
            ("do[save]", "Save".to_owned()),
        ];
        let body = self.form(&fields);
        self.request(
            "POST",
            "/doku.php",
            "Origin: https://www.example.org\r\n",
            Some(("application/x-www-form-urlencoded", &body)),
        )
    }

    /// An API: `million-proxy.conf`.
    fn api(&mut self) -> Vec<u8> {
        let target =
            format!("/api/v2/{}/{}", self.one(&["orders", "users", "carts", "search", "messages"]), self.uuid());
        let more = format!("Authorization: Bearer eyJhbGciOiJSUzI1NiJ9.{}.{}\r\n", self.base64(120), self.base64(86));
        if self.below(3) == 0 {
            let query = self.query();
            return self.request("GET", &format!("{target}{query}"), &more, None);
        }
        let items: Vec<serde_json::Value> = (0..1 + self.below(5))
            .map(|_| {
                serde_json::json!({ "sku": self.hex(10), "count": self.below(20), "price": self.below(10_000) as f64 / 100.0,
                    "note": self.prose(2), "tags": [self.noun(), self.one(&SECTIONS)] })
            })
            .collect();
        let body = serde_json::json!({
            "id": self.uuid(), "created": "2026-11-23T10:30:00.000Z", "customer": { "name": self.phrase(), "vip": self.below(2) == 0, "email": null },
            "items": items, "comment": self.prose(5), "signature": self.base64(88), "meta": { "page": self.below(50), "sort": ["-date", "name"] },
        });
        // Without more settings the rule set refuses PUT and PATCH.
        self.request("POST", &target, &more, Some(("application/json", body.to_string().as_bytes())))
    }

    /// A form with files.
    fn upload(&mut self) -> Vec<u8> {
        let boundary = format!("----WebKitFormBoundary{}", self.hex(16));
        let mut body = Vec::new();
        for name in ["title", "description"] {
            let text = self.prose(3);
            body.extend_from_slice(
                format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n").as_bytes(),
            );
        }
        for at in 0..1 + self.below(2) {
            let (file, kind) = match self.below(4) {
                0 => ("photo 1.jpg", "image/jpeg"),
                1 => ("Bericht März.pdf", "application/pdf"),
                2 => ("notes.txt", "text/plain"),
                _ => ("data-2026.csv", "text/csv"),
            };
            let head = format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"file{at}\"; filename=\"{file}\"\r\nContent-Type: {kind}\r\n\r\n"
            );
            body.extend_from_slice(head.as_bytes());
            if kind.starts_with("text") {
                body.extend_from_slice(self.prose(30).as_bytes());
            } else {
                (0..200 + self.below(400)).for_each(|_| body.extend_from_slice(&self.number().to_le_bytes()));
            }
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
        let kind = format!("multipart/form-data; boundary={boundary}");
        self.request("POST", "/upload/files", "Origin: https://www.example.org\r\n", Some((&kind, &body)))
    }
}

impl Iterator for Corpus {
    /// What kind it is, and its bytes.
    type Item = (&'static str, Vec<u8>);

    fn next(&mut self) -> Option<Self::Item> {
        Some(match self.below(10) {
            0..2 => ("file", self.file()),
            2..5 => ("application", self.application()),
            5..7 => ("wiki", self.wiki()),
            7..9 => ("api", self.api()),
            _ => ("upload", self.upload()),
        })
    }
}

/// As forms and addresses have it.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'*' => out.push(char::from(byte)),
            b' ' => out.push('+'),
            b'\n' => out.push_str("%0D%0A"),
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}
