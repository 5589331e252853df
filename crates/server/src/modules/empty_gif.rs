//! A transparent picture of one pixel from memory (nginx's `ngx_http_empty_gif_module`).

use crate::config::{Directive, http};
use crate::request::phases::{Content, Verdict};
use crate::request::{Method, Request, Text};

/// The directives.
pub const DIRECTIVES: &[Directive] = &[http("empty_gif", |s, _| {
    s.level.conf.core.handler = Some(Content::Now(handler));
    Ok(())
})];

/// The picture's date, nginx's: 28 September 1970.
const LAST_MODIFIED: i64 = 23_349_600;

/// GIF89a: a screen of 1 x 1 with black and white, the second being transparent, and one pixel of it.
const PICTURE: &[u8] =
    b"GIF89a\x01\0\x01\0\x80\x01\0\0\0\0\xff\xff\xff!\xf9\x04\x01\0\0\x01\0,\0\0\0\0\x01\0\x01\0\0\x02\x02L\x01\0;";

fn handler(r: &mut Request) -> Verdict {
    if !matches!(r.head.method, Method::Get | Method::Head) {
        return Verdict::Status(405);
    }
    r.answer.headers.last_modified = Some(LAST_MODIFIED);
    r.answer.headers.content_type = Some(Text::from("image/gif"));
    r.respond(200, PICTURE)
}

#[cfg(test)]
mod tests {
    #[test]
    fn has_nginx_s_length() {
        assert_eq!(super::PICTURE.len(), 43);
    }
}
