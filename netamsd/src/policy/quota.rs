//! Quotas: how much of what a unit may use in a period.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};

use super::Period;
use crate::flow::InOut;

/// One quota of a unit, as configured. `Config::validate` checks that it makes sense.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuotaConfig {
    /// How long a period is.
    pub period: PeriodName,
    /// The day on which a month begins; a shorter month begins on its last day.
    #[serde(default = "first")]
    pub billing_day: u8,
    /// Bytes that may be used in a period.
    pub limit: Size,
    /// Which bytes.
    #[serde(default)]
    pub direction: Direction,
    /// Only those that this policy counts; it is one of the unit's `acct_policy`.
    pub policy: Option<String>,
    /// Percent of the limit at which the use is on record.
    #[serde(default = "eighty")]
    pub warn: u8,
    /// Beyond the limit none of the unit's packets passes until the period ends.
    #[serde(default)]
    pub hard: bool,
}

fn first() -> u8 {
    1
}

fn eighty() -> u8 {
    80
}

/// `period`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeriodName {
    /// Hours of the local clock.
    Hour,
    /// Days.
    Day,
    /// Weeks from Monday on.
    Week,
    /// Months from the billing day on.
    Month,
}

/// `direction`, seen from the unit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// To it.
    In,
    /// From it.
    Out,
    /// Both.
    #[default]
    Sum,
}

impl Direction {
    /// The word for it in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
            Self::Sum => "sum",
        }
    }

    /// The bytes that count.
    pub fn bytes(self, counts: &InOut) -> u64 {
        match self {
            Self::In => counts.in_bytes,
            Self::Out => counts.out_bytes,
            Self::Sum => counts.in_bytes + counts.out_bytes,
        }
    }
}

/// How far the use of a quota is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuotaState {
    /// Below the warning.
    #[default]
    Under,
    /// At the warning or above it.
    Warned,
    /// At the limit or beyond.
    Over,
}

impl QuotaState {
    /// All, by the numbers in the store.
    pub const ALL: [Self; 3] = [Self::Under, Self::Warned, Self::Over];

    /// Name as it is shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Under => "under",
            Self::Warned => "warned",
            Self::Over => "over",
        }
    }
}

impl QuotaConfig {
    /// The periods that it is counted in.
    pub fn period(&self) -> Period {
        match self.period {
            PeriodName::Hour => Period::Hour,
            PeriodName::Day => Period::Day,
            PeriodName::Week => Period::Week,
            PeriodName::Month => Period::Month { billing_day: self.billing_day },
        }
    }

    /// How far this use is.
    pub fn state(&self, used: u64) -> QuotaState {
        let percent = u128::from(used) * 100;
        if used >= self.limit.0 {
            QuotaState::Over
        } else if percent >= u128::from(self.limit.0) * u128::from(self.warn) {
            QuotaState::Warned
        } else {
            QuotaState::Under
        }
    }
}

/// What tells it from other quotas of its unit: `month sum`, `day in web`, `month from 15 out`.
impl fmt::Display for QuotaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.period {
            PeriodName::Hour => "hour",
            PeriodName::Day => "day",
            PeriodName::Week => "week",
            PeriodName::Month => "month",
        })?;
        if self.billing_day != first() {
            write!(f, " from {}", self.billing_day)?;
        }
        write!(f, " {}", self.direction.as_str())?;
        self.policy.iter().try_for_each(|policy| write!(f, " {policy}"))
    }
}

/// Bytes: a number, or one with a unit such as `20GB` (thousands) or `20GiB` (1024s).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no number of bytes, write one such as 500MB, 20GB or 20GiB");
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let scale: u64 = match unit.trim() {
            "" | "B" => 1,
            "KB" | "kB" => 1000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "TB" => 1_000_000_000_000,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            "TiB" => 1 << 40,
            _ => return Err(wrong()),
        };
        let digits = part.len() as u32;
        let all: u128 = format!("{whole}{part}").parse().map_err(|_| wrong())?;
        let divisor = 10u128.checked_pow(digits).ok_or_else(wrong)?;
        let bytes = all.checked_mul(scale.into()).ok_or_else(wrong)? / divisor;
        i64::try_from(bytes).map(|bytes| Self(bytes as u64)).map_err(|_| wrong())
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;

        impl Visitor<'_> for SizeVisitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes such as \"20GB\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Size, E> {
                number.to_string().parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(SizeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("1500", 1500),
            ("500B", 500),
            ("3MB", 3_000_000),
            ("1.5GB", 1_500_000_000),
            ("20 GiB", 20 << 30),
            ("8TiB", 8 << 40),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "GB", "-1", "1.2.3GB", "20GBit", "20gb", "99999999TiB", "1e9"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn states_begin_at_the_warning_and_at_the_limit() {
        let quota = QuotaConfig {
            period: PeriodName::Month,
            billing_day: 15,
            limit: Size(1001),
            direction: Direction::Out,
            policy: Some("web".into()),
            warn: 80,
            hard: true,
        };
        for (used, state) in [
            (0, QuotaState::Under),
            (800, QuotaState::Under),
            (801, QuotaState::Warned),
            (1000, QuotaState::Warned),
            (1001, QuotaState::Over),
            (u64::MAX, QuotaState::Over),
        ] {
            assert_eq!(quota.state(used), state, "{used}");
        }
        assert_eq!(quota.to_string(), "month from 15 out web");
        assert_eq!(quota.period(), Period::Month { billing_day: 15 });
        let counts = InOut { in_bytes: 1, out_bytes: 2, ..InOut::default() };
        let bytes = [Direction::In, Direction::Out, Direction::Sum].map(|way| way.bytes(&counts));
        assert_eq!(bytes, [1, 2, 3]);
    }
}
