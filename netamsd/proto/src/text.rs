//! Single values as text: byte counts, protocol names, and whatever came from elsewhere made safe for a terminal.

/// `bytes` as people read them: `512 B`, `1.2 MiB`.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would be rounded to 1024.0 of this unit.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `bits` as people read them: `512 bit`, `1.2 Mbit`, in powers of 1000 as for line rates.
pub fn human_bits(bits: f64) -> String {
    const UNITS: [&str; 5] = ["bit", "kbit", "Mbit", "Gbit", "Tbit"];
    let mut value = bits;
    let mut unit = 0;
    // 999.95 would be rounded to 1000.0 of this unit.
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `text` without what could move the cursor, change colours or reverse the reading order.
pub fn clean(text: &str) -> String {
    text.chars().filter(|&c| !c.is_control() && !is_bidi(c)).collect()
}

/// Unicode's explicit directional formatting characters (UAX #9).
fn is_bidi(c: char) -> bool {
    matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Protocol numbers with the names people use for them (IANA protocol numbers).
const PROTOCOLS: &[(u8, &str)] = &[
    (1, "icmp"),
    (2, "igmp"),
    (4, "ipip"),
    (6, "tcp"),
    (17, "udp"),
    (33, "dccp"),
    (41, "ipv6"),
    (47, "gre"),
    (50, "esp"),
    (51, "ah"),
    (58, "icmpv6"),
    (89, "ospf"),
    (103, "pim"),
    (112, "vrrp"),
    (115, "l2tp"),
    (132, "sctp"),
    (136, "udplite"),
];

/// A protocol's name, or its number.
pub fn protocol(number: u8) -> String {
    match PROTOCOLS.iter().find(|(n, _)| *n == number) {
        Some((_, name)) => (*name).into(),
        None => number.to_string(),
    }
}

/// A protocol's number from its name or number.
///
/// # Errors
/// A sentence with the known names.
pub fn parse_protocol(text: &str) -> Result<u8, String> {
    let known = PROTOCOLS.iter().find(|(_, name)| name.eq_ignore_ascii_case(text)).map(|(n, _)| *n);
    known.or_else(|| text.parse().ok()).ok_or_else(|| {
        let names: Vec<_> = PROTOCOLS.iter().map(|(_, name)| *name).collect();
        format!("write a number from 0 to 255 or one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_rounded_to_one_digit() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_258_291, "1.2 MiB"),
            (1_048_575, "1.0 MiB"),
            (1_048_000, "1023.4 KiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(human_bytes(bytes), expected);
        }
    }

    #[test]
    fn bits_are_rounded_to_one_digit() {
        let cases = [
            (0.0, "0.0 bit"),
            (999.94, "999.9 bit"),
            (999.96, "1.0 kbit"),
            (12_345_678.0, "12.3 Mbit"),
            (9.99999e9, "10.0 Gbit"),
            (1e18, "1000000.0 Tbit"),
        ];
        for (bits, expected) in cases {
            assert_eq!(human_bits(bits), expected);
        }
    }

    #[test]
    fn terminal_controls_are_stripped() {
        assert_eq!(clean("a\x1b[31mb\r\n\u{9b}c\u{202e}d é"), "a[31mbcd é");
    }

    #[test]
    fn protocols_by_name_and_number() {
        for (text, expected) in [("tcp", 6), ("TCP", 6), ("icmpv6", 58), ("0", 0), ("255", 255)] {
            assert_eq!(parse_protocol(text), Ok(expected));
        }
        assert!(parse_protocol("256").is_err());
        assert!(parse_protocol("tpc").unwrap_err().contains("tcp, udp"));
        for (number, name) in PROTOCOLS {
            assert_eq!(parse_protocol(name), Ok(*number));
            assert_eq!(protocol(*number), *name);
        }
        assert_eq!(protocol(200), "200");
    }
}
