//! Patterns for interface names: `*` is any text, `?` any one byte, everything else itself.

use super::Problem;

/// Longest interface name, `IFNAMSIZ` without its final zero (`linux/if.h`).
const NAME_MAX: usize = 15;

/// Whether one of `patterns` matches the interface `name`.
///
/// A pattern with `*` or `?` never matches the loopback interface `lo`; only the pattern `lo` does, because what the
/// box says to itself is rarely meant to be metered.
pub fn interface_matches<P: AsRef<str>>(patterns: &[P], name: &str) -> bool {
    patterns.iter().map(AsRef::as_ref).any(|pattern| match name {
        "lo" => pattern == "lo",
        _ => matches(pattern.as_bytes(), name.as_bytes()),
    })
}

/// Goes back to the last `*` at most, so that time stays within the product of both lengths.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut next) = (0, 0);
    let mut star = None;
    while next < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at + 1, next));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[next] => {
                at += 1;
                next += 1;
            }
            _ => match star {
                Some((after_star, taken)) => {
                    star = Some((after_star, taken + 1));
                    (at, next) = (after_star, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Whether rules of nft and iptables can match the same interfaces as `pattern`: it is a name, or the beginning of one and
/// a `*`, of letters, digits and `._-@` of ASCII. Other characters mean something to one of the tools. The rules have the
/// same limit.
pub fn netfilter_pattern(pattern: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@');
    let fixed = pattern.strip_suffix('*').unwrap_or(pattern);
    !pattern.is_empty() && pattern.len() <= NAME_MAX && fixed.chars().all(plain)
}

/// Refuses a pattern that no interface name can match.
pub(super) fn check(pattern: &str) -> Result<(), Problem> {
    let never = pattern.chars().any(|char| char == '/' || char.is_whitespace() || char.is_control());
    let fixed = pattern.bytes().filter(|byte| *byte != b'*').count();
    if pattern.is_empty() || never || matches!(pattern, "." | "..") {
        return Err(Problem::Pattern(pattern.to_owned()));
    }
    if fixed > NAME_MAX {
        return Err(Problem::LongPattern(pattern.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, expected) in [
            ("eth0", "eth0", true),
            ("eth0", "eth01", false),
            ("eth0", "eth", false),
            ("eth*", "eth", true),
            ("eth*", "eth0.100", true),
            ("eth*", "veth0", false),
            ("*", "wan", true),
            ("*.100", "eth0.100", true),
            ("*.100", "eth0.1001", false),
            ("e*1*0", "eth1.100", true),
            ("e*1*0", "eth1.101", false),
            ("eth?", "eth0", true),
            ("eth?", "eth", false),
            ("eth?", "eth10", false),
            ("?*", "a", true),
            ("**", "a", true),
            ("a*a*a*a*b", "aaaaaaaaaaaaaaa", false),
            ("[e]th0", "eth0", false),
            ("", "eth0", false),
        ] {
            assert_eq!(interface_matches(&[pattern], name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn any_pattern_is_enough() {
        assert!(interface_matches(&["eth0", "wan*"], "wan1"));
        assert!(!interface_matches(&["eth0", "wan*"], "lan1"));
        assert!(!interface_matches::<&str>(&[], "eth0"));
    }

    #[test]
    fn loopback_only_when_spelled() {
        for pattern in ["*", "l*", "lo*", "l?", "??"] {
            assert!(!interface_matches(&[pattern], "lo"), "{pattern}");
        }
        assert!(interface_matches(&["*", "lo"], "lo"));
        assert!(interface_matches(&["lo*"], "lo1"));
    }

    #[test]
    fn netfilter_knows_names_and_beginnings() {
        for pattern in ["eth0", "wan*", "*", "lo", "eth0.100", "br-0123456789ab", "br-0123456789a*", "a_b@c"]
        {
            assert!(netfilter_pattern(pattern), "{pattern}");
        }
        for pattern in [
            "*eth",
            "e*0",
            "**",
            "eth?",
            "?",
            "?*",
            "eth+",
            "+",
            "a+b",
            "!eth0",
            "é",
            "",
            "br-0123456789ab*",
            "a\"b",
            "a\\*",
        ] {
            assert!(!netfilter_pattern(pattern), "{pattern}");
        }
    }

    #[test]
    fn impossible_patterns_are_refused() {
        for pattern in ["eth0", "wan*", "*", "?", "eth0.100", "br-0123456789ab", "*br-0123456789ab*"] {
            assert_eq!(check(pattern), Ok(()), "{pattern}");
        }
        for pattern in ["", "a/b", "eth 0", "eth\u{7}", ".", ".."] {
            assert_eq!(check(pattern), Err(Problem::Pattern(pattern.to_owned())));
        }
        for pattern in ["br-0123456789abc", "????????????????"] {
            assert_eq!(check(pattern), Err(Problem::LongPattern(pattern.to_owned())));
        }
    }
}
