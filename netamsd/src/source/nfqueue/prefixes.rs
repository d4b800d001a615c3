//! Longest match among the configured prefixes, for overflow.

use std::net::Ipv6Addr;

use rustc_hash::FxHashMap;

use crate::source::tables::Prefix;

/// Classes by prefix. A lookup tries each length that occurs, the longest first.
pub struct PrefixIndex {
    lengths: Vec<u8>,
    classes: FxHashMap<Prefix, u32>,
}

impl PrefixIndex {
    /// Of prefixes by class.
    pub fn new(prefixes: impl IntoIterator<Item = (u32, Prefix)>) -> Self {
        let classes: FxHashMap<Prefix, u32> = prefixes
            .into_iter()
            .map(|(class, (address, len))| ((masked(address, len), len), class))
            .collect();
        let mut lengths: Vec<u8> = classes.keys().map(|(_, len)| *len).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        Self { lengths, classes }
    }

    /// Class of the longest prefix that contains `address`.
    pub fn class(&self, address: Ipv6Addr) -> Option<u32> {
        self.lengths.iter().find_map(|&len| self.classes.get(&(masked(address, len), len)).copied())
    }
}

fn masked(address: Ipv6Addr, len: u8) -> Ipv6Addr {
    let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
    Ipv6Addr::from_bits(address.to_bits() & mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_decides() {
        let prefix = |text: &str, len| (text.parse().unwrap(), len);
        let index = PrefixIndex::new([
            (1, prefix("::ffff:10.0.0.0", 104)),
            (2, prefix("::ffff:10.1.0.0", 112)),
            (3, prefix("2001:db8::7", 128)),
            (4, prefix("::", 0)),
        ]);
        let class = |text: &str| index.class(text.parse().unwrap());
        assert_eq!(class("::ffff:10.2.3.4"), Some(1));
        assert_eq!(class("::ffff:10.1.3.4"), Some(2));
        assert_eq!(class("2001:db8::7"), Some(3));
        assert_eq!(class("2001:db8::8"), Some(4));
        assert_eq!(PrefixIndex::new([]).class(Ipv6Addr::LOCALHOST), None);
    }
}
