//! `rule ID "RULE"` of a data source: a rule of ipfw or of iptables. Its interfaces and chains are taken; that it asks for
//! more is said.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::note::Notes;
use super::statement::{Command, Words};

/// netamsd's patterns have `*` where iptables has `+`.
pub fn interface(name: &str, interfaces: &mut Vec<String>) {
    let name = name.strip_suffix('+').map_or_else(|| name.to_owned(), |name| format!("{name}*"));
    let is_address = name.parse::<IpAddr>().is_ok();
    if name != "any" && !is_address && !interfaces.contains(&name) {
        interfaces.push(name);
    }
}

/// Chains of netfilter as `nfqueue.chains` has them.
pub const CHAINS: [&str; 3] = ["forward", "input", "output"];

/// `rule ID "RULE"`: a rule of ipfw or of iptables. Its interfaces and chains are taken; anything else that it asks for is
/// named.
pub fn read(
    command: &Command,
    interfaces: &mut Vec<String>,
    chains: &mut BTreeSet<String>,
    notes: &mut Notes,
) {
    let id = command.words.get(1).map_or("", String::as_str);
    let text = command.words.get(2..).unwrap_or_default().join(" ");
    let words: Vec<String> = text.split_whitespace().map(String::from).collect();
    let ipfw = words.iter().any(|word| word == "from");
    let mut more = false;
    let mut rest = Words::new(&words);
    while let Some(word) = rest.next() {
        match (word, rest.peek()) {
            ("via" | "recv" | "xmit", Some(name)) => {
                interface(name, interfaces);
                more |= word != "via";
                if ipfw && name.parse::<IpAddr>().is_err() && name != "any" {
                    let text = format!(
                        "rule {id}: `{name}` is FreeBSD's name; write this machine's into `kernel.interfaces`"
                    );
                    notes.add(command.line, text);
                }
                rest.next();
            }
            ("-i" | "-o", Some(name)) => {
                interface(name, interfaces);
                more = true;
                rest.next();
            }
            ("not" | "!", Some(_)) => {
                rest.next();
                rest.next();
                more = true;
            }
            ("from" | "to", Some("any")) | ("-p", Some("all" | "ip")) | ("-j" | "-A" | "-I", Some(_)) => {
                if matches!(word, "-A" | "-I") {
                    continue;
                }
                rest.next();
            }
            ("ip" | "all", _) if ipfw => {}
            (chain, _) if CHAINS.contains(&chain.to_lowercase().as_str()) => {
                chains.insert(chain.to_lowercase());
            }
            _ => more = true,
        }
    }
    if more {
        notes.add(
            command.line,
            format!("rule {id} takes a part of the traffic; netamsd takes all that passes the interfaces"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rule_leaves_out_is_said() {
        let part = |text: &str| {
            let words = ["rule", "1", text].map(String::from).to_vec();
            let (mut interfaces, mut chains, mut notes) = (Vec::new(), BTreeSet::new(), Notes::default());
            read(&Command { line: 1, words }, &mut interfaces, &mut chains, &mut notes);
            (interfaces.join(" "), notes.sorted().iter().any(|note| note.text.contains("a part")))
        };
        for (text, expected) in [
            ("ip from any to any via fxp0", ("fxp0", false)),
            ("all from any to any via fxp*", ("fxp*", false)),
            ("ip from any to any in recv fxp0", ("fxp0", true)),
            ("ip from 10.0.0.0/8 to any via fxp0", ("fxp0", true)),
            ("tcp from any to any via fxp0", ("fxp0", true)),
            ("ip from any to any not via lo0", ("", true)),
            ("INPUT -p all -j QUEUE", ("", false)),
            ("-A FORWARD -i ppp+ -j QUEUE", ("ppp*", true)),
            ("FORWARD -s 10.0.0.0/8 -j QUEUE", ("", true)),
        ] {
            assert_eq!(part(text), (expected.0.to_owned(), expected.1), "{text}");
        }
    }
}
