//! The parts of a `policy` command: each target becomes values of a key.

use super::address;
use super::names::Names;
use super::policy::Policy;
use super::source::Sources;
use super::statement::Words;
use super::target::{self, Side};
use super::toml::Value;

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

/// Reads the parts of one command.
pub struct Reader<'a, S> {
    /// Whom words refer to.
    pub names: &'a Names,
    /// What `ds` refers to.
    pub sources: &'a Sources,
    /// Gets the values.
    pub policy: &'a mut Policy,
    /// The ports so far; what becomes of them depends on all of them.
    pub ports: Vec<(Side, Value)>,
    /// What of the target at hand is not kept.
    pub lost: Vec<String>,
    /// Takes what is to be said of the policy.
    pub say: S,
}

impl<S: FnMut(String)> Reader<'_, S> {
    /// Reads what begins with `word`, and takes from `words` what belongs to it.
    pub fn part(&mut self, word: &str, words: &mut Words<'_>) {
        match word {
            "target" => {}
            "no" => {
                words.skip("target");
                words.next();
                words.until(KEYWORDS);
                (self.say)("`no target` is not kept; remove the target by hand".into());
            }
            "bw" => {
                words.until(KEYWORDS);
                (self.say)("`bw` is not kept; shape traffic with tc".into());
            }
            "hidden" => (self.say)("`hidden` is not kept; there are no pages to hide it from".into()),
            word => {
                let asks = !(word == "proto" && words.peek().is_some_and(target::is_every_protocol));
                let key = self.target(word, words);
                let empty =
                    if word == "port" { self.ports.is_empty() } else { self.policy.values(key).is_empty() };
                if asks && empty {
                    self.lost.push("the policy matches more than it did".into());
                }
                if !self.lost.is_empty() {
                    (self.say)(std::mem::take(&mut self.lost).join("; "));
                }
            }
        }
    }

    /// Reads a target. Its key, which may have no values now.
    fn target(&mut self, word: &str, words: &mut Words<'_>) -> &'static str {
        match word {
            "policy-or" => self.policies("policy_or", words),
            "policy-and" => self.policies("policy_and", words),
            "port" => {
                let ports = self.sided(word, 65535, words);
                self.ports.extend(ports);
                "port"
            }
            "as" => self.systems(words),
            "units" => self.units(words),
            "addr" => self.addresses(words),
            "ds" => self.data_sources(words),
            "file" => self.file(words.next()),
            "ifindex" | "tos" => self.not_told(word, words),
            "ingress" | "egress" => {
                self.lost.push(format!("`{word}` is not kept, since it says how NetFlow is collected"));
                ""
            }
            "proto" | "vlan" | "time" | "day" => self.simple(word, words),
            word => {
                words.until(KEYWORDS);
                let what = if KEYWORDS.contains(&word) { "not kept" } else { "not understood" };
                self.lost.push(format!("`{word}` is {what}"));
                ""
            }
        }
    }

    /// Others, each with `!` or without. One that is called as a keyword is is meant where no value of the keyword follows.
    fn policies(&mut self, key: &'static str, words: &mut Words<'_>) -> &'static str {
        let find = |word: &str| self.names.policy(word.trim_start_matches('!'));
        let is_value = |word: &str| !KEYWORDS.contains(&word) && find(word).is_none();
        while let Some(next) = words.peek() {
            let known =
                find(next).filter(|_| !(KEYWORDS.contains(&next) && words.second().is_some_and(is_value)));
            if known.is_none() && KEYWORDS.contains(&next) {
                break;
            }
            words.next();
            match known {
                Some(known) if next.starts_with('!') => {
                    self.policy.add(key, [Value::Text(format!("!{known}"))])
                }
                Some(known) => self.policy.add(key, [known.into()]),
                None => self.lost.push(format!("no policy `{next}`; it is left out of `{key}`")),
            }
        }
        key
    }

    fn systems(&mut self, words: &mut Words<'_>) -> &'static str {
        let values = self.sided("as", u32::MAX.into(), words);
        if values.iter().any(|(side, _)| *side != Side::Either) {
            self.lost.push("`as` is kept for either side; there is none for one side".into());
        }
        (self.say)("as_file names a file of prefixes and the numbers of their systems; put it there".into());
        self.policy.add("as", values.into_iter().map(|(_, value)| value));
        "as"
    }

    fn units(&mut self, words: &mut Words<'_>) -> &'static str {
        for word in words.until(KEYWORDS).into_iter().filter(|word| !matches!(*word, "oid" | "name")) {
            match self.names.unit(word) {
                Some(unit) => self.policy.add("units", [unit.into()]),
                None => self.lost.push(format!("no unit `{word}`; it is left out of `units`")),
            }
        }
        "units"
    }

    fn addresses(&mut self, words: &mut Words<'_>) -> &'static str {
        while let Some(text) = words.peek().filter(|word| !KEYWORDS.contains(word)) {
            words.next();
            match address::take(text, words) {
                Some(parsed) => {
                    let prefix = address::text(&parsed.prefix);
                    if parsed.trimmed {
                        self.lost.push(format!("`{text}` has bits behind its mask; it is kept as {prefix}"));
                    }
                    self.policy.add("addr", [Value::Text(prefix)]);
                }
                None => self.lost.push(format!("`addr {text}` is not kept: write an address or a prefix")),
            }
        }
        "addr"
    }

    fn data_sources(&mut self, words: &mut Words<'_>) -> &'static str {
        let numbers = words.until(KEYWORDS);
        let all = self.sources.are_all_in(&numbers);
        if !all || numbers.iter().any(|number| !self.sources.numbers.contains(*number)) {
            self.lost.push(format!("`ds {}` is kept as the one source there is", numbers.join(" ")));
        }
        self.policy.add("ds", [self.sources.source().into()]);
        "ds"
    }

    fn file(&mut self, path: Option<&str>) -> &'static str {
        match path {
            Some(path) if self.policy.values("file").is_empty() => {
                self.policy.add("file", [path.into()]);
                self.lost.push(format!(
                    "`{path}` is named and not read; put it there, with a prefix on each line"
                ));
            }
            _ => self.lost.push("a second `file` is not kept; put both lists into one".into()),
        }
        "file"
    }

    /// What flows are not told apart by.
    fn not_told(&mut self, word: &str, words: &mut Words<'_>) -> &'static str {
        let values = words.until(KEYWORDS).join(" ");
        self.lost.push(format!("`{word} {values}` is not kept, since flows are not told apart by it"));
        ""
    }

    fn simple(&mut self, word: &str, words: &mut Words<'_>) -> &'static str {
        let (mut refused, mut reason) = (Vec::new(), String::new());
        for value in words.until(KEYWORDS) {
            match target::simple(word, value) {
                Ok(Some((key, value))) => self.policy.add(key, [value]),
                Ok(None) => {}
                Err(why) => {
                    refused.push(value);
                    reason = why;
                }
            }
        }
        self.refuse(word, &refused, &reason);
        target::key(word)
    }

    /// Values with sides.
    fn sided(&mut self, word: &str, max: u64, words: &mut Words<'_>) -> Vec<(Side, Value)> {
        let (mut values, mut refused) = (Vec::new(), Vec::new());
        for value in words.until(KEYWORDS) {
            target::sided(value, max).map_or_else(|| refused.push(value), |sided| values.push(sided));
        }
        self.refuse(word, &refused, &format!("write numbers or ranges up to {max}"));
        values
    }

    fn refuse(&mut self, word: &str, values: &[&str], why: &str) {
        if !values.is_empty() {
            self.lost.push(format!("`{word} {}` is not kept: {why}", values.join(" ")));
        }
    }
}
