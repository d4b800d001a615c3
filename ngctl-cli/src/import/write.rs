//! The configuration of netamsd as text.

use super::address;
use super::policy::Policy;
use super::quota::Quota;
use super::source::Sources;
use super::toml::{Value, line};
use super::unit::Unit;

/// `restrict`: what becomes of packets that no `fw-policy` decides, `pass` or `drop`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restrict {
    /// When no side is a unit.
    pub all: String,
    /// When one is.
    pub local: String,
}

/// The whole file.
pub fn config(sources: &Sources, restrict: &Restrict, policies: &[Policy], units: &[Unit]) -> String {
    let mut text = String::from("# Made by `ngctl import` of a NeTAMS configuration.\n\n");
    text += &line("source", &sources.source().into());
    text += &line("mode", &sources.mode().into());
    text += &line("default_policy", &Value::from(&restrict.all));
    text += &line("local_policy", &Value::from(&restrict.local));
    if policies.iter().any(|policy| policy.has("as")) {
        text += &line("as_file", &Value::from("pfx2as.txt"));
    }
    text += "\n[kernel]\n";
    text += &line("interfaces", &Value::from(&sources.interfaces[..]));
    for policy in policies {
        text += "\n[[policy]]\n";
        text += &line("name", &Value::from(&policy.name));
        text.extend(policy.entries().map(|(key, value)| line(key, &value)));
    }
    for unit in units {
        write_unit(&mut text, unit);
    }
    text
}

fn write_unit(text: &mut String, unit: &Unit) {
    *text += "\n[[unit]]\n";
    *text += &line("name", &Value::from(&unit.name));
    *text += &line("kind", &unit.kind.name().into());
    let addresses: Vec<String> = unit.addresses.iter().map(address::text).collect();
    let lists = [
        ("addresses", &addresses),
        ("members", &unit.members),
        ("acct_policy", &unit.acct.policies),
        ("fw_policy", &unit.fw.policies),
    ];
    let written = |(key, list): &(&str, &Vec<String>)| {
        if list.is_empty() { String::new() } else { line(key, &Value::from(&list[..])) }
    };
    text.extend(lists[..2].iter().map(written));
    text.extend(unit.texts.iter().map(|(key, value)| line(key, &Value::from(value))));
    text.extend(lists[2..].iter().map(written));
    text.extend(unit.flags.iter().map(|key| line(key, &true.into())));
    if !unit.denied.is_empty() {
        *text += &line("deny", &true.into());
    }
    for quota in &unit.quotas {
        write_quota(text, quota);
    }
}

fn write_quota(text: &mut String, quota: &Quota) {
    *text += "\n[[unit.quota]]\n";
    *text += &line("period", &Value::from(&quota.period));
    *text += &line("limit", &Value::from(&quota.limit));
    *text += &line("direction", &Value::from(&quota.direction));
    if let Some(warn) = quota.warn {
        *text += &line("warn", &warn.into());
    }
    if let Some(policy) = &quota.policy {
        *text += &line("policy", &Value::from(policy));
    }
    *text += &line("hard", &quota.hard.into());
}
