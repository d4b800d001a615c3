//! `unit`: who traffic is counted for.

use std::collections::BTreeSet;

use ipnet::IpNet;

use super::attribute::Reader;
use super::names::{Identity, Names};
use super::note::Notes;
use super::quota::Quota;
use super::source::Sources;
use super::statement::{Command, Words};

/// What a unit is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One address.
    Host,
    /// Several addresses.
    Cluster,
    /// Prefixes.
    Net,
    /// Other units.
    Group,
    /// A host with a person.
    User,
}

impl Kind {
    fn parse(word: &str) -> Option<Self> {
        [Self::Host, Self::Cluster, Self::Net, Self::Group, Self::User]
            .into_iter()
            .find(|kind| kind.name() == word)
    }

    /// As both configurations call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Cluster => "cluster",
            Self::Net => "net",
            Self::Group => "group",
            Self::User => "user",
        }
    }
}

/// The policies of a unit for one purpose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct List {
    /// With `!` and `%`, in their order.
    pub policies: Vec<String>,
    /// The defaults are not for it.
    pub nodefault: bool,
}

/// One unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Line that defines it.
    pub line: usize,
    /// What it is made of.
    pub kind: Kind,
    /// Unique.
    pub name: String,
    /// Empty for a group.
    pub addresses: Vec<IpNet>,
    /// Groups it is a member of.
    pub parents: Vec<String>,
    /// Units in this group.
    pub members: Vec<String>,
    /// `description`, `email` and `mac`.
    pub texts: Vec<(&'static str, String)>,
    /// What is counted.
    pub acct: List,
    /// What passes.
    pub fw: List,
    /// `no_local_pass` and `auto_units`.
    pub flags: Vec<&'static str>,
    /// Why it is denied; the empty text is by hand.
    pub denied: BTreeSet<String>,
    /// Limits, by the commands of `service quota`.
    pub quotas: Vec<Quota>,
}

/// Reads one `unit` command into `units`; one with a name that is there already adds to that unit.
pub fn read(command: &Command, names: &Names, sources: &Sources, units: &mut Vec<Unit>, notes: &mut Notes) {
    let line = command.line;
    let mut words = Words::new(&command.words[1..]);
    let Some(kind) = words.next().and_then(Kind::parse) else {
        notes.add(line, "a unit of another kind than host, cluster, net, group or user is not kept");
        return;
    };
    let Some(name) = names.unit_of(Identity::take(&mut words)) else {
        notes.add(line, "a unit without `oid` or `name` is not kept");
        return;
    };
    let at = units.iter().position(|unit| unit.name == name).unwrap_or_else(|| {
        units.push(Unit::new(line, kind, name));
        units.len() - 1
    });
    let unit = &mut units[at];
    let mut reader =
        Reader { names, sources, unit, say: |text| notes.add(line, format!("unit {name}: {text}")) };
    if reader.unit.kind != kind {
        (reader.say)(format!("it is a {} above; that is kept", reader.unit.kind.name()));
    }
    while let Some(word) = words.next() {
        reader.attribute(word, &mut words);
    }
}

impl Unit {
    fn new(line: usize, kind: Kind, name: &str) -> Self {
        Self {
            line,
            kind,
            name: name.into(),
            addresses: Vec::new(),
            parents: Vec::new(),
            members: Vec::new(),
            texts: Vec::new(),
            acct: List::default(),
            fw: List::default(),
            flags: Vec::new(),
            denied: BTreeSet::new(),
            quotas: Vec::new(),
        }
    }
}
