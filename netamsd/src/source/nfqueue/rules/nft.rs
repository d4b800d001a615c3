//! The rules as the table `inet netams` of nftables, which holds nothing else.
//!
//! nft does not show every rule in the words in which it was given, and other versions show it otherwise, so each rule
//! carries the identity of what it is a part of in its comment: a rule that was replaced or added by hand has none.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use super::{
    Chain, Family, Gate, Installed, Plan, Queues, Reading, RuleCounter, RulesError,
    plan::{Line, Rule, Side, fingerprint},
    tool,
};

const GATE: &str = "gate";
/// Right after table mangle (-150), like the jump at the end of iptables' chains.
const PRIORITY: i32 = -149;

/// A queue statement that is only checked, in JSON so that nft has to know that too.
const TRY: &str = r#"{"nftables": [
    {"add": {"table": {"family": "inet", "name": "netams_try"}}},
    {"add": {"chain": {"family": "inet", "table": "netams_try", "name": "try"}}},
    {"add": {"rule": {"family": "inet", "table": "netams_try", "chain": "try", "expr": [
        {"queue": {"num": 0, "flags": ["bypass"]}}
    ]}}}
]}"#;

/// The tool.
#[derive(Debug)]
pub(super) struct Nft {
    program: PathBuf,
}

impl Nft {
    /// Finds it.
    ///
    /// # Errors
    /// When it is not there.
    pub fn find() -> Result<Self, RulesError> {
        Ok(Self { program: tool::find("nft", "nftables")? })
    }

    /// Whether this kernel can queue by nftables, and this nft can write JSON: has both checked, and changes nothing.
    ///
    /// # Errors
    /// When they cannot.
    pub fn try_queue(&self) -> Result<(), RulesError> {
        match tool::run(&self.program, &["-j", "-c", "-f", "-"], TRY) {
            Err(RulesError::Refused { line, .. }) => Err(RulesError::NoQueue(line)),
            tried => tried.map(drop),
        }
    }

    /// See [`super::Rules::install`].
    pub fn install(&self, plan: &Plan, gate: &Gate) -> Result<Installed, RulesError> {
        let layout = Layout::new(plan, gate);
        match self.list()? {
            Some(listing) if layout.has_plan(&listing) => {
                if !layout.has_gate(&listing) {
                    self.apply(&gate_text(gate))?;
                }
                Ok(Installed::Adopted)
            }
            _ => self.apply(&layout.install_text()).map(|()| Installed::New),
        }
    }

    /// See [`super::Rules::adopt`].
    pub fn has(&self, plan: &Plan) -> Result<bool, RulesError> {
        Ok(self.list()?.is_some_and(|listing| Layout::new(plan, &Gate::Open).has_plan(&listing)))
    }

    /// See [`super::Rules::set_gate`].
    pub fn set_gate(&self, gate: &Gate) -> Result<(), RulesError> {
        self.apply(&gate_text(gate))
    }

    /// See [`super::Rules::read`].
    pub fn read(&self, plan: &Plan, gate: &Gate) -> Result<Option<Reading>, RulesError> {
        let layout = Layout::new(plan, gate);
        let listing = self.list()?.filter(|listing| layout.has_plan(listing));
        Ok(listing.map(|listing| Reading {
            rules: layout.counters(&listing),
            gated: layout.has_gate(&listing),
            followed: Vec::new(),
        }))
    }

    /// See [`super::find_queue_rules`].
    pub fn queue_rules(&self) -> Result<Vec<RuleCounter>, RulesError> {
        Ok(self.list()?.map(|listing| listing.queue_rules().collect()).unwrap_or_default())
    }

    /// See [`super::remove`].
    pub fn remove(&self) -> Result<(), RulesError> {
        match self.apply("delete table inet netams\n") {
            Err(e) if e.is_absence() => Ok(()),
            removed => removed,
        }
    }

    /// Carries out a text in one transaction.
    pub(super) fn apply(&self, text: &str) -> Result<(), RulesError> {
        tool::run(&self.program, &["-f", "-"], text).map(drop)
    }

    /// What is in our table; `None` when there is no such table.
    fn list(&self) -> Result<Option<Listing>, RulesError> {
        match tool::run(&self.program, &["-j", "list", "table", "inet", "netams"], "") {
            Err(e) if e.is_absence() => Ok(None),
            text => Listing::parse(&text?).map(Some),
        }
    }
}

/// What is to be in the table: each chain and its rules.
pub(super) struct Layout {
    /// With a hook each.
    chains: Vec<(Chain, Vec<Line>)>,
    gate: Vec<Line>,
    /// Comment of the rules in `chains`.
    plan_comment: String,
    /// Comment of the rules in `gate`.
    gate_comment: String,
}

impl Layout {
    pub fn new(plan: &Plan, gate: &Gate) -> Self {
        let chains: Vec<_> = plan.chains().map(|chain| (chain, lines(plan, chain))).collect();
        let gate = gate_lines(gate);
        let named = chains.iter().flat_map(|(chain, lines)| lines.iter().map(|line| (chain.name(), line)));
        let plan_comment = comment(named);
        let gate_comment = gate_comment(&gate);
        Self { chains, gate, plan_comment, gate_comment }
    }

    /// The transaction that makes it so, whatever table of ours is there.
    pub fn install_text(&self) -> String {
        let mut text = "add table inet netams\ndelete table inet netams\ntable inet netams {\n".to_owned();
        let chain = |name, hook: &str, lines: &[Line], comment: &str| {
            let rule = |line: &Line| format!("\t\t{} comment \"{comment}\"\n", line.text);
            format!("\tchain {name} {{\n{hook}{}\t}}\n", lines.iter().map(rule).collect::<String>())
        };
        text.push_str(&chain(GATE, "", &self.gate, &self.gate_comment));
        for (place, lines) in &self.chains {
            let name = place.name();
            let hook = format!("\t\ttype filter hook {name} priority {PRIORITY}; policy accept;\n");
            text.push_str(&chain(name, &hook, lines, &self.plan_comment));
        }
        text.push_str("}\n");
        text
    }

    /// Whether everything of the plan is there and nothing else, whatever is in the gate.
    fn has_plan(&self, listing: &Listing) -> bool {
        listing.chains().count() == self.chains.len() + 1
            && listing.chains().any(|found| found.name == GATE && found.hook.is_none())
            && self.chains.iter().all(|(chain, lines)| {
                listing.chains().any(|found| found.is_hooked(*chain))
                    && listing.is(chain.name(), lines.len(), &self.plan_comment)
            })
    }

    fn has_gate(&self, listing: &Listing) -> bool {
        listing.is(GATE, self.gate.len(), &self.gate_comment)
    }

    /// The counters of a table whose plan is as it is to be.
    fn counters(&self, listing: &Listing) -> Vec<RuleCounter> {
        let counter = |name: &str, line: &Line, rule: &ListedRule| {
            let (packets, bytes) = rule.counter();
            let (chain, text, queue) = (name.to_owned(), line.text.clone(), line.queue);
            RuleCounter { chain, text, queue, family: Family::Both, packets, bytes }
        };
        let chains = self.chains.iter().map(|(chain, lines)| (chain.name(), lines));
        let mut counters = Vec::new();
        let gate = self.has_gate(listing).then_some((GATE, &self.gate));
        for (name, lines) in chains.chain(gate) {
            let rules = lines.iter().zip(listing.rules(name));
            counters.extend(rules.map(|(line, rule)| counter(name, line, rule)));
        }
        counters
    }
}

fn comment<'a>(lines: impl Iterator<Item = (&'a str, &'a Line)>) -> String {
    let text: String = lines.map(|(chain, line)| format!("{chain} {}\n", line.text)).collect();
    format!("netams:{}", fingerprint(&text))
}

fn gate_comment(lines: &[Line]) -> String {
    comment(lines.iter().map(|line| (GATE, line)))
}

/// The transaction that empties and refills the gate; fails when it is not there.
fn gate_text(gate: &Gate) -> String {
    let lines = gate_lines(gate);
    let comment = gate_comment(&lines);
    let rule = |line: &Line| format!("add rule inet netams {GATE} {} comment \"{comment}\"\n", line.text);
    format!("flush chain inet netams {GATE}\n{}", lines.iter().map(rule).collect::<String>())
}

fn lines(plan: &Plan, chain: Chain) -> Vec<Line> {
    let matched = |interface: Option<(Side, &str)>| {
        interface.map(|(side, pattern)| format!("{} \"{pattern}\" ", key(side))).unwrap_or_default()
    };
    let line = |rule| match rule {
        Rule::Loopback(side) => Line { text: format!("{} \"lo\" counter return", key(side)), queue: false },
        Rule::Gate(interface) => {
            Line { text: format!("{}counter jump {GATE}", matched(interface)), queue: false }
        }
        Rule::Queue(interface, queues) => {
            let interface = matched(interface);
            let queues = match queues {
                Queues { first, count: 1 } => format!("{first}"),
                Queues { first, .. } => format!("{first}-{}", queues.last()),
            };
            let bypass = if plan.bypass { " bypass" } else { "" };
            Line { text: format!("{interface}counter queue num {queues}{bypass}"), queue: true }
        }
    };
    plan.rules(chain).into_iter().map(line).collect()
}

fn key(side: Side) -> &'static str {
    match side {
        Side::In => "iifname",
        Side::Out => "oifname",
    }
}

fn gate_lines(gate: &Gate) -> Vec<Line> {
    let rules = match *gate {
        Gate::Open => vec![],
        Gate::Closed { clear } => {
            vec![format!("counter meta mark set meta mark & {:#010x} accept", !clear)]
        }
        // As by iptables.
        Gate::Handover { bit } => vec![
            format!("counter meta mark set meta mark ^ {bit:#010x}"),
            format!("meta mark & {bit:#010x} == 0x00000000 counter accept"),
        ],
        Gate::Offload { mask, accept, drop } => {
            let keep = !mask;
            // Most kernels cannot combine two marks in one expression, but here the value is known.
            let back = |value: u32| {
                format!(
                    "meta mark & {mask:#010x} == {value:#010x} counter ct mark set ct mark & {keep:#010x} | {value:#010x}"
                )
            };
            vec![
                format!("ct mark & {mask:#010x} == {accept:#010x} counter accept"),
                format!("ct mark & {mask:#010x} == {drop:#010x} counter drop"),
                format!("{} meta mark set meta mark & {keep:#010x} accept", back(accept)),
                format!("{} drop", back(drop)),
            ]
        }
    };
    rules.into_iter().map(|text| Line { text, queue: false }).collect()
}

/// What `nft -j list table` shows (libnftables-json(5)), as far as it is looked at.
#[derive(Debug, Deserialize)]
struct Listing {
    nftables: Vec<Object>,
}

#[derive(Debug, Deserialize)]
struct Object {
    chain: Option<ListedChain>,
    rule: Option<ListedRule>,
}

#[derive(Debug, Deserialize)]
struct ListedChain {
    name: String,
    hook: Option<String>,
    prio: Option<i32>,
    policy: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ListedRule {
    chain: String,
    comment: Option<String>,
    expr: Vec<Value>,
}

impl Listing {
    fn parse(text: &str) -> Result<Self, RulesError> {
        serde_json::from_str(text).map_err(RulesError::Listing)
    }

    fn chains(&self) -> impl Iterator<Item = &ListedChain> {
        self.nftables.iter().filter_map(|object| object.chain.as_ref())
    }

    fn rules(&self, chain: &str) -> impl Iterator<Item = &ListedRule> {
        self.nftables.iter().filter_map(|object| object.rule.as_ref()).filter(move |rule| rule.chain == chain)
    }

    /// The rules that queue.
    fn queue_rules(&self) -> impl Iterator<Item = RuleCounter> {
        let rules = self.nftables.iter().filter_map(|object| object.rule.as_ref());
        rules.filter_map(|rule| {
            let (packets, bytes) = rule.counter();
            let (chain, text, queue) = (rule.chain.clone(), rule.queue_text()?, true);
            Some(RuleCounter { chain, text, queue, family: Family::Both, packets, bytes })
        })
    }

    /// Whether a chain consists of so many rules, all with this comment.
    fn is(&self, chain: &str, rules: usize, comment: &str) -> bool {
        self.rules(chain).count() == rules
            && self.rules(chain).all(|rule| rule.comment.as_deref() == Some(comment))
    }
}

impl ListedChain {
    fn is_hooked(&self, chain: Chain) -> bool {
        self.name == chain.name()
            && self.hook.as_deref() == Some(chain.name())
            && self.prio == Some(PRIORITY)
            && self.policy.as_deref() == Some("accept")
    }
}

impl ListedRule {
    /// A rule of ours that queues, in the words in which it was given.
    fn queue_text(&self) -> Option<String> {
        let statement = |name| self.expr.iter().find_map(|statement| statement.get(name));
        let queue = statement("queue")?;
        let numbers = match queue.get("num")? {
            Value::Object(range) => match range.get("range")?.as_array()?.as_slice() {
                [first, last] => format!("{first}-{last}"),
                _ => return None,
            },
            number => number.to_string(),
        };
        let matched = match statement("match") {
            Some(found) => {
                let key = found.pointer("/left/meta/key")?.as_str()?;
                format!("{key} \"{}\" ", found.get("right")?.as_str()?)
            }
            None => String::new(),
        };
        // The only flag of ours; nft shows a single one with or without a list around it.
        let bypass = if queue.get("flags").is_some() { " bypass" } else { "" };
        Some(format!("{matched}counter queue num {numbers}{bypass}"))
    }

    /// Packets and bytes; each rule of ours has one counter.
    fn counter(&self) -> (u64, u64) {
        let counter = self.expr.iter().find_map(|statement| statement.get("counter"));
        let term = |name| counter.and_then(|counter| counter.get(name)?.as_u64()).unwrap_or_default();
        (term("packets"), term("bytes"))
    }
}

#[cfg(test)]
mod tests;
