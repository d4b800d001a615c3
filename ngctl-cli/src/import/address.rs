//! Addresses and prefixes as NeTAMS writes them: `A`, `A/LENGTH`, `A/MASK`, or `A` with `mask MASK` behind it.

use std::net::IpAddr;

use ipnet::IpNet;

use super::statement::Words;

/// A prefix without host bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parsed {
    /// The prefix; a single address has the full length.
    pub prefix: IpNet,
    /// Whether it had host bits.
    pub trimmed: bool,
    /// Whether a length or mask was given.
    pub masked: bool,
}

/// Reads `text`, and the mask at the front of `words` if one is there. `None` when it is no prefix.
pub fn take(text: &str, words: &mut Words<'_>) -> Option<Parsed> {
    let mask = if words.skip("mask") { Some(words.next()?) } else { None };
    let (address, inline) = match text.split_once('/') {
        Some((address, mask)) => (address, Some(mask)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let mask = inline.or(mask);
    let full = if address.is_ipv4() { 32 } else { 128 };
    let length = mask.map_or(Some(full), length)?;
    let given = IpNet::new(address, length).ok()?;
    Some(Parsed { prefix: given.trunc(), trimmed: given.trunc() != given, masked: mask.is_some() })
}

fn length(mask: &str) -> Option<u8> {
    mask.parse().ok().or_else(|| ipnet::ip_mask_to_prefix(mask.parse().ok()?).ok())
}

/// As netamsd's configuration has it: single addresses without a length.
pub fn text(prefix: &IpNet) -> String {
    if prefix.prefix_len() == prefix.max_prefix_len() {
        prefix.addr().to_string()
    } else {
        prefix.to_string()
    }
}

/// Whether `word` begins like an address.
pub fn looks_like_one(word: &str) -> bool {
    word == "auto" || word.split('/').next().is_some_and(|address| address.parse::<IpAddr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_prefix() {
        let cases = [
            ("10.0.0.1", Some(("10.0.0.1", false))),
            ("10.0.0.1/32", Some(("10.0.0.1", false))),
            ("10.0.0.0/8", Some(("10.0.0.0/8", false))),
            ("10.1.0.0/8", Some(("10.0.0.0/8", true))),
            ("10.0.0.0/255.0.0.0", Some(("10.0.0.0/8", false))),
            ("10.0.0.0 mask 255.255.255.0", Some(("10.0.0.0/24", false))),
            ("10.0.0.9 mask 24", Some(("10.0.0.0/24", true))),
            ("2001:db8::/32", Some(("2001:db8::/32", false))),
            ("0.0.0.0/0", Some(("0.0.0.0/0", false))),
            ("10.0.0.0 mask 255.0.255.0", None),
            ("10.0.0.0 mask", None),
            ("10.0.0.0/33", None),
            ("10.0.0", None),
            ("auto", None),
        ];
        for (written, expected) in cases {
            let words: Vec<String> = written.split(' ').map(String::from).collect();
            let parsed = take(&words[0], &mut Words::new(&words[1..]));
            let parsed = parsed.map(|parsed| (text(&parsed.prefix), parsed.trimmed));
            assert_eq!(parsed, expected.map(|(text, trimmed)| (text.to_owned(), trimmed)), "{written}");
        }
    }
}
