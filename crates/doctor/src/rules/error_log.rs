//! What servers wrote into their error logs.

use crate::error_log::Told;
use crate::facts::Facts;
use crate::finding::{Finding, Sure, Weight};
use crate::text::number;

/// What was written within this time is a warning, before that a note: seconds.
const RECENT_S: u64 = 3_600;

/// What is in a line, what it is called, what it means, why, and what cures it.
struct Says {
    has: &'static str,
    id: &'static str,
    what: &'static str,
    why: &'static str,
    cure: &'static str,
}

const ZONE: Says = Says {
    has: "failed: no memory in ",
    id: "zone-full",
    what: "A shared zone had no room for an entry.",
    why: "Either the zone is too small, or its memory is in pieces: nginx's allocator gives each page to entries of one size, and a page goes back only when the \
          last of them is gone. Then a zone that is nearly empty has no room for longer keys; those requests are refused.",
    cure: "a larger zone; keys of one length ($binary_remote_addr); nginx gets a zone into one piece by a restart only, Ironweir's have no pages (ironweir lab zone-fragmentation)",
};

const SAYINGS: &[Says] = &[
    ZONE,
    Says { has: "could not allocate node in ", ..ZONE },
    Says {
        has: "worker_connections are not enough",
        id: "connections-used-up",
        what: "A worker had no connection left.",
        why: "Each client takes one, and one more for its upstream. Beyond worker_connections new clients are turned away.",
        cure: "a larger worker_connections, with worker_rlimit_nofile of at least twice as many",
    },
    Says {
        has: "(24: Too many open files)",
        id: "descriptors-used-up",
        what: "A worker had no descriptor left.",
        why: "Connections, files and logs take one each. Without one, connections are not accepted and upstreams not reached.",
        cure: "worker_rlimit_nofile; LimitNOFILE= in the unit",
    },
    Says {
        has: "no live upstreams while connecting",
        id: "no-live-upstreams",
        what: "All servers of an upstream were out at once.",
        why: "Each had failed max_fails times within fail_timeout; requests in that time are answered with 502.",
        cure: "ironweir doctor backend HOST:PORT for each; a larger max_fails where single failures are normal",
    },
];

/// One finding for each thing that a log says.
pub(super) fn lines(facts: &Facts) -> Vec<Finding> {
    let each = |told: &Told| {
        let says = SAYINGS.iter().find(|s| told.text.contains(s.has))?;
        let weight = if told.ago_s.is_some_and(|ago| ago <= RECENT_S) { Weight::Warning } else { Weight::Note };
        let ago = told.ago_s.map_or(String::new(), |ago| format!(" {} s ago,", number(ago)));
        let seen = format!("\"{}\"{ago} {} lines in all", told.text, number(told.count));
        Some(
            Finding::new(says.id, weight, says.what)
                .seen(seen, &told.log)
                .because(says.why)
                .cure(says.cure)
                .sure(Sure::Certain),
        )
    };
    facts.told.iter().filter_map(each).collect()
}
