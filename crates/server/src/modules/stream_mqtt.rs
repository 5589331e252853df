//! `mqtt_preread`, `mqtt` and its companions: balancing by what an MQTT client says of itself, and changing it (nginx Plus'
//! `ngx_stream_mqtt_preread_module`, `ngx_stream_mqtt_filter_module`). What is done with the values is in `stream::mqtt`.

use crate::config::complex::Complex;
use crate::config::setters::{self, duplicate, invalid};
use crate::config::variables::Builtin;
use crate::config::{Directive, Scope, stream};
use crate::merged_values;
use crate::request::{Request, Text};
use conf::{Node, Problem, value};
use std::sync::Arc;

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    stream("mqtt_preread", |s, n| setters::flag(&mut s.level.conf.stream_mqtt.mqtt_preread, n)),
    stream("mqtt", |s, n| setters::flag(&mut s.level.conf.stream_mqtt.mqtt, n)),
    stream("mqtt_buffers", buffers),
    stream("mqtt_rewrite_buffer_size", |s, n| setters::size(&mut s.level.conf.stream_mqtt.mqtt_rewrite_buffer_size, n)),
    stream("mqtt_set_connect", set_connect),
];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// Who a client says it is, is read before a peer is chosen.
        mqtt_preread: bool = false,
        /// What comes must be MQTT.
        mqtt: bool = false,
        /// Number and size of buffers: a CONNECT must fit into all of them.
        mqtt_buffers: (u64, u64) = (100, 1024),
        /// A CONNECT that was changed must fit.
        mqtt_rewrite_buffer_size: u64 = 4096,
        /// `mqtt_set_connect`, in order; of two of a field the later one counts.
        set_connect: Arc<Vec<(Field, Complex)>> = Arc::default(),
    }
}

crate::inherited!(Conf, |_| true);

/// A field of CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// `clientid`
    Client,
    /// `username`
    Username,
    /// `password`
    Password,
}

/// The variables.
pub const VARIABLES: &[Builtin] = &[
    Builtin {
        name: "mqtt_preread_clientid",
        evaluate: |r| said(r, |said| Some(said.client.clone())),
        volatile: false,
        assign: None,
    },
    Builtin {
        name: "mqtt_preread_username",
        evaluate: |r| said(r, |said| said.username.clone()),
        volatile: false,
        assign: None,
    },
];

fn said(r: &mut Request, get: impl FnOnce(&crate::stream::facts::Said) -> Option<Box<[u8]>>) -> Option<Text> {
    let text = r.ctx.stream.as_ref()?.mqtt.as_ref().and_then(|said| get(said))?;
    Some(r.text(&text))
}

fn buffers(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let number = value::number(&node.args[0].text).filter(|n| *n > 0).ok_or_else(|| invalid(node))?;
    let size = value::size(&node.args[1].text).filter(|n| *n > 0).ok_or_else(|| invalid(node))?;
    setters::value(&mut scope.level.conf.stream_mqtt.mqtt_buffers, node, (number, size))
}

fn set_connect(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let field = match node.args[0].text.as_slice() {
        b"clientid" => Field::Client,
        b"username" => Field::Username,
        b"password" => Field::Password,
        _ => return Err(node.problem(format!("unknown field \"{}\" of CONNECT", node.args[0].as_str()))),
    };
    let value = Complex::compile(scope.build, &node.args[1])?;
    let all = &mut scope.level.conf.stream_mqtt.set_connect;
    if all.iter().any(|(f, _)| *f == field) {
        return Err(duplicate(node));
    }
    Arc::make_mut(all.entry()).push((field, value));
    Ok(())
}
