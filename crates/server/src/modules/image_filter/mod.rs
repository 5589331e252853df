//! `image_filter`: pictures are made smaller, cut or turned on their way (nginx's `ngx_http_image_filter_module`). The head of an answer
//! is held until the whole picture is there; a thread of a pool works on it (`transform`), so that a large one stops no other request.
//! The first bytes say what it is, whatever its `Content-Type`.

mod transform;

use crate::config::complex::Complex;
use crate::config::setters;
use crate::config::{Directive, Scope, http};
use crate::files::readers::{self, Later, Pool};
use crate::modules::ignored;
use crate::process_settings::PoolSize;
use crate::request::chunk::Chunk;
use crate::request::filter::{BodyFilter, Rest};
use crate::request::respond::{Filtered, Refused};
use crate::request::{Method, Request};
use crate::{inherited, log_error, merged_values};
use conf::{Node, Problem, value};
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use transform::{MAX_PIXELS, Plan, Shape};
use wire::picture::{HEAD, Kind, Size};

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("image_filter", image_filter),
    http("image_filter_buffer", |s, n| setters::size(&mut s.level.conf.image_filter.image_filter_buffer, n)),
    http("image_filter_jpeg_quality", |s, n| {
        let quality = number(s, n, 0, |n| n > 0)?;
        setters::value(&mut s.level.conf.image_filter.image_filter_jpeg_quality, n, quality)
    }),
    // The encoder has only the kind without losses.
    http("image_filter_webp_quality", |s, n| {
        number(s, n, 0, |n| n > 0)?;
        ignored::any(s, n)
    }),
    http("image_filter_sharpen", |s, n| {
        let percent = number(s, n, 0, |_| true)?;
        setters::value(&mut s.level.conf.image_filter.image_filter_sharpen, n, percent)
    }),
    http("image_filter_transparency", |s, n| {
        setters::flag(&mut s.level.conf.image_filter.image_filter_transparency, n)
    }),
    http("image_filter_interlace", |s, n| setters::flag(&mut s.level.conf.image_filter.image_filter_interlace, n)),
];

/// Threads that work on pictures: as many as there are processors, and not more, since each holds one unpacked.
const MAX_THREADS: usize = 4;
/// Pictures that may wait for them. Who comes then gets 503.
const MAX_QUEUE: usize = 256;
/// nginx's status for what is no picture, or too large.
const UNSUPPORTED: u16 = 415;
/// An upstream that sends pictures one after the other.
const STREAM_OF_PICTURES: &[u8] = b"multipart/x-mixed-replace";

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// What is done, if anything.
        image_filter: Arc<Filter> = Arc::default(),
        /// The most that a picture may have, bytes.
        image_filter_buffer: u64 = 1024 * 1024,
        /// 1 to 100.
        image_filter_jpeg_quality: Complex = Complex::fixed(b"75"),
        /// Per cent.
        image_filter_sharpen: Complex = Complex::default(),
        /// Colours of a palette and of PNG keep what shines through.
        image_filter_transparency: bool = true,
        /// GIF and JPEG come coarse first.
        image_filter_interlace: bool = false,
    }
}

inherited!(Conf, |_| true);

impl Conf {
    /// Whether pictures are looked at.
    pub fn is_on(&self) -> bool {
        self.image_filter.what != What::Off
    }
}

/// What the directives of one level say.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    what: What,
    width: Complex,
    height: Complex,
    angle: Complex,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum What {
    #[default]
    Off,
    Test,
    Size,
    Rotate,
    Resize,
    Crop,
}

/// A number, or a text with variables; `-` is no bound.
fn parse(text: &[u8]) -> u32 {
    if text == b"-" {
        return u32::MAX;
    }
    value::number(text).map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX))
}

/// Compiles an argument; one without variables is judged now.
fn number(scope: &mut Scope<'_, '_>, node: &Node, at: usize, good: impl Fn(u32) -> bool) -> Result<Complex, Problem> {
    let word = &node.args[at];
    let compiled = Complex::compile(scope.build, word)?;
    match compiled.as_fixed() {
        Some(text) if !good(parse(text)) || (text != b"-" && value::number(text).is_none()) => {
            Err(word.problem(format!("invalid parameter \"{}\"", word.as_str())))
        }
        _ => Ok(compiled),
    }
}

fn image_filter(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let word = &node.args[0];
    let invalid = || word.problem(format!("invalid parameter \"{}\"", word.as_str()));
    let mut filter = Filter::clone(&scope.level.conf.image_filter.image_filter);
    match (word.text.as_slice(), node.args.len()) {
        (b"off", 1) => filter.what = What::Off,
        (b"test", 1) => filter.what = What::Test,
        (b"size", 1) => filter.what = What::Size,
        (b"rotate", 2) => {
            if !matches!(filter.what, What::Resize | What::Crop) {
                filter.what = What::Rotate;
            }
            filter.angle = number(scope, node, 1, |n| matches!(n, 90 | 180 | 270))?;
        }
        (b"resize" | b"crop", 3) => {
            filter.what = if word.text == b"resize" { What::Resize } else { What::Crop };
            filter.width = number(scope, node, 1, |n| n > 0)?;
            filter.height = number(scope, node, 2, |n| n > 0)?;
        }
        _ => return Err(invalid()),
    }
    scope.level.conf.image_filter.image_filter.force(Arc::new(filter));
    Ok(())
}

/// The header filter.
pub fn filter(r: &mut Request) -> Filtered {
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.image_filter;
    if std::mem::take(&mut r.ctx.picture_refused)
        || !conf.is_on()
        || r.answer.headers.status == 304
        || r.is_body_unwanted()
    {
        return Filtered::Next;
    }
    let is_stream = |kind: &[u8]| kind.get(..STREAM_OF_PICTURES.len()).is_some_and(|k| k == STREAM_OF_PICTURES);
    if r.answer.headers.content_type.is_some_and(|kind| is_stream(r.get(kind))) {
        log_error!(r, Error, "image filter: multipart/x-mixed-replace response");
        return Filtered::Broken;
    }
    if r.answer.headers.content_length.is_some_and(|n| n > *conf.image_filter_buffer) {
        r.ctx.picture_refused = true;
        return Filtered::Replace(UNSUPPORTED);
    }
    let plan = match conf.image_filter.what {
        What::Test | What::Size => None,
        _ => Some(plan(r, conf)),
    };
    if r.is_main() {
        r.hold_head();
    }
    r.answer.allow_ranges = false;
    r.answer.in_memory = true;
    let job = Job { what: conf.image_filter.what, plan, most: *conf.image_filter_buffer as usize };
    r.answer.body_filters.push(Box::new(ImageFilter { job, held: Vec::new(), stage: Stage::Collects }));
    Filtered::Next
}

/// The plan for a request. What its variables say may be useless: then the picture is refused when it comes.
fn plan(r: &mut Request, conf: &Conf) -> Plan {
    let mut number = |complex: &Complex| {
        let text = complex.eval(r);
        parse(r.get(text))
    };
    let filter = &conf.image_filter;
    let quality = number(&conf.image_filter_jpeg_quality);
    let sharpen = number(&conf.image_filter_sharpen).min(1000);
    let shape = match filter.what {
        What::Resize => Shape::Resize,
        What::Crop => Shape::Crop,
        _ => Shape::Whole,
    };
    let angle = if filter.angle.is_empty() { 0 } else { number(&filter.angle) };
    let mut side = |complex: &Complex| if shape == Shape::Whole { u32::MAX } else { number(complex) };
    Plan {
        shape,
        width: side(&filter.width),
        height: side(&filter.height),
        angle,
        // libgd takes what is out of its range for the nearest that is in it.
        jpeg_quality: quality.clamp(1, 100) as u8,
        sharpen,
        transparency: *conf.image_filter_transparency,
        interlace: *conf.image_filter_interlace,
    }
}

#[derive(Clone, Copy, Debug)]
struct Job {
    what: What,
    plan: Option<Plan>,
    most: usize,
}

/// The body filter.
struct ImageFilter {
    job: Job,
    /// What has come.
    held: Vec<u8>,
    stage: Stage,
}

enum Stage {
    /// Until the picture is whole.
    Collects,
    /// It is at work.
    Works(Later<Result<Vec<u8>, String>>),
    /// The rest goes by.
    Passes,
}

/// Another answer than the one under way, which is not looked at again.
fn refused(r: &mut Request, status: u16) -> io::Error {
    r.ctx.picture_refused = true;
    Refused { status, location: None }.into()
}

/// The type is what the picture is, whatever its name says.
fn set_type(r: &mut Request, kind: Kind) {
    let text = r.text(format!("image/{}", kind.name()).as_bytes());
    r.answer.headers.set_content_type(&r.arena, text);
}

impl BodyFilter for ImageFilter {
    fn push(&mut self, r: &mut Request, chunk: Chunk<'_>, last: bool, mut rest: Rest<'_>) -> io::Result<()> {
        if let Stage::Passes = self.stage {
            return rest.push(r, chunk, last);
        }
        if self.held.len() as u64 + chunk.len() > self.job.most as u64 {
            log_error!(r, Error, "image filter: too big response: more than {} bytes", self.job.most);
            return Err(refused(r, UNSUPPORTED));
        }
        chunk.copy_to(&mut self.held)?;
        if self.held.len() < HEAD && !last {
            return Ok(());
        }
        let kind = Kind::of(&self.held);
        match (self.job.what, kind) {
            (What::Size, None) => self.answer_size(r, None, &mut rest),
            (_, None) => Err(refused(r, UNSUPPORTED)),
            (What::Test, Some(kind)) => {
                set_type(r, kind);
                r.release_head();
                self.pass(r, last, &mut rest)
            }
            (_, Some(_)) if !last => Ok(()),
            (What::Size, Some(kind)) => {
                let size = Size::of(kind, &self.held);
                self.answer_size(r, size.map(|size| (kind, size)), &mut rest)
            }
            (_, Some(kind)) => self.begin(r, kind, &mut rest),
        }
    }

    fn is_stuffed(&self) -> bool {
        matches!(self.stage, Stage::Works(_))
    }

    fn poll_resumable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.stage {
            Stage::Works(later) => later.poll_done(cx),
            _ => Poll::Ready(()),
        }
    }

    fn resume(&mut self, r: &mut Request, mut rest: Rest<'_>) -> io::Result<()> {
        let is_done = |later: &Later<_>| later.poll_done(&mut Context::from_waker(std::task::Waker::noop())).is_ready();
        let Stage::Works(later) = std::mem::replace(&mut self.stage, Stage::Passes) else { return Ok(()) };
        if !is_done(&later) {
            self.stage = Stage::Works(later);
            return Ok(());
        }
        match later.take() {
            Some(Ok(made)) => {
                self.held = made;
                r.weaken_etag();
                self.whole(r, &mut rest)
            }
            Some(Err(text)) => {
                log_error!(r, Error, "image filter: {text}");
                Err(refused(r, UNSUPPORTED))
            }
            None => {
                log_error!(r, Alert, "image filter: the picture could not be worked on");
                Err(refused(r, 500))
            }
        }
    }
}

impl ImageFilter {
    /// Hands a whole picture over, unless it is as it should be already.
    fn begin(&mut self, r: &mut Request, kind: Kind, rest: &mut Rest<'_>) -> io::Result<()> {
        let Some(plan) = self.job.plan else { return Err(refused(r, UNSUPPORTED)) };
        let is_useful =
            plan.width > 0 && plan.height > 0 && plan.sharpen < u32::MAX && matches!(plan.angle, 0 | 90 | 180 | 270);
        let Some(size) = Size::of(kind, &self.held).filter(|_| is_useful) else { return Err(refused(r, UNSUPPORTED)) };
        if self.job.what == What::Rotate && plan.angle == 0 {
            return Err(refused(r, UNSUPPORTED));
        }
        // What a camera says beside the picture is worth packing it anew where it is more than a twentieth.
        if plan.leaves(size.width, size.height) && self.held.len() / 20 >= size.application_data {
            set_type(r, kind);
            return self.whole(r, rest);
        }
        if size.pixels() > MAX_PIXELS {
            log_error!(r, Error, "image filter: {}x{} is more than {MAX_PIXELS} pixels", size.width, size.height);
            return Err(refused(r, UNSUPPORTED));
        }
        set_type(r, kind);
        let bytes = std::mem::take(&mut self.held);
        match Later::begin(&pool(), move || transform::transform(kind, &bytes, &plan)) {
            Some(later) => {
                self.stage = Stage::Works(later);
                Ok(())
            }
            None => {
                log_error!(r, Error, "image filter: {MAX_QUEUE} pictures wait already");
                Err(refused(r, 503))
            }
        }
    }

    /// The whole answer is what is held.
    fn whole(&mut self, r: &mut Request, rest: &mut Rest<'_>) -> io::Result<()> {
        if rest.is_empty() {
            r.clear_content_length();
            r.answer.headers.content_length = Some(self.held.len() as u64);
        }
        r.release_head();
        self.pass(r, true, rest)
    }

    fn pass(&mut self, r: &mut Request, last: bool, rest: &mut Rest<'_>) -> io::Result<()> {
        self.stage = Stage::Passes;
        let held = std::mem::take(&mut self.held);
        // The head, which was held for what it says, is all of the answer.
        if r.head.method == Method::Head {
            return Ok(());
        }
        rest.push(r, Chunk::Bytes(&held), last)
    }

    /// `image_filter size`
    fn answer_size(&mut self, r: &mut Request, found: Option<(Kind, Size)>, rest: &mut Rest<'_>) -> io::Result<()> {
        self.held = match found {
            None => b"{}\r\n".to_vec(),
            Some((kind, Size { width, height, .. })) => {
                let kind = kind.name();
                let text =
                    format!("{{ \"img\" : {{ \"width\": {width}, \"height\": {height}, \"type\": \"{kind}\" }} }}\r\n");
                text.into_bytes()
            }
        };
        let kind = r.text(b"application/json");
        r.answer.headers.set_content_type(&r.arena, kind);
        r.clear_validators(false);
        r.clear_accept_ranges();
        self.whole(r, rest)?;
        // What is no picture may still be coming; nobody wants it.
        r.answer.done = true;
        Ok(())
    }
}

fn pool() -> Arc<Pool> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(MAX_THREADS);
    readers::pool(&PoolSize { name: Arc::from("pictures"), threads, max_queue: MAX_QUEUE })
}
