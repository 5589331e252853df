//! Servers of `stream` whose packets the kernel balances.

use super::{Metric, Page};
use crate::balancer::heard;
use l4::layout::{EVENTS, SIZE_BOUNDS};
use l4::report::{RealReport, ServiceReport};

/// The samples, once a balancer has said anything.
pub(super) fn add(page: &mut Page) {
    let Some(report) = heard::report() else { return };
    let name = |s: &ServiceReport| format!("{}/{}", s.address, s.protocol.name());
    let reals: Vec<(String, &RealReport)> =
        report.services.iter().flat_map(|s| s.reals.iter().map(move |r| (name(s), r))).collect();
    let labels =
        |service: &str, real: &RealReport| vec![("service", service.to_owned()), ("server", real.address.to_string())];
    let numbers: [Metric<RealReport>; 2] = [
        ("ironweir_l4_flows", "gauge", "Flows in the kernel's table.", |r| r.active),
        ("ironweir_l4_flows_total", "counter", "Flows that began.", |r| r.counts.flows),
    ];
    for (metric, kind, help, number) in numbers {
        page.each((metric, kind, help), &reals, |(service, r)| Some((labels(service, r), number(r))));
    }
    let both: [Metric<RealReport, [u64; 2]>; 2] = [
        ("ironweir_l4_packets_total", "counter", "Packets by direction.", |r| {
            [r.counts.in_packets, r.counts.out_packets]
        }),
        ("ironweir_l4_bytes_total", "counter", "Bytes of frames by direction.", |r| {
            [r.counts.in_bytes, r.counts.out_bytes]
        }),
    ];
    for (metric, kind, help, of) in both {
        let directions = |(s, r): &(String, &RealReport)| {
            let labels = labels(s, r);
            of(r)
                .into_iter()
                .zip(["in", "out"])
                .map(move |(n, direction)| (labels.clone(), direction, n))
                .collect::<Vec<_>>()
        };
        let samples: Vec<_> = reals.iter().flat_map(directions).collect();
        page.each((metric, kind, help), &samples, |(labels, direction, n)| {
            let mut all = labels.clone();
            all.push(("direction", (*direction).to_owned()));
            Some((all, *n))
        });
    }
    if !report.services.is_empty() {
        let metric = "ironweir_l4_packet_bytes";
        page.metric(metric, "histogram", "Frames by their size.");
        for service in &report.services {
            sizes(
                page,
                metric,
                &name(service),
                &service.counts.sizes,
                service.counts.in_bytes + service.counts.out_bytes,
            );
        }
        let events: Vec<_> = EVENTS.iter().zip(&report.events).collect();
        page.each(("ironweir_l4_events_total", "counter", "What became of packets."), &events, |((event, _), n)| {
            Some((vec![("event", (*event).to_owned())], **n))
        });
        let native: Vec<_> = report.interfaces.iter().collect();
        page.each(("ironweir_l4_interface_native", "gauge", "1: the driver's XDP; 0: generic."), &native, |i| {
            Some((vec![("interface", i.name.clone())], u64::from(i.native)))
        });
    }
}

/// The kernel's bounds are exclusive, Prometheus' are not.
fn sizes(page: &mut Page, metric: &str, service: &str, counts: &[u64], sum: u64) {
    let bucket = format!("{metric}_bucket");
    let bounds = SIZE_BOUNDS.iter().map(|bound| (bound - 1).to_string()).chain(["+Inf".to_owned()]);
    let mut seen = 0;
    for (bound, n) in bounds.zip(counts) {
        seen += n;
        page.sample(&bucket, &[("service", service), ("le", &bound)], seen);
    }
    page.sample(&format!("{metric}_sum"), &[("service", service)], sum);
    page.sample(&format!("{metric}_count"), &[("service", service)], seen);
}
