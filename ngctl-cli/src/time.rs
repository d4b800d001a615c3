//! What people write after `--since`, and the instant it means in the daemon's zone.

use std::str::FromStr;

use chrono::{DateTime, Days, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, TimeZone, Timelike, Utc};
use chrono_tz::Tz;

/// A point in the past, not yet bound to a clock or a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// Elapsed time before now: `90s`, `10m`, `2h`, `3d` (72 hours, whatever the clocks did).
    Ago(TimeDelta),
    /// The start of the local day.
    Today,
    /// The start of the local day before.
    Yesterday,
    /// A local wall clock time: `2026-11-30`, `2026-11-30 14:00`.
    At(NaiveDateTime),
}

/// The text is none of the known forms.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("write 90s, 10m, 2h, 3d, today, yesterday, 2026-11-30 or \"2026-11-30 14:00\"")]
pub struct BadTime;

impl FromStr for Since {
    type Err = BadTime;

    fn from_str(text: &str) -> Result<Self, BadTime> {
        match text {
            "today" => return Ok(Self::Today),
            "yesterday" => return Ok(Self::Yesterday),
            _ => {}
        }
        if let Some(ago) = elapsed(text) {
            return Ok(Self::Ago(ago));
        }
        if let Ok(date) = NaiveDate::parse_from_str(text, "%Y-%m-%d") {
            return Ok(Self::At(date.and_time(NaiveTime::MIN)));
        }
        ["%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]
            .iter()
            .find_map(|form| NaiveDateTime::parse_from_str(text, form).ok())
            .map(Self::At)
            .ok_or(BadTime)
    }
}

/// A number and one of s, m, h, d.
fn elapsed(text: &str) -> Option<TimeDelta> {
    let number = text.strip_suffix(['s', 'm', 'h', 'd'])?;
    if !number.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number: i64 = number.parse().ok()?;
    match text.as_bytes().last()? {
        b's' => TimeDelta::try_seconds(number),
        b'm' => TimeDelta::try_minutes(number),
        b'h' => TimeDelta::try_hours(number),
        _ => TimeDelta::try_days(number),
    }
}

impl Since {
    /// Milliseconds UTC since 1970. A wall clock time that occurs twice is the first of the two, one that a clock
    /// change skips is the first instant after the change.
    ///
    /// # Errors
    /// [`BadTime`] when it lies outside of what the calendar holds.
    pub fn resolve(self, now: DateTime<Utc>, zone: Tz) -> Result<i64, BadTime> {
        let today = now.with_timezone(&zone).date_naive();
        let local = match self {
            Self::Ago(ago) => {
                return now.checked_sub_signed(ago).map(|t| t.timestamp_millis()).ok_or(BadTime);
            }
            Self::Today => today.and_time(NaiveTime::MIN),
            Self::Yesterday => today.checked_sub_days(Days::new(1)).ok_or(BadTime)?.and_time(NaiveTime::MIN),
            Self::At(local) => local,
        };
        instant(local, zone).ok_or(BadTime)
    }
}

fn instant(local: NaiveDateTime, zone: Tz) -> Option<i64> {
    if let Some(time) = zone.from_local_datetime(&local).earliest() {
        return Some(time.timestamp_millis());
    }
    // Inside a gap. Gaps end on a full minute, and the longest was a whole day (Samoa, 2011).
    let minute = local.with_second(0)?;
    (1..=25 * 60)
        .filter_map(|m| minute.checked_add_signed(TimeDelta::minutes(m)))
        .find_map(|later| zone.from_local_datetime(&later).earliest())
        .map(|time| time.timestamp_millis())
}

/// An instant as local date and time to the second; `-` for an instant the calendar does not hold.
pub fn show(ms: i64, zone: Tz) -> String {
    match zone.timestamp_millis_opt(ms).earliest() {
        Some(time) => time.format("%Y-%m-%d %H:%M:%S").to_string(),
        None => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono_tz::{Africa::Cairo, Europe::Berlin, Pacific::Apia};

    fn utc(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    #[test]
    fn every_form_means_the_instant_it_should() {
        let now = utc("2026-11-30T13:30:15Z");
        let cases = [
            ("90s", "2026-11-30T13:28:45Z"),
            ("10m", "2026-11-30T13:20:15Z"),
            ("2h", "2026-11-30T11:30:15Z"),
            ("3d", "2026-11-27T13:30:15Z"),
            ("0s", "2026-11-30T13:30:15Z"),
            ("today", "2026-11-29T23:00:00Z"),
            ("yesterday", "2026-11-28T23:00:00Z"),
            ("2026-11-30", "2026-11-29T23:00:00Z"),
            ("2026-11-30 14:00", "2026-11-30T13:00:00Z"),
            ("2026-11-30T14:00", "2026-11-30T13:00:00Z"),
            ("2026-11-30 14:00:05", "2026-11-30T13:00:05Z"),
            ("2026-07-01 14:00", "2026-07-01T12:00:00Z"),
        ];
        for (text, expected) in cases {
            let since: Since = text.parse().unwrap();
            assert_eq!(since.resolve(now, Berlin), Ok(utc(expected).timestamp_millis()), "{text}");
        }
    }

    #[test]
    fn clock_changes_neither_fail_nor_shift_a_day() {
        let cases = [
            // Berlin, 2026-03-29: 02:00 to 03:00 does not exist; the day has 23 hours.
            ("2026-03-29T20:00:00Z", Berlin, "today", "2026-03-28T23:00:00Z"),
            ("2026-03-29T20:00:00Z", Berlin, "2026-03-29 02:30:30", "2026-03-29T01:00:00Z"),
            ("2026-03-30T20:00:00Z", Berlin, "yesterday", "2026-03-28T23:00:00Z"),
            // Berlin, 2026-10-25: 02:00 to 03:00 happens twice; the day has 25 hours.
            ("2026-10-25T22:30:00Z", Berlin, "today", "2026-10-24T22:00:00Z"),
            ("2026-10-25T22:30:00Z", Berlin, "2026-10-25 02:30", "2026-10-25T00:30:00Z"),
            ("2026-10-25T22:30:00Z", Berlin, "1d", "2026-10-24T22:30:00Z"),
            // Cairo, 2024-04-26 has no midnight.
            ("2024-04-26T12:00:00Z", Cairo, "today", "2024-04-25T22:00:00Z"),
            // Samoa had no 2011-12-30 at all.
            ("2012-01-05T00:00:00Z", Apia, "2011-12-30 12:00", "2011-12-30T10:00:00Z"),
        ];
        for (now, zone, text, expected) in cases {
            let since: Since = text.parse().unwrap();
            assert_eq!(
                since.resolve(utc(now), zone),
                Ok(utc(expected).timestamp_millis()),
                "{text} at {now}"
            );
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in
            ["", "s", "10", "-5m", "+5m", "1w", "1.5h", "today ", "2026-13-01", "2026-11-30 24:00", "99:00"]
        {
            assert_eq!(text.parse::<Since>(), Err(BadTime), "{text}");
        }
        assert_eq!("9223372036854775807s".parse::<Since>(), Err(BadTime));
        let long: Since = "99999999999d".parse().unwrap();
        assert_eq!(long.resolve(utc("2026-11-30T00:00:00Z"), Berlin), Err(BadTime));
    }

    #[test]
    fn times_are_shown_in_the_zone() {
        assert_eq!(show(utc("2026-07-01T12:00:00Z").timestamp_millis(), Berlin), "2026-07-01 14:00:00");
        assert_eq!(show(i64::MAX, Berlin), "-");
    }
}
