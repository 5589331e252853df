//! The log, timers, and what a program is told of the server.

use super::super::current;
use crate::log::error::Level;
use crate::request::respond::SERVER_VERSION;
use crate::snapshot::ThreadSnapshot;
use ::js::engine;
use ::js::rquickjs::prelude::Func;
use ::js::rquickjs::{Ctx, Object, Result};
use ::js::value::OrThrow;
use ::js::{Item, Operation};
use std::rc::Rc;
use std::time::Duration;

/// What programs are told of the version: nginx's, whose configuration and modules these are.
const VERSION: &str = "1.31.5";
/// The same as a number.
const VERSION_NUMBER: f64 = 1_031_005.0;

/// See the module's head.
pub fn add(raw: &Object<'_>, snapshot: &Rc<ThreadSnapshot>) -> Result<()> {
    raw.set("log", Func::from(|level: i32, text: String| log(level, &text)))?;
    raw.set(
        "now",
        Func::from(|| {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            now.tv_sec as f64 * 1000.0 + now.tv_nsec as f64 / 1e6
        }),
    )?;
    raw.set("sleep", Func::from(|ctx: Ctx<'_>, ms: f64| sleep(ms).or_throw(&ctx)))?;
    let snapshot = Rc::downgrade(snapshot);
    raw.set(
        "ngx_fact",
        Func::from(move |name: String| snapshot.upgrade().map_or(Item::Undefined, |snapshot| fact(&snapshot, &name))),
    )
}

fn log(level: i32, text: &str) {
    let level = match level {
        1 => Level::Alert,
        2 | 3 => Level::Crit,
        4 => Level::Error,
        5 => Level::Warn,
        6 => Level::Notice,
        7 => Level::Info,
        _ => Level::Debug,
    };
    let of_request = current::request(|r| {
        if r.logs(level) {
            r.write_log(level, format_args!("js: {text}"));
        }
        Ok(())
    });
    if of_request.is_err() && crate::log::error::default_enabled(level) {
        crate::log::process_line(level, format_args!("js: {text}"));
    }
}

fn sleep(ms: f64) -> std::result::Result<u32, ::js::Fault> {
    let operation: Operation = Box::pin(async move {
        if ms < 1.0 {
            runtime::yield_now().await;
        } else {
            runtime::timer::sleep(Duration::from_millis(ms.min(f64::from(u32::MAX)) as u64)).await;
        }
        Ok(Item::Undefined)
    });
    engine::current()?.begin(operation)
}

fn fact(snapshot: &ThreadSnapshot, name: &str) -> Item {
    let text = |text: String| Item::Text(text.into_bytes());
    match name {
        "version" => VERSION.into(),
        "version_number" => Item::Number(VERSION_NUMBER),
        "build" => SERVER_VERSION.into(),
        "prefix" => {
            let prefix = snapshot.whole().prefix.display().to_string();
            text(if prefix.ends_with('/') { prefix } else { prefix + "/" })
        }
        "conf_prefix" => text(format!("{}/", snapshot.main.js.conf_prefix.display()).replace("//", "/")),
        "conf_file_path" => text(snapshot.main.js.conf_file.display().to_string()),
        "error_log_path" => match snapshot.whole().error_logs.first().map(|l| &l.target) {
            Some(crate::process_settings::ErrorLogTarget::File(path)) => text(path.display().to_string()),
            _ => Item::Undefined,
        },
        "worker_id" => {
            let thread = std::thread::current();
            let number = thread.name().and_then(|n| n.strip_prefix("worker ")?.parse().ok()).unwrap_or(0u32);
            Item::Number(f64::from(number))
        }
        _ => Item::Undefined,
    }
}
