//! Who has which addresses, in which scope.

use std::net::IpAddr;

use proptest::prelude::*;

use ipnet::IpNet;

use super::super::UnitKind;
use super::*;
use crate::flow::{Encapsulation, Tunnel};

pub(in crate::policy) fn unit(name: &str, kind: UnitKind, parts: &[&str]) -> UnitConfig {
    let own = |text: &&str| (*text).to_owned();
    let net = |text: &&str| {
        text.parse().unwrap_or_else(|_| IpNet::from(text.parse::<IpAddr>().expect("a prefix or an address")))
    };
    let (addresses, members) = match kind {
        UnitKind::Group => (Vec::new(), parts.iter().map(own).collect()),
        _ => (parts.iter().map(net).collect(), Vec::new()),
    };
    UnitConfig {
        name: name.to_owned(),
        kind,
        addresses,
        members,
        vlan: None,
        vlan_inner: None,
        gre_key: None,
        vni: None,
        acct_policy: Vec::new(),
        fw_policy: None,
        quotas: Vec::new(),
        deny: false,
        description: None,
        email: None,
        no_local_pass: false,
    }
}

pub(in crate::policy) fn mapped(text: &str) -> Ipv6Addr {
    match text.parse().unwrap() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

fn names_in(units: &Units, scope: Scope, address: &str) -> Vec<String> {
    let name = |unit: &UnitId| units.names()[unit.0 as usize].clone();
    units.of(scope, mapped(address)).iter().map(name).collect()
}

/// Prefixes of a configuration without other scopes.
fn plain_prefixes(units: &Units) -> Vec<(Ipv6Addr, u8)> {
    let plain = |prefix: Prefix| {
        assert_eq!(prefix.scope, Scope::ANY);
        (prefix.address, prefix.len)
    };
    units.prefixes().into_iter().map(plain).collect()
}

/// Ranges of a unit without another scope.
fn plain_ranges(units: &Units, name: &str) -> AddressRanges {
    let scopes = units.ranges(name).unwrap();
    assert!(scopes.iter().all(|(scope, _)| *scope == Scope::ANY));
    scopes.into_iter().flat_map(|(_, ranges)| ranges).collect()
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
    names_in(units, Scope::ANY, address)
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
    assert_eq!(plain_prefixes(&units), [(mapped("192.0.2.0"), 120)]);
}

#[test]
fn ipv6_prefixes_do_not_contain_ipv4() {
    let units =
        Units::new(&[unit("six", UnitKind::Net, &["::/0"]), unit("host", UnitKind::Host, &["192.0.2.1"])]);
    assert_eq!(names_of(&units, "2001:db8::1"), ["six"]);
    assert_eq!(names_of(&units, "192.0.2.1"), ["host"]);
    assert!(names_of(&units, "192.0.2.2").is_empty());
    assert_eq!(
        plain_ranges(&units, "six"),
        [
            (mapped("::"), mapped("::fffe:ffff:ffff")),
            (mapped("::1:0:0:0"), mapped("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")),
        ]
    );
    assert_eq!(
        plain_prefixes(&units),
        [(mapped("::"), 0), (mapped("0.0.0.0"), 96), (mapped("192.0.2.1"), 128)]
    );
}

#[test]
fn all_of_ipv4_and_ipv6() {
    let units = Units::new(&[unit("world", UnitKind::Net, &["::/0", "0.0.0.0/0"])]);
    assert_eq!(names_of(&units, "192.0.2.1"), ["world"]);
    assert_eq!(
        plain_ranges(&units, "world"),
        [(mapped("::"), mapped("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"))]
    );
}

#[test]
fn ranges_merge_members() {
    let units = office();
    assert_eq!(
        plain_ranges(&units, "all"),
        [
            (mapped("10.0.0.0"), mapped("10.255.255.255")),
            (mapped("192.0.2.1"), mapped("192.0.2.2")),
            (mapped("2001:db8::"), mapped("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff")),
        ]
    );
    assert_eq!(plain_ranges(&units, "printer"), [(mapped("10.0.0.0"), mapped("10.0.0.0"))]);
    assert_eq!(units.ranges("nobody"), None);
}

#[test]
fn the_address_of_a_prefix_is_in_no_longer_one() {
    let units = office();
    assert_eq!(
        plain_prefixes(&units),
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
    assert_eq!(plain_prefixes(&units), [(mapped("10.0.0.0"), 105), (mapped("10.128.0.0"), 105)]);
}

pub(in crate::policy) fn scoped(name: &str, parts: &[&str], scope: Scope) -> UnitConfig {
    let id = |id: u16| (id != 0).then_some(u32::from(id));
    let tunnel = scope.tunnel;
    let key = |kinds: &[Encapsulation]| tunnel.filter(|t| kinds.contains(&t.kind)).map(|t| t.key);
    UnitConfig {
        vlan: id(scope.vlan),
        vlan_inner: id(scope.vlan_inner),
        gre_key: key(&[Encapsulation::Gre]),
        vni: key(&[Encapsulation::Vxlan, Encapsulation::Geneve]),
        ..unit(name, UnitKind::Net, parts)
    }
}

fn vlan(vlan: u16) -> Scope {
    Scope { vlan, ..Scope::ANY }
}

fn tunnel(kind: Encapsulation, key: u32) -> Scope {
    Scope { tunnel: Some(Tunnel { kind, key }), ..Scope::ANY }
}

#[test]
fn the_same_addresses_are_other_units_in_other_scopes() {
    use Encapsulation::{Geneve, Gre, Gtpu, Vxlan};
    let units = Units::new(&[
        unit("lan", UnitKind::Net, &["10.0.0.0/8"]),
        scoped("ten", &["10.0.0.0/8"], vlan(10)),
        scoped("twenty", &["10.1.0.0/16"], vlan(20)),
        scoped("inside", &["10.0.0.0/8"], Scope { vlan: 20, vlan_inner: 10, tunnel: None }),
        scoped("gre", &["10.0.0.0/8"], tunnel(Gre, 7)),
        scoped("keyless", &["10.0.0.0/8"], tunnel(Gre, 0)),
        scoped("vni", &["10.1.0.0/16"], tunnel(Vxlan, 7)),
        unit("tenants", UnitKind::Group, &["ten", "twenty", "vni"]),
    ]);
    let in_vlan = |vlan, kind, key| Scope { vlan, ..tunnel(kind, key) };
    for (scope, address, expected) in [
        (Scope::ANY, "10.1.0.1", &["lan"][..]),
        (vlan(10), "10.1.0.1", &["lan", "ten", "tenants"]),
        (vlan(10), "192.0.2.1", &[]),
        (vlan(20), "10.1.0.1", &["lan", "twenty", "tenants"]),
        (vlan(20), "10.2.0.1", &["lan"]),
        (vlan(30), "10.1.0.1", &["lan"]),
        (Scope { vlan: 20, vlan_inner: 10, tunnel: None }, "10.2.0.1", &["lan", "inside"]),
        (Scope { vlan: 10, vlan_inner: 10, tunnel: None }, "10.2.0.1", &["lan", "ten", "tenants"]),
        (tunnel(Gre, 7), "10.1.0.1", &["lan", "gre"]),
        (tunnel(Gre, 0), "10.1.0.1", &["lan", "keyless"]),
        (tunnel(Vxlan, 7), "10.1.0.1", &["lan", "vni", "tenants"]),
        (tunnel(Geneve, 7), "10.1.0.1", &["lan", "vni", "tenants"]),
        (tunnel(Gtpu, 7), "10.1.0.1", &["lan"]),
        (in_vlan(10, Vxlan, 7), "10.1.0.1", &["lan", "ten", "vni", "tenants"]),
        (in_vlan(20, Geneve, 8), "10.1.0.1", &["lan", "twenty", "tenants"]),
    ] {
        assert_eq!(names_in(&units, scope, address), expected, "{scope:?} {address}");
    }
}

#[test]
fn prefixes_have_the_scope_of_their_unit() {
    let units = Units::new(&[
        scoped("ten", &["10.0.0.0/8", "10.0.0.0/16"], vlan(10)),
        scoped("vni", &["2001:db8::/32"], tunnel(Encapsulation::Vxlan, 7)),
    ]);
    let prefix = |scope, address, len| Prefix { scope, address: mapped(address), len };
    assert_eq!(
        units.prefixes(),
        [
            prefix(tunnel(Encapsulation::Vxlan, 7), "2001:db8::", 32),
            prefix(tunnel(Encapsulation::Geneve, 7), "2001:db8::", 32),
            prefix(vlan(10), "10.1.0.0", 104),
            prefix(vlan(10), "10.0.0.0", 112),
        ]
    );
    let ten = vec![(mapped("10.0.0.0"), mapped("10.255.255.255"))];
    assert_eq!(units.ranges("ten"), Some(vec![(vlan(10), ten)]));
}

/// The members of a group overlap only where their scopes and their addresses both do: there alone it needs more prefixes.
#[test]
fn a_group_has_prefixes_of_its_own_where_members_overlap() {
    let units = Units::new(&[
        unit("lan", UnitKind::Net, &["10.1.0.0/16", "192.0.2.0/24"]),
        scoped("ten", &["10.0.0.0/8"], vlan(10)),
        scoped("gre", &["10.1.2.0/24"], tunnel(Encapsulation::Gre, 7)),
        unit("all", UnitKind::Group, &["lan", "ten", "gre"]),
    ]);
    let both = Scope { vlan: 10, ..tunnel(Encapsulation::Gre, 7) };
    let mut prefixes: Vec<_> = units.prefixes().iter().map(|p| (p.scope, p.address, p.len)).collect();
    prefixes.sort();
    let mut expected = [
        (Scope::ANY, "10.1.0.0", 112),
        (Scope::ANY, "192.0.2.0", 120),
        (vlan(10), "10.0.0.0", 104),
        (vlan(10), "10.1.0.0", 112),
        (tunnel(Encapsulation::Gre, 7), "10.1.2.0", 120),
        (both, "10.1.2.0", 120),
    ]
    .map(|(scope, address, len)| (scope, mapped(address), len));
    expected.sort();
    assert_eq!(prefixes, expected);
    assert_eq!(names_in(&units, both, "10.1.2.3"), ["lan", "ten", "gre", "all"]);
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

/// Few of each, so that they meet; a VNI is that of a unit, of both kinds of tunnel.
fn scopes() -> impl Strategy<Value = Scope> {
    use Encapsulation::{Geneve, Gre, Vxlan};
    let tunnel = (prop_oneof![Just(Gre), Just(Vxlan), Just(Geneve)], 1..3u32);
    let tunnel = tunnel.prop_map(|(kind, key)| Tunnel { kind, key });
    (prop_oneof![Just(0), 1..3u16], prop_oneof![Just(0), 1..3u16], proptest::option::of(tunnel))
        .prop_map(|(vlan, vlan_inner, tunnel)| Scope { vlan, vlan_inner, tunnel })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn lookups_agree_with_a_search_of_all_prefixes(
        units in proptest::collection::vec((nets(), scopes(), 0..8u8), 0..12),
        packet in scopes(),
        bits in any::<u8>(),
        low in prop_oneof![Just(0u32), Just(0xff_ffff), 0..=0xff_ffffu32],
    ) {
        let mut configs: Vec<_> = (0..).zip(&units)
            .map(|(index, (net, scope, _))| scoped(&format!("u{index}"), &[&net.to_string()], *scope))
            .collect();
        let nets = units.len();
        // Three groups of some of these, and one of the first two and more.
        for group in 0..3 {
            let names: Vec<_> = (0..nets).filter(|i| units[*i].2 >> group & 1 != 0).map(|i| format!("u{i}")).collect();
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            configs.push(unit(&format!("g{group}"), UnitKind::Group, &names));
        }
        configs.push(unit("top", UnitKind::Group, &["g0", "g1", "u0"]));
        let contains = |index: usize, address: &IpAddr| {
            let in_scope = |scope: Scope| scope.and(&packet) == Some(packet);
            configs[index].scopes().into_iter().any(in_scope) && units[index].0.contains(address)
        };
        let built = Units::new(&configs);
        let v4 = IpAddr::from((u32::from(bits) << 24 | low).to_be_bytes());
        let v6 = IpAddr::from(Ipv6Addr::from_bits(u128::from(bits) << 120 | u128::from(low)));
        for address in [v4, v6] {
            let mut expected: Vec<bool> = (0..nets).map(|index| contains(index, &address)).collect();
            for group in 0..3 {
                expected.push((0..nets).any(|i| units[i].2 >> group & 1 != 0 && expected[i]));
            }
            let u0 = nets > 0 && expected[0];
            expected.push(expected[nets] || expected[nets + 1] || u0);
            let key = mapped(&address.to_string());

            // Each unit's weights add up to one where it has the packet, and to nothing elsewhere.
            let mut weights = vec![0; configs.len()];
            for (unit, weight) in built.classes_of(packet, key).flat_map(|class| built.of_class(class)) {
                weights[unit.0 as usize] += weight;
            }
            prop_assert_eq!(weights, expected.iter().map(|has| Weight::from(*has)).collect::<Vec<_>>());
            let named: Vec<_> = (0..).map(UnitId).zip(&expected).filter(|(_, has)| **has).map(|(unit, _)| unit).collect();
            prop_assert_eq!(built.of(packet, key), named);

            for (config, has) in configs.iter().zip(expected) {
                let scopes = built.ranges(&config.name).unwrap();
                let mut around = scopes.iter().filter(|(scope, _)| scope.and(&packet) == Some(packet));
                let inside = around.any(|(_, ranges)| ranges.iter().any(|(first, last)| (*first..=*last).contains(&key)));
                prop_assert_eq!(inside, has);
            }
        }
        for prefix in built.prefixes() {
            let class = &built.classes[built.class_in(prefix.scope, prefix.address) as usize];
            prop_assert_eq!((class.scope, class.len), (prefix.scope, prefix.len));
        }
    }
}
