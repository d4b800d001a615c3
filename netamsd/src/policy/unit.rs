//! One unit as the configuration describes it.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::de::{self, Deserialize, Deserializer, Visitor};

use super::conditions::Reference;
use super::quota::QuotaConfig;
use crate::flow::{Encapsulation, Scope, Tunnel};

/// One unit. `Config::validate` checks that the parts fit the kind and each other.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnitConfig {
    /// Unique name.
    pub name: String,
    /// What it is made of.
    pub kind: UnitKind,
    /// Prefixes without host bits; single addresses have the full length. Empty for a group.
    #[serde(default, deserialize_with = "prefixes")]
    pub addresses: Vec<IpNet>,
    /// Names of the units in a group; empty for other kinds.
    #[serde(default)]
    pub members: Vec<String>,
    /// Only packets with this outer VLAN id.
    pub vlan: Option<u32>,
    /// Only packets with this inner VLAN id.
    pub vlan_inner: Option<u32>,
    /// Only packets in GRE with this key; 0 is GRE without one, too.
    pub gre_key: Option<u32>,
    /// Only packets in VXLAN or Geneve with this network identifier.
    pub vni: Option<u32>,
    /// Each of these policies that holds for a packet counts it.
    #[serde(default)]
    pub acct_policy: Vec<Reference>,
    /// Packets pass if one of these policies holds, and only then.
    pub fw_policy: Option<Vec<Reference>>,
    /// How much it may use.
    #[serde(default, rename = "quota")]
    pub quotas: Vec<QuotaConfig>,
    /// None of its packets passes, unless `ngctl` has said otherwise.
    #[serde(default)]
    pub deny: bool,
    /// For people.
    pub description: Option<String>,
    /// For people.
    pub email: Option<String>,
    /// Packets that no list decides are not treated as local ones because of this unit.
    #[serde(default)]
    pub no_local_pass: bool,
}

impl UnitConfig {
    /// The scopes of its addresses; no packet is in two of them.
    pub fn scopes(&self) -> Vec<Scope> {
        let id = |id: Option<u32>| id.unwrap_or(0) as u16;
        let scope = |tunnel| Scope { vlan: id(self.vlan), vlan_inner: id(self.vlan_inner), tunnel };
        let by = |kind, key| scope(Some(Tunnel { kind, key }));
        match (self.gre_key, self.vni) {
            (Some(key), _) => vec![by(Encapsulation::Gre, key)],
            (_, Some(vni)) => vec![by(Encapsulation::Vxlan, vni), by(Encapsulation::Geneve, vni)],
            (None, None) => vec![scope(None)],
        }
    }
}

/// What a unit is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitKind {
    /// One address.
    Host,
    /// One address of a person.
    User,
    /// Several addresses.
    Cluster,
    /// Prefixes.
    Net,
    /// Other units.
    Group,
}

impl UnitKind {
    /// The word for it in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::User => "user",
            Self::Cluster => "cluster",
            Self::Net => "net",
            Self::Group => "group",
        }
    }
}

impl fmt::Display for UnitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is not an address or prefix to meter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// Not an address or prefix at all.
    #[error("`{0}` is neither an IP address nor a prefix such as 10.0.0.0/8")]
    Syntax(String),
    /// An address with a prefix length: the network it is in, or the address alone, could be meant.
    #[error("`{0}` has bits set beyond its prefix length, write {correct}", correct = .0.trunc())]
    HostBits(IpNet),
}

/// Either a prefix, or an address as the prefix of full length.
pub(super) fn parse_prefix(text: &str) -> Result<IpNet, PrefixError> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(address.into());
    }
    let net: IpNet = text.parse().map_err(|_| PrefixError::Syntax(text.to_owned()))?;
    if net == net.trunc() { Ok(net) } else { Err(PrefixError::HostBits(net)) }
}

pub(super) fn prefixes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    let prefixes = Vec::<Prefix>::deserialize(deserializer)?;
    Ok(prefixes.into_iter().map(|prefix| prefix.0).collect())
}

/// Parses inside the visitor and not after it, so that an error has the place of its element in the file.
struct Prefix(IpNet);

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PrefixVisitor;

        impl Visitor<'_> for PrefixVisitor {
            type Value = Prefix;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an IP address or a prefix")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Prefix, E> {
                parse_prefix(text).map(Prefix).map_err(E::custom)
            }
        }

        deserializer.deserialize_str(PrefixVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_prefixes() {
        for (text, net) in [
            ("192.0.2.1", "192.0.2.1/32"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("2001:db8::1", "2001:db8::1/128"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
        ] {
            assert_eq!(parse_prefix(text).unwrap().to_string(), net);
        }
        for text in ["", "10.0.0", "10.0.0.0/33", "010.0.0.1", "server", "10.0.0.0/8 "] {
            assert_eq!(parse_prefix(text), Err(PrefixError::Syntax(text.to_owned())));
        }
        assert_eq!(
            parse_prefix("10.1.0.0/8").unwrap_err().to_string(),
            "`10.1.0.0/8` has bits set beyond its prefix length, write 10.0.0.0/8"
        );
    }
}
