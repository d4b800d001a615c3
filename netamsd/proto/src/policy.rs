//! Units seen by the policy engine: what policies counted, what was dropped, and why.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::{InOut, UnitTotals, Verdict};

/// One unit in full.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitReport {
    /// What it used.
    pub unit: UnitTotals,
    /// As configured.
    pub description: Option<String>,
    /// As configured.
    pub email: Option<String>,
    /// What it used by each policy of its list, in order of the list.
    pub policies: Vec<Part>,
    /// What was dropped of its packets, by reason; not in the counts above.
    pub dropped: Vec<Part>,
    /// Why the newest counts are missing here: the store does not take them now. They are kept in the flow tables.
    pub stale: Option<String>,
}

/// A part of a unit's packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// A policy, or a reason: `blocked`, `quota`, `policy` (none of its list held), `default` (nobody decided), `changed` (by
    /// policies that are no longer in force).
    pub name: String,
    /// Since local midnight.
    pub today: InOut,
    /// Since the first of the local month.
    pub month: InOut,
    /// Since the store was created.
    pub total: InOut,
}

/// What every policy counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policies {
    /// In the order of the configuration, and in each the units that have it in their list.
    pub policies: Vec<PolicyUnit>,
    /// Why the newest counts are missing here.
    pub stale: Option<String>,
}

/// What a policy counted of one unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyUnit {
    /// Name of the unit.
    pub unit: String,
    /// Name of the policy, and what it counted.
    pub policy: Part,
}

/// A packet that may come: unset fields are 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainQuery {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Protocol number.
    pub proto: u8,
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// Outer VLAN id.
    pub vlan: u16,
    /// Inner VLAN id.
    pub vlan_inner: u16,
    /// When, milliseconds UTC since 1970; now if unset.
    pub at_ms: Option<i64>,
}

/// How a packet is counted and judged, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// For when this holds, milliseconds UTC since 1970.
    pub at_ms: i64,
    /// What becomes of it.
    pub verdict: Verdict,
    /// `pass`, or why it is dropped: see [`Part::name`].
    pub reason: String,
    /// Whether that is enforced: mode is `divert`, and a source counts.
    pub enforced: bool,
    /// The units that it belongs to, those of its source first.
    pub units: Vec<ExplainedUnit>,
}

/// What one unit has to do with a packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedUnit {
    /// Name.
    pub unit: String,
    /// `source` or `destination`: whose address belongs to it.
    pub side: String,
    /// `pass` (a policy of its list holds), `undecided` (it has no list), or why the packet is dropped.
    pub says: String,
    /// The policy that lets it pass, as in the list.
    pub policy: Option<String>,
    /// Policies by which the unit counts it.
    pub counted_by: Vec<String>,
}

/// How much of each quota is used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quotas {
    /// In the order of the configuration.
    pub quotas: Vec<QuotaUse>,
    /// Why the newest counts are missing here.
    pub stale: Option<String>,
}

/// How much of a quota is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaUse {
    /// Name of the unit.
    pub unit: String,
    /// Which of its quotas, such as `month sum`.
    pub quota: String,
    /// Bytes used in this period.
    pub used: u64,
    /// Bytes that may be used.
    pub limit: u64,
    /// Percent of the limit at which the use is on record.
    pub warn: u8,
    /// Whether the unit is blocked when it is over.
    pub hard: bool,
    /// `under`, `warned` or `over`.
    pub state: String,
    /// When the period began, milliseconds UTC since 1970.
    pub start_ms: i64,
    /// When it ends.
    pub end_ms: i64,
}
