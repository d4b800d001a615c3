//! Longest match among the configured prefixes, for overflow.

use std::net::Ipv6Addr;

use rustc_hash::FxHashMap;

use crate::flow::{Prefix, Scope};

/// Classes by prefix. A lookup tries each scope that a packet is in, and there each length that occurs anywhere, the longest
/// first.
pub struct PrefixIndex {
    /// [`Scope::selection`]s that occur, a bit each.
    selections: u8,
    lengths: Vec<u8>,
    /// By prefixes with their first address.
    classes: FxHashMap<Prefix, u32>,
}

impl PrefixIndex {
    /// Of prefixes by class.
    pub fn new(prefixes: impl IntoIterator<Item = (u32, Prefix)>) -> Self {
        let classes: FxHashMap<Prefix, u32> = prefixes
            .into_iter()
            .map(|(class, prefix)| (prefix_at(prefix.scope, prefix.address, prefix.len), class))
            .collect();
        let mut lengths: Vec<u8> = classes.keys().map(|prefix| prefix.len).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        let selections = classes.keys().fold(0, |all, prefix| all | 1 << prefix.scope.selection());
        Self { selections, lengths, classes }
    }

    /// Class of the longest prefix that contains `address`, in each scope that a packet is in whose own VLAN ids and tunnel
    /// are `scope`.
    pub fn classes(&self, scope: Scope, address: Ipv6Addr) -> impl Iterator<Item = u32> {
        scope.around(self.selections).filter_map(move |scope| {
            self.lengths.iter().find_map(|&len| self.classes.get(&prefix_at(scope, address, len)).copied())
        })
    }
}

/// The prefix of this length around an address.
fn prefix_at(scope: Scope, address: Ipv6Addr, len: u8) -> Prefix {
    let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
    Prefix { scope, address: Ipv6Addr::from_bits(address.to_bits() & mask), len }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{Encapsulation, Tunnel};

    fn classes(index: &PrefixIndex, scope: Scope, text: &str) -> Vec<u32> {
        index.classes(scope, text.parse().unwrap()).collect()
    }

    #[test]
    fn the_longest_prefix_decides() {
        let prefix = |text: &str, len| Prefix { scope: Scope::ANY, address: text.parse().unwrap(), len };
        let index = PrefixIndex::new([
            (1, prefix("::ffff:10.0.0.0", 104)),
            (2, prefix("::ffff:10.1.0.0", 112)),
            (3, prefix("2001:db8::7", 128)),
            (4, prefix("::", 0)),
        ]);
        let class = |text: &str| classes(&index, Scope::ANY, text);
        assert_eq!(class("::ffff:10.2.3.4"), [1]);
        assert_eq!(class("::ffff:10.1.3.4"), [2]);
        assert_eq!(class("2001:db8::7"), [3]);
        assert_eq!(class("2001:db8::8"), [4]);
        assert!(classes(&PrefixIndex::new([]), Scope::ANY, "::1").is_empty());
    }

    #[test]
    fn each_scope_around_a_packet_has_its_own() {
        let vlan = |vlan| Scope { vlan, ..Scope::ANY };
        let tunnel = |key| Some(Tunnel { kind: Encapsulation::Gre, key });
        let prefix = |scope, text: &str, len| Prefix { scope, address: text.parse().unwrap(), len };
        let index = PrefixIndex::new([
            (1, prefix(Scope::ANY, "::ffff:10.0.0.0", 104)),
            (2, prefix(vlan(10), "::ffff:10.0.0.0", 104)),
            (3, prefix(vlan(10), "::ffff:10.1.0.0", 112)),
            (4, prefix(vlan(20), "::ffff:10.0.0.0", 104)),
            (5, prefix(Scope { vlan: 10, vlan_inner: 0, tunnel: tunnel(7) }, "::ffff:10.1.0.0", 112)),
        ]);
        let in_tunnel = |vlan, key| Scope { vlan, vlan_inner: 0, tunnel: tunnel(key) };
        for (scope, address, expected) in [
            (Scope::ANY, "::ffff:10.1.2.3", &[1][..]),
            (vlan(10), "::ffff:10.1.2.3", &[1, 3]),
            (vlan(10), "::ffff:10.2.2.3", &[1, 2]),
            (vlan(20), "::ffff:10.1.2.3", &[1, 4]),
            (vlan(30), "::ffff:10.1.2.3", &[1]),
            (Scope { vlan_inner: 5, ..vlan(10) }, "::ffff:10.2.2.3", &[1, 2]),
            (in_tunnel(10, 7), "::ffff:10.1.2.3", &[1, 3, 5]),
            (in_tunnel(10, 8), "::ffff:10.1.2.3", &[1, 3]),
            (in_tunnel(0, 7), "::ffff:10.1.2.3", &[1]),
            (vlan(10), "::ffff:11.1.2.3", &[]),
        ] {
            assert_eq!(classes(&index, scope, address), expected, "{scope:?} {address}");
        }
    }
}
