//! Hours, days, weeks and months by the local clock.

use chrono::{NaiveDateTime, Timelike};
use proptest::prelude::*;

use super::*;

pub(in crate::policy) fn zone(name: &str) -> Zone {
    Zone::parse(name).unwrap()
}

/// Milliseconds of `YYYY-MM-DD HH:MM` in UTC.
pub(in crate::policy) fn utc(text: &str) -> i64 {
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

/// Each case is a zone, an instant, and start and end of its period, in UTC.
fn check(period: Period, cases: &[(&str, &str, &str, &str)]) {
    for &(name, at, start, end) in cases {
        let zone = zone(name);
        let shown = |ms| self::zone("UTC").show(ms)[.."2026-03-29 00:00".len()].to_owned();
        assert_eq!(shown(period.start(&zone, utc(at))), start, "{period:?} {name} {at}");
        assert_eq!(shown(period.end(&zone, utc(at))), end, "{period:?} {name} {at}");
    }
}

#[test]
fn hours_and_days_as_periods() {
    check(
        Period::Hour,
        &[
            ("Asia/Kolkata", "2026-03-01 10:29", "2026-03-01 09:30", "2026-03-01 10:30"),
            // The hour that is shown twice.
            ("Europe/Berlin", "2026-10-25 00:59", "2026-10-25 00:00", "2026-10-25 01:00"),
            ("Europe/Berlin", "2026-10-25 01:00", "2026-10-25 01:00", "2026-10-25 02:00"),
        ],
    );
    check(
        Period::Day,
        &[
            ("Europe/Berlin", "2026-03-29 12:00", "2026-03-28 23:00", "2026-03-29 22:00"),
            ("Europe/Berlin", "2026-10-25 12:00", "2026-10-24 22:00", "2026-10-25 23:00"),
            ("Asia/Kolkata", "2026-02-28 18:30", "2026-02-28 18:30", "2026-03-01 18:30"),
            ("America/Sao_Paulo", "2018-11-04 02:59", "2018-11-03 03:00", "2018-11-04 03:00"),
            ("America/Sao_Paulo", "2018-11-04 03:00", "2018-11-04 03:00", "2018-11-05 02:00"),
            ("America/Sao_Paulo", "2018-02-18 02:30", "2018-02-17 02:00", "2018-02-18 03:00"),
            // 00:01 becomes 23:01: the new day has begun.
            ("America/St_Johns", "2009-11-01 03:00", "2009-11-01 02:30", "2009-11-02 03:30"),
            // The next day was left out.
            ("Pacific/Apia", "2011-12-30 09:59", "2011-12-29 10:00", "2011-12-30 10:00"),
        ],
    );
}

#[test]
fn weeks_begin_on_monday() {
    check(
        Period::Week,
        &[
            ("UTC", "1970-01-01 00:00", "1969-12-29 00:00", "1970-01-05 00:00"),
            ("UTC", "2026-03-01 23:59", "2026-02-23 00:00", "2026-03-02 00:00"),
            ("UTC", "2026-03-02 00:00", "2026-03-02 00:00", "2026-03-09 00:00"),
            // An hour less, an hour more.
            ("Europe/Berlin", "2026-03-29 21:59", "2026-03-22 23:00", "2026-03-29 22:00"),
            ("Europe/Berlin", "2026-10-25 22:59", "2026-10-18 22:00", "2026-10-25 23:00"),
            ("Asia/Kolkata", "2026-12-31 12:00", "2026-12-27 18:30", "2027-01-03 18:30"),
            ("America/Sao_Paulo", "2018-11-04 12:00", "2018-10-29 03:00", "2018-11-05 02:00"),
            ("America/Sao_Paulo", "2018-02-18 12:00", "2018-02-12 02:00", "2018-02-19 03:00"),
        ],
    );
}

#[test]
fn months_begin_on_the_billing_day() {
    check(
        Period::Month { billing_day: 1 },
        &[
            ("Europe/Berlin", "2026-03-31 21:59", "2026-02-28 23:00", "2026-03-31 22:00"),
            ("Europe/Berlin", "2026-10-25 12:00", "2026-09-30 22:00", "2026-10-31 23:00"),
        ],
    );
    check(
        Period::Month { billing_day: 4 },
        &[
            // A day without a midnight.
            ("America/Sao_Paulo", "2018-11-04 02:59", "2018-10-04 03:00", "2018-11-04 03:00"),
            ("America/Sao_Paulo", "2018-11-04 03:00", "2018-11-04 03:00", "2018-12-04 02:00"),
        ],
    );
    check(
        Period::Month { billing_day: 18 },
        &[
            // The midnight that is shown first is not the beginning.
            ("America/Sao_Paulo", "2018-02-18 02:30", "2018-01-18 02:00", "2018-02-18 03:00"),
        ],
    );
    check(
        Period::Month { billing_day: 15 },
        &[
            ("Asia/Kolkata", "2026-01-14 18:29", "2025-12-14 18:30", "2026-01-14 18:30"),
            ("Asia/Kolkata", "2026-01-14 18:30", "2026-01-14 18:30", "2026-02-14 18:30"),
        ],
    );
    check(
        Period::Month { billing_day: 29 },
        &[
            ("UTC", "2026-02-27 23:59", "2026-01-29 00:00", "2026-02-28 00:00"),
            ("UTC", "2026-02-28 00:00", "2026-02-28 00:00", "2026-03-29 00:00"),
            ("UTC", "2028-02-28 23:59", "2028-01-29 00:00", "2028-02-29 00:00"),
            ("Europe/Berlin", "2026-03-29 12:00", "2026-03-28 23:00", "2026-04-28 22:00"),
        ],
    );
    check(
        Period::Month { billing_day: 30 },
        &[
            ("UTC", "2028-02-29 00:00", "2028-02-29 00:00", "2028-03-30 00:00"),
            ("UTC", "2026-01-30 00:00", "2026-01-30 00:00", "2026-02-28 00:00"),
        ],
    );
    check(
        Period::Month { billing_day: 31 },
        &[
            ("UTC", "2026-12-31 00:00", "2026-12-31 00:00", "2027-01-31 00:00"),
            ("UTC", "2026-02-28 00:00", "2026-02-28 00:00", "2026-03-31 00:00"),
            ("UTC", "2026-04-30 12:00", "2026-04-30 00:00", "2026-05-31 00:00"),
            ("UTC", "2100-02-28 12:00", "2100-02-28 00:00", "2100-03-31 00:00"),
        ],
    );
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
pub(in crate::policy) fn instants() -> impl Strategy<Value = (Zone, i64)> {
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
    fn any_period_tiles_time((zone, ms) in instants(), billing_day in 1..=31_u8) {
        for period in [Period::Hour, Period::Day, Period::Week, Period::Month { billing_day }] {
            let (start, end) = (period.start(&zone, ms), period.end(&zone, ms));
            prop_assert!(start <= ms && ms < end, "{:?}", period);
            for inside in [start, start + (end - start) / 2, end - 1] {
                prop_assert_eq!((period.start(&zone, inside), period.end(&zone, inside)), (start, end));
            }
            prop_assert_eq!(period.start(&zone, end), end);
            prop_assert_eq!(period.end(&zone, start - 1), start);
        }
    }

    #[test]
    fn weeks_and_months_begin_on_their_day((zone, ms) in instants(), billing_day in 1..=31_u8) {
        let date = |ms: i64| DateTime::from_timestamp_millis(ms).unwrap().with_timezone(&zone.0).date_naive();
        let week = date(Period::Week.start(&zone, ms));
        prop_assert_eq!(week.weekday(), chrono::Weekday::Mon);
        let month = date(Period::Month { billing_day }.start(&zone, ms));
        let last = month.succ_opt().unwrap().day() == 1;
        // The 30th that was left out.
        let apia = zone.name() == "Pacific/Apia" && month.to_string() == "2011-12-31" && billing_day == 30;
        prop_assert!(month.day() == u32::from(billing_day) || last && month.day() < u32::from(billing_day) || apia);
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
