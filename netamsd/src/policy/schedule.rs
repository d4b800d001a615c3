//! When a policy holds: times of day and days of the week, as the local clock shows them.
//!
//! The clock alone decides. What it skips never comes, what it shows twice holds twice: `1-3` holds for one hour or three
//! hours on a day of a change between 02:00 and 03:00. Set back over midnight, the clock shows the evening of the day
//! before once more, and a schedule of that day holds again, although the new day's account has begun (see `period`).

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};

use super::period::{DAY_MS, Zone, weekday};

const MINUTE_MS: i64 = 60_000;
const DAY_MINUTES: i64 = 24 * 60;
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// The text is not a time or day at which something could hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// Not two times with a dash between them.
    #[error(
        "`{0}` is not a range of times, write hours such as 9-18 or 23-7, or minutes such as 00:40-21:30"
    )]
    Range(String),
    /// One side is not a time that the clock shows.
    #[error(
        "`{time}` in `{range}` is not a time of day, write an hour from 0 to 24 or a minute such as 21:30"
    )]
    Time {
        /// The side.
        time: String,
        /// All of it.
        range: String,
    },
    /// 24 where it begins.
    #[error("`{0}` begins when the day is over, write 0 for the midnight that begins a day")]
    Late(String),
    /// Nothing between begin and end.
    #[error("`{0}` ends when it begins, write 0-24 for the whole day")]
    Empty(String),
    /// A word that is no day.
    #[error(
        "`{day}` in `{range}` is not a day, write Mon, Tue, Wed, Thu, Fri, Sat or Sun, or a range such as Mon-Fri"
    )]
    Day {
        /// The word.
        day: String,
        /// All of it.
        range: String,
    },
}

/// Times of day, such as `9-18` or `00:40-21:30`; the end is not in it. `23-7` goes over midnight: it holds from 23:00 to
/// 24:00 and from 0:00 to 7:00 of each day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeRange {
    /// Minutes since midnight, below 1440.
    begin: i64,
    /// Minutes since midnight, up to 1440.
    end: i64,
}

impl TimeRange {
    fn holds(self, minute: i64) -> bool {
        if self.begin < self.end {
            self.begin <= minute && minute < self.end
        } else {
            self.begin <= minute || minute < self.end
        }
    }
}

impl FromStr for TimeRange {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let (begin, end) = text.split_once('-').ok_or_else(|| ScheduleError::Range(text.to_owned()))?;
        let minute = |time: &str| {
            parse_minute(time)
                .ok_or_else(|| ScheduleError::Time { time: time.to_owned(), range: text.to_owned() })
        };
        let range = Self { begin: minute(begin)?, end: minute(end)? };
        if range.begin == DAY_MINUTES {
            Err(ScheduleError::Late(text.to_owned()))
        } else if range.begin == range.end {
            Err(ScheduleError::Empty(text.to_owned()))
        } else {
            Ok(range)
        }
    }
}

/// Minutes since midnight of `9`, `09`, `9:30` or `24:00`.
fn parse_minute(text: &str) -> Option<i64> {
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<i64>().ok())?;
    let (hour, minute) = match text.split_once(':') {
        Some((hour, minute)) if minute.len() == 2 => (hour, number(minute)?),
        Some(_) => return None,
        None => (text, 0),
    };
    let hour = if hour.len() <= 2 { number(hour)? } else { return None };
    let minutes = hour * 60 + minute;
    (minute < 60 && minutes <= DAY_MINUTES).then_some(minutes)
}

/// Days of the week, such as `Sun` or `Mon-Fri`, both ends in it; `Sat-Mon` goes over the week's end. It is the date that
/// the clock shows that counts: `Fri` and the times `23-7` hold on Friday from 0:00 to 7:00 and from 23:00 to 24:00, not on
/// Saturday morning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DayRange {
    /// Days since Monday.
    first: i64,
    /// Days since Monday.
    last: i64,
}

impl DayRange {
    fn holds(self, day: i64) -> bool {
        if self.first <= self.last {
            self.first <= day && day <= self.last
        } else {
            self.first <= day || day <= self.last
        }
    }
}

impl FromStr for DayRange {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let day = |word: &str| {
            let day = (0..).zip(DAYS).find(|(_, name)| name.eq_ignore_ascii_case(word));
            day.map(|(day, _)| day)
                .ok_or_else(|| ScheduleError::Day { day: word.to_owned(), range: text.to_owned() })
        };
        Ok(Self { first: day(first)?, last: day(last)? })
    }
}

/// Parses inside the visitor and not after it, so that an error has the place of its element in the file.
struct Text<T>(std::marker::PhantomData<T>, &'static str);

impl<T: FromStr<Err = ScheduleError>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.1)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for TimeRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Text(std::marker::PhantomData, "times of day such as \"9-18\""))
    }
}

impl<'de> Deserialize<'de> for DayRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Text(std::marker::PhantomData, "days of the week such as \"Mon-Fri\""))
    }
}

/// Times and days: one of each must hold, where there are any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Any time if empty.
    pub time: Vec<TimeRange>,
    /// Any day if empty.
    pub day: Vec<DayRange>,
}

impl Schedule {
    /// Whether it holds at `ms`, milliseconds UTC since 1970.
    pub fn holds(&self, zone: &Zone, ms: i64) -> bool {
        let clock = zone.clock(ms);
        let minute = clock.rem_euclid(DAY_MS) / MINUTE_MS;
        let day = weekday(clock.div_euclid(DAY_MS));
        (self.time.is_empty() || self.time.iter().any(|time| time.holds(minute)))
            && (self.day.is_empty() || self.day.iter().any(|days| days.holds(day)))
    }

    /// An instant after `ms` up to which [`Self::holds`] does not change: where a time begins or ends, the next midnight if
    /// there are days, or where the clock is set before that. None if it always holds.
    pub fn next_change(&self, zone: &Zone, ms: i64) -> Option<i64> {
        let shown = zone.clock(ms).rem_euclid(DAY_MS);
        let times = self.time.iter().flat_map(|time| [time.begin, time.end]);
        let midnight = (!self.day.is_empty()).then_some(0);
        // From one showing of the same time to the next it is a day.
        let away = |minute: i64| match (minute * MINUTE_MS - shown).rem_euclid(DAY_MS) {
            0 => DAY_MS,
            away => away,
        };
        zone.after(ms, times.chain(midnight).map(away).min()?)
    }
}

#[cfg(test)]
mod tests;
