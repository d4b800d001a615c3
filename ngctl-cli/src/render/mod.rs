//! How answers look. Printers take any writer, so that the command line and the tests share them.
//!
//! Three shapes: tables for people ([`tables`]), `--csv` ([`csv`]) and `--json` ([`json`]), which is the answer as it
//! came over the socket. Tables round bytes unless told otherwise; the other two never round.

pub mod csv;
pub mod ledger;
pub mod policy;
pub mod source;
mod table;
pub mod tables;

use std::io::{self, Write};

use chrono_tz::Tz;
use netams_proto::{InOut, Part, UnitTotals, text};
use unicode_width::UnicodeWidthStr;

/// How tables are to be printed.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Columns of the terminal; `None` shows every column of every table.
    pub width: Option<usize>,
    /// Whether to emphasise with escape sequences.
    pub colour: bool,
    /// Bytes as exact numbers.
    pub exact: bool,
    /// Zone of the times.
    pub zone: Tz,
}

impl Look {
    /// No limit, no colour, UTC.
    #[cfg(test)]
    pub fn plain() -> Self {
        Self { width: None, colour: false, exact: false, zone: Tz::UTC }
    }

    /// A byte count.
    fn bytes(&self, bytes: u64) -> String {
        if self.exact { bytes.to_string() } else { text::human_bytes(bytes) }
    }

    /// What stands below a table: as many notes on a line as fit, and a longer one broken between words.
    pub fn notes(&self, to: &mut dyn Write, notes: &[String]) -> io::Result<()> {
        let fits = |line: &str| self.width.is_none_or(|width| line.width() <= width);
        let mut line = String::new();
        for note in notes {
            let longer = format!("{line}; {note}");
            if !line.is_empty() && fits(&longer) {
                line = longer;
                continue;
            }
            if !line.is_empty() {
                writeln!(to, "{line}")?;
                line.clear();
            }
            for word in note.split(' ') {
                let longer = format!("{line} {word}");
                if !line.is_empty() && !fits(&longer) {
                    writeln!(to, "{line}")?;
                    line = word.to_owned();
                } else {
                    line = if line.is_empty() { word.to_owned() } else { longer };
                }
            }
        }
        writeln!(to, "{line}")
    }
}

/// An answer as JSON, with the field names of the protocol.
///
/// # Errors
/// Those of the writer.
pub fn json(to: &mut dyn Write, answer: &impl serde::Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *to, answer)?;
    writeln!(to)
}

/// The periods of a part by name.
fn periods_of(part: &Part) -> [(&'static str, InOut); 3] {
    [("today", part.today), ("month", part.month), ("total", part.total)]
}

/// A unit's periods by name.
fn periods(unit: &UnitTotals) -> [(&'static str, InOut); 3] {
    [("today", unit.today), ("month", unit.month), ("total", unit.total)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_share_lines_that_fit_and_break_between_words() {
        let notes = ["one two", "three", "four five six"].map(str::to_owned);
        for (width, expected) in [
            (None, "one two; three; four five six\n"),
            (Some(14), "one two; three\nfour five six\n"),
            (Some(9), "one two\nthree\nfour five\nsix\n"),
            (Some(1), "one\ntwo\nthree\nfour\nfive\nsix\n"),
        ] {
            let mut out = Vec::new();
            Look { width, ..Look::plain() }.notes(&mut out, &notes).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{width:?}");
        }
    }
}
