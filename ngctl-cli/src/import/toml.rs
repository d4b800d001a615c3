//! Writes TOML 1.0, with lists broken that are longer than a line.

use std::fmt::{self, Display, Formatter};

/// A list that makes the line longer than this has a line for each item.
const WIDTH: usize = 110;

/// The value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(u64),
    /// Any text.
    Text(String),
    /// Several.
    List(Vec<Value>),
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Number(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.into())
    }
}

impl From<&String> for Value {
    fn from(value: &String) -> Self {
        Self::Text(value.clone())
    }
}

impl From<&[String]> for Value {
    fn from(values: &[String]) -> Self {
        Self::List(values.iter().map(Value::from).collect())
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(value) => write!(f, "{value}"),
            Self::Text(text) => quote(text, f),
            Self::List(values) => {
                f.write_str("[")?;
                for (at, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if at == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
        }
    }
}

/// A basic string: everything that TOML forbids in one is escaped.
fn quote(text: &str, f: &mut Formatter<'_>) -> fmt::Result {
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c))?,
            c => write!(f, "{c}")?,
        }
    }
    f.write_str("\"")
}

/// The line, or lines, of a key.
pub fn line(key: &str, value: &Value) -> String {
    let short = format!("{key} = {value}\n");
    match value {
        Value::List(values) if short.chars().count() > WIDTH => {
            let items: String = values.iter().map(|value| format!("    {value},\n")).collect();
            format!("{key} = [\n{items}]\n")
        }
        _ => short,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        let texts =
            ["", "plain", "a \"b\" \\c", "tab\there", "\u{1b}[31m\u{7f}\u{85}", "учёт", "#", "new\nline"];
        let list = Value::from(&texts.map(String::from)[..]);
        for (key, value) in [("short", Value::from(&["a".to_owned()][..])), ("long", list)] {
            let written = line(key, &value);
            let read: ::toml::Table = written.parse().unwrap();
            let read: Vec<&str> = read[key].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
            let Value::List(values) = value else { panic!("a list") };
            let values: Vec<Value> = values;
            assert_eq!(read.into_iter().map(Value::from).collect::<Vec<_>>(), values, "{written}");
        }
        assert_eq!(line("deny", &true.into()), "deny = true\n");
        assert_eq!(
            line("port", &Value::List(vec![80.into(), "8000-8100".into()])),
            "port = [80, \"8000-8100\"]\n"
        );
    }

    #[test]
    fn a_long_list_has_a_line_for_each_item() {
        let names: Vec<String> = (0..30).map(|n| format!("unit{n}")).collect();
        let written = line("members", &Value::from(&names[..]));
        assert_eq!(written.lines().count(), 32);
        assert!(written.starts_with("members = [\n    \"unit0\",\n"), "{written}");
    }
}
