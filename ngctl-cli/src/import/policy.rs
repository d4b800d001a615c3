//! `policy`: what of the traffic is meant.
//!
//! The targets of a policy must all fit; of the values of one target, one. That is how the keys of a `[[policy]]` work too,
//! so a target becomes a key. A target that has no key is left out, and the note says that the policy matches more.

use super::address;
use super::names::{Identity, Names};
use super::note::Notes;
use super::source::Sources;
use super::statement::{Command, Words};
use super::target::{self, Side};
use super::toml::Value;

/// Keys of a `[[policy]]` in the order they are written.
const KEYS: &[&str] = &[
    "proto",
    "port",
    "src_port",
    "dst_port",
    "tos",
    "vlan",
    "ds",
    "units",
    "file",
    "addr",
    "as",
    "interface",
    "policy_or",
    "policy_and",
    "time",
    "day",
];

/// What begins a new part of a `policy` command.
const KEYWORDS: &[&str] = &[
    "no",
    "target",
    "bw",
    "hidden",
    "proto",
    "tos",
    "port",
    "as",
    "vlan",
    "ds",
    "units",
    "file",
    "addr",
    "ifindex",
    "ingress",
    "egress",
    "policy-or",
    "policy-and",
    "time",
    "day",
    "layer7-detect",
];

/// One policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Line that defines it.
    pub line: usize,
    /// Unique.
    pub name: String,
    /// Values by key.
    conditions: Vec<(&'static str, Vec<Value>)>,
}

impl Policy {
    /// One that everything fits.
    pub fn new(line: usize, name: &str) -> Self {
        Self { line, name: name.into(), conditions: Vec::new() }
    }

    /// Adds values to a key.
    pub fn add(&mut self, key: &'static str, values: impl IntoIterator<Item = Value>) {
        let at = self.conditions.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            self.conditions.push((key, Vec::new()));
            self.conditions.len() - 1
        });
        for value in values {
            if !self.conditions[at].1.contains(&value) {
                self.conditions[at].1.push(value);
            }
        }
        self.conditions.retain(|(_, values)| !values.is_empty());
    }

    /// The values of a key.
    pub fn values(&self, key: &str) -> &[Value] {
        self.conditions.iter().find(|(known, _)| *known == key).map_or(&[], |(_, values)| values)
    }

    /// Takes the values out of a key that `keep` refuses. Whether there were some.
    pub fn retain(&mut self, key: &str, keep: impl Fn(&Value) -> bool) -> bool {
        let before = self.values(key).len();
        self.conditions
            .iter_mut()
            .filter(|(known, _)| *known == key)
            .for_each(|(_, values)| values.retain(&keep));
        let gone = self.values(key).len() < before;
        self.conditions.retain(|(_, values)| !values.is_empty());
        gone
    }

    /// Keys and values in the order they are written.
    pub fn entries(&self) -> impl Iterator<Item = (&'static str, Value)> {
        KEYS.iter().filter_map(|key| {
            let values = self.values(key);
            let value = match (*key, values) {
                (_, []) => return None,
                ("file", [one, ..]) => one.clone(),
                _ => Value::List(values.to_vec()),
            };
            Some((*key, value))
        })
    }
}

/// Reads one `policy` command into `policies`; one with a name that is there already adds to that policy.
pub fn read(
    command: &Command,
    names: &Names,
    sources: &Sources,
    policies: &mut Vec<Policy>,
    notes: &mut Notes,
) {
    let mut words = Words::new(&command.words[1..]);
    let Some(name) = names.policy_of(Identity::take(&mut words)) else {
        notes.add(command.line, "a policy without `oid` or `name` is not kept");
        return;
    };
    let at = policies.iter().position(|policy| policy.name == name).unwrap_or_else(|| {
        policies.push(Policy::new(command.line, name));
        policies.len() - 1
    });
    let mut ports = Vec::new();
    let policy = &mut policies[at];
    let mut say = |text: String| notes.add(command.line, format!("policy {name}: {text}"));
    while let Some(word) = words.next() {
        match word {
            "target" => {}
            "port" => ports.extend(sided("port", 65535, &mut words, &mut say)),
            "no" => {
                words.skip("target");
                words.next();
                words.until(KEYWORDS);
                say("`no target` is not kept; remove the target by hand".into());
            }
            "bw" => {
                words.until(KEYWORDS);
                say("`bw` is not kept; write `bw_in` and `bw_out` of the units".into());
            }
            "hidden" => say("`hidden` is not kept; there are no pages to hide it from".into()),
            word if KEYWORDS.contains(&word) => {
                read_target(word, &mut words, names, sources, policy, &mut say)
            }
            word => {
                words.until(KEYWORDS);
                say(format!("`{word}` is not understood, and the policy matches more without it"));
            }
        }
    }
    split_ports(at, ports, names, policies);
}

fn read_target(
    word: &str,
    words: &mut Words<'_>,
    names: &Names,
    sources: &Sources,
    policy: &mut Policy,
    say: &mut impl FnMut(String),
) {
    match word {
        "policy-or" | "policy-and" => {
            let key = if word == "policy-or" { "policy_or" } else { "policy_and" };
            let mut found = Vec::new();
            while let Some(next) = words.peek() {
                let known = names.policy(next.trim_start_matches('!'));
                if known.is_none() && KEYWORDS.contains(&next) {
                    break;
                }
                words.next();
                match known {
                    Some(known) if next.starts_with('!') => found.push(format!("!{known}")),
                    Some(known) => found.push(known.into()),
                    None => say(format!("no policy `{next}` for `{word}`; it is left out")),
                }
            }
            policy.add(key, found.iter().map(Value::from));
        }
        "as" => {
            let values = sided("as", u32::MAX.into(), words, say);
            if values.iter().any(|(side, _)| *side != Side::Either) {
                say("`as` is kept for either side; there is none for one side".into());
            }
            policy.add("as", values.into_iter().map(|(_, value)| value));
        }
        "units" => {
            while words.skip("oid")
                || words.skip("name")
                || words.peek().is_some_and(|w| !KEYWORDS.contains(&w))
            {
                let Some(unit) = words.next() else { break };
                match names.unit(unit) {
                    Some(unit) => policy.add("units", [unit.into()]),
                    None => say(format!("no unit `{unit}` for `units`; it is left out")),
                }
            }
        }
        "addr" => {
            let mut at = 0;
            let found = words.until(KEYWORDS).into_iter().map(String::from).collect::<Vec<_>>();
            let mut rest = Words::new(&found);
            while let Some(text) = rest.next() {
                at += 1;
                match address::take(text, &mut rest) {
                    Some(parsed) => policy.add("addr", [Value::from(&address::text(&parsed.prefix))]),
                    None => say(format!("`{text}` is no prefix, value {at} of `addr`; it is left out")),
                }
            }
        }
        "ds" => {
            let numbers = words.until(KEYWORDS);
            if !sources.are_all_in(&numbers)
                || numbers.iter().any(|number| !sources.numbers.contains(*number))
            {
                say(format!("`ds {}` is kept as the one source there is", numbers.join(" ")));
            }
            policy.add("ds", [sources.source().into()]);
        }
        "file" => match words.next() {
            Some(path) if policy.values("file").is_empty() => policy.add("file", [path.into()]),
            _ => say("a second `file` is not kept; put both lists into one".into()),
        },
        "ifindex" => {
            let found = words.until(KEYWORDS);
            let name = |word: &&str| target::sided(word, u64::MAX).is_none();
            if found.iter().all(name) {
                policy.add("interface", found.into_iter().map(Value::from));
            } else {
                say(format!(
                    "`ifindex {}` is not kept, and the policy matches more without it; \
                     write the names into `interface`, `ingress` or `egress`",
                    found.join(" ")
                ));
            }
        }
        "ingress" | "egress" => say(format!(
            "`{word}` said how NetFlow was collected and is not kept; `{word} = [\"eth0\"]` would ask for an interface"
        )),
        "layer7-detect" => {
            words.until(KEYWORDS);
            say("`layer7-detect` is not kept, and the policy matches more without it".into());
        }
        _ => {
            for value in words.until(KEYWORDS) {
                match target::simple(word, value) {
                    Ok(Some((key, value))) => policy.add(key, [value]),
                    Ok(None) => {}
                    Err(why) => say(format!("`{word} {value}` is not kept: {why}")),
                }
            }
        }
    }
}

/// The values of a target with sides.
fn sided(word: &str, max: u64, words: &mut Words<'_>, say: &mut impl FnMut(String)) -> Vec<(Side, Value)> {
    let mut values = Vec::new();
    for value in words.until(KEYWORDS) {
        match target::sided(value, max) {
            Some(sided) => values.push(sided),
            None => say(format!("`{word} {value}` is not kept: write a number or a range up to {max}")),
        }
    }
    values
}

/// Adds the ports to the policy at `at`. Several keys must all fit, so ports of different sides get a policy for each
/// side, one of which must fit.
fn split_ports(at: usize, mut ports: Vec<(Side, Value)>, names: &Names, policies: &mut Vec<Policy>) {
    // The same port on the one side or on the other is that port on either side.
    let both: Vec<Value> = ports
        .iter()
        .filter(|(side, value)| *side == Side::Source && ports.contains(&(Side::Destination, value.clone())))
        .map(|(_, value)| value.clone())
        .collect();
    ports.iter_mut().filter(|(_, value)| both.contains(value)).for_each(|(side, _)| *side = Side::Either);
    let of =
        |wanted: Side| ports.iter().filter(move |(side, _)| *side == wanted).map(|(_, value)| value.clone());
    let sides: Vec<Side> = [Side::Either, Side::Source, Side::Destination]
        .into_iter()
        .filter(|side| of(*side).next().is_some())
        .collect();
    if let [side] = sides[..] {
        policies[at].add(side.port_key(), of(side));
        return;
    }
    let (line, name) = (policies[at].line, policies[at].name.clone());
    let mut parts: Vec<Policy> = Vec::new();
    for side in sides {
        let mut part = Policy::new(line, &free_name(&format!("{name}-{side}"), names));
        part.add(side.port_key(), of(side));
        parts.push(part);
    }
    let mut choice: Vec<Value> = parts.iter().map(|part| Value::from(&part.name)).collect();
    let mut key = "policy_or";
    if !parts.is_empty() && !policies[at].values("policy_or").is_empty() {
        let mut any = Policy::new(line, &free_name(&format!("{name}-ports"), names));
        any.add("policy_or", choice);
        choice = vec![Value::from(&any.name)];
        key = "policy_and";
        parts.push(any);
    }
    policies[at].add(key, choice);
    policies.splice(at..at, parts);
}

fn free_name(wanted: &str, names: &Names) -> String {
    let mut name = wanted.to_owned();
    while names.policy(&name).is_some() {
        name.push('+');
    }
    name
}
