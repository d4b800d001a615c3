//! Tables that fit the terminal. The only file that knows prettytable.
//!
//! When the width is not enough, columns are left out, the least important first; only when the rest is still too wide
//! are elastic columns shortened, which `…` shows. Lines never wrap.

use std::io::{self, Write};

use netams_proto::text::clean;
use prettytable::format::{Alignment, FormatBuilder};
use prettytable::{Cell, Row};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::Look;

/// Blanks between two columns.
const GAP: usize = 2;
/// An elastic column is not made narrower than this.
const LEAST: usize = 8;

/// One column of a table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    title: &'static str,
    right: bool,
    /// 0: always shown. Otherwise the columns with the highest rank are left out first, all of them together.
    rank: u8,
    elastic: bool,
}

impl Column {
    /// Left-aligned text.
    pub const fn text(title: &'static str) -> Self {
        Self { title, right: false, rank: 0, elastic: false }
    }

    /// A right-aligned number.
    pub const fn number(title: &'static str) -> Self {
        Self { title, right: true, rank: 0, elastic: false }
    }

    /// May be left out; the columns of the highest rank go first, together.
    pub const fn optional(mut self, rank: u8) -> Self {
        self.rank = rank;
        self
    }

    /// May be shortened when leaving out columns is not enough.
    pub const fn elastic(mut self) -> Self {
        self.elastic = true;
        self
    }
}

/// Columns and the rows below them.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, one text for each column. Control characters are stripped.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let row: Vec<String> = cells.into_iter().map(|cell| clean(&cell)).collect();
        debug_assert_eq!(row.len(), self.columns.len());
        self.rows.push(row);
    }

    /// Writes the table in at most `look.width` columns.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn print(&self, to: &mut dyn Write, look: &Look) -> io::Result<()> {
        let shown = self.fit(look.width);
        let mut table = prettytable::Table::new();
        table.set_format(FormatBuilder::new().column_separator(' ').padding(0, 1).build());
        let mut add = |text: &dyn Fn(usize) -> String| {
            let cells = shown.iter().map(|&(at, width)| self.columns[at].cell(&text(at), width));
            table.add_row(Row::new(cells.collect()));
        };
        add(&|at| self.columns[at].title.into());
        for row in &self.rows {
            add(&|at| row[at].clone());
        }
        for (at, line) in table.to_string().lines().enumerate() {
            let line = line.trim_end();
            if at == 0 && look.colour {
                writeln!(to, "\x1b[1m{line}\x1b[0m")?
            } else {
                writeln!(to, "{line}")?
            }
        }
        Ok(())
    }

    /// The columns to show, as index and width.
    fn fit(&self, limit: Option<usize>) -> Vec<(usize, usize)> {
        let mut shown: Vec<(usize, usize)> =
            (0..self.columns.len()).map(|at| (at, self.natural_width(at))).collect();
        let Some(limit) = limit else { return shown };
        while total(&shown) > limit {
            match shown.iter().map(|(at, _)| self.columns[*at].rank).max() {
                Some(least) if least > 0 => shown.retain(|(at, _)| self.columns[*at].rank < least),
                _ => break,
            }
        }
        while total(&shown) > limit {
            let wide = shown
                .iter_mut()
                .filter(|(at, w)| self.columns[*at].elastic && *w > LEAST)
                .max_by_key(|c| c.1);
            match wide {
                Some((_, width)) => *width -= 1,
                None => break,
            }
        }
        shown
    }

    fn natural_width(&self, at: usize) -> usize {
        self.rows.iter().map(|row| row[at].width()).max().unwrap_or(0).max(self.columns[at].title.width())
    }
}

fn total(shown: &[(usize, usize)]) -> usize {
    shown.iter().map(|(_, width)| width + GAP).sum::<usize>().saturating_sub(GAP)
}

impl Column {
    fn cell(&self, text: &str, width: usize) -> Cell {
        let align = if self.right { Alignment::RIGHT } else { Alignment::LEFT };
        Cell::new_align(&shorten(text, width), align)
    }
}

/// `text` in at most `width` columns, with `…` for what is cut.
fn shorten(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.into();
    }
    let mut left = width.saturating_sub(1);
    let mut short = String::new();
    for c in text.chars() {
        let wide = c.width().unwrap_or(0);
        if wide > left {
            break;
        }
        left -= wide;
        short.push(c);
    }
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column::text("name").elastic(),
        Column::number("bytes"),
        Column::text("since").optional(1),
        Column::text("remark").optional(2),
    ];

    fn printed(width: Option<usize>, colour: bool) -> String {
        let mut table = Table::new(&COLUMNS);
        table.row(["2001:db8::1".into(), "5".into(), "today".into(), "first".into()]);
        table.row(["host\x1b[2J".into(), "12345".into(), "yesterday".into(), String::new()]);
        let mut out = Vec::new();
        let look = Look { width, colour, ..Look::plain() };
        table.print(&mut out, &look).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_are_aligned_without_trailing_blanks() {
        let expected = "\
name         bytes  since      remark
2001:db8::1      5  today      first
host[2J      12345  yesterday
";
        assert_eq!(printed(None, false), expected);
        assert_eq!(printed(Some(37), false), expected);
    }

    #[test]
    fn the_least_important_column_goes_first() {
        assert!(printed(Some(36), false).starts_with("name         bytes  since\n"));
        assert!(printed(Some(28), false).starts_with("name         bytes\n"));
    }

    #[test]
    fn elastic_columns_are_cut_last_and_not_to_nothing() {
        assert_eq!(printed(Some(17), false), "name        bytes\n2001:db8:…      5\nhost[2J     12345\n");
        assert_eq!(printed(Some(1), false), "name      bytes\n2001:db…      5\nhost[2J   12345\n");
    }

    #[test]
    fn colour_changes_the_head_only() {
        let plain = printed(None, false);
        let (head, rows) = plain.split_once('\n').unwrap();
        assert_eq!(printed(None, true), format!("\x1b[1m{head}\x1b[0m\n{rows}"));
    }

    #[test]
    fn wide_characters_count_twice() {
        assert_eq!(shorten("日本語", 5), "日本…");
        assert_eq!(shorten("日本語", 6), "日本語");
    }
}
