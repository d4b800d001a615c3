//! What is said about lines of the imported file that are not, or not wholly, kept.

/// One line of the report: a sentence about one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Line of the imported file, counting from 1.
    pub line: usize,
    /// What is not kept, and what to do.
    pub text: String,
}

/// The report while it is written.
#[derive(Debug, Default)]
pub struct Notes(Vec<Note>);

impl Notes {
    /// Adds what is to be said about `line`.
    pub fn add(&mut self, line: usize, text: impl Into<String>) {
        self.0.push(Note { line, text: text.into() });
    }

    /// All notes, in the order of the lines.
    pub fn sorted(mut self) -> Vec<Note> {
        self.0.sort_by_key(|note| note.line);
        self.0
    }
}
