//! Presets from the field: what is set, and why, in words.

use super::{Http, cpus};
use crate::options::{Closing, Options};

/// Sets what a preset stands for, where the user has not said otherwise, and notes each with its reason.
///
/// # Errors
/// A sentence for the user.
pub fn apply(options: &mut Options, http: Http, notes: &mut Vec<String>) -> Result<(), String> {
    let Some(name) = options.preset.clone() else { return Ok(()) };
    let mut say = |what: String, why: &str| notes.push(format!("preset {name}: {what}: {why}"));
    let cpus = cpus();
    if options.threads.is_none() {
        options.threads = Some(cpus);
        say(format!("-t{cpus}"), "one thread a CPU; more would take turns");
    }
    let per_cpu = match name.as_str() {
        "forwarding" => {
            if options.close.is_none() {
                let (how, name, why) = match http {
                    Http::Three => (Closing::Client, "client", "a new connection for each request"),
                    _ => (
                        Closing::Reset,
                        "rst",
                        "a new connection for each request, ended by a reset, so that no TIME_WAIT uses up local ports",
                    ),
                };
                options.close = Some(how);
                say(format!("--close {name}"), why);
            }
            128
        }
        "throughput" => {
            say("connections are kept".to_owned(), "the cost of a request is measured, not that of a handshake");
            64
        }
        _ => return Err(format!("--preset {name}: forwarding or throughput")),
    };
    if options.connections.is_none() {
        options.connections = Some(per_cpu * cpus);
        say(
            format!("-c{}", per_cpu * cpus),
            "enough at a time that no CPU of the target waits, too few to fill its queues",
        );
    }
    if !options.latency {
        options.latency = true;
        say("--latency".to_owned(), "a rate without its latency says little");
    }
    Ok(())
}
