//! Local hours, days, weeks and months as instants.
//!
//! A [`Zone`] cuts time where its local clock begins a new hour, day, week or month. Everything is in milliseconds UTC since
//! 1970. Periods tile time without gap or overlap and nest: a month begins with a day, a day with an hour.
//!
//! Where the local clock is set, the cuts follow it:
//! - a day of a change to or from summer time has 23 or 25 hours;
//! - a midnight that the clock skips is the first instant after the skip;
//! - a midnight that the clock shows twice begins the day the first time, and the repeated time stays in the new day;
//! - a change that is not made on the hour (by 30 minutes, or at 00:01) also ends the hour.
//!
//! Instants that the calendar cannot express (262,000 years away) are cut in UTC.

use chrono::{DateTime, Datelike, NaiveDate, Offset, TimeZone};
use chrono_tz::Tz;
use serde::Deserialize;

const HOUR_MS: i64 = 3_600_000;
pub(super) const DAY_MS: i64 = 24 * HOUR_MS;

/// A zone of the IANA database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Zone(Tz);

/// The text is not a zone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown time zone `{0}`, use an IANA name such as Europe/Berlin, or local")]
pub struct ZoneError(String);

impl TryFrom<String> for Zone {
    type Error = ZoneError;

    fn try_from(text: String) -> Result<Self, ZoneError> {
        Self::parse(&text)
    }
}

impl Zone {
    /// A time, milliseconds UTC since 1970, on this zone's clock to the second; the number where no calendar reaches it.
    pub fn show(&self, time_ms: i64) -> String {
        match DateTime::from_timestamp_millis(time_ms) {
            Some(time) => time.with_timezone(&self.0).format("%Y-%m-%d %H:%M:%S").to_string(),
            None => time_ms.to_string(),
        }
    }

    /// The zone of an IANA name, or of the system for `local`.
    pub fn parse(text: &str) -> Result<Self, ZoneError> {
        match text {
            "local" => Ok(Self::local()),
            name => name.parse().map(Self).map_err(|_| ZoneError(name.to_owned())),
        }
    }

    /// The system's zone; UTC where it has none or one that is not in the IANA database.
    pub fn local() -> Self {
        let zone = iana_time_zone::get_timezone().ok().and_then(|name| name.parse().ok());
        Self(zone.unwrap_or(Tz::UTC))
    }

    /// The IANA name.
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Start of the local hour that contains `ms`.
    pub fn hour_start(&self, ms: i64) -> i64 {
        let offset = self.offset(ms);
        let start = ms - (ms + offset).rem_euclid(HOUR_MS);
        if self.offset(start) == offset { start } else { self.transition(start, ms) }
    }

    /// Start of the local hour after the one that contains `ms`.
    pub fn next_hour(&self, ms: i64) -> i64 {
        let offset = self.offset(ms);
        let next = ms.saturating_add(HOUR_MS - (ms + offset).rem_euclid(HOUR_MS));
        if self.offset(next) == offset { next } else { self.transition(ms, next) }
    }

    /// Start of the local day that contains `ms`.
    pub fn day_start(&self, ms: i64) -> i64 {
        self.midnight(self.day(ms))
    }

    /// Start of the local month that contains `ms`.
    pub fn month_start(&self, ms: i64) -> i64 {
        Period::Month { billing_day: 1 }.start(self, ms)
    }

    /// What the local clock shows, in milliseconds since it showed the beginning of 1970.
    pub(super) fn clock(&self, ms: i64) -> i64 {
        ms + self.offset(ms)
    }

    /// The instant at which the local clock has gone on by `by` milliseconds, a day at most, or is set before that.
    /// Nothing beyond the last instant there is.
    pub(super) fn after(&self, ms: i64, by: i64) -> Option<i64> {
        let next = ms.checked_add(by)?;
        Some(if self.offset(next) == self.offset(ms) { next } else { self.transition(ms, next) })
    }

    /// The local day that contains `ms`, in days since 1970.
    fn day(&self, ms: i64) -> i64 {
        let day = self.clock(ms).div_euclid(DAY_MS);
        // Set back over midnight, the clock shows yesterday's date again although the new day has begun.
        if self.midnight(day + 1) <= ms { day + 1 } else { day }
    }

    /// First instant at which the local clock has reached the midnight that begins `day`, in days since 1970.
    fn midnight(&self, day: i64) -> i64 {
        let local = day.saturating_mul(DAY_MS);
        // A local time and the same figures in UTC are less than a day apart.
        let (from, to) = (local.saturating_sub(DAY_MS), local.saturating_add(DAY_MS));
        let (before, after) = (self.offset(from), self.offset(to));
        let midnight = local - before;
        if self.offset(midnight) == before { midnight } else { self.transition(from, to).max(local - after) }
    }

    /// First instant after `from` that has the offset of `to`, for two instants with one change between them: no zone of
    /// the database has ever made two within three days.
    fn transition(&self, from: i64, to: i64) -> i64 {
        let (mut before, mut after, offset) = (from, to, self.offset(to));
        while after - before > 1 {
            let middle = before + (after - before) / 2;
            if self.offset(middle) == offset {
                after = middle;
            } else {
                before = middle;
            }
        }
        after
    }

    /// Milliseconds to add to UTC to have local time.
    fn offset(&self, ms: i64) -> i64 {
        DateTime::from_timestamp_millis(ms).map_or(0, |utc| {
            let offset = self.0.offset_from_utc_datetime(&utc.naive_utc()).fix();
            i64::from(offset.local_minus_utc()) * 1000
        })
    }
}

/// What is counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    /// A local hour.
    Hour,
    /// A local day.
    Day,
    /// Seven local days from a Monday on.
    Week,
    /// The local days from one billing day to the next.
    Month {
        /// Day of the month, from 1 to 31, on which it begins; in a month that does not have it, the last day. 0 is 1.
        billing_day: u8,
    },
}

impl Period {
    /// Start of the period that contains `ms`.
    pub fn start(self, zone: &Zone, ms: i64) -> i64 {
        match self {
            Self::Hour => zone.hour_start(ms),
            _ => zone.midnight(self.days(zone.day(ms)).0),
        }
    }

    /// Start of the period after the one that contains `ms`.
    pub fn end(self, zone: &Zone, ms: i64) -> i64 {
        match self {
            Self::Hour => zone.next_hour(ms),
            _ => zone.midnight(self.days(zone.day(ms)).1),
        }
    }

    /// First day of the period that contains `day`, and of the one after it, in days since 1970.
    fn days(self, day: i64) -> (i64, i64) {
        match self {
            Self::Hour | Self::Day => (day, day + 1),
            Self::Week => {
                let monday = day - weekday(day);
                (monday, monday + 7)
            }
            // Where the calendar ends, each day is a month.
            Self::Month { billing_day } => billing_month(day, billing_day).unwrap_or((day, day + 1)),
        }
    }
}

/// Days from Monday to a day since 1970, which began on a Thursday.
pub(super) fn weekday(day: i64) -> i64 {
    (day + 3).rem_euclid(7)
}

/// First day of the billing month that contains `day`, and of the next one; none where the calendar does not reach.
fn billing_month(day: i64, billing_day: u8) -> Option<(i64, i64)> {
    let date = DateTime::from_timestamp(day.checked_mul(DAY_MS / 1000)?, 0)?;
    let month = date.year() * 12 + date.month0() as i32;
    let first = billing_start(month, billing_day)?;
    Some(if first <= day {
        (first, billing_start(month + 1, billing_day)?)
    } else {
        (billing_start(month - 1, billing_day)?, first)
    })
}

/// The billing day, or the last day before it, of a month since the year 0; in days since 1970.
fn billing_start(month: i32, billing_day: u8) -> Option<i64> {
    let (year, number) = (month.div_euclid(12), month.rem_euclid(12) as u32 + 1);
    let mut days = (1..=u32::from(billing_day.max(1))).rev();
    let date = days.find_map(|day| NaiveDate::from_ymd_opt(year, number, day))?;
    Some(date.and_time(chrono::NaiveTime::MIN).and_utc().timestamp().div_euclid(DAY_MS / 1000))
}

#[cfg(test)]
pub(super) mod tests;
