//! The paths that a Rust source file names, as far as import rules need them: no macros are expanded, and a name that was
//! imported is not followed to where it is used.

/// Every path of at least two names in `source`, and every imported one, from the crate's root: `crate::policy::Units`,
/// `std::fs::read`. `module` is where the file is in its crate.
pub fn named(module: &[String], source: &str) -> Vec<String> {
    let tokens = tokens(source);
    let mut scan = Scan { tokens: &tokens, at: 0, module: module.to_vec(), inline: Vec::new(), depth: 0 };
    scan.file()
}

/// Identifiers and punctuation, without comments, literals and white space.
fn tokens(source: &str) -> Vec<String> {
    let chars: Vec<char> = source.chars().collect();
    let mut tokens: Vec<String> = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let rest = &chars[at..];
        let until = |end: &str| {
            let end: Vec<char> = end.chars().collect();
            let found = rest.windows(end.len()).skip(1).position(|window| window == end);
            found.map_or(rest.len(), |position| position + 1 + end.len())
        };
        at += match rest {
            ['/', '/', ..] => until("\n"),
            ['/', '*', ..] => until("*/"),
            ['r', '#', '"', ..] => until("\"#"),
            ['"', ..] => string(rest),
            // A character; anything else after ' is a lifetime.
            ['\'', '\\', _, ..] => 2 + until_quote(&rest[2..]),
            ['\'', _, '\'', ..] => 3,
            [':', ':', ..] => {
                tokens.push("::".to_owned());
                2
            }
            [c, ..] if c.is_alphanumeric() || *c == '_' => {
                let length = rest.iter().take_while(|c| c.is_alphanumeric() || **c == '_').count();
                tokens.push(rest[..length].iter().collect());
                length
            }
            [c, ..] => {
                if !c.is_whitespace() {
                    tokens.push(c.to_string());
                }
                1
            }
            [] => 1,
        };
    }
    tokens
}

fn until_quote(rest: &[char]) -> usize {
    rest.iter().skip(1).position(|c| *c == '\'').map_or(rest.len(), |position| position + 2)
}

/// Length of a string literal.
fn string(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != '"' {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

struct Scan<'a> {
    tokens: &'a [String],
    at: usize,
    module: Vec<String>,
    /// Depths of braces at which modules inside the file began.
    inline: Vec<usize>,
    depth: usize,
}

impl Scan<'_> {
    fn peek(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", String::as_str)
    }

    fn file(&mut self) -> Vec<String> {
        let mut found = Vec::new();
        while self.at < self.tokens.len() {
            match self.peek(0) {
                "use" => {
                    self.at += 1;
                    self.tree(&[], &mut found);
                }
                "mod" if self.peek(2) == "{" => {
                    self.module.push(self.peek(1).to_owned());
                    self.inline.push(self.depth);
                    self.depth += 1;
                    self.at += 3;
                }
                "{" => {
                    self.depth += 1;
                    self.at += 1;
                }
                "}" => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.inline.last() == Some(&self.depth) {
                        self.inline.pop();
                        self.module.pop();
                    }
                    self.at += 1;
                }
                word if is_name(word) && self.peek(1) == "::" => {
                    let path = self.path();
                    found.push(self.resolve(&path));
                }
                _ => self.at += 1,
            }
        }
        found
    }

    /// Names joined by `::`, from here.
    fn path(&mut self) -> Vec<String> {
        let mut path = vec![self.peek(0).to_owned()];
        self.at += 1;
        while self.peek(0) == "::" && is_name(self.peek(1)) {
            path.push(self.peek(1).to_owned());
            self.at += 2;
        }
        path
    }

    /// One branch of a `use`, below `stem`.
    fn tree(&mut self, stem: &[String], found: &mut Vec<String>) {
        if self.peek(0) == "::" {
            self.at += 1;
        }
        let mut path = stem.to_vec();
        if is_name(self.peek(0)) {
            path.extend(self.path());
        }
        if self.peek(0) == "::" {
            self.at += 1;
        }
        if self.peek(0) == "{" {
            self.at += 1;
            while !matches!(self.peek(0), "}" | "") {
                self.tree(&path, found);
                // The comma, and what `as` and `*` leave.
                while !matches!(self.peek(0), "," | "}" | "") {
                    self.at += 1;
                }
                if self.peek(0) == "," {
                    self.at += 1;
                }
            }
            self.at += 1;
        } else {
            found.push(self.resolve(&path));
        }
    }

    /// From the crate's root.
    fn resolve(&self, path: &[String]) -> String {
        let ups = path.iter().take_while(|name| *name == "super").count();
        let own = path.first().is_some_and(|name| name == "self");
        let path = if ups > 0 || own {
            let base = &self.module[..self.module.len().saturating_sub(ups)];
            let base = std::iter::once("crate").chain(base.iter().map(String::as_str));
            base.chain(path[ups.max(1)..].iter().map(String::as_str)).collect::<Vec<_>>()
        } else {
            path.iter().map(String::as_str).collect()
        };
        path.join("::")
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

#[test]
fn paths_are_found_wherever_they_are() {
    let source = r##"
        //! rusqlite::Comment
        use std::{fs, net::{IpAddr, UdpSocket as Socket}};
        pub(crate) use super::super::policy::*;
        use self::inner::Thing;
        fn f<'a>(x: &'a str) -> char { crate::store::open("aya::String"); aya::load(r#"tokio::"raw""#); '"' }
        mod tests {
            use super::*;
            fn g() { super::super::flow::h(if true { '\'' } else { 'x' }) }
        }
        use super::last;
    "##;
    let module = ["source".to_owned(), "kernel".to_owned()];
    let expected = [
        "std::fs",
        "std::net::IpAddr",
        "std::net::UdpSocket",
        "crate::policy",
        "crate::source::kernel::inner::Thing",
        "crate::store::open",
        "aya::load",
        "crate::source::kernel",
        "crate::source::flow::h",
        "crate::source::last",
    ];
    assert_eq!(named(&module, source), expected);
}
