//! One policy as the configuration describes it: what must be true of a packet.
//!
//! Each key that is given must hold; of the values of one key, any may. Seen from a unit: the other side is the address that
//! is not the unit's.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::IpNet;
use netams_proto::text::parse_protocol;
use serde::de::{self, Deserialize, Deserializer, Visitor};

use super::schedule::{DayRange, TimeRange};
use super::unit::prefixes;
use crate::flow::Source;

/// One policy. `Config::validate` checks that it makes sense.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyConfig {
    /// Unique name.
    pub name: String,
    /// Protocols.
    #[serde(deserialize_with = "some")]
    pub proto: Vec<Protocol>,
    /// Ports of either side.
    #[serde(deserialize_with = "some")]
    pub port: Vec<Numbers>,
    /// Source ports.
    #[serde(deserialize_with = "some")]
    pub src_port: Vec<Numbers>,
    /// Destination ports.
    #[serde(deserialize_with = "some")]
    pub dst_port: Vec<Numbers>,
    /// Outer VLAN ids.
    #[serde(deserialize_with = "some")]
    pub vlan: Vec<Numbers>,
    /// Inner VLAN ids.
    #[serde(deserialize_with = "some")]
    pub vlan_inner: Vec<Numbers>,
    /// Keys of the GRE tunnel around an inner packet.
    #[serde(deserialize_with = "some")]
    pub gre_key: Vec<Numbers>,
    /// Network identifiers of the VXLAN or Geneve tunnel around an inner packet.
    #[serde(deserialize_with = "some")]
    pub vni: Vec<Numbers>,
    /// Data sources.
    #[serde(deserialize_with = "some")]
    pub ds: Vec<Source>,
    /// The other side belongs to one of these units.
    #[serde(deserialize_with = "some")]
    pub units: Vec<String>,
    /// The other side is in this list of prefixes.
    pub file: Option<PathBuf>,
    /// Either side is in one of these prefixes.
    #[serde(deserialize_with = "some_prefixes")]
    pub addr: Vec<IpNet>,
    /// The other side is in one of these autonomous systems.
    #[serde(deserialize_with = "some")]
    #[serde(rename = "as")]
    pub systems: Vec<Numbers>,
    /// At least one of these policies holds.
    #[serde(deserialize_with = "some")]
    pub policy_or: Vec<Reference>,
    /// All of these policies hold.
    #[serde(deserialize_with = "some")]
    pub policy_and: Vec<Reference>,
    /// Times of day, see [`TimeRange`].
    #[serde(deserialize_with = "some")]
    pub time: Vec<TimeRange>,
    /// Days of the week, see [`DayRange`].
    #[serde(deserialize_with = "some")]
    pub day: Vec<DayRange>,
}

impl PolicyConfig {
    /// The keys of numbers, and what is there.
    pub fn numbers(&self) -> [(&'static str, &[Numbers]); 8] {
        [
            ("port", &self.port),
            ("src_port", &self.src_port),
            ("dst_port", &self.dst_port),
            ("vlan", &self.vlan),
            ("vlan_inner", &self.vlan_inner),
            ("gre_key", &self.gre_key),
            ("vni", &self.vni),
            ("as", &self.systems),
        ]
    }
}

/// A list that is there has values: none of them would be none that a packet can have, or no condition, as one takes it.
fn some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    not_empty(Vec::deserialize(deserializer)?)
}

fn some_prefixes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    not_empty(prefixes(deserializer)?)
}

fn not_empty<T, E: de::Error>(values: Vec<T>) -> Result<Vec<T>, E> {
    if values.is_empty() { Err(E::custom("is empty, give it a value or remove the key")) } else { Ok(values) }
}

/// A policy in a list of policies: `web`, `!web` (does not hold), `%web` (if it holds, the rest of the list is not looked at).
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(from = "String")]
pub struct Reference {
    /// The policy's name.
    pub name: String,
    /// It must not hold.
    pub not: bool,
    /// What follows is not looked at if this holds.
    pub stop: bool,
}

impl From<String> for Reference {
    fn from(text: String) -> Self {
        let mut reference = Self { name: String::new(), not: false, stop: false };
        let mut rest = text.as_str();
        loop {
            rest = match rest.as_bytes().first() {
                Some(b'!') if !reference.not => {
                    reference.not = true;
                    &rest[1..]
                }
                Some(b'%') if !reference.stop => {
                    reference.stop = true;
                    &rest[1..]
                }
                _ => break,
            };
        }
        reference.name = rest.to_owned();
        reference
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = |set, mark| if set { mark } else { "" };
        write!(f, "{}{}{}", mark(self.not, "!"), mark(self.stop, "%"), self.name)
    }
}

/// A number, or the numbers from one to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// First.
    pub low: u32,
    /// Last.
    pub high: u32,
}

impl FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.trim().parse::<u32>().ok();
        let parts = text.split_once(['-', ':']).map_or((text, text), |parts| parts);
        match (number(parts.0), number(parts.1)) {
            (Some(low), Some(high)) if low <= high => Ok(Self { low, high }),
            _ => Err(format!("`{text}` is neither a number nor a range such as 8000-8100")),
        }
    }
}

/// A protocol, by name or number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocol(pub u8);

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_protocol(text).map(Self).map_err(|e| format!("`{text}` is no protocol, {e}"))
    }
}

/// Parses inside the visitor and not after it, so that an error has the place of its element in the file.
struct TextOrNumber<T>(std::marker::PhantomData<T>, &'static str);

impl<T: FromStr<Err = String>> Visitor<'_> for TextOrNumber<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.1)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        number.to_string().parse().map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrNumber(std::marker::PhantomData, "a number or a range of numbers"))
    }
}

impl<'de> Deserialize<'de> for Protocol {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrNumber(std::marker::PhantomData, "a protocol's name or number"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ranges() {
        for (text, low, high) in [("80", 80, 80), ("8000-8100", 8000, 8100), ("1:2", 1, 2), ("0", 0, 0)] {
            assert_eq!(text.parse(), Ok(Numbers { low, high }), "{text}");
        }
        for text in ["", "-1", "2-1", "1-2-3", "http", "4294967296"] {
            assert!(text.parse::<Numbers>().is_err(), "{text}");
        }
    }

    #[test]
    fn references_with_their_marks() {
        for (text, name, not, stop) in [
            ("web", "web", false, false),
            ("!web", "web", true, false),
            ("%web", "web", false, true),
            ("!%web", "web", true, true),
            ("%!web", "web", true, true),
            ("!!web", "!web", true, false),
        ] {
            assert_eq!(Reference::from(text.to_owned()), Reference { name: name.to_owned(), not, stop });
        }
    }
}
