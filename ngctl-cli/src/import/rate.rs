//! Speeds and sizes: a number with K, M, G or T.

/// Bits a second, `128K` as `128kbit`. `None` when it is none.
pub fn bits(text: &str) -> Option<String> {
    let (number, letter) = split(text)?;
    let unit = match letter {
        None => return Some(plain(number)),
        Some('k') => "kbit",
        Some('m') => "mbit",
        Some('g') => "gbit",
        Some(_) => return None,
    };
    Some(format!("{number}{unit}"))
}

/// Bytes, `20G` as `20GB`. `None` when it is none.
pub fn bytes(text: &str) -> Option<String> {
    let (number, letter) = split(text)?;
    let letter = letter.map(|letter| letter.to_ascii_uppercase().to_string()).unwrap_or_default();
    Some(format!("{number}{letter}B"))
}

fn split(text: &str) -> Option<(u64, Option<char>)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let letter = match text[digits..].to_ascii_lowercase().as_str() {
        "" => None,
        "k" => Some('k'),
        "m" => Some('m'),
        "g" => Some('g'),
        "t" => Some('t'),
        _ => return None,
    };
    Some((text[..digits].parse().ok()?, letter))
}

/// In the largest unit that needs no fraction.
fn plain(bits: u64) -> String {
    let units = [(1_000_000_000, "gbit"), (1_000_000, "mbit"), (1000, "kbit")];
    match units.into_iter().find(|(unit, _)| bits > 0 && bits.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", bits / unit),
        None => format!("{bits}bit"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_and_sizes() {
        for (text, as_bits, as_bytes) in [
            ("128K", Some("128kbit"), Some("128KB")),
            ("2m", Some("2mbit"), Some("2MB")),
            ("1G", Some("1gbit"), Some("1GB")),
            ("3T", None, Some("3TB")),
            ("64000", Some("64kbit"), Some("64000B")),
            ("1500", Some("1500bit"), Some("1500B")),
            ("0", Some("0bit"), Some("0B")),
            ("K", None, None),
            ("1.5M", None, None),
            ("12KB", None, None),
            ("-1", None, None),
        ] {
            assert_eq!(bits(text).as_deref(), as_bits, "{text}");
            assert_eq!(bytes(text).as_deref(), as_bytes, "{text}");
        }
    }
}
