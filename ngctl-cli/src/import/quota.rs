//! `service quota`: limits of units.
//!
//! NeTAMS keeps the limits in its database. They are set by `set name UNIT day 3M in month 150M in`, typed or sent by
//! `netamsctl`; such lines are read when they stand in the file.

use super::names::Names;
use super::note::Notes;
use super::statement::{Command, Section, Words};
use super::unit::Unit;

/// One limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// `hour`, `day`, `week` or `month`.
    pub period: String,
    /// Bytes as the configuration has them.
    pub limit: String,
    /// `in`, `out` or `sum`.
    pub direction: String,
    /// Percent of the limit.
    pub warn: Option<u64>,
    /// What is counted.
    pub policy: Option<String>,
    /// Blocks the unit.
    pub hard: bool,
}

/// What holds for each quota that does not say otherwise.
struct Defaults {
    warn: Option<u64>,
    policy: Option<String>,
}

/// Reads one `service quota` into the quotas of `units`.
pub fn read(section: &Section, names: &Names, units: &mut [Unit], notes: &mut Notes) {
    // Without a policy NeTAMS takes the first one of the processor.
    let mut defaults = Defaults { warn: None, policy: names.first_policy().map(String::from) };
    let mut set = false;
    for command in &section.commands {
        let (line, value) = (command.line, command.words.get(1).map_or("", String::as_str));
        match command.words[0].as_str() {
            "policy" => match names.policy(value) {
                Some(name) => defaults.policy = Some(name.into()),
                None => notes.add(line, format!("quota: no policy `{value}`; quotas are written without it")),
            },
            "soft-treshold" | "soft-threshold" => {
                defaults.warn = percent(Some(value), &mut |text| notes.add(line, format!("quota: {text}")));
            }
            "set" => {
                set = true;
                one(command, &defaults, names, units, notes);
            }
            "notify" => notes.add(line, "quota: `notify` is not kept; nobody gets mail"),
            "block-policy" | "block-policy-flags" => {
                notes.add(
                    line,
                    "quota: `block-policy` is not kept; a hard quota blocks all of the unit's traffic",
                );
            }
            "storage" | "delay" => {}
            word => notes.add(line, format!("quota: `{word}` is not understood")),
        }
    }
    if !set {
        let text = "quota: the limits of units are in NeTAMS' database and not in this file; write `[[unit.quota]]`, \
                    or add `set name UNIT month 10G sum` here and import again";
        notes.add(section.line, text);
    }
}

/// A threshold in percent; what is none is said.
fn percent(value: Option<&str>, say: &mut impl FnMut(String)) -> Option<u64> {
    let value = value.unwrap_or_default();
    let percent = value.parse().ok().filter(|percent| (1..=100).contains(percent));
    if percent.is_none() {
        say(format!("`{value}` is no percentage; `warn` is not written"));
    }
    percent
}

/// `set {name NAME|oid OID} [soft-treshold N] [policy P] {hour|day|week|month} SIZE {in|out|sum} ...`
fn one(command: &Command, defaults: &Defaults, names: &Names, units: &mut [Unit], notes: &mut Notes) {
    let line = command.line;
    let mut words = Words::new(&command.words[1..]);
    let _ = words.skip("name") || words.skip("oid");
    let word = words.next().unwrap_or_default();
    let unit = names.unit(word).and_then(|name| units.iter_mut().find(|unit| unit.name == name));
    let Some(unit) = unit else {
        notes.add(line, format!("quota: no unit `{word}`; its quota is not kept"));
        return;
    };
    let name = unit.name.clone();
    let mut say = |text: String| notes.add(line, format!("quota of {name}: {text}"));
    let mut quotas = Vec::new();
    let (mut warn, mut policy, mut hard) = (defaults.warn, defaults.policy.clone(), None);
    while let Some(word) = words.next() {
        match word {
            "hour" | "day" | "week" | "month" => limits(word, &mut words, &mut quotas, &mut say),
            "soft-treshold" | "soft-threshold" => warn = percent(words.next(), &mut say),
            "soft" => hard = hard.or(Some(false)),
            "hard" => hard = Some(true),
            "policy" => match words.next().map(|word| (word, names.policy(word))) {
                Some((_, Some(known))) => policy = Some(known.into()),
                Some((word, None)) => say(format!("no policy `{word}`; the default is kept")),
                None => {}
            },
            "active" => {}
            "inactive" => {
                say("`inactive` is not kept, and neither are its limits".into());
                return;
            }
            "notify" | "block-policy" => {
                words.until(&[
                    "hour",
                    "day",
                    "week",
                    "month",
                    "policy",
                    "soft-treshold",
                    "soft-threshold",
                    "notify",
                ]);
                say(format!("`{word}` is not kept"));
            }
            word => say(format!("`{word}` is not understood")),
        }
    }
    unit.quotas.extend(quotas.into_iter().map(|(period, limit, direction)| Quota {
        period,
        limit,
        direction,
        warn,
        policy: policy.clone(),
        hard: hard.unwrap_or(true),
    }));
}

/// The limits of one period: `3M in 5M out 8M sum`.
fn limits(
    period: &str,
    words: &mut Words<'_>,
    quotas: &mut Vec<(String, String, String)>,
    say: &mut impl FnMut(String),
) {
    while let Some(size) = words.peek().filter(|word| word.starts_with(|c: char| c.is_ascii_digit())) {
        words.next();
        let direction = words.peek().filter(|word| matches!(*word, "in" | "out" | "sum"));
        match (bytes(size), direction) {
            (Some(limit), Some(direction)) => {
                words.next();
                quotas.push((period.into(), limit, direction.into()));
            }
            _ => say(format!(
                "`{period} {size}` is not kept; write a size such as 20G with in, out or sum behind it"
            )),
        }
    }
}

/// Bytes, `20G` as `20GB`. `None` when it is none.
fn bytes(text: &str) -> Option<String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let letter = text[digits..].to_ascii_uppercase();
    matches!(letter.as_str(), "" | "K" | "M" | "G" | "T").then(|| format!("{number}{letter}B"))
}
