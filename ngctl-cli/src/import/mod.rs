//! `ngctl import`: a NeTAMS configuration becomes one of netamsd.
//!
//! ```text
//! text -> statement (services, commands, words) -> names (who is called what)
//!      -> source, policy, unit, quota (one file each) -> finish (groups, defaults) -> write -> TOML
//!                      \________ notes ________________________/               -> the report
//! ```
//!
//! Everything but [`command`] is pure: text in, text and notes out. Nothing of the file is left out in silence: what cannot be
//! kept becomes a [`Note`]. The syntax is that of "Документация NetAMS", versions 3.3 and 3.4.

mod address;
mod attribute;
mod command;
mod condition;
mod finish;
mod names;
mod note;
mod policy;
mod ports;
mod quota;
mod rule;
mod service;
mod source;
mod statement;
mod target;
#[cfg(test)]
mod tests;
mod toml;
mod unit;
mod write;

pub use command::{ImportArgs, import};
use finish::Defaults;
use names::Names;
pub use note::Note;
use note::Notes;
use policy::Policy;
use source::Sources;
use statement::{Command, Section, Words};
use unit::Unit;
use write::Restrict;

/// The configuration of netamsd that does what the NeTAMS configuration `text` did, and the report. `None` when nothing in
/// it is known: it is no NeTAMS configuration.
pub fn convert(text: &str) -> Option<(String, Vec<Note>)> {
    let mut notes = Notes::default();
    note_encoding(text, &mut notes);
    let sections = statement::sections(text, &mut notes);
    let names = Names::of(&sections);
    let known = |section: &Section| section.service != "main" && service::is_known(&section.service);
    if !sections.iter().any(known) && names.is_empty() {
        return None;
    }
    let sources = source::read(&sections, &mut notes);
    let mut reader = Reader {
        has_storage: sections.iter().any(|section| section.service == "storage"),
        restrict: Restrict { all: "drop".into(), local: "pass".into() },
        policies: Vec::new(),
        units: Vec::new(),
        defaults: Defaults::default(),
        names,
        sources,
        notes,
    };
    for section in sections.iter().filter(|section| section.defines()) {
        section.commands.iter().for_each(|command| reader.command(command));
    }
    let Reader { restrict, mut policies, mut units, defaults, names, sources, mut notes, .. } = reader;
    for section in sections.iter().filter(|section| !section.defines()) {
        match section.service.as_str() {
            "quota" => quota::read(section, &names, &mut units, &mut notes),
            _ => service::say(section).into_iter().for_each(|text| notes.add(section.line, text)),
        }
    }
    finish::defaults(&defaults, &mut units, &mut notes);
    finish::units(&mut units, &mut notes);
    finish::policies(&mut policies, &units, &mut notes);
    if sources.divert && restrict.all == "drop" && restrict.local == "pass" {
        finish::unlisted(&units, &mut notes);
    }
    note_version(text, &units, &mut notes);
    Some((write::config(&sources, &restrict, &policies, &units), notes.sorted()))
}

/// Texts were KOI8-R or Windows-1251 in those days, and nothing in the file says which.
fn note_encoding(text: &str, notes: &mut Notes) {
    let mut lines = text.lines().enumerate().filter(|(_, line)| line.contains(char::REPLACEMENT_CHARACTER));
    if let Some((at, _)) = lines.next() {
        let count = 1 + lines.count();
        let what = "not UTF-8, some letters are lost; convert the file by `iconv -f KOI8-R -t UTF-8` and import again";
        notes.add(at + 1, format!("{count} lines are {what}"));
    }
}

/// Until 3.3.0 (build 2117) a `fw-policy` list did not say what passes.
fn note_version(text: &str, units: &[Unit], notes: &mut Notes) {
    let version =
        text.lines().enumerate().find_map(|(at, line)| Some((at + 1, line.split_once("NeTAMS version ")?.1)));
    let Some((line, version)) = version else { return };
    let mut parts = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let is_old = (parts.next(), parts.next()) < (Some(3), Some(3));
    if is_old && units.iter().any(|unit| !unit.fw.policies.is_empty()) {
        notes.add(line, "before 3.3.0 `fw-policy` did not list what passes; check `fw_policy` of every unit");
    }
}

/// Carries out the commands of `main` and `processor`.
struct Reader {
    has_storage: bool,
    /// NeTAMS' own when the file does not say: what is the default is not in the file.
    restrict: Restrict,
    policies: Vec<Policy>,
    units: Vec<Unit>,
    defaults: Defaults,
    names: Names,
    sources: Sources,
    notes: Notes,
}

impl Reader {
    fn command(&mut self, command: &Command) {
        let line = command.line;
        let mut words = Words::new(&command.words[1..]);
        match command.words[0].as_str() {
            "policy" => {
                policy::read(command, &self.names, &self.sources, &mut self.policies, &mut self.notes)
            }
            "unit" => unit::read(command, &self.names, &self.sources, &mut self.units, &mut self.notes),
            "restrict" => self.restrict(line, &mut words),
            "default" => self.default(line, &mut words),
            "auto-units" => self.auto_units(line, &mut words),
            _ => {
                let text = service::command(command, self.has_storage);
                text.into_iter().for_each(|text| self.notes.add(line, text));
            }
        }
    }

    fn restrict(&mut self, line: usize, words: &mut Words<'_>) {
        while let Some(scope) = words.next() {
            let verdict = words.next().unwrap_or_default();
            match (scope, verdict) {
                ("all", "pass" | "drop") => self.restrict.all = verdict.into(),
                ("local", "pass" | "drop") => self.restrict.local = verdict.into(),
                _ => self.notes.add(line, format!("`restrict {scope} {verdict}` is not understood")),
            }
        }
    }

    fn default(&mut self, line: usize, words: &mut Words<'_>) {
        while let Some(key) = words.next() {
            let notes = &mut self.notes;
            let mut say = |text: String| notes.add(line, format!("default: {text}"));
            let list = match key {
                "acct-policy" => &mut self.defaults.acct,
                "fw-policy" => &mut self.defaults.fw,
                _ => return say(format!("`{key}` is not understood")),
            };
            *list = Some((line, attribute::policies(words, &self.names, &mut say)));
        }
    }

    /// `auto-units N type KIND naming HOW [group GROUP]`.
    fn auto_units(&mut self, line: usize, words: &mut Words<'_>) {
        let number = words.next().unwrap_or_default();
        while words.next().is_some() {}
        self.notes.add(line, format!("auto-units {number} is not kept; write a unit for each address"));
    }
}
