//! `ngx.req`: the body, once it has been read.

use super::super::current::{self, Phase, request, request_in};
use super::request::set_header;
use crate::request::Request;
use crate::request::body::{BodyFile, Stored};
use ::lua::Fault;
use ::lua::machine::{add as add_function, args_table, bytes_of, made_text};
use ::lua::text::MAX_ARGS;
use mlua::{Lua, Table, Value};
use std::rc::Rc;

/// See the module's head.
pub fn add(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    // False: it has to be waited for.
    add_function(lua, raw, "req_body_is_read", |_, ()| {
        request_in(super::super::current::ANSWERING, |r| {
            Ok(r.body.stored.is_some() || r.body.is_discarded() || !r.is_main())
        })
    })?;
    add_function(lua, raw, "req_body_data", |lua, ()| {
        request(|r| match &r.body.stored {
            Some(stored) if stored.file.is_none() && stored.len > 0 => {
                made_text(lua, &stored.memory).map(Value::String)
            }
            _ => Ok(Value::Nil),
        })
    })?;
    add_function(lua, raw, "req_body_file", |lua, ()| {
        request(|r| match r.body.stored.as_ref().and_then(|s| s.file.as_ref()) {
            Some(file) => {
                use std::os::fd::AsRawFd;
                // Without a name it is still there for who has the descriptor.
                let path = match file.path.exists() {
                    true => file.path.display().to_string(),
                    false => format!("/proc/self/fd/{}", file.fd.as_raw_fd()),
                };
                made_text(lua, path.as_bytes()).map(Value::String)
            }
            None => Ok(Value::Nil),
        })
    })?;
    add_function(lua, raw, "req_set_body_data", |_, data: Value| {
        let data = bytes_of(&data, 1, "set_body_data")?;
        request(|r| {
            check_read(r)?;
            set_body(r, data);
            Ok(())
        })
    })?;
    add_function(lua, raw, "req_set_body_file", |_, (path, clean): (Value, Option<bool>)| {
        let path = bytes_of(&path, 1, "set_body_file")?;
        request(|r| {
            check_read(r)?;
            set_body_file(r, &path, clean == Some(true))
        })
    })?;
    add_function(lua, raw, "req_init_body", |_, size: Option<f64>| {
        request(|r| {
            check_read(r)?;
            let usual = *r.conf().core.client_body_buffer_size;
            let limit = size.map_or(usual, |n| n.max(0.0) as u64);
            r.ctx.lua.get_or_insert_default().body = Some((Vec::new(), limit));
            Ok(())
        })
    })?;
    add_function(lua, raw, "req_append_body", |_, chunk: Value| {
        let chunk = bytes_of(&chunk, 1, "append_body")?;
        request(|r| match r.ctx.lua.as_mut().and_then(|c| c.body.as_mut()) {
            Some((body, _)) => {
                body.extend_from_slice(&chunk);
                Ok(())
            }
            None => Err(Fault("request_body not initialized".to_owned())),
        })
    })?;
    add_function(lua, raw, "req_finish_body", |_, ()| {
        request(|r| match r.ctx.lua.as_mut().and_then(|c| c.body.take()) {
            Some((body, limit)) if body.len() as u64 > limit => {
                let len = body.len() as u64;
                let file = crate::request::body::in_file(r, &body);
                let file = file.ok_or_else(|| Fault("failed to write the request body to a file".to_owned()))?;
                set_body(r, Vec::new());
                set_header(r, b"Content-Length", &[len.to_string().into_bytes()]);
                r.head.headers.content_length = Some(len);
                r.body.stored = Some(Rc::new(Stored { memory: Vec::new(), file: Some(file), len }));
                Ok(())
            }
            Some((body, _)) => {
                set_body(r, body);
                Ok(())
            }
            None => Err(Fault("request_body not initialized".to_owned())),
        })
    })?;
    add_function(lua, raw, "req_discard_body", |_, ()| {
        request(|r| {
            if crate::request::body::discard_arrived(r).is_err() {
                r.flow.keepalive = false;
            }
            Ok(())
        })
    })?;
    add_function(lua, raw, "req_post_args", |lua, max: Option<f64>| {
        request(|r| {
            let max = max.map_or(MAX_ARGS, |n| n.max(0.0) as usize);
            let Some(stored) = r.body.stored.clone() else {
                if r.body.is_pending() {
                    let text = "no request body found; maybe you should turn on lua_need_request_body?";
                    return Err(Fault(text.to_owned()));
                }
                return Ok((Value::Table(lua.create_table().map_err(|e| Fault(e.to_string()))?), None));
            };
            if stored.file.is_some() {
                return Ok((Value::Nil, Some("request body in temp file not supported")));
            }
            let (table, more) = args_table(lua, &stored.memory, max)?;
            if more {
                crate::log_error!(r, Debug, "lua hit query args limit {max}");
            }
            Ok((Value::Table(table), more.then_some("truncated")))
        })
    })
}

/// What is not there cannot be replaced.
fn check_read(r: &Request) -> Result<(), Fault> {
    if r.body.is_discarded() {
        return Err(Fault("request body already discarded asynchronously".to_owned()));
    }
    // Who asks a peer has read what there was, or there was nothing to read.
    let is_known = current::phase() == Phase::Balancer && !r.body.is_pending();
    if r.body.stored.is_none() && !r.body.streamed && r.is_main() && !is_known {
        return Err(Fault("request body not read yet".to_owned()));
    }
    Ok(())
}

/// Gives the request a file for its body; `clean`: which is removed with the request.
fn set_body_file(r: &mut Request, path: &[u8], clean: bool) -> Result<(), Fault> {
    use std::os::unix::ffi::OsStrExt;
    let path = r.snapshot.prefix.join(std::ffi::OsStr::from_bytes(path));
    let opened = std::fs::File::open(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
    let (len, file) = opened.map_err(|e| {
        let text = crate::log::os_error(&e);
        Fault(format!("open() \"{}\" failed ({text})", path.display()))
    })?;
    r.head.headers.content_length = Some(len);
    r.head.headers.chunked = false;
    set_header(r, b"Content-Length", &[len.to_string().into_bytes()]);
    let file = BodyFile { fd: Rc::new(file.into()), path, remove: clean };
    r.body.stored = Some(Rc::new(Stored { memory: Vec::new(), file: Some(file), len }));
    Ok(())
}

/// Gives the request another body.
pub fn set_body(r: &mut Request, data: Vec<u8>) {
    let len = data.len() as u64;
    r.head.headers.content_length = Some(len);
    r.head.headers.chunked = false;
    set_header(r, b"Content-Length", &[len.to_string().into_bytes()]);
    set_header(r, b"Transfer-Encoding", &[]);
    r.body.stored = Some(Rc::new(Stored { memory: data, file: None, len }));
}
