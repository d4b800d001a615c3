//! The values of a policy's targets.

use std::fmt::{self, Display, Formatter};

use netams_proto::text::{self, parse_protocol};

use super::toml::Value;

/// Which end of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// `b`, or no letter.
    Either,
    /// `s`.
    Source,
    /// `d`.
    Destination,
}

impl Side {
    /// The key for ports of this side.
    pub fn port_key(self) -> &'static str {
        match self {
            Self::Either => "port",
            Self::Source => "src_port",
            Self::Destination => "dst_port",
        }
    }
}

impl Display for Side {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Either => "any",
            Self::Source => "src",
            Self::Destination => "dst",
        })
    }
}

/// A number or range up to `max` with a letter for its side: `80`, `s80:82`, `d8000-8100`.
pub fn sided(word: &str, max: u64) -> Option<(Side, Value)> {
    let (side, rest) = match word.chars().next()? {
        's' => (Side::Source, &word[1..]),
        'd' => (Side::Destination, &word[1..]),
        'b' => (Side::Either, &word[1..]),
        _ => (Side::Either, word),
    };
    Some((side, range(rest, max)?))
}

/// A number or range up to `max`, with `:` or `-`.
fn range(word: &str, max: u64) -> Option<Value> {
    let number = |text: &str| text.parse::<u64>().ok().filter(|number| *number <= max);
    match word.split_once([':', '-']) {
        None => number(word).map(Value::Number),
        Some((first, last)) => match (number(first)?, number(last)?) {
            (first, last) if first < last => Some(Value::Text(format!("{first}-{last}"))),
            (first, last) if first == last => Some(Value::Number(first)),
            _ => None,
        },
    }
}

/// The key of the targets `proto`, `tos`, `vlan`, `time` and `day`.
pub fn key(target: &str) -> &'static str {
    match target {
        "proto" => "proto",
        "tos" => "tos",
        "vlan" => "vlan",
        "time" => "time",
        _ => "day",
    }
}

/// One value of the targets `proto`, `tos`, `vlan`, `time` or `day`, with its key; `None` when it asks for nothing.
///
/// # Errors
/// What to write instead.
pub fn simple(target: &str, word: &str) -> Result<Option<(&'static str, Value)>, String> {
    let (found, write) = match target {
        "proto" if is_every_protocol(word) => return Ok(None),
        "proto" => return protocol(word).map(|value| Some(("proto", value))),
        "tos" => (number(word).filter(|tos| *tos <= 255).map(Value::Number), "0 to 255"),
        "vlan" => (range(word, 4094), "1 to 4094"),
        "time" => (time(word), "hours such as 9-18 or 00:40-21:30"),
        _ => (days(word), "days such as Mon-Fri or Sun"),
    };
    found.map(|value| Some((key(target), value))).ok_or_else(|| format!("write {write}"))
}

/// NeTAMS sees IP packets alone, so `proto ip` is all of them.
pub fn is_every_protocol(word: &str) -> bool {
    ["ip", "all", "any"].into_iter().any(|every| every.eq_ignore_ascii_case(word))
}

fn protocol(word: &str) -> Result<Value, String> {
    let number = parse_protocol(word)?;
    let name = text::protocol(number);
    // Protocols without a name stay numbers.
    Ok(if name.parse() == Ok(number) { u64::from(number).into() } else { Value::Text(name) })
}

fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    }
}

fn time(word: &str) -> Option<Value> {
    let is_time = |text: &str| {
        let (hours, minutes) = text.split_once(':').unwrap_or((text, "0"));
        let within = |text: &str, max: u8| text.parse::<u8>().is_ok_and(|number| number <= max);
        within(hours, 24) && within(minutes, 59)
    };
    let (from, to) = word.split_once('-')?;
    (is_time(from) && is_time(to)).then(|| word.into())
}

fn days(word: &str) -> Option<Value> {
    const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    let day = |text: &str| DAYS.into_iter().find(|day| day.eq_ignore_ascii_case(text));
    match word.split_once('-') {
        None => day(word).map(Value::from),
        Some((first, last)) => Some(Value::Text(format!("{}-{}", day(first)?, day(last)?))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_and_ranges() {
        use Side::{Destination, Either, Source};
        for (word, expected) in [
            ("80", Some((Either, Value::Number(80)))),
            ("b80", Some((Either, Value::Number(80)))),
            ("s80:82", Some((Source, Value::from("80-82")))),
            ("d8000-8100", Some((Destination, Value::from("8000-8100")))),
            ("5-5", Some((Either, Value::Number(5)))),
            ("9-5", None),
            ("65536", None),
            ("s", None),
            ("", None),
            ("éa", None),
            ("www", None),
        ] {
            assert_eq!(sided(word, 65535), expected, "{word}");
        }
    }

    #[test]
    fn values_of_simple_targets() {
        for (target, word, expected) in [
            ("proto", "tcp", Some("proto = \"tcp\"")),
            ("proto", "TCP", Some("proto = \"tcp\"")),
            ("proto", "94", Some("proto = 94")),
            ("proto", "6", Some("proto = \"tcp\"")),
            ("proto", "ip", None),
            ("tos", "16", Some("tos = 16")),
            ("tos", "0x10", Some("tos = 16")),
            ("vlan", "10", Some("vlan = 10")),
            ("time", "23-7", Some("time = \"23-7\"")),
            ("time", "00:40-21:30", Some("time = \"00:40-21:30\"")),
            ("day", "mon-FRI", Some("day = \"Mon-Fri\"")),
            ("day", "Sun", Some("day = \"Sun\"")),
        ] {
            let found = simple(target, word).unwrap().map(|(key, value)| format!("{key} = {value}"));
            assert_eq!(found.as_deref(), expected, "{target} {word}");
        }
        for (target, word) in [
            ("proto", "tpc"),
            ("tos", "256"),
            ("vlan", "4095"),
            ("time", "25-26"),
            ("time", "9"),
            ("day", "Mo"),
        ] {
            assert!(simple(target, word).is_err(), "{target} {word}");
        }
    }
}
