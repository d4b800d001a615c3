//! Lists of prefixes with a number each: prefix files, and the autonomous systems that prefixes belong to.

use std::net::Ipv6Addr;

use ipnet::IpNet;

use super::unit::{PrefixError, parse_prefix};
use super::units::{Block, V4_MAPPED};

/// A line that is no entry. Lines and columns, in characters, begin at 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineError {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
    /// What is wrong and what to write.
    pub problem: String,
}

/// Prefixes, each with a value that is not 0; the longest one around an address decides. An IPv6 prefix around `::ffff:0:0/96` does not
/// contain IPv4 addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrefixList {
    blocks: Vec<(Block, u32)>,
    /// First address of each range, ascending; each ends where the next one starts.
    starts: Vec<u128>,
    values: Vec<Option<u32>>,
}

impl PrefixList {
    /// Of prefixes with their values; of two equal ones the latter counts.
    pub fn new(entries: impl IntoIterator<Item = (IpNet, u32)>) -> Self {
        let mut blocks: Vec<_> =
            entries.into_iter().map(|(net, value)| (Block::new(&net), Some(value))).collect();
        // Stable, so that the last of equal ones stays the last.
        blocks.sort_by_key(|(block, _)| *block);
        let mut list = Self::default();
        for (block, value) in blocks.iter().copied() {
            match list.blocks.last_mut() {
                Some(last) if last.0 == block => last.1 = value.unwrap_or(0),
                _ => list.blocks.push((block, value.unwrap_or(0))),
            }
        }
        if !list.blocks.iter().any(|(block, _)| *block == V4_MAPPED) {
            blocks.push((V4_MAPPED, None));
            blocks.sort_by_key(|(block, _)| *block);
        }
        list.starts.push(0);
        list.values.push(None);
        let mut around: Vec<(Block, Option<u32>)> = Vec::new();
        for (block, value) in blocks {
            list.leave_until(&mut around, |outer| outer.contains(block));
            list.enter(block.start, value);
            around.push((block, value));
        }
        list.leave_until(&mut around, |_| false);
        list
    }

    fn leave_until(&mut self, around: &mut Vec<(Block, Option<u32>)>, stop: impl Fn(Block) -> bool) {
        while around.last().is_some_and(|(outer, _)| !stop(*outer)) {
            if let Some((inner, _)) = around.pop()
                && let Some(next) = inner.last().checked_add(1)
            {
                self.enter(next, around.last().and_then(|(_, value)| *value));
            }
        }
    }

    fn enter(&mut self, start: u128, value: Option<u32>) {
        if self.starts.last() == Some(&start) {
            self.starts.pop();
            self.values.pop();
        }
        self.starts.push(start);
        self.values.push(value);
    }

    /// Value of the longest prefix around an address, v4-mapped for IPv4.
    pub fn value_at(&self, address: Ipv6Addr) -> Option<u32> {
        let after = self.starts.partition_point(|start| *start <= address.to_bits());
        self.values.get(after.checked_sub(1)?).copied().flatten()
    }

    /// Each prefix once, v4-mapped for IPv4, as its first address and length, and its value. Where an IPv6 prefix surrounds
    /// the IPv4 addresses, `::ffff:0:0/96` is among them with 0.
    pub fn prefixes(&self) -> impl Iterator<Item = (Ipv6Addr, u8, u32)> {
        let own = self.blocks.iter().any(|(block, _)| *block == V4_MAPPED);
        let around = self.blocks.iter().any(|(block, _)| block.contains(V4_MAPPED));
        let border = (around && !own).then_some((V4_MAPPED, 0));
        let all = self.blocks.iter().copied().chain(border);
        all.map(|(block, value)| (Ipv6Addr::from_bits(block.start), block.len, value))
    }

    /// How many prefixes it has.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

/// A file of prefixes: one a line, `#` begins a comment.
///
/// # Errors
/// The first line that is neither.
pub fn parse_prefixes(text: &str) -> Result<Vec<IpNet>, LineError> {
    entries(text, |fields| match fields {
        [prefix] => parse_prefix(prefix).map_err(|e| (0, e.to_string())),
        _ => Err((1, "there is more than a prefix in the line, write one a line".to_owned())),
    })
}

/// A file of prefixes and the numbers of their autonomous systems: `PREFIX NUMBER`, or `ADDRESS LENGTH NUMBER` as in the
/// files of CAIDA's pfx2as, in each line. Of several origins (`1_2`, `1,2`) the first counts.
///
/// # Errors
/// The first line that is no such entry.
pub fn parse_systems(text: &str) -> Result<Vec<(IpNet, u32)>, LineError> {
    entries(text, |fields| {
        let (prefix, at, number) = match fields {
            [prefix, number] => ((*prefix).to_owned(), 1, number),
            [address, length, number] => (format!("{address}/{length}"), 2, number),
            _ => return Err((0, "write a prefix and a number".to_owned())),
        };
        let net = parse_prefix(&prefix).map_err(|e: PrefixError| (0, e.to_string()))?;
        let first = number.split(['_', ',']).next().unwrap_or_default();
        let first = first.strip_prefix("AS").unwrap_or(first);
        let number = first
            .parse()
            .map_err(|_| (at, format!("`{first}` is not the number of an autonomous system")))?;
        Ok((net, number))
    })
}

/// `parse` gets the fields of each line that has some, and names the field that it does not take.
fn entries<T>(
    text: &str,
    parse: impl Fn(&[&str]) -> Result<T, (usize, String)>,
) -> Result<Vec<T>, LineError> {
    let mut found = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.split('#').next().unwrap_or_default();
        let fields: Vec<&str> = content.split_whitespace().collect();
        if fields.is_empty() {
            continue;
        }
        found.push(parse(&fields).map_err(|(field, problem)| {
            let offset =
                fields.get(field).map_or(0, |field| field.as_ptr() as usize - content.as_ptr() as usize);
            LineError { line, column: content[..offset].chars().count() + 1, problem }
        })?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::units::tests::mapped;
    use super::*;

    fn list(entries: &[(&str, u32)]) -> PrefixList {
        PrefixList::new(entries.iter().map(|(net, value)| (net.parse().unwrap(), *value)))
    }

    #[test]
    fn the_longest_prefix_decides() {
        let list = list(&[
            ("10.0.0.0/8", 1),
            ("10.1.0.0/16", 2),
            ("10.1.2.3/32", 3),
            ("::/0", 4),
            ("2001:db8::/32", 5),
            ("10.1.0.0/16", 6),
            ("255.0.0.0/8", 7),
        ]);
        for (address, value) in [
            ("10.0.0.1", Some(1)),
            ("10.1.0.0", Some(6)),
            ("10.1.2.3", Some(3)),
            ("10.1.2.4", Some(6)),
            ("10.2.0.0", Some(1)),
            ("9.255.255.255", None),
            ("11.0.0.0", None),
            ("255.255.255.255", Some(7)),
            ("::1", Some(4)),
            ("2001:db8::", Some(5)),
            ("2001:db9::", Some(4)),
            ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Some(4)),
        ] {
            assert_eq!(list.value_at(mapped(address)), value, "{address}");
        }
        assert_eq!(list.len(), 6);
        assert_eq!(list.prefixes().count(), 7, "and the border of the IPv4 addresses");
        assert_eq!(PrefixList::new([]).value_at(mapped("10.0.0.1")), None);
    }

    #[test]
    fn files() {
        let prefixes = parse_prefixes("# peers\n10.0.0.0/8\n\n 192.0.2.1 # one\n2001:db8::/32\n").unwrap();
        assert_eq!(prefixes.len(), 3);
        let systems =
            parse_systems("10.0.0.0/8 65001\n1.0.0.0\t24\t13335_174\n2001:db8::/32 AS65002\n").unwrap();
        assert_eq!(systems.iter().map(|(_, number)| *number).collect::<Vec<_>>(), [65001, 13335, 65002]);
    }

    #[test]
    fn bad_lines_have_a_place() {
        for (text, line, column) in [("10.0.0.0/8\n  10.0.0.0/33\n", 2, 3), ("10.0.0.0/8 10.0.0.0/8", 1, 12)]
        {
            let error = parse_prefixes(text).unwrap_err();
            assert_eq!((error.line, error.column), (line, column), "{error:?}");
        }
        for (text, line, column) in
            [("\n10.0.0.0/8 x", 2, 12), ("10.0.0.0/8", 1, 1), ("10.0.0.0 8 1x", 1, 12)]
        {
            let error = parse_systems(text).unwrap_err();
            assert_eq!((error.line, error.column), (line, column), "{error:?}");
        }
    }
}
