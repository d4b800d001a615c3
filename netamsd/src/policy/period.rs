//! Local hours, days and months as instants.
//!
//! A [`Zone`] cuts time where its local clock begins a new hour, day or month. Everything is in milliseconds UTC since
//! 1970. Periods tile time without gap or overlap and nest: a month begins with a day, a day with an hour.
//!
//! Where the local clock is set, the cuts follow it:
//! - a day of a change to or from summer time has 23 or 25 hours;
//! - a midnight that the clock skips is the first instant after the skip;
//! - a midnight that the clock shows twice begins the day the first time, and the repeated time stays in the new day;
//! - a change that is not made on the hour (by 30 minutes, or at 00:01) also ends the hour.
//!
//! Instants that the calendar cannot express (262,000 years away) are cut in UTC.

use chrono::{DateTime, Datelike, Offset, TimeZone};
use chrono_tz::Tz;
use serde::Deserialize;

const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

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
        let day = (ms + self.offset(ms)).div_euclid(DAY_MS);
        // Set back over midnight, the clock shows yesterday's date again although the new day has begun.
        let next = self.midnight(day + 1);
        if next <= ms { next } else { self.midnight(day) }
    }

    /// Start of the local month that contains `ms`.
    pub fn month_start(&self, ms: i64) -> i64 {
        let start = self.day_start(ms);
        let local = start + self.offset(start);
        match DateTime::from_timestamp_millis(local) {
            Some(date) => self.midnight(local.div_euclid(DAY_MS) - i64::from(date.day0())),
            None => start,
        }
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

    /// First instant after `from` that has the offset of `to`, for two instants with one change between them.
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

#[cfg(test)]
mod tests {
    use chrono::{NaiveDateTime, Timelike};
    use proptest::prelude::*;

    use super::*;

    fn zone(name: &str) -> Zone {
        Zone::parse(name).unwrap()
    }

    /// Milliseconds of `YYYY-MM-DD HH:MM` in UTC.
    fn utc(text: &str) -> i64 {
        NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M").unwrap().and_utc().timestamp_millis()
    }

    #[test]
    fn names() {
        assert_eq!(zone("Europe/Berlin").name(), "Europe/Berlin");
        assert_eq!(zone("local"), Zone::local());
        assert_eq!(
            Zone::parse("Europe/Berlim").unwrap_err().to_string(),
            "unknown time zone `Europe/Berlim`, use an IANA name such as Europe/Berlin, or local"
        );
    }

    #[test]
    fn hours_follow_the_local_clock() {
        for (name, at, start, next) in [
            ("UTC", "2026-03-01 10:59", "2026-03-01 10:00", "2026-03-01 11:00"),
            ("Asia/Kolkata", "2026-03-01 10:29", "2026-03-01 09:30", "2026-03-01 10:30"),
            ("Asia/Kathmandu", "2026-03-01 10:20", "2026-03-01 10:15", "2026-03-01 11:15"),
            // 02:00 becomes 01:30 on the local clock: the half hour after that is an hour of its own.
            ("Australia/Lord_Howe", "2026-04-04 14:59", "2026-04-04 14:00", "2026-04-04 15:00"),
            ("Australia/Lord_Howe", "2026-04-04 15:10", "2026-04-04 15:00", "2026-04-04 15:30"),
            // 02:00 becomes 02:30.
            ("Australia/Lord_Howe", "2026-10-03 15:40", "2026-10-03 15:30", "2026-10-03 16:00"),
            // 00:01 becomes 23:01 of the day before.
            ("America/St_Johns", "2009-11-01 02:30", "2009-11-01 02:30", "2009-11-01 02:31"),
            ("America/St_Johns", "2009-11-01 03:00", "2009-11-01 02:31", "2009-11-01 03:30"),
        ] {
            let zone = zone(name);
            assert_eq!(zone.hour_start(utc(at)), utc(start), "{name} {at}");
            assert_eq!(zone.next_hour(utc(at)), utc(next), "{name} {at}");
        }
    }

    #[test]
    fn days_and_months_follow_the_local_clock() {
        for (name, at, day, month) in [
            ("UTC", "2026-03-05 23:59", "2026-03-05 00:00", "2026-03-01 00:00"),
            ("Europe/Berlin", "2026-02-28 23:30", "2026-02-28 23:00", "2026-02-28 23:00"),
            // A day of 23 hours, and the day after it.
            ("Europe/Berlin", "2026-03-29 21:59", "2026-03-28 23:00", "2026-02-28 23:00"),
            ("Europe/Berlin", "2026-03-29 22:00", "2026-03-29 22:00", "2026-02-28 23:00"),
            // A day of 25 hours.
            ("Europe/Berlin", "2026-10-25 22:59", "2026-10-24 22:00", "2026-09-30 22:00"),
            // 00:00 becomes 01:00: no midnight.
            ("America/Sao_Paulo", "2018-11-04 12:00", "2018-11-04 03:00", "2018-11-01 03:00"),
            ("Asia/Beirut", "2022-03-27 12:00", "2022-03-26 22:00", "2022-02-28 22:00"),
            // 00:00 becomes 23:00: the day goes on.
            ("America/Sao_Paulo", "2018-02-18 02:30", "2018-02-17 02:00", "2018-02-01 02:00"),
            ("America/Sao_Paulo", "2018-02-18 03:00", "2018-02-18 03:00", "2018-02-01 02:00"),
            // 00:01 becomes 23:01 of the day, and the month, before: the new ones have begun.
            ("America/St_Johns", "2009-11-01 03:00", "2009-11-01 02:30", "2009-11-01 02:30"),
            // A day that was left out.
            ("Pacific/Apia", "2011-12-30 09:59", "2011-12-29 10:00", "2011-12-01 10:00"),
            ("Pacific/Apia", "2011-12-30 10:00", "2011-12-30 10:00", "2011-12-01 10:00"),
        ] {
            let zone = zone(name);
            assert_eq!(zone.day_start(utc(at)), utc(day), "{name} {at}");
            assert_eq!(zone.month_start(utc(at)), utc(month), "{name} {at}");
        }
    }

    #[test]
    fn instants_outside_the_calendar_are_cut_in_utc() {
        let zone = zone("Asia/Kolkata");
        for ms in [i64::MIN / 2, i64::MAX / 2] {
            assert_eq!(zone.hour_start(ms), ms - ms.rem_euclid(HOUR_MS));
            assert_eq!(zone.day_start(ms), ms - ms.rem_euclid(DAY_MS));
            assert_eq!(zone.month_start(ms), zone.day_start(ms));
        }
    }

    const ZONES: [&str; 10] = [
        "UTC",
        "Europe/Berlin",
        "America/Sao_Paulo",
        "America/St_Johns",
        "Asia/Beirut",
        "Asia/Kathmandu",
        "Asia/Tehran",
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "Pacific/Chatham",
    ];

    /// Instants from 1970 to 2040; half of them within an hour of a change of the local clock, where there is one.
    fn instants() -> impl Strategy<Value = (Zone, i64)> {
        let ms = 0..utc("2040-01-01 00:00");
        (proptest::sample::select(&ZONES[..]), ms, any::<bool>(), -HOUR_MS..HOUR_MS).prop_map(
            |(name, ms, near, away)| {
                let zone = zone(name);
                let later = ms + 200 * DAY_MS;
                let changes = zone.offset(ms) != zone.offset(later);
                (zone, if near && changes { zone.transition(ms, later) + away } else { ms })
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn periods_contain_their_instant_and_tile_time((zone, ms) in instants()) {
            let (hour, next_hour) = (zone.hour_start(ms), zone.next_hour(ms));
            prop_assert!(hour <= ms && ms - hour < HOUR_MS);
            prop_assert!(ms < next_hour && next_hour - hour <= HOUR_MS);
            prop_assert_eq!(zone.hour_start(next_hour), next_hour);
            prop_assert_eq!(zone.hour_start(next_hour - 1), hour);

            let day = zone.day_start(ms);
            // No day is longer than 26 hours or, but for one left out, shorter than 22.
            let next_day = zone.day_start(day + 30 * HOUR_MS);
            prop_assert!(day <= ms && ms < next_day);
            prop_assert_eq!(zone.day_start(next_day - 1), day);

            let month = zone.month_start(ms);
            let next_month = zone.month_start(month + 45 * DAY_MS);
            prop_assert!(month <= ms && ms < next_month);
            prop_assert_eq!(zone.month_start(next_month - 1), month);
        }

        #[test]
        fn periods_nest((zone, ms) in instants()) {
            let (hour, day, month) = (zone.hour_start(ms), zone.day_start(ms), zone.month_start(ms));
            prop_assert_eq!(zone.hour_start(hour), hour);
            prop_assert_eq!(zone.hour_start(day), day);
            prop_assert_eq!(zone.day_start(day), day);
            prop_assert_eq!(zone.day_start(hour), day);
            prop_assert_eq!(zone.day_start(month), month);
            prop_assert_eq!(zone.month_start(month), month);
            prop_assert_eq!(zone.month_start(day), month);
        }

        #[test]
        fn starts_show_on_the_local_clock((zone, ms) in instants()) {
            let local = |ms: i64| DateTime::from_timestamp_millis(ms).unwrap().with_timezone(&zone.0);
            // The offset differs on both sides of a change of the clock.
            let changed = |ms: i64| zone.offset(ms) != zone.offset(ms - 1);
            let (hour, day, month) = (zone.hour_start(ms), zone.day_start(ms), zone.month_start(ms));
            prop_assert!(changed(hour) || local(hour).minute() == 0);
            prop_assert!(changed(day) || local(day).hour() == 0);
            prop_assert!(changed(month) || local(month).day() == 1);
        }
    }
}
