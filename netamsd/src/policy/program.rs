//! The policies compiled to a flat program, and its evaluation in user space.
//!
//! The kernel evaluates the same [`Rule`]s and [`UnitRules`] (`kmod-bpf/src/bpf/verdict.h`, which says how a verdict comes
//! about) and comes to the same answers. A policy is a sequence of tests, each of which says how many rules further it goes
//! on; jumps go forward only, so each policy ends.

use kmod_bpf::{QuotaRule, Rule, UnitRules, side, test, unit_flag, verdict, word};

use super::lists::PrefixList;
use super::units::UnitId;
use crate::flow::{FlowKey, Source};

/// What becomes of a packet, and why it is dropped: the strongest reason last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// It passes.
    Pass,
    /// Nobody lets it pass.
    ByDefault,
    /// No policy of a unit's list holds.
    ByPolicy,
    /// A unit is over its quota.
    ByQuota,
    /// The administrator blocks a unit.
    Blocked,
}

impl Verdict {
    /// All, by the numbers that the kernel answers with.
    pub const ALL: [Self; 5] = [Self::Pass, Self::ByDefault, Self::ByPolicy, Self::ByQuota, Self::Blocked];

    /// Name as it is stored and shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::ByDefault => "default",
            Self::ByPolicy => "policy",
            Self::ByQuota => "quota",
            Self::Blocked => "blocked",
        }
    }
}

const _: () =
    assert!(Verdict::Blocked as u32 == verdict::BLOCKED && Verdict::ByDefault as u32 == verdict::BY_DEFAULT);

/// One of the two ends of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Where it comes from.
    Source,
    /// Where it goes to.
    Destination,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Source, Self::Destination];

    fn other(self) -> Self {
        if self == Self::Source { Self::Destination } else { Self::Source }
    }
}

/// What is judged: a packet of a flow, and the units that its addresses belong to.
#[derive(Debug, Clone)]
pub struct Subject<'a> {
    /// Of which flow.
    pub key: &'a FlowKey,
    /// Who counts it.
    pub source: Source,
    /// Units of the source and of the destination, ascending.
    pub units: [Vec<UnitId>; 2],
}

impl Subject<'_> {
    /// Units of one side.
    pub fn units_of(&self, side: Side) -> &[UnitId] {
        &self.units[side as usize]
    }
}

/// What changes while a program is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// [`unit_flag`]s of unit 0 and of each unit.
    pub flags: Vec<u32>,
    /// Whether each schedule holds.
    pub schedules: Vec<bool>,
}

/// All policies of a configuration.
#[derive(Debug, Default)]
pub struct Program {
    /// How packets of unit 0, which stands for no unit, and of each unit are judged.
    pub units: Vec<UnitRules>,
    /// Lists of policies.
    pub words: Vec<u32>,
    /// The steps of all policies.
    pub rules: Vec<Rule>,
    /// Which packets are charged to hard quotas; the n-th is of the n-th hard one of [`Engine::quotas`](super::Engine::quotas).
    pub quota_rules: Vec<QuotaRule>,
    /// Lists of prefixes.
    pub lists: Vec<PrefixList>,
}

/// What the units of a side say, a bit each.
#[derive(Default, Clone, Copy)]
struct Said {
    strongest: Option<Verdict>,
    passed: bool,
    undecided_local: bool,
    undecided_all: bool,
}

impl Program {
    /// Whether the policy whose first rule is `first` holds for a packet of a unit on this side.
    pub fn policy_holds(&self, first: u32, subject: &Subject<'_>, side: Side, schedules: &[bool]) -> bool {
        let mut at = first as usize;
        for _ in 0..kmod_bpf::MAX_RULES {
            let Some(rule) = self.rules.get(at) else { return false };
            if rule.test == test::ANSWER {
                return rule.low != 0;
            }
            let holds = self.rule_holds(rule, subject, side, schedules);
            at += usize::from(if holds { rule.yes } else { rule.no });
        }
        false
    }

    fn rule_holds(&self, rule: &Rule, subject: &Subject<'_>, unit_side: Side, schedules: &[bool]) -> bool {
        let key = subject.key;
        let within = |value: u32| rule.low <= value && value <= rule.high;
        let looked_at = match rule.side {
            side::SOURCE => Side::Source,
            side::DESTINATION => Side::Destination,
            _ => unit_side.other(),
        };
        match rule.test {
            test::PROTO => within(key.proto.into()),
            test::SPORT => has_ports(key) && within(key.sport.into()),
            test::DPORT => has_ports(key) && within(key.dport.into()),
            test::VLAN => within(key.vlan.into()),
            test::VLAN_INNER => within(key.vlan_inner.into()),
            test::TUNNEL => {
                let (kind, number) = key.tunnel.map_or((0, 0), |tunnel| (tunnel.kind.number(), tunnel.key));
                rule.list >> kind & 1 != 0 && within(number)
            }
            test::SOURCE => within(subject.source as u32),
            test::PREFIX => {
                let address = if looked_at == Side::Source { key.src } else { key.dst };
                let list = self.lists.get(usize::from(rule.list));
                list.and_then(|list| list.value_at(address)).is_some_and(within)
            }
            test::UNIT => subject.units_of(looked_at).iter().any(|unit| unit.0 + 1 == rule.low),
            test::SCHEDULE => schedules.get(rule.low as usize).is_some_and(|holds| *holds),
            _ => false,
        }
    }

    /// What becomes of a packet.
    pub fn verdict(&self, subject: &Subject<'_>, state: &State) -> Verdict {
        if is_neighbour_discovery(subject.key) {
            return Verdict::Pass;
        }
        let said = Side::BOTH.map(|side| self.side_says(subject, side, state));
        if let Some(reason) = said.iter().filter_map(|said| said.strongest).max() {
            return reason;
        }
        let nobody = state.flags.first().copied().unwrap_or(0);
        let undecided = |said: &Said| match (said.undecided_local, said.undecided_all) {
            (true, _) => unit_flag::DROP_LOCAL,
            (false, true) => unit_flag::DROP_ALL,
            _ => 0,
        };
        let dropped = if subject.units.iter().all(Vec::is_empty) {
            nobody & unit_flag::DROP_ALL != 0
        } else {
            said.iter().any(|said| !said.passed && nobody & undecided(said) != 0)
        };
        if dropped { Verdict::ByDefault } else { Verdict::Pass }
    }

    fn side_says(&self, subject: &Subject<'_>, side: Side, state: &State) -> Said {
        let mut said = Said::default();
        for unit in subject.units_of(side) {
            match self.unit_says(*unit, subject, side, state) {
                UnitSays::Drop(reason) => said.strongest = said.strongest.max(Some(reason)),
                UnitSays::Pass(_) => said.passed = true,
                UnitSays::Undecided { local: true } => said.undecided_local = true,
                UnitSays::Undecided { local: false } => said.undecided_all = true,
            }
        }
        said
    }

    /// What one unit of a packet says to it.
    pub fn unit_says(&self, unit: UnitId, subject: &Subject<'_>, side: Side, state: &State) -> UnitSays {
        let number = unit.0 as usize + 1;
        let (Some(rules), Some(flags)) = (self.units.get(number), state.flags.get(number)) else {
            return UnitSays::Undecided { local: true };
        };
        if flags & unit_flag::BLOCKED != 0 {
            return UnitSays::Drop(Verdict::Blocked);
        }
        if flags & unit_flag::OVER_QUOTA != 0 {
            return UnitSays::Drop(Verdict::ByQuota);
        }
        if flags & unit_flag::HAS_LIST == 0 {
            return UnitSays::Undecided { local: flags & unit_flag::NO_LOCAL_PASS == 0 };
        }
        for (place, text) in
            (0..kmod_bpf::MAX_LIST).zip(self.words.get(rules.list as usize..).unwrap_or_default())
        {
            let holds = self.policy_holds(text & word::NUMBER, subject, side, &state.schedules);
            if holds != (text & word::NOT != 0) {
                return UnitSays::Pass(place);
            }
            if text & word::LAST != 0 {
                break;
            }
        }
        UnitSays::Drop(Verdict::ByPolicy)
    }
}

/// What one unit says to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitSays {
    /// It must not pass.
    Drop(Verdict),
    /// The policy at this place of its list lets it pass.
    Pass(usize),
    /// It has no list.
    Undecided {
        /// The rule for local packets decides, and not the one for all.
        local: bool,
    },
}

/// What IPv6 has in place of ARP, which is never judged (RFC 4861): without it nobody on the link is found.
fn is_neighbour_discovery(key: &FlowKey) -> bool {
    const ICMPV6: u8 = 58;
    key.version == 6 && key.proto == ICMPV6 && !key.fragment && (133..=137).contains(&(key.dport >> 8))
}

/// Whether the ports of a flow are ports.
fn has_ports(key: &FlowKey) -> bool {
    /// TCP, UDP, DCCP, SCTP, UDP-Lite.
    const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];
    WITH_PORTS.contains(&key.proto) && !key.fragment
}
