//! Who is called what: policies and units are referred to by name or by OID, also before they are defined.

use super::statement::{Section, Words};

/// The names of all policies and units.
#[derive(Debug, Default)]
pub struct Names {
    policies: Vec<Named>,
    units: Vec<Named>,
}

#[derive(Debug)]
struct Named {
    oid: Option<u64>,
    name: String,
}

/// `oid OID`, `name NAME` or both, in either order.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Identity<'a> {
    oid: Option<&'a str>,
    name: Option<&'a str>,
}

impl<'a> Identity<'a> {
    /// Takes it from the front of `words`.
    pub fn take(words: &mut Words<'a>) -> Self {
        let mut identity = Self::default();
        loop {
            match words.peek() {
                Some("oid") if identity.oid.is_none() => {
                    words.next();
                    identity.oid = words.next();
                }
                Some("name") if identity.name.is_none() => {
                    words.next();
                    identity.name = words.next();
                }
                _ => return identity,
            }
        }
    }
}

impl Names {
    /// Collects them from all commands that define a policy or a unit.
    pub fn of(sections: &[Section]) -> Self {
        let mut names = Self::default();
        for command in sections.iter().filter(|s| s.defines()).flat_map(|s| &s.commands) {
            let mut words = Words::new(&command.words);
            match words.next() {
                Some("policy") => add(&mut names.policies, Identity::take(&mut words)),
                Some("unit") if words.next().is_some() => add(&mut names.units, Identity::take(&mut words)),
                _ => {}
            }
        }
        names
    }

    /// Whether there is neither a policy nor a unit.
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.units.is_empty()
    }

    /// The name of the policy that `word` is the name or OID of.
    pub fn policy(&self, word: &str) -> Option<&str> {
        find(&self.policies, word)
    }

    /// The name of the policy that was defined first.
    pub fn first_policy(&self) -> Option<&str> {
        self.policies.first().map(|policy| policy.name.as_str())
    }

    /// The name of the unit that `word` is the name or OID of.
    pub fn unit(&self, word: &str) -> Option<&str> {
        find(&self.units, word)
    }

    /// The name of the policy so identified.
    pub fn policy_of(&self, identity: Identity<'_>) -> Option<&str> {
        of(&self.policies, identity)
    }

    /// The name of the unit so identified.
    pub fn unit_of(&self, identity: Identity<'_>) -> Option<&str> {
        of(&self.units, identity)
    }
}

fn add(all: &mut Vec<Named>, identity: Identity<'_>) {
    if of(all, identity).is_some() {
        return;
    }
    // One without a name goes by its OID.
    if let Some(name) = identity.name.or(identity.oid) {
        all.push(Named { oid: identity.oid.and_then(oid), name: name.into() });
    }
}

fn of<'a>(all: &'a [Named], identity: Identity<'_>) -> Option<&'a str> {
    match identity.name {
        Some(name) => all.iter().find(|known| known.name == name).map(|known| known.name.as_str()),
        None => find(all, identity.oid?),
    }
}

fn find<'a>(all: &'a [Named], word: &str) -> Option<&'a str> {
    let by_name = all.iter().find(|known| known.name == word);
    let by_oid = || oid(word).and_then(|oid| all.iter().find(|known| known.oid == Some(oid)));
    by_name.or_else(by_oid).map(|known| known.name.as_str())
}

/// OIDs are hexadecimal; zeros in front of them differ from place to place.
fn oid(word: &str) -> Option<u64> {
    u64::from_str_radix(word, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::note::Notes;
    use crate::import::statement::sections;

    #[test]
    fn names_and_oids_find_each_other() {
        let text = "service processor\npolicy oid 0A0B01 name ip\npolicy name bad\nunit host name a oid 00F1\n\
                    unit net oid 0c\nunit host name a ip 1.2.3.4\nservice quota\npolicy name none";
        let names = Names::of(&sections(text, &mut Notes::default()));
        assert_eq!(names.policy("ip"), Some("ip"));
        assert_eq!(names.policy("A0B01"), Some("ip"));
        assert_eq!(names.policy("bad"), Some("bad"), "a name that could be an OID");
        assert_eq!(names.policy("none"), None);
        assert_eq!(names.unit("F1"), Some("a"));
        assert_eq!(names.unit("0C"), Some("0c"), "one without a name goes by its OID");
        assert_eq!(names.units.len(), 2);
    }
}
