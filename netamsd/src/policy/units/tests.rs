//! Who has which addresses, in which scope.

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
