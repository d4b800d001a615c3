//! Units: who traffic is charged to.
//!
//! An address belongs to every unit one of whose prefixes contains it, and to all their groups. So the longest prefix
//! that matches an address decides everything: it is the address's *class*, whose units are those of that prefix, of
//! all shorter prefixes around it, and all groups above them, each once. IPv4 lives in v4-mapped form among the IPv6
//! addresses, but an IPv6 prefix such as `::/0` does not contain IPv4 addresses.
//!
//! Prefixes nest and never overlap otherwise. [`Units`] therefore is a sorted list of address ranges, one class each,
//! and a lookup is a binary search.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use ipnet::IpNet;
use rustc_hash::FxHashMap;

use super::unit::UnitConfig;

/// `::ffff:0:0/96`, where IPv4 is mapped.
const V4_MAPPED: Prefix = Prefix { start: 0xffff_0000_0000, len: 96 };

/// Index of a unit in the order of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitId(pub u32);

/// All configured units, ready to look addresses up.
#[derive(Debug)]
pub struct Units {
    names: Vec<String>,
    /// The first is the class of addresses that match no prefix.
    classes: Vec<Class>,
    /// First address of each range; the first is `::`, and each range ends where the next one starts.
    starts: Vec<u128>,
    /// Class of each range, as an index.
    range_class: Vec<u32>,
}

/// A configured prefix and what it stands for.
#[derive(Debug)]
struct Class {
    prefix: Prefix,
    /// Ascending, without duplicates.
    units: Vec<UnitId>,
}

/// Field order gives the order in which a prefix follows those around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Prefix {
    start: u128,
    len: u8,
}

impl Prefix {
    fn new(net: &IpNet) -> Self {
        match net.trunc() {
            IpNet::V4(net) => {
                Self { start: net.addr().to_ipv6_mapped().to_bits(), len: V4_MAPPED.len + net.prefix_len() }
            }
            IpNet::V6(net) => Self { start: net.addr().to_bits(), len: net.prefix_len() },
        }
    }

    fn last(self) -> u128 {
        self.start | u128::MAX.checked_shr(u32::from(self.len)).unwrap_or(0)
    }

    fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.last() <= self.last()
    }
}

impl Units {
    /// Builds the ranges. Members that do not exist are ignored, and a group in itself is once in itself;
    /// `Config::validate` refuses both.
    pub fn new(configs: &[UnitConfig]) -> Self {
        let names: Vec<String> = configs.iter().map(|unit| unit.name.clone()).collect();
        let groups = groups_of(configs);
        let mut units = Self { names, classes: Vec::new(), starts: Vec::new(), range_class: Vec::new() };
        units.classes.push(Class { prefix: Prefix { start: 0, len: 0 }, units: Vec::new() });
        units.enter(0, 0);

        // Classes whose prefixes contain the current one, the longest last.
        let mut around = vec![0];
        for (prefix, mut members) in owned_prefixes(configs) {
            while around.len() > 1 && !units.classes[around[around.len() - 1]].prefix.contains(prefix) {
                units.leave(&mut around);
            }
            add_groups(&mut members, &groups);
            if prefix != V4_MAPPED {
                members.extend(&units.classes[around[around.len() - 1]].units);
            }
            members.sort_unstable();
            members.dedup();
            around.push(units.classes.len());
            units.enter(prefix.start, units.classes.len());
            units.classes.push(Class { prefix, units: members });
        }
        while around.len() > 1 {
            units.leave(&mut around);
        }
        units
    }

    /// From `start` on, addresses are of `class`.
    fn enter(&mut self, start: u128, class: usize) {
        if self.starts.last() == Some(&start) {
            self.starts.pop();
            self.range_class.pop();
        }
        self.starts.push(start);
        self.range_class.push(class as u32);
    }

    /// The longest prefix of `around` ends; the one around it goes on.
    fn leave(&mut self, around: &mut Vec<usize>) {
        if let Some(inner) = around.pop()
            && let Some(next) = self.classes[inner].prefix.last().checked_add(1)
        {
            self.enter(next, around[around.len() - 1]);
        }
    }

    /// Unit names, in the order of the configuration.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The units of an address (v4-mapped for IPv4), ascending.
    pub fn of(&self, address: Ipv6Addr) -> &[UnitId] {
        self.of_class(self.class_of(address))
    }

    /// Class of an address, as an index.
    pub(super) fn class_of(&self, address: Ipv6Addr) -> u32 {
        let address = address.to_bits();
        self.range_class[self.starts.partition_point(|start| *start <= address) - 1]
    }

    /// The units of a class, ascending.
    pub(super) fn of_class(&self, class: u32) -> &[UnitId] {
        &self.classes[class as usize].units
    }

    /// Every class as an address and the length of its prefix, v4-mapped for IPv4, each prefix once.
    ///
    /// The address is inside the prefix and inside no longer one, so that it can stand for the class in
    /// [`OverflowDelta::address`](crate::flow::OverflowDelta); it is the network address unless a longer prefix begins
    /// there. A prefix that longer ones cover entirely matches nothing and is left out. Where an IPv6 prefix such as
    /// `::/0` surrounds the IPv4 addresses, `::ffff:0:0/96` is listed even when not configured.
    pub fn prefixes(&self) -> Vec<(Ipv6Addr, u8)> {
        let mut address = vec![None; self.classes.len()];
        for (start, class) in self.starts.iter().zip(&self.range_class) {
            address[*class as usize].get_or_insert(*start);
        }
        let classes = self.classes.iter().zip(address).skip(1);
        classes.filter_map(|(class, start)| Some((Ipv6Addr::from_bits(start?), class.prefix.len))).collect()
    }

    /// The addresses of a unit as ascending ranges, first and last address, v4-mapped for IPv4; for a group those of
    /// all members. `None` when there is no such unit.
    pub fn ranges(&self, name: &str) -> Option<Vec<(Ipv6Addr, Ipv6Addr)>> {
        let unit = UnitId(self.names.iter().position(|known| known == name)? as u32);
        let mut ranges: Vec<(u128, u128)> = Vec::new();
        for (index, (start, class)) in self.starts.iter().zip(&self.range_class).enumerate() {
            if self.classes[*class as usize].units.binary_search(&unit).is_err() {
                continue;
            }
            let end = self.starts.get(index + 1).map_or(u128::MAX, |next| next - 1);
            match ranges.last_mut() {
                Some(last) if last.1 + 1 == *start => last.1 = end,
                _ => ranges.push((*start, end)),
            }
        }
        Some(ranges.into_iter().map(|(a, b)| (Ipv6Addr::from_bits(a), Ipv6Addr::from_bits(b))).collect())
    }
}

/// All distinct prefixes and the units that have them, each prefix after those that contain it.
fn owned_prefixes(configs: &[UnitConfig]) -> BTreeMap<Prefix, Vec<UnitId>> {
    let mut owners: BTreeMap<Prefix, Vec<UnitId>> = BTreeMap::new();
    for (unit, config) in (0..).zip(configs) {
        for net in &config.addresses {
            owners.entry(Prefix::new(net)).or_default().push(UnitId(unit));
        }
    }
    if owners.keys().any(|prefix| prefix.contains(V4_MAPPED)) {
        owners.entry(V4_MAPPED).or_default();
    }
    owners
}

/// For each unit, the groups that list it.
fn groups_of(configs: &[UnitConfig]) -> Vec<Vec<UnitId>> {
    let by_name: FxHashMap<&str, usize> =
        configs.iter().enumerate().map(|(unit, config)| (config.name.as_str(), unit)).collect();
    let mut groups = vec![Vec::new(); configs.len()];
    for (group, config) in (0..).zip(configs) {
        for member in config.members.iter().filter_map(|name| by_name.get(name.as_str())) {
            groups[*member].push(UnitId(group));
        }
    }
    groups
}

/// Appends the groups above `units`, to the top.
fn add_groups(units: &mut Vec<UnitId>, groups: &[Vec<UnitId>]) {
    let mut next = 0;
    while next < units.len() {
        for group in &groups[units[next].0 as usize] {
            if !units.contains(group) {
                units.push(*group);
            }
        }
        next += 1;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::super::UnitKind;
    use super::*;

    pub(in crate::policy) fn unit(name: &str, kind: UnitKind, parts: &[&str]) -> UnitConfig {
        let own = |text: &&str| (*text).to_owned();
        let net = |text: &&str| {
            text.parse()
                .unwrap_or_else(|_| IpNet::from(text.parse::<IpAddr>().expect("a prefix or an address")))
        };
        let (addresses, members) = match kind {
            UnitKind::Group => (Vec::new(), parts.iter().map(own).collect()),
            _ => (parts.iter().map(net).collect(), Vec::new()),
        };
        UnitConfig { name: name.to_owned(), kind, addresses, members }
    }

    pub(in crate::policy) fn mapped(text: &str) -> Ipv6Addr {
        match text.parse().unwrap() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        }
    }

    fn office() -> Units {
        Units::new(&[
            unit("all", UnitKind::Group, &["office", "dmz"]),
            unit("lan", UnitKind::Net, &["10.0.0.0/8", "2001:db8::/32"]),
            unit("office", UnitKind::Group, &["lan", "printer"]),
            unit("dmz", UnitKind::Cluster, &["192.0.2.1", "192.0.2.2", "2001:db8:1::1"]),
            unit("printer", UnitKind::Host, &["10.0.0.0"]),
        ])
    }

    fn names_of(units: &Units, address: &str) -> Vec<String> {
        units.of(mapped(address)).iter().map(|unit| units.names()[unit.0 as usize].clone()).collect()
    }

    #[test]
    fn an_address_has_the_units_around_it_and_their_groups_once() {
        let units = office();
        assert_eq!(names_of(&units, "10.1.2.3"), ["all", "lan", "office"]);
        assert_eq!(names_of(&units, "10.0.0.0"), ["all", "lan", "office", "printer"]);
        assert_eq!(names_of(&units, "10.0.0.1"), ["all", "lan", "office"]);
        assert_eq!(names_of(&units, "192.0.2.2"), ["all", "dmz"]);
        assert_eq!(names_of(&units, "2001:db8:1::1"), ["all", "lan", "office", "dmz"]);
        for outside in ["9.255.255.255", "11.0.0.0", "192.0.2.3", "::", "2001:db9::", "::10.1.2.3"] {
            assert!(names_of(&units, outside).is_empty(), "{outside}");
        }
    }

    #[test]
    fn without_units_nothing_matches() {
        let units = Units::new(&[]);
        assert!(names_of(&units, "192.0.2.1").is_empty());
        assert!(units.prefixes().is_empty());
    }

    #[test]
    fn a_prefix_of_two_units_charges_both() {
        let units = Units::new(&[
            unit("a", UnitKind::Net, &["192.0.2.0/24"]),
            unit("b", UnitKind::Net, &["192.0.2.0/24"]),
        ]);
        assert_eq!(names_of(&units, "192.0.2.7"), ["a", "b"]);
        assert_eq!(units.prefixes(), [(mapped("192.0.2.0"), 120)]);
    }

    #[test]
    fn ipv6_prefixes_do_not_contain_ipv4() {
        let units = Units::new(&[
            unit("six", UnitKind::Net, &["::/0"]),
            unit("host", UnitKind::Host, &["192.0.2.1"]),
        ]);
        assert_eq!(names_of(&units, "2001:db8::1"), ["six"]);
        assert_eq!(names_of(&units, "192.0.2.1"), ["host"]);
        assert!(names_of(&units, "192.0.2.2").is_empty());
        assert_eq!(
            units.ranges("six").unwrap(),
            [
                (mapped("::"), mapped("::fffe:ffff:ffff")),
                (mapped("::1:0:0:0"), mapped("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")),
            ]
        );
        assert_eq!(
            units.prefixes(),
            [(mapped("::"), 0), (mapped("0.0.0.0"), 96), (mapped("192.0.2.1"), 128)]
        );
    }

    #[test]
    fn all_of_ipv4_and_ipv6() {
        let units = Units::new(&[unit("world", UnitKind::Net, &["::/0", "0.0.0.0/0"])]);
        assert_eq!(names_of(&units, "192.0.2.1"), ["world"]);
        assert_eq!(
            units.ranges("world").unwrap(),
            [(mapped("::"), mapped("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"))]
        );
    }

    #[test]
    fn ranges_merge_members() {
        let units = office();
        assert_eq!(
            units.ranges("all").unwrap(),
            [
                (mapped("10.0.0.0"), mapped("10.255.255.255")),
                (mapped("192.0.2.1"), mapped("192.0.2.2")),
                (mapped("2001:db8::"), mapped("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff")),
            ]
        );
        assert_eq!(units.ranges("printer").unwrap(), [(mapped("10.0.0.0"), mapped("10.0.0.0"))]);
        assert_eq!(units.ranges("nobody"), None);
    }

    #[test]
    fn the_address_of_a_prefix_is_in_no_longer_one() {
        let units = office();
        assert_eq!(
            units.prefixes(),
            [
                (mapped("10.0.0.1"), 104),
                (mapped("10.0.0.0"), 128),
                (mapped("192.0.2.1"), 128),
                (mapped("192.0.2.2"), 128),
                (mapped("2001:db8::"), 32),
                (mapped("2001:db8:1::1"), 128),
            ]
        );
    }

    #[test]
    fn a_prefix_under_longer_ones_matches_nothing() {
        let halves = ["10.0.0.0/8", "10.0.0.0/9", "10.128.0.0/9"];
        let units = Units::new(&[unit("halves", UnitKind::Net, &halves)]);
        assert_eq!(units.prefixes(), [(mapped("10.0.0.0"), 105), (mapped("10.128.0.0"), 105)]);
    }

    /// Prefixes that nest often: few distinct bits near the top of IPv4, IPv6 and the whole.
    fn nets() -> impl Strategy<Value = IpNet> {
        (any::<u8>(), any::<bool>(), 0..=8u8).prop_map(|(bits, v4, len)| {
            let net = if v4 {
                IpNet::new([bits, 0, 0, 0].into(), len)
            } else {
                IpNet::new(Ipv6Addr::from_bits(u128::from(bits) << 120).into(), len)
            };
            net.unwrap().trunc()
        })
    }

    proptest! {
        #[test]
        fn lookups_agree_with_a_search_of_all_prefixes(
            nets in proptest::collection::vec(nets(), 0..12),
            bits in any::<u8>(),
            low in prop_oneof![Just(0u32), Just(0xff_ffff), 0..=0xff_ffffu32],
        ) {
            let configs: Vec<_> = (0..).zip(&nets)
                .map(|(index, net)| unit(&format!("u{index}"), UnitKind::Net, &[&net.to_string()]))
                .collect();
            let units = Units::new(&configs);
            let v4 = IpAddr::from((u32::from(bits) << 24 | low).to_be_bytes());
            let v6 = IpAddr::from(Ipv6Addr::from_bits(u128::from(bits) << 120 | u128::from(low)));
            for address in [v4, v6] {
                let expected: Vec<_> =
                    (0..).zip(&nets).filter(|(_, net)| net.contains(&address)).map(|(unit, _)| UnitId(unit)).collect();
                let key = mapped(&address.to_string());
                prop_assert_eq!(units.of(key), &expected[..]);
                for (unit, config) in (0..).zip(&configs) {
                    let ranges = units.ranges(&config.name).unwrap();
                    let inside = ranges.iter().any(|(first, last)| (*first..=*last).contains(&key));
                    prop_assert_eq!(inside, expected.contains(&UnitId(unit)));
                }
            }
            for (address, len) in units.prefixes() {
                prop_assert_eq!(units.classes[units.class_of(address) as usize].prefix.len, len);
            }
        }
    }
}
