//! From the policies of a configuration to a flat [`Program`].

use std::collections::HashMap;

use ipnet::IpNet;
use kmod_bpf::{EVERY_PACKET, MAX_RULES, QuotaRule, Rule, UnitRules, side, test, tunnel, unit_flag, word};

use super::conditions::{Numbers, PolicyConfig, Reference};
use super::lists::PrefixList;
use super::program::Program;
use super::quota::Direction;
use super::schedule::Schedule;
use super::unit::UnitConfig;

/// Contents of the files that policies name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files {
    /// Prefix files by policy.
    pub prefixes: HashMap<String, Vec<IpNet>>,
    /// Prefixes and the numbers of their autonomous systems.
    pub systems: Vec<(IpNet, u32)>,
}

/// A program with what belongs to it by name or number.
pub(super) struct Compiled {
    pub program: Program,
    /// First rule of each policy.
    pub policies: Vec<u32>,
    /// [`unit_flag`]s of unit 0 and of each unit.
    pub flags: Vec<u32>,
    pub schedules: Vec<Schedule>,
}

/// Too large for the evaluators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooLong {
    /// The policy's place in the configuration.
    pub policy: usize,
    /// Steps that it has.
    pub rules: usize,
}

/// A condition, before it becomes jumps.
enum Condition {
    Test(Rule),
    Not(Box<Self>),
    All(Vec<Self>),
    Any(Vec<Self>),
}

/// Compiles policies. Names that do not exist never hold, and neither do policies that refer to themselves;
/// `Config::validate` refuses both.
pub(super) fn compile(
    policies: &[PolicyConfig],
    units: &[UnitConfig],
    files: &Files,
) -> Result<Compiled, TooLong> {
    let mut compiler = Compiler {
        policies: policies
            .iter()
            .enumerate()
            .map(|(at, policy)| (policy.name.as_str(), (at, policy)))
            .collect(),
        units: (1..).zip(units).map(|(number, unit)| (unit.name.as_str(), number)).collect(),
        files,
        lists: Vec::new(),
        systems: None,
        schedules: Vec::new(),
    };
    let (mut rules, mut firsts) = (Vec::new(), Vec::new());
    for (at, policy) in policies.iter().enumerate() {
        let condition = compiler.condition(policy, &mut Vec::new());
        let emitted = emit_policy(&condition);
        if emitted.len() > MAX_RULES {
            return Err(TooLong { policy: at, rules: emitted.len() });
        }
        firsts.push(rules.len() as u32);
        rules.extend(emitted);
    }
    // Word 0 is a list of which nothing holds.
    let mut words = vec![word::LAST | word::NUMBER];
    let mut unit_rules = vec![UnitRules::default()];
    let mut quota_rules = Vec::new();
    for unit in units {
        let mut one = UnitRules { flags: flags(unit), ..UnitRules::default() };
        let list = unit.fw_policy.iter().flatten().filter_map(|reference| {
            let (at, _) = compiler.policies.get(reference.name.as_str())?;
            Some(firsts[*at] | if reference.not { word::NOT } else { 0 })
        });
        let begin = words.len();
        words.extend(list);
        if let Some(last) = words[begin..].last_mut() {
            *last |= word::LAST;
            one.list = begin as u32;
        }
        let begin = words.len();
        for quota in unit.quotas.iter().filter(|quota| quota.hard) {
            let first = match &quota.policy {
                None => EVERY_PACKET,
                Some(policy) => {
                    let emitted = emit_policy(&compiler.counted(unit, policy));
                    if emitted.len() > MAX_RULES {
                        let place = compiler.policies.get(policy.as_str()).map_or(0, |(at, _)| *at);
                        return Err(TooLong { policy: place, rules: emitted.len() });
                    }
                    rules.extend(emitted.iter().copied());
                    (rules.len() - emitted.len()) as u32
                }
            };
            words.push(quota_rules.len() as u32);
            let number = quota_rules.len() as u32;
            quota_rules.push(QuotaRule { quota: number, sides: sides(quota.direction), first, reserved: 0 });
        }
        if let Some(last) = words[begin..].last_mut() {
            *last |= word::LAST;
            one.quotas = begin as u32;
        }
        unit_rules.push(one);
    }
    let flags = unit_rules.iter().map(|unit| unit.flags).collect();
    let program = Program { units: unit_rules, words, rules, quota_rules, lists: compiler.lists };
    Ok(Compiled { program, policies: firsts, flags, schedules: compiler.schedules })
}

/// Out of the source's unit, into the destination's.
fn sides(direction: Direction) -> u32 {
    let (source, destination) = (1 << side::SOURCE, 1 << side::DESTINATION);
    match direction {
        Direction::Out => source,
        Direction::In => destination,
        Direction::Sum => source | destination,
    }
}

fn flags(unit: &UnitConfig) -> u32 {
    let list = if unit.fw_policy.is_some() { unit_flag::HAS_LIST } else { 0 };
    let local = if unit.no_local_pass { unit_flag::NO_LOCAL_PASS } else { 0 };
    list | local
}

struct Compiler<'a> {
    policies: HashMap<&'a str, (usize, &'a PolicyConfig)>,
    /// Numbers of units, from 1.
    units: HashMap<&'a str, u32>,
    files: &'a Files,
    lists: Vec<PrefixList>,
    /// The list of autonomous systems, once one is asked for.
    systems: Option<u16>,
    schedules: Vec<Schedule>,
}

impl<'a> Compiler<'a> {
    /// `within`: the policies that this one is a part of.
    fn condition(&mut self, policy: &'a PolicyConfig, within: &mut Vec<&'a str>) -> Condition {
        if within.contains(&policy.name.as_str()) {
            return Condition::Any(Vec::new());
        }
        within.push(&policy.name);
        let mut all = self.tests(policy);
        for (references, any) in [(&policy.policy_or, true), (&policy.policy_and, false)] {
            if !references.is_empty() {
                let parts = references.iter().map(|reference| self.part(reference, within)).collect();
                all.push(if any { Condition::Any(parts) } else { Condition::All(parts) });
            }
        }
        within.pop();
        Condition::All(all)
    }

    fn part(&mut self, reference: &Reference, within: &mut Vec<&'a str>) -> Condition {
        let part = match self.policies.get(reference.name.as_str()) {
            Some((_, policy)) => {
                let policy: &'a PolicyConfig = policy;
                self.condition(policy, within)
            }
            None => Condition::Any(Vec::new()),
        };
        if reference.not { Condition::Not(Box::new(part)) } else { part }
    }

    /// Whether a unit counts a packet by this policy of its list.
    fn counted(&mut self, unit: &'a UnitConfig, policy: &str) -> Condition {
        let (mut any, mut stops): (_, Vec<&Reference>) = (Vec::new(), Vec::new());
        for reference in &unit.acct_policy {
            if reference.name == policy {
                let mut all: Vec<_> = stops.iter().map(|stop| self.unless(stop)).collect();
                all.push(self.part(reference, &mut Vec::new()));
                any.push(Condition::All(all));
            }
            if reference.stop {
                stops.push(reference);
            }
        }
        Condition::Any(any)
    }

    fn unless(&mut self, stop: &Reference) -> Condition {
        Condition::Not(Box::new(self.part(stop, &mut Vec::new())))
    }

    fn tests(&mut self, policy: &PolicyConfig) -> Vec<Condition> {
        let mut all = Vec::new();
        let mut any = |tests: Vec<Rule>| {
            if !tests.is_empty() {
                all.push(Condition::Any(tests.into_iter().map(Condition::Test).collect()));
            }
        };
        any(policy.proto.iter().map(|proto| number(test::PROTO, proto.0.into(), proto.0.into())).collect());
        let ports = |kind| policy.port.iter().map(move |numbers| in_numbers(kind, *numbers));
        any(ports(test::SPORT).chain(ports(test::DPORT)).collect());
        for (kind, numbers) in [
            (test::SPORT, &policy.src_port),
            (test::DPORT, &policy.dst_port),
            (test::VLAN, &policy.vlan),
            (test::VLAN_INNER, &policy.vlan_inner),
        ] {
            any(numbers.iter().map(|numbers| in_numbers(kind, *numbers)).collect());
        }
        let kinds = |kinds: &[u8]| kinds.iter().fold(0u16, |all, kind| all | 1 << kind);
        for (list, numbers) in
            [(kinds(&[tunnel::GRE]), &policy.gre_key), (kinds(&[tunnel::VXLAN, tunnel::GENEVE]), &policy.vni)]
        {
            let rule = |numbers: &Numbers| Rule { list, ..in_numbers(test::TUNNEL, *numbers) };
            any(numbers.iter().map(rule).collect());
        }
        any(policy.ds.iter().map(|source| number(test::SOURCE, *source as u32, *source as u32)).collect());
        let unit = |name: &String| {
            let known = self.units.get(name.as_str()).copied().unwrap_or(u32::MAX);
            Rule { side: side::OTHER, ..number(test::UNIT, known, known) }
        };
        any(policy.units.iter().map(unit).collect());
        if policy.file.is_some() {
            let prefixes = self.files.prefixes.get(&policy.name).map(Vec::as_slice).unwrap_or_default();
            any(vec![Rule { side: side::OTHER, list: self.list(prefixes), ..number(test::PREFIX, 1, 1) }]);
        }
        if !policy.addr.is_empty() {
            let list = self.list(&policy.addr);
            any([side::SOURCE, side::DESTINATION]
                .map(|side| Rule { side, list, ..number(test::PREFIX, 1, 1) })
                .into());
        }
        if !policy.systems.is_empty() {
            let list = self.systems();
            let rule =
                |numbers: &Numbers| Rule { side: side::OTHER, list, ..in_numbers(test::PREFIX, *numbers) };
            any(policy.systems.iter().map(rule).collect());
        }
        let schedule = Schedule { time: policy.time.clone(), day: policy.day.clone() };
        if !schedule.time.is_empty() || !schedule.day.is_empty() {
            let known = self.schedules.iter().position(|known| *known == schedule);
            let index = known.unwrap_or_else(|| {
                self.schedules.push(schedule);
                self.schedules.len() - 1
            });
            any(vec![number(test::SCHEDULE, index as u32, 0)]);
        }
        all
    }

    fn list(&mut self, prefixes: &[IpNet]) -> u16 {
        let list = PrefixList::new(prefixes.iter().map(|net| (*net, 1)));
        let known = self.lists.iter().position(|known| *known == list);
        known.unwrap_or_else(|| {
            self.lists.push(list);
            self.lists.len() - 1
        }) as u16
    }

    fn systems(&mut self) -> u16 {
        *self.systems.get_or_insert_with(|| {
            self.lists.push(PrefixList::new(self.files.systems.iter().copied()));
            (self.lists.len() - 1) as u16
        })
    }
}

fn number(kind: u8, low: u32, high: u32) -> Rule {
    Rule { test: kind, low, high, ..Rule::default() }
}

fn in_numbers(kind: u8, numbers: Numbers) -> Rule {
    number(kind, numbers.low, numbers.high)
}

/// Places in the rules from which a jump is still to be set, and whether it is the one for "yes".
type Exits = Vec<(usize, bool)>;

fn emit_policy(condition: &Condition) -> Vec<Rule> {
    let mut rules = Vec::new();
    let (yes, no) = emit(condition, &mut rules);
    for (exits, answer) in [(yes, 1), (no, 0)] {
        land(&mut rules, exits);
        rules.push(number(test::ANSWER, answer, 0));
    }
    rules
}

/// Appends a condition; where it goes on when it holds, and when it does not.
fn emit(condition: &Condition, rules: &mut Vec<Rule>) -> (Exits, Exits) {
    match condition {
        Condition::Test(rule) => {
            rules.push(*rule);
            let at = rules.len() - 1;
            (vec![(at, true)], vec![(at, false)])
        }
        Condition::Not(part) => {
            let (yes, no) = emit(part, rules);
            (no, yes)
        }
        Condition::All(parts) => {
            let (through, out) = emit_sequence(parts, rules, true);
            (through, out)
        }
        Condition::Any(parts) => {
            let (through, out) = emit_sequence(parts, rules, false);
            (out, through)
        }
    }
}

/// Appends parts that are looked at as long as each of them is `going_on`: the exits of the last part that was so, and those
/// of all that were not. No parts at all are a test that is `going_on`.
fn emit_sequence(parts: &[Condition], rules: &mut Vec<Rule>, going_on: bool) -> (Exits, Exits) {
    if parts.is_empty() {
        // Every protocol, or none.
        let always = if going_on { number(test::PROTO, 0, 255) } else { number(test::PROTO, 1, 0) };
        let (yes, no) = emit(&Condition::Test(always), rules);
        return if going_on { (yes, no) } else { (no, yes) };
    }
    let (mut through, mut out) = (Vec::new(), Vec::new());
    for part in parts {
        land(rules, through);
        let (yes, no) = emit(part, rules);
        let (on, off) = if going_on { (yes, no) } else { (no, yes) };
        through = on;
        out.extend(off);
    }
    (through, out)
}

/// Lets these exits go to the rule that is appended next.
fn land(rules: &mut [Rule], exits: Exits) {
    let here = rules.len();
    for (at, yes) in exits {
        let way = (here - at) as u16;
        if yes {
            rules[at].yes = way;
        } else {
            rules[at].no = way;
        }
    }
}
