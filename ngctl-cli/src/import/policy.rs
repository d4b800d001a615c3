//! `policy`: what of the traffic is meant.
//!
//! The targets of a policy must all fit; of the values of one target, one. That is how the keys of a `[[policy]]` work too,
//! so a target becomes a key. A target that has no key is left out, and the note says that the policy matches more.

use super::condition::Reader;
use super::names::{Identity, Names};
use super::note::Notes;
use super::ports;
use super::source::Sources;
use super::statement::{Command, Words};
use super::toml::Value;

/// Keys of a `[[policy]]` in the order they are written.
const KEYS: &[&str] = &[
    "proto",
    "port",
    "src_port",
    "dst_port",
    "vlan",
    "ds",
    "units",
    "file",
    "addr",
    "as",
    "policy_or",
    "policy_and",
    "time",
    "day",
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

    /// Whether a key has values.
    pub fn has(&self, key: &str) -> bool {
        self.conditions.iter().any(|(known, values)| *known == key && !values.is_empty())
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
    let say = |text| notes.add(command.line, format!("policy {name}: {text}"));
    let mut reader =
        Reader { names, sources, policy: &mut policies[at], ports: Vec::new(), lost: Vec::new(), say };
    while let Some(word) = words.next() {
        reader.part(word, &mut words);
    }
    let ports = reader.ports;
    ports::add(at, ports, names, policies);
}
