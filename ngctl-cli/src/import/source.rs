//! `service data-source`: where packets are taken from.
//!
//! NeTAMS may have several at once, netamsd has one. What takes packets out of the kernel and decides (`divert`, `ipq`,
//! a netgraph node with `divert`) becomes the queues, what looks at copies becomes the kernel's counters.

use std::collections::BTreeSet;

use super::note::Notes;
use super::rule::{self, CHAINS, interface};
use super::statement::Section;

/// What the data sources of the file come to.
#[derive(Debug, Default)]
pub struct Sources {
    /// Whether packets are decided about.
    pub divert: bool,
    /// Interfaces of what counts, each once.
    pub interfaces: Vec<String>,
    /// Numbers of the data sources that there is a counterpart of.
    pub numbers: BTreeSet<String>,
}

impl Sources {
    /// The value of `source`.
    pub fn source(&self) -> &'static str {
        if self.divert { "nfqueue" } else { "kernel" }
    }

    /// The value of `mode`.
    pub fn mode(&self) -> &'static str {
        if self.divert { "divert" } else { "tee" }
    }

    /// Whether `numbers` are all data sources that there is a counterpart of.
    pub fn are_all_in(&self, numbers: &[&str]) -> bool {
        self.numbers.iter().all(|known| numbers.contains(&known.as_str()))
    }
}

/// How a data source gets its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Copies,
    Decides,
}

/// Reads all data sources of the file.
pub fn read(sections: &[Section], notes: &mut Notes) -> Sources {
    let mut sources = Sources::default();
    let mut ways = Vec::new();
    let mut line = 1;
    for section in sections.iter().filter(|section| section.service == "data-source") {
        line = section.line;
        let mut interfaces = Vec::new();
        if let Some(way) = one(section, &mut interfaces, notes) {
            sources.numbers.insert(section.number.clone());
            ways.push((way, interfaces));
        }
    }
    sources.divert = ways.iter().any(|(way, _)| *way == Way::Decides);
    let counts = |way: Way| !sources.divert || way == Way::Decides;
    for name in ways.iter().filter(|(way, _)| counts(*way)).flat_map(|(_, names)| names) {
        if !sources.interfaces.contains(name) {
            sources.interfaces.push(name.clone());
        }
    }
    if ways.is_empty() {
        notes.add(
            line,
            "no data source that netamsd has; `source = \"kernel\"` and `mode = \"tee\"` are written",
        );
    }
    if sources.divert && ways.iter().any(|(way, _)| *way == Way::Copies) {
        notes.add(
            line,
            "one source counts at a time: the queues, and not also what other data sources copied",
        );
    }
    if sources.interfaces.is_empty() {
        notes.add(line, "no interface is named; write those to meter into `kernel.interfaces`");
    }
    sources
}

/// Reads one. `None` when there is no counterpart, which is noted.
fn one(section: &Section, interfaces: &mut Vec<String>, notes: &mut Notes) -> Option<Way> {
    let first = |key| section.commands.iter().find(|c| c.words[0] == key).and_then(|c| c.words.get(1));
    let kind = first("type").map_or("ip-traffic", String::as_str);
    let mut way = None;
    let mut chains = BTreeSet::new();
    for command in &section.commands {
        let line = command.line;
        match command.words[0].as_str() {
            "type" => {}
            "source" => match source(kind, &command.words[1..], interfaces) {
                Some(found) => way = Some(found),
                None => notes.add(line, format!("data source {}: {}", section.number, no_counterpart(kind))),
            },
            "rule" => rule::read(command, interfaces, &mut chains, notes),
            // Only NetFlow has these; what is said of the source says enough.
            "listen" | "clock" => {}
            "layer7-detect" if command.words.get(1).is_none_or(|word| word == "none") => {}
            word => notes.add(line, format!("data source {}: `{word}` is not kept", section.number)),
        }
    }
    if first("source").is_none() {
        notes.add(section.line, format!("data source {}: {}", section.number, no_counterpart(kind)));
    }
    if way.is_some() && !chains.is_empty() && chains.len() < CHAINS.len() {
        let names: Vec<String> = chains.iter().map(|chain| format!("\"{chain}\"")).collect();
        let text = format!(
            "only these chains were taken: with queues, write `nfqueue.chains = [{}]`",
            names.join(", ")
        );
        notes.add(section.line, format!("data source {}: {text}", section.number));
    }
    way
}

fn no_counterpart(kind: &str) -> String {
    match kind {
        "netflow" => "NetFlow is not received; run netamsd on the router itself".into(),
        "raw" => {
            "data from other programs (`raw`) are not received; run netamsd where the packets are".into()
        }
        _ => format!("this kind of source (`{kind}`) is not known; choose `source` and `mode` by hand"),
    }
}

/// What follows `source` for a data source of this type.
fn source(kind: &str, words: &[String], interfaces: &mut Vec<String>) -> Option<Way> {
    let first = words.first()?.as_str();
    match (kind, first) {
        ("netflow" | "raw", _) | (_, "netflow") => None,
        (_, "divert" | "ipq" | "queue") => Some(Way::Decides),
        (_, "tee" | "ulog") => Some(Way::Copies),
        ("netgraph", _) if words.iter().any(|word| word == "divert") => Some(Way::Decides),
        ("netgraph", _) => Some(Way::Copies),
        (_, "libpcap") => {
            words.get(1).into_iter().for_each(|name| interface(name, interfaces));
            Some(Way::Copies)
        }
        ("libpcap", name) => {
            interface(name, interfaces);
            Some(Way::Copies)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::statement::sections;

    /// Source, mode, interfaces, and how many notes.
    fn summary(text: &str) -> (&'static str, &'static str, String, usize) {
        let mut notes = Notes::default();
        let sources = read(&sections(text, &mut notes), &mut notes);
        (sources.source(), sources.mode(), sources.interfaces.join(" "), notes.sorted().len())
    }

    #[test]
    fn every_source_has_its_counterpart_or_a_note() {
        let cases = [
            (
                "type ip-traffic\nsource divert 199\nrule 5 \"ip from any to any via rl0\"",
                ("nfqueue", "divert", "rl0", 1),
            ),
            (
                "type ip-traffic\nsource tee 199\nrule 5 \"ip from any to any via rl0\"",
                ("kernel", "tee", "rl0", 1),
            ),
            ("source ipq\nrule 5 \"FORWARD -p all -j QUEUE\"", ("nfqueue", "divert", "", 2)),
            ("source ulog 1\nrule 5 \"FORWARD -i eth0 -j ULOG\"", ("kernel", "tee", "eth0", 2)),
            ("type libpcap\nsource eth0 promisc", ("kernel", "tee", "eth0", 0)),
            ("source libpcap eth1", ("kernel", "tee", "eth1", 0)),
            ("type netgraph\nsource netams:\nrule 1 via x", ("kernel", "tee", "x", 0)),
            ("type netgraph\nsource netams: divert", ("nfqueue", "divert", "", 1)),
            ("type netflow\nsource 10.0.0.1\nlisten 20001", ("kernel", "tee", "", 3)),
            ("type netflow\nlisten 20001", ("kernel", "tee", "", 3)),
            ("type raw\nsource x", ("kernel", "tee", "", 3)),
            (
                "source divert 1\nlayer7-detect urls\nrule 1 \"ip from any to any via a via a\"",
                ("nfqueue", "divert", "a", 3),
            ),
        ];
        for (text, expected) in cases {
            let (source, mode, interfaces, notes) = expected;
            let found = summary(&format!("service data-source 1\n{text}"));
            assert_eq!(found, (source, mode, interfaces.to_owned(), notes), "{text}");
        }
        assert_eq!(summary("service html"), ("kernel", "tee", String::new(), 2), "none at all");
    }

    #[test]
    fn of_several_the_one_that_decides_wins() {
        let text = "service data-source 1\nsource libpcap eth0\nservice data-source 2\nsource divert 1";
        assert_eq!(summary(text), ("nfqueue", "divert", String::new(), 2), "and its interfaces count");
    }
}
