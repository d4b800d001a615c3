//! The attributes of a `unit` command.

use super::address;
use super::names::Names;
use super::source::Sources;
use super::statement::Words;
use super::unit::{Kind, Unit};

/// What begins a new part of a `unit` command.
const KEYWORDS: &[&str] = &[
    "ip",
    "mask",
    "parent",
    "mac",
    "email",
    "description",
    "password",
    "crypted",
    "acct-policy",
    "fw-policy",
    "ds-list",
    "no-local-pass",
    "auto-units",
    "bw",
    "nodefault",
    "ap-nodefault",
    "fp-nodefault",
];

/// Why a unit may be denied, beside by hand.
const REASONS: &[&str] = &["auth", "block", "login", "money", "quota", "mac"];

/// Reads the attributes of one command.
pub struct Reader<'a, S> {
    /// Whom words refer to.
    pub names: &'a Names,
    /// What `ds-list` refers to.
    pub sources: &'a Sources,
    /// Gets the attributes.
    pub unit: &'a mut Unit,
    /// Takes what is to be said of the unit.
    pub say: S,
}

impl<S: FnMut(String)> Reader<'_, S> {
    /// Reads the attribute `word`, and takes from `words` what belongs to it.
    pub fn attribute(&mut self, word: &str, words: &mut Words<'_>) {
        match word {
            "ip" => self.addresses(words),
            "parent" => self.parent(words.next()),
            "mac" => {
                words.next();
                (self.say)("`mac` is not kept; units are told by their addresses".into());
            }
            "email" => self.text("email", words.next().map(String::from)),
            "description" => self.text("description", words.next().map(String::from)),
            // The password itself must not get into a report.
            "password" | "crypted" => {
                words.next();
                (self.say)(format!("its `{word}` is not kept; nobody logs in"));
            }
            "acct-policy" => {
                let found = policies(words, self.names, &mut self.say);
                self.unit.acct.policies.extend(found);
            }
            "fw-policy" => {
                let found = policies(words, self.names, &mut self.say);
                if found.is_empty() {
                    (self.say)("`fw-policy` without a policy is not kept; it would let nothing pass".into());
                }
                self.unit.fw.policies.extend(found);
            }
            "ds-list" => self.data_sources(words),
            "no-local-pass" => self.flag("no_local_pass"),
            "auto-units" => {
                words.next();
                (self.say)("`auto-units` is not kept; write a unit for each address".into());
            }
            "bw" => self.rate(words),
            "nodefault" => (self.unit.acct.nodefault, self.unit.fw.nodefault) = (true, true),
            "ap-nodefault" => self.unit.acct.nodefault = true,
            "fp-nodefault" => self.unit.fw.nodefault = true,
            word if word.starts_with("sys-") => self.system_policy(word),
            word => {
                while words.peek().is_some_and(|next| !KEYWORDS.contains(&next) && !next.starts_with("sys-"))
                {
                    words.next();
                }
                (self.say)(format!("`{word}` is not understood"));
            }
        }
    }

    /// One or several addresses behind one `ip`.
    fn addresses(&mut self, words: &mut Words<'_>) {
        let mut first = true;
        while first || words.peek().is_some_and(address::looks_like_one) {
            first = false;
            let Some(text) = words.next() else { break };
            let Some(parsed) = address::take(text, words) else {
                (self.say)(match text {
                    "auto" => "`ip auto` is not kept; write its address".into(),
                    _ => format!(
                        "`ip {text}` is not kept; write an address, a prefix, or an address with a netmask"
                    ),
                });
                continue;
            };
            let prefix = parsed.prefix;
            if parsed.trimmed {
                (self.say)(format!("`{text}` has bits behind its mask; it is kept as {prefix}"));
            }
            if self.unit.kind == Kind::Group {
                (self.say)(format!("`ip {text}` is not kept; a group has members only"));
            } else if prefix.addr().is_unspecified() && prefix.prefix_len() > 0 {
                (self.say)(format!("`ip {text}` is not kept; it is no address of a packet"));
            } else {
                if self.unit.kind == Kind::Net && !parsed.masked {
                    (self.say)(format!("`ip {text}` has no mask; it is kept as one address"));
                }
                self.unit.addresses.push(prefix);
            }
        }
    }

    fn parent(&mut self, word: Option<&str>) {
        let word = word.unwrap_or_default();
        match self.names.unit(word) {
            Some(parent) if parent == self.unit.name => {
                (self.say)("it is not kept as a member of itself".into())
            }
            Some(parent) => self.unit.parents.push(parent.into()),
            None => (self.say)(format!("no unit `{word}` for `parent`; the unit is in no such group")),
        }
    }

    fn text(&mut self, key: &'static str, value: Option<String>) {
        self.unit.texts.retain(|(known, _)| *known != key);
        match value {
            Some(value) => self.unit.texts.push((key, value)),
            None => (self.say)(format!("`{key}` has no value")),
        }
    }

    fn flag(&mut self, key: &'static str) {
        if !self.unit.flags.contains(&key) {
            self.unit.flags.push(key);
        }
    }

    /// Numbers with commas or blanks between them.
    fn data_sources(&mut self, words: &mut Words<'_>) {
        let mut numbers = Vec::new();
        while let Some(word) = words.peek().filter(|word| word.starts_with(|c: char| c.is_ascii_digit())) {
            words.next();
            numbers.extend(word.split(',').filter(|number| !number.is_empty()));
        }
        if !self.sources.are_all_in(&numbers) {
            let list = numbers.join(",");
            (self.say)(format!("`ds-list {list}` is not kept; the unit counts what the one source sees"));
        }
    }

    /// `bw SPEED`, or `bw SPEED in SPEED out`.
    fn rate(&mut self, words: &mut Words<'_>) {
        let is_part =
            |word: &str| word.starts_with(|c: char| c.is_ascii_digit()) || matches!(word, "in" | "out");
        let mut speeds = Vec::new();
        while let Some(word) = words.peek().filter(|word| is_part(word)) {
            words.next();
            speeds.push(word);
        }
        (self.say)(format!("`bw {}` is not kept; shape the unit's traffic with tc", speeds.join(" ")));
    }

    fn system_policy(&mut self, word: &str) {
        let reason =
            |action: &str| word.strip_prefix(action).map(|rest| rest.trim_start_matches('-').to_owned());
        match (reason("sys-deny"), reason("sys-allow")) {
            (Some(reason), _) if reason.is_empty() || REASONS.contains(&reason.as_str()) => {
                self.unit.denied.insert(reason);
            }
            (_, Some(reason)) if reason.is_empty() => self.unit.denied.clear(),
            (_, Some(reason)) if REASONS.contains(&reason.as_str()) => {
                self.unit.denied.remove(&reason);
            }
            _ => (self.say)(format!(
                "`{word}` is not kept; what passes is said by `deny` and by the unit's `fw_policy`"
            )),
        }
    }
}

/// A list of policies, up to what is none. One that is called as a keyword is is meant where no value of the keyword follows.
pub fn policies(words: &mut Words<'_>, names: &Names, say: &mut impl FnMut(String)) -> Vec<String> {
    let bare = |word: &str| word.trim_start_matches(['!', '%']).to_owned();
    let is_value = |keyword: &str, word: &str| match keyword {
        "ip" => address::looks_like_one(word),
        _ => KEYWORDS.contains(&keyword) && !KEYWORDS.contains(&word) && names.policy(&bare(word)).is_none(),
    };
    let mut list = Vec::new();
    while let Some(word) = words.peek() {
        let name = bare(word);
        let known = names.policy(&name).filter(|_| !words.second().is_some_and(|next| is_value(word, next)));
        if known.is_none() && (KEYWORDS.contains(&word) || word.starts_with("sys-")) {
            break;
        }
        words.next();
        match known {
            Some(known) => list.push(format!("{}{known}", &word[..word.len() - name.len()])),
            None => say(format!("no policy `{name}`; it is left out of the list")),
        }
    }
    list
}
