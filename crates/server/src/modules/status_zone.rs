//! `status_zone`: under which name requests of a server or location, or sessions of a server of `stream`, are counted
//! (nginx Plus' `ngx_http_api_module`). What is counted: `status`; who shows it: `api`, `prometheus`.

use crate::config::{Directive, Scope, Subsystem, both, setters};
use crate::merged_values;
use crate::status::zones::{self, Kind, Zone};
use conf::{Contexts, Node, Problem};
use std::sync::Arc;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[both("status_zone", status_zone)];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// Where requests that end here are counted; locations inside inherit it.
        zone: Option<Arc<Zone>> = None,
    }
}

fn status_zone(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let word = &node.args[0];
    let name = word.as_str();
    if !scope.level.context.intersects(Contexts::SERVER.union(Contexts::STREAM_SERVER)) {
        let zone = (name != "off").then(|| zones::open(Kind::Location, &name));
        return setters::value(&mut scope.level.conf.status_zone.zone, node, zone);
    }
    let kind = if scope.build.subsystem == Subsystem::Stream { Kind::Stream } else { Kind::Server };
    let zone = &mut scope.level.server.get_or_insert_default().zone;
    if zone.is_some() {
        return Err(setters::duplicate(node));
    }
    *zone = Some(zones::open(kind, &name));
    Ok(())
}
