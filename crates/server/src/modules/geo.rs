//! `geo` (nginx's `ngx_http_geo_module`): a variable whose value depends on an address. Networks and ranges become one
//! sorted table of stretches, so a look-up is a binary search however many lines there were.

use super::map::variable_name;
use super::realip::{self, Trusted};
use crate::config::cidr::{Cidr, Plain, mask4, mask6, parse_address};
use crate::config::{Directive, Scope, both};
use crate::connection::Address;
use crate::request::{Request, Text};
use crate::snapshot::VariableId;
use conf::{Node, Problem};
use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::{BitOr, Not};
use std::sync::Arc;

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[both("geo", geo)];

/// The address that stands for "none" and for unix sockets (nginx's `INADDR_NONE`).
const NOWHERE: u32 = u32::MAX;

/// A value by its index; `None`: the empty text.
type Value = Option<u32>;

struct Geo {
    /// Where the address comes from, if not from the connection.
    source: Option<VariableId>,
    proxies: Trusted,
    v4: Stretches<u32>,
    v6: Stretches<u128>,
    values: Vec<Box<[u8]>>,
}

/// Where each stretch of addresses with one value begins. Starts at 0.
struct Stretches<A>(Vec<(A, Value)>);

impl<A: Copy + Ord> Stretches<A> {
    fn find(&self, address: A) -> Value {
        let after = self.0.partition_point(|(start, _)| *start <= address);
        after.checked_sub(1).and_then(|i| self.0[i].1)
    }

    fn push(&mut self, start: A, value: Value) {
        match self.0.last_mut() {
            Some(last) if last.0 == start => last.1 = value,
            Some(last) if last.1 == value => {}
            _ => self.0.push((start, value)),
        }
    }
}

/// The networks that `default` stands for.
const EVERYWHERE: [&[u8]; 2] = [b"0.0.0.0/0", b"::/0"];

/// The lines of a block while they are read.
#[derive(Default)]
struct Lines {
    ranges: bool,
    entries: usize,
    volatile: bool,
    proxies: Trusted,
    values: Vec<Box<[u8]>>,
    indexes: HashMap<Box<[u8]>, u32>,
    networks: BTreeMap<Cidr, u32>,
    /// By first address; none crosses the border of a /16, as in nginx.
    pieces: BTreeMap<u32, (u32, u32)>,
    default: Value,
}

fn geo(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let (source, name) = match node.args.as_slice() {
        [name] => (None, name),
        [source, name] => (Some(scope.build.variables.index(variable_name(node, source)?)), name),
        _ => unreachable!("the table says one or two"),
    };
    let name = variable_name(node, name)?;
    let mut lines = Lines::default();
    for row in node.children() {
        lines.add(&mut scope.build.problems, row)?;
    }
    let volatile = lines.volatile;
    let geo = Arc::new(lines.finish(source));
    let evaluate = Arc::new(move |r: &mut Request| Some(look_up(&geo, r)));
    scope.build.variables.define(name, volatile, evaluate).map_err(|t| node.problem(t))?;
    Ok(())
}

impl Lines {
    fn add(&mut self, problems: &mut Vec<Problem>, row: &Node) -> Result<(), Problem> {
        let key = row.name.text.as_slice();
        let value = match (row.args.as_slice(), key) {
            ([], b"ranges") if self.entries > 0 && !self.ranges => {
                let text = "the \"ranges\" directive must be the first directive inside \"geo\" block";
                return Err(row.problem(text.to_owned()));
            }
            ([], b"ranges") => {
                self.ranges = true;
                return Ok(());
            }
            ([], b"proxy_recursive") => {
                self.proxies.recursive = true;
                return Ok(());
            }
            ([], b"volatile") => {
                self.volatile = true;
                return Ok(());
            }
            ([value], _) => value.text.as_slice(),
            _ => return Err(row.problem("invalid number of the geo parameters".to_owned())),
        };
        if key == b"proxy" {
            self.proxies.networks.push(network(problems, row, value)?);
            return Ok(());
        }
        self.entries += 1;
        match key {
            b"default" => self.set_default(problems, row, value),
            b"delete" if self.ranges => self.delete_range(problems, row, value),
            b"delete" => self.delete_network(problems, row, value),
            _ if self.ranges => self.add_range(problems, row, value),
            _ => self.add_network(problems, row, value),
        }
    }

    fn value(&mut self, text: &[u8]) -> u32 {
        if let Some(index) = self.indexes.get(text) {
            return *index;
        }
        let index = self.values.len() as u32;
        self.values.push(text.into());
        self.indexes.insert(text.into(), index);
        index
    }

    fn shown(&self, index: u32) -> String {
        String::from_utf8_lossy(&self.values[index as usize]).into_owned()
    }

    fn set_default(&mut self, problems: &mut Vec<Problem>, row: &Node, text: &[u8]) -> Result<(), Problem> {
        let index = self.value(text);
        if let Some(old) = self.default.replace(index) {
            let (new, old) = (self.shown(index), self.shown(old));
            problems.push(row.warning(match self.ranges {
                true => format!("duplicate default geo range value: \"{new}\", old value: \"{old}\""),
                false => format!("duplicate network \"default\", value: \"{new}\", old value: \"{old}\""),
            }));
        }
        // It is the network of all addresses: of two lines the last counts.
        for everywhere in EVERYWHERE {
            let everywhere = network(problems, row, everywhere)?;
            if let Some(old) = self.networks.get_mut(&everywhere) {
                let old = std::mem::replace(old, index);
                let (new, old) = (self.shown(index), self.shown(old));
                let text = format!("duplicate network \"default\", value: \"{new}\", old value: \"{old}\"");
                problems.push(row.warning(text));
            }
        }
        Ok(())
    }

    fn add_network(&mut self, problems: &mut Vec<Problem>, row: &Node, text: &[u8]) -> Result<(), Problem> {
        let cidr = network(problems, row, &row.name.text)?;
        let index = self.value(text);
        let is_everywhere = EVERYWHERE.contains(&&*row.name.text);
        let before = self.networks.insert(cidr, index);
        if let Some(old) = before.or(self.default.filter(|_| is_everywhere)) {
            let (net, new, old) = (row.name.as_str(), self.shown(index), self.shown(old));
            problems.push(row.warning(format!("duplicate network \"{net}\", value: \"{new}\", old value: \"{old}\"")));
        }
        Ok(())
    }

    fn delete_network(&mut self, problems: &mut Vec<Problem>, row: &Node, net: &[u8]) -> Result<(), Problem> {
        let cidr = network(problems, row, net)?;
        if self.networks.remove(&cidr).is_none() {
            let net = String::from_utf8_lossy(net);
            problems.push(row.warning(format!("no network \"{net}\" to delete")));
        }
        Ok(())
    }

    /// A range may lie within another, or be one that is there; it may not overlap others (`ngx_http_geo_add_range`).
    fn add_range(&mut self, problems: &mut Vec<Problem>, row: &Node, text: &[u8]) -> Result<(), Problem> {
        let net = row.name.as_str();
        let (first, last) = range(row, &row.name.text)?;
        let index = self.value(text);
        for (start, end) in blocks(first, last) {
            let before = self.pieces.range(..=end).next_back().map(|(s, (e, v))| (*s, *e, *v));
            let Some((old_start, old_end, old)) = before.filter(|(_, e, _)| *e >= start) else {
                self.pieces.insert(start, (end, index));
                continue;
            };
            if start < old_start || end > old_end {
                let (a, b) = (Ipv4Addr::from_bits(old_start), Ipv4Addr::from_bits(old_end));
                return Err(row.problem(format!("range \"{net}\" overlaps \"{a}-{b}\"")));
            }
            if (start, end) == (old_start, old_end) {
                let (new, old) = (self.shown(index), self.shown(old));
                let text = format!("duplicate range \"{net}\", value: \"{new}\", old value: \"{old}\"");
                problems.push(row.warning(text));
            }
            if old_start < start {
                self.pieces.insert(old_start, (start - 1, old));
            }
            if end < old_end {
                self.pieces.insert(end + 1, (old_end, old));
            }
            self.pieces.insert(start, (end, index));
        }
        Ok(())
    }

    fn delete_range(&mut self, problems: &mut Vec<Problem>, row: &Node, net: &[u8]) -> Result<(), Problem> {
        let (first, last) = range(row, net)?;
        let mut missing = false;
        for (start, end) in blocks(first, last) {
            if self.pieces.get(&start).is_some_and(|(e, _)| *e == end) {
                self.pieces.remove(&start);
            } else {
                missing = true;
            }
        }
        if missing {
            let net = String::from_utf8_lossy(net);
            problems.push(row.warning(format!("no address range \"{net}\" to delete")));
        }
        Ok(())
    }

    fn finish(self, source: Option<VariableId>) -> Geo {
        let (mut v4, mut v6) = (Stretches(Vec::new()), Stretches(Vec::new()));
        if self.ranges {
            v4.push(0, self.default);
            for (start, (end, value)) in &self.pieces {
                v4.push(*start, Some(*value));
                if *end < u32::MAX {
                    v4.push(*end + 1, self.default);
                }
            }
            // nginx looks IPv6 addresses up as "none" here.
            v6.push(0, v4.find(NOWHERE));
        } else {
            let (mut nets4, mut nets6) = (Vec::new(), Vec::new());
            for (cidr, value) in &self.networks {
                match cidr {
                    Cidr::V4(net, length) => nets4.push((*net, mask4(*length), *value)),
                    Cidr::V6(net, length) => nets6.push((*net, mask6(*length), *value)),
                    Cidr::Unix => {}
                }
            }
            v4 = flatten(&nets4, self.default, |a| a.checked_add(1));
            v6 = flatten(&nets6, self.default, |a| a.checked_add(1));
        }
        Geo { source, proxies: self.proxies, v4, v6, values: self.values }
    }
}

/// Makes stretches of networks, which are sorted by first address and then from wide to narrow, as `Cidr` is.
fn flatten<A>(nets: &[(A, A, u32)], default: Value, after: fn(A) -> Option<A>) -> Stretches<A>
where
    A: Copy + Ord + Default + Not<Output = A> + BitOr<Output = A>,
{
    let mut stretches = Stretches(Vec::new());
    stretches.push(A::default(), default);
    // The networks around the present one, from wide to narrow, each with its last address.
    let mut around: Vec<(A, u32)> = Vec::new();
    let close = |around: &mut Vec<(A, u32)>, stretches: &mut Stretches<A>, before: Option<A>| {
        while let Some((end, _)) = around.last().copied().filter(|(end, _)| before.is_none_or(|b| *end < b)) {
            around.pop();
            if let Some(next) = after(end) {
                stretches.push(next, around.last().map(|(_, v)| *v).or(default));
            }
        }
    };
    for &(net, mask, value) in nets {
        close(&mut around, &mut stretches, Some(net));
        stretches.push(net, Some(value));
        around.push((net | !mask, value));
    }
    close(&mut around, &mut stretches, None);
    stretches
}

/// A network, or an address.
pub(super) fn network(problems: &mut Vec<Problem>, row: &Node, text: &[u8]) -> Result<Cidr, Problem> {
    let invalid = || row.problem(format!("invalid network \"{}\"", String::from_utf8_lossy(text)));
    Cidr::read(problems, row, text).ok_or_else(invalid)
}

fn range(row: &Node, text: &[u8]) -> Result<(u32, u32), Problem> {
    let parse = || {
        let (first, last) = std::str::from_utf8(text).ok()?.split_once('-')?;
        let (first, last) = (first.parse::<Ipv4Addr>().ok()?.to_bits(), last.parse::<Ipv4Addr>().ok()?.to_bits());
        // nginx cannot tell 255.255.255.255 from an error.
        (first <= last && last != NOWHERE).then_some((first, last))
    };
    parse().ok_or_else(|| row.problem(format!("invalid range \"{}\"", String::from_utf8_lossy(text))))
}

/// The parts of a range in each /16.
fn blocks(first: u32, last: u32) -> impl Iterator<Item = (u32, u32)> {
    (first >> 16..=last >> 16).map(move |high| (first.max(high << 16), last.min(high << 16 | 0xffff)))
}

fn look_up(geo: &Geo, r: &mut Request) -> Text {
    let index = match address(geo, r) {
        Some(Plain::V4(a)) => geo.v4.find(a),
        Some(Plain::V6(a)) => geo.v6.find(a),
        Some(Plain::Unix) | None => geo.v4.find(NOWHERE),
    };
    match index {
        Some(i) => r.text(&geo.values[i as usize]),
        None => Text::EMPTY,
    }
}

fn address(geo: &Geo, r: &mut Request) -> Option<Plain> {
    let direct = match geo.source {
        None => r.client.remote.borrow().clone(),
        Some(id) => {
            let text = r.variable(id)?;
            let ip = parse_address(r.get(text)).filter(|a| a.port() == 0 && !r.get(text).starts_with(b"["))?;
            Address::Inet(SocketAddr::new(ip.ip(), 0))
        }
    };
    let forwarded = realip::forwarded(r, Plain::of(&direct), &geo.proxies);
    Some(forwarded.map_or_else(|| Plain::of(&direct), |a| Plain::of_ip(a.ip())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretches(nets: &[(u32, u8, u32)]) -> Stretches<u32> {
        let nets: BTreeMap<Cidr, u32> = nets.iter().map(|(net, length, v)| (Cidr::V4(*net, *length), *v)).collect();
        let lines = Lines { networks: nets, default: Some(9), ..Lines::default() };
        lines.finish(None).v4
    }

    #[test]
    fn the_narrowest_network_decides() {
        let s = stretches(&[(0x0a00_0000, 8, 1), (0x0a01_0000, 16, 2), (0x0a01_0000, 24, 3), (0x0a01_ff00, 24, 4)]);
        let of = |a: u32| s.find(a);
        assert_eq!(of(0x09ff_ffff), Some(9));
        assert_eq!(of(0x0a00_0000), Some(1));
        assert_eq!(of(0x0a01_0000), Some(3));
        assert_eq!(of(0x0a01_0100), Some(2));
        assert_eq!(of(0x0a01_ffff), Some(4));
        assert_eq!(of(0x0a02_0000), Some(1));
        assert_eq!(of(0x0b00_0000), Some(9));
        let all = stretches(&[(0, 0, 5), (u32::MAX, 32, 6)]);
        assert_eq!(all.find(0), Some(5));
        assert_eq!(all.find(u32::MAX - 1), Some(5));
        assert_eq!(all.find(u32::MAX), Some(6));
        assert_eq!(stretches(&[(1, 32, 7)]).find(0), Some(9));
    }

    #[test]
    fn ranges_are_cut_at_blocks() {
        assert_eq!(blocks(5, 7).collect::<Vec<_>>(), vec![(5, 7)]);
        assert_eq!(
            blocks(0xfffe, 0x2_0000).collect::<Vec<_>>(),
            vec![(0xfffe, 0xffff), (0x1_0000, 0x1_ffff), (0x2_0000, 0x2_0000)]
        );
    }
}
