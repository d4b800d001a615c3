//! The text as services with their commands, each a list of words.
//!
//! One command a line, or several with `&&` between them. A line whose first character is `#` is a comment. Words are
//! between blanks or in quotation marks. `service NAME N` begins a service; what stands before the first one is that of
//! the service `main`. The manual is often copied from books that have typographic quotation marks and dashes, so these are
//! read as the plain ones. Control characters are dropped.

use super::note::Notes;

/// One command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Its line, counting from 1.
    pub line: usize,
    /// At least one.
    pub words: Vec<String>,
}

/// A service with its commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Line of `service`; 1 for what stands before the first one.
    pub line: usize,
    /// The service, `main` before the first one.
    pub service: String,
    /// Which of several, empty when not given.
    pub number: String,
    /// In the order of the file.
    pub commands: Vec<Command>,
}

impl Section {
    /// Whether policies and units are defined here. They belong into `service processor`; a part of a file that is
    /// imported may lack that line.
    pub fn defines(&self) -> bool {
        matches!(self.service.as_str(), "processor" | "main")
    }
}

/// Cuts `text` into services.
pub fn sections(text: &str, notes: &mut Notes) -> Vec<Section> {
    let main = Section { line: 1, service: "main".into(), number: String::new(), commands: Vec::new() };
    let mut current = main;
    let mut sections = Vec::new();
    for (at, text) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = at + 1;
        if text.trim_start().starts_with('#') {
            continue;
        }
        for words in commands(text, line, notes) {
            if words[0] == "service" && words.len() > 1 {
                let (service, number) = (words[1].clone(), words.get(2).cloned().unwrap_or_default());
                let next = Section { line, service, number, commands: Vec::new() };
                sections.push(std::mem::replace(&mut current, next));
            } else {
                current.commands.push(Command { line, words });
            }
        }
    }
    sections.push(current);
    sections
}

/// The commands of a line, none of them empty.
fn commands(text: &str, line: usize, notes: &mut Notes) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        if let Some(close) = closing(first) {
            let inside = &rest[first.len_utf8()..];
            let end = inside.find(close).unwrap_or_else(|| {
                notes.add(
                    line,
                    "a quotation mark is not closed; it was read as if it were at the end of the line",
                );
                inside.len()
            });
            push(&mut commands, inside[..end].chars().filter(|c| !c.is_control()).collect());
            rest = inside[end..].strip_prefix(close).unwrap_or("").trim_start();
            continue;
        }
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        match &rest[..end] {
            "&&" => commands.push(Vec::new()),
            word => push(&mut commands, word.chars().filter(|c| !c.is_control()).map(plain).collect()),
        }
        rest = rest[end..].trim_start();
    }
    commands.retain(|words| !words.is_empty());
    commands
}

fn push(commands: &mut [Vec<String>], word: String) {
    if let Some(last) = commands.last_mut() {
        last.push(word);
    }
}

/// The mark that closes what `open` opens at the beginning of a word.
fn closing(open: char) -> Option<char> {
    match open {
        '"' | '\'' => Some(open),
        '«' => Some('»'),
        '“' | '”' => Some('”'),
        _ => None,
    }
}

fn plain(c: char) -> char {
    if matches!(c, '–' | '—') { '-' } else { c }
}

/// Reads the words of a command one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Words<'a>(&'a [String]);

impl<'a> Words<'a> {
    /// All of `words`.
    pub fn new(words: &'a [String]) -> Self {
        Self(words)
    }

    /// The next word, which is not taken.
    pub fn peek(&self) -> Option<&'a str> {
        self.0.first().map(String::as_str)
    }

    /// The word behind the next one.
    pub fn second(&self) -> Option<&'a str> {
        self.0.get(1).map(String::as_str)
    }

    /// Takes the next word.
    pub fn next(&mut self) -> Option<&'a str> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// Takes the next word when it is `word`.
    pub fn skip(&mut self, word: &str) -> bool {
        let fits = self.peek() == Some(word);
        if fits {
            self.next();
        }
        fits
    }

    /// Takes words up to the first of `keywords`.
    pub fn until(&mut self, keywords: &[&str]) -> Vec<&'a str> {
        let end = self.0.iter().position(|word| keywords.contains(&word.as_str())).unwrap_or(self.0.len());
        let (taken, rest) = self.0.split_at(end);
        self.0 = rest;
        taken.iter().map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Vec<String>> {
        commands(text, 1, &mut Notes::default())
    }

    #[test]
    fn words_are_between_blanks_or_in_quotation_marks() {
        let cases: &[(&str, &[&[&str]])] = &[
            ("", &[]),
            ("  debug\tnone  ", &[&["debug", "none"]]),
            ("rule 11 \"ip from any\"", &[&["rule", "11", "ip from any"]]),
            ("action 'a && b' x", &[&["action", "a && b", "x"]]),
            ("description \"\"", &[&["description", ""]]),
            ("description O'Neil", &[&["description", "O'Neil"]]),
            ("a && b c &&", &[&["a"], &["b", "c"]]),
            ("acct–policy «all – ip»", &[&["acct-policy", "all – ip"]]),
            ("name a\u{1b}b", &[&["name", "ab"]]),
        ];
        for (text, expected) in cases {
            assert_eq!(words(text), *expected, "{text}");
        }
    }

    #[test]
    fn an_unclosed_quotation_mark_is_named() {
        let mut notes = Notes::default();
        assert_eq!(commands("a \"b c", 7, &mut notes), [["a", "b c"]]);
        let notes = notes.sorted();
        assert_eq!((notes.len(), notes[0].line), (1, 7));
    }

    #[test]
    fn services_begin_with_their_line() {
        let text = "\u{feff}debug none\r\n# service x 1\nservice processor 0\nunit\n\nservice html\nrun\n";
        let found = sections(text, &mut Notes::default());
        let found: Vec<_> =
            found.iter().map(|s| (s.line, s.service.as_str(), s.number.as_str(), s.commands.len())).collect();
        assert_eq!(found, [(1, "main", "", 1), (3, "processor", "0", 1), (6, "html", "", 1)]);
    }
}
