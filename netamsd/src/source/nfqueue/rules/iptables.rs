//! The rules as chains of iptables' table mangle, in the words of `iptables-save`, which shows them as they were given.
//!
//! A jump at the end of each built-in chain carries the identity of the plan in its comment. Both variants of the tools,
//! nft and legacy, take and show the same text, and change a table in one step.

use std::path::{Path, PathBuf};

use super::{
    Chain, Family, Gate, Installed, Plan, Queues, Reading, RuleCounter, RulesError,
    plan::{Line, Rule, Side, fingerprint},
    tool,
};

const GATE: &str = "NETAMS-GATE";
/// All chains that are ours, whoever made them.
const OWN: [&str; 4] = ["NETAMS-FORWARD", "NETAMS-INPUT", "NETAMS-OUTPUT", GATE];

/// The chain that `chain` is in the kernel, and ours behind it.
fn names(chain: Chain) -> (&'static str, &'static str) {
    match chain {
        Chain::Forward => ("FORWARD", "NETAMS-FORWARD"),
        Chain::Input => ("INPUT", "NETAMS-INPUT"),
        Chain::Output => ("OUTPUT", "NETAMS-OUTPUT"),
    }
}

/// The tools of both IP versions.
#[derive(Debug)]
pub(super) struct Iptables {
    families: Vec<Tools>,
}

#[derive(Debug)]
struct Tools {
    family: Family,
    save: PathBuf,
    restore: PathBuf,
}

impl Iptables {
    /// Finds the variant that the system has chosen.
    ///
    /// # Errors
    /// When one of its programs is not there.
    pub fn find() -> Result<Self, RulesError> {
        Self::named("iptables", "ip6tables")
    }

    /// Finds the programs of this name for each IP version. Without IPv6 in the kernel nothing is made for it.
    pub(super) fn named(ipv4: &str, ipv6: &str) -> Result<Self, RulesError> {
        let tools = |family, name: &str| {
            let find = |what| tool::find(&format!("{name}-{what}"), "iptables");
            Ok(Tools { family, save: find("save")?, restore: find("restore")? })
        };
        let mut families = vec![tools(Family::Ipv4, ipv4)?];
        if Path::new("/proc/thread-self/net/if_inet6").exists() {
            families.push(tools(Family::Ipv6, ipv6)?);
        }
        Ok(Self { families })
    }

    /// See [`super::Rules::install`].
    pub fn install(&self, plan: &Plan, gate: &Gate) -> Result<Installed, RulesError> {
        let layout = Layout::new(plan, gate);
        let texts = self.families.iter().map(Tools::save_mangle).collect::<Result<Vec<_>, _>>()?;
        let found: Vec<_> = texts.iter().map(|text| Saved::parse(text)).collect();
        if found.iter().all(|saved| layout.has_plan(saved)) {
            for (tools, saved) in self.families.iter().zip(&found) {
                if !layout.has_gate(saved) {
                    tools.restore(&gate_text(gate))?;
                }
            }
            return Ok(Installed::Adopted);
        }
        for (tools, saved) in self.families.iter().zip(&found) {
            tools.restore(&layout.install_text(saved))?;
        }
        Ok(Installed::New)
    }

    /// See [`super::Rules::adopt`].
    pub fn has(&self, plan: &Plan) -> Result<bool, RulesError> {
        let layout = Layout::new(plan, &Gate::Open);
        let texts = self.families.iter().map(Tools::save_mangle).collect::<Result<Vec<_>, _>>()?;
        Ok(texts.iter().all(|text| layout.has_plan(&Saved::parse(text))))
    }

    /// See [`super::Rules::set_gate`].
    pub fn set_gate(&self, gate: &Gate) -> Result<(), RulesError> {
        self.families.iter().try_for_each(|tools| tools.restore(&gate_text(gate)))
    }

    /// See [`super::Rules::read`].
    pub fn read(&self, plan: &Plan, gate: &Gate) -> Result<Option<Reading>, RulesError> {
        let layout = Layout::new(plan, gate);
        let mut reading = Reading { rules: Vec::new(), gated: true, followed: Vec::new() };
        for tools in &self.families {
            let text = tools.save_mangle()?;
            let saved = Saved::parse(&text);
            if !layout.has_plan(&saved) {
                return Ok(None);
            }
            reading.gated &= layout.has_gate(&saved);
            reading.rules.extend(layout.counters(&saved, tools.family));
            reading.followed.extend(saved.followed().map(|chain| (tools.family, chain)));
        }
        Ok(Some(reading))
    }

    /// See [`super::find_queue_rules`].
    pub fn queue_rules(&self) -> Result<Vec<RuleCounter>, RulesError> {
        let mut found = Vec::new();
        for tools in &self.families {
            if let Some(text) = tools.save_used()? {
                found.extend(Saved::parse(&text).queue_rules(tools.family));
            }
        }
        Ok(found)
    }

    /// See [`super::remove`].
    pub fn remove(&self) -> Result<(), RulesError> {
        for tools in &self.families {
            if let Some(text) = tools.save_used()?.and_then(|text| Saved::parse(&text).removal_text()) {
                tools.restore(&text)?;
            }
        }
        Ok(())
    }
}

impl Tools {
    fn save_mangle(&self) -> Result<String, RulesError> {
        tool::run(&self.save, &["-c", "-t", "mangle"], "")
    }

    /// All tables in use: without a table's name the legacy variant loads none to have a look at it.
    fn save_used(&self) -> Result<Option<String>, RulesError> {
        match tool::run(&self.save, &["-c"], "") {
            Err(e) if e.is_absence() => Ok(None),
            text => text.map(Some),
        }
    }

    /// Carries out a text in one transaction; waits up to 5 s for the lock that the legacy variant's users share.
    fn restore(&self, text: &str) -> Result<(), RulesError> {
        tool::run(&self.restore, &["--noflush", "-w", "5"], text).map(drop)
    }
}

/// What is to be in table mangle, in the words of `iptables-save`, quotation marks left out.
struct Layout {
    jumps: Vec<String>,
    /// Each chain of ours and its rules, the gate last.
    chains: Vec<(&'static str, Vec<Line>)>,
}

impl Layout {
    fn new(plan: &Plan, gate: &Gate) -> Self {
        let mut chains: Vec<_> = plan.chains().map(|chain| (names(chain).1, lines(plan, chain))).collect();
        let texts: Vec<_> =
            chains.iter().flat_map(|(_, lines)| lines).map(|line| line.text.as_str()).collect();
        let identity = fingerprint(&texts.join("\n"));
        let jump = |chain| {
            let (base, own) = names(chain);
            format!("-A {base} -m comment --comment netams:{identity} -j {own}")
        };
        chains.push((GATE, gate_lines(gate)));
        Self { jumps: plan.chains().map(jump).collect(), chains }
    }

    /// Whether everything of the plan is there and nothing else of ours, whatever is in the gate.
    fn has_plan(&self, saved: &Saved) -> bool {
        let jumps: Vec<_> = saved.jumps().map(|rule| rule.text.replace('"', "")).collect();
        let all = self.chains.iter().all(|(name, _)| saved.chains.contains(name));
        let plan = &self.chains[..self.chains.len() - 1];
        all && saved.chains.len() == self.chains.len()
            && jumps.len() == self.jumps.len()
            && self.jumps.iter().all(|jump| jumps.contains(jump))
            && plan.iter().all(|(name, lines)| saved.is(name, lines))
    }

    fn has_gate(&self, saved: &Saved) -> bool {
        self.chains.last().is_some_and(|(name, lines)| saved.is(name, lines))
    }

    /// The transaction that makes it so, whatever of ours was found.
    fn install_text(&self, saved: &Saved) -> String {
        let mut text = Transaction::default();
        // Makes the chain, or empties it.
        self.chains.iter().for_each(|(name, _)| text.line(&format!(":{name} - [0:0]")));
        saved.jumps().for_each(|jump| text.delete(jump));
        let unwanted = saved.chains.iter().filter(|name| self.chains.iter().all(|(own, _)| own != *name));
        unwanted.clone().for_each(|name| text.line(&format!("-F {name}")));
        unwanted.for_each(|name| text.line(&format!("-X {name}")));
        self.chains.iter().flat_map(|(_, lines)| lines).for_each(|line| text.line(&line.text));
        self.jumps.iter().for_each(|jump| text.line(jump));
        text.commit()
    }

    /// The counters of a table whose plan is as it is to be.
    fn counters(&self, saved: &Saved, family: Family) -> Vec<RuleCounter> {
        let chain = |(name, lines): &(&'static str, Vec<Line>)| {
            let counter = |(line, rule): (&Line, &SavedRule)| RuleCounter {
                chain: (*name).to_owned(),
                text: line.text.clone(),
                queue: line.queue,
                family,
                packets: rule.packets,
                bytes: rule.bytes,
            };
            lines.iter().zip(saved.chain(name)).map(counter).collect::<Vec<_>>()
        };
        let known = |(name, lines): &&(&'static str, Vec<Line>)| *name != GATE || saved.is(name, lines);
        self.chains.iter().filter(known).flat_map(chain).collect()
    }
}

fn lines(plan: &Plan, chain: Chain) -> Vec<Line> {
    let own = names(chain).1;
    let matched = |interface: Option<(Side, &str)>| {
        interface
            .map(|(side, pattern)| format!(" {} {}", option(side), pattern.replace('*', "+")))
            .unwrap_or_default()
    };
    let line = |rule| match rule {
        Rule::Loopback(side) => {
            Line { text: format!("-A {own} {} lo -j RETURN", option(side)), queue: false }
        }
        Rule::Gate(interface) => {
            Line { text: format!("-A {own}{} -j {GATE}", matched(interface)), queue: false }
        }
        Rule::Queue(interface, queues) => {
            let interface = matched(interface);
            let queues = match queues {
                Queues { first, count: 1 } => format!("--queue-num {first}"),
                Queues { first, .. } => format!("--queue-balance {first}:{}", queues.last()),
            };
            let bypass = if plan.bypass { " --queue-bypass" } else { "" };
            Line { text: format!("-A {own}{interface} -j NFQUEUE {queues}{bypass}"), queue: true }
        }
    };
    plan.rules(chain).into_iter().map(line).collect()
}

fn option(side: Side) -> &'static str {
    match side {
        Side::In => "-i",
        Side::Out => "-o",
    }
}

fn gate_lines(gate: &Gate) -> Vec<Line> {
    let rules = match gate {
        Gate::Open => vec![],
        Gate::Closed { clear } => {
            vec![format!("-j MARK --set-xmark 0x0/{clear:#x}"), "-j ACCEPT".to_owned()]
        }
        // A rule has one target, so the bit is turned over first: who had it has it no more.
        Gate::Handover { bit } => vec![
            format!("-j MARK --set-xmark {bit:#x}/0x0"),
            format!("-m mark ! --mark {bit:#x}/{bit:#x} -j ACCEPT"),
        ],
        Gate::Offload { mask, accept, drop } => {
            let save = format!("-j CONNMARK --save-mark --nfmask {mask:#x} --ctmask {mask:#x}");
            vec![
                format!("-m connmark --mark {accept:#x}/{mask:#x} -j ACCEPT"),
                format!("-m connmark --mark {drop:#x}/{mask:#x} -j DROP"),
                format!("-m mark --mark {drop:#x}/{mask:#x} {save}"),
                format!("-m mark --mark {drop:#x}/{mask:#x} -j DROP"),
                format!("-m mark ! --mark {accept:#x}/{mask:#x} -j RETURN"),
                save,
                format!("-j MARK --set-xmark 0x0/{mask:#x}"),
                "-j ACCEPT".to_owned(),
            ]
        }
    };
    rules.into_iter().map(|rule| Line { text: format!("-A {GATE} {rule}"), queue: false }).collect()
}

/// Empties and refills the gate; fails when it is not there.
fn gate_text(gate: &Gate) -> String {
    let mut text = Transaction::default();
    text.line(&format!("-F {GATE}"));
    gate_lines(gate).iter().for_each(|line| text.line(&line.text));
    text.commit()
}

/// A text for `iptables-restore`.
#[derive(Default)]
struct Transaction(String);

impl Transaction {
    fn line(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    fn delete(&mut self, rule: &SavedRule) {
        self.line(&rule.text.replacen("-A", "-D", 1));
    }

    fn commit(self) -> String {
        format!("*mangle\n{}COMMIT\n", self.0)
    }
}

/// What `iptables-save -c` shows of table mangle.
struct Saved<'a> {
    /// The chains of ours.
    chains: Vec<&'a str>,
    /// All rules, ours and others.
    rules: Vec<SavedRule<'a>>,
}

struct SavedRule<'a> {
    chain: &'a str,
    /// From `-A` on.
    text: &'a str,
    packets: u64,
    bytes: u64,
}

impl<'a> Saved<'a> {
    fn parse(text: &'a str) -> Self {
        let mut saved = Self { chains: Vec::new(), rules: Vec::new() };
        let mut table = "";
        for line in text.lines() {
            match line.split_at_checked(1) {
                Some(("*", name)) => table = name,
                _ if table != "mangle" => {}
                Some((":", chain)) => {
                    let name = chain.split(' ').next();
                    saved.chains.extend(name.filter(|name| OWN.contains(name)));
                }
                Some(("[", rule)) => saved.rules.extend(SavedRule::parse(rule)),
                _ => {}
            }
        }
        saved
    }

    fn chain(&self, name: &str) -> impl Iterator<Item = &SavedRule<'a>> {
        self.rules.iter().filter(move |rule| rule.chain == name)
    }

    fn is(&self, name: &str, lines: &[Line]) -> bool {
        self.chain(name).map(|rule| rule.text).eq(lines.iter().map(|line| line.text.as_str()))
    }

    /// Rules in chains of others that lead into ours.
    fn jumps(&self) -> impl Iterator<Item = &SavedRule<'a>> {
        self.rules.iter().filter(|rule| !OWN.contains(&rule.chain) && rule.leads_into_ours())
    }

    /// The rules in chains of ours that queue.
    fn queue_rules(&self, family: Family) -> impl Iterator<Item = RuleCounter> {
        let queues = |rule: &&SavedRule| OWN.contains(&rule.chain) && rule.text.contains(" -j NFQUEUE ");
        self.rules.iter().filter(queues).map(move |rule| RuleCounter {
            chain: rule.chain.to_owned(),
            text: rule.text.to_owned(),
            queue: true,
            family,
            packets: rule.packets,
            bytes: rule.bytes,
        })
    }

    fn followed(&self) -> impl Iterator<Item = Chain> {
        Chain::ALL.into_iter().filter(|chain| {
            let mut rules = self.chain(names(*chain).0).skip_while(|rule| !rule.leads_into_ours());
            rules.any(|rule| !rule.leads_into_ours())
        })
    }

    /// The transaction that removes all of ours, if there is anything.
    fn removal_text(&self) -> Option<String> {
        let mut text = Transaction::default();
        self.jumps().for_each(|jump| text.delete(jump));
        self.chains.iter().for_each(|name| text.line(&format!("-F {name}")));
        self.chains.iter().for_each(|name| text.line(&format!("-X {name}")));
        (!self.chains.is_empty()).then(|| text.commit())
    }
}

impl<'a> SavedRule<'a> {
    /// A line `[packets:bytes] -A CHAIN ...` without its first character.
    fn parse(line: &'a str) -> Option<Self> {
        let (counter, text) = line.split_once("] ")?;
        let (packets, bytes) = counter.split_once(':')?;
        let chain = text.strip_prefix("-A ")?.split(' ').next()?;
        Some(Self { chain, text, packets: packets.parse().ok()?, bytes: bytes.parse().ok()? })
    }

    fn leads_into_ours(&self) -> bool {
        let mut words = self.text.rsplit(' ');
        let target = words.next().is_some_and(|name| OWN.contains(&name));
        target && words.next().is_some_and(|option| matches!(option, "-j" | "-g"))
    }
}

#[cfg(test)]
mod tests;
