//! What times and days are accepted, and when they hold.

use chrono::{Datelike, NaiveDateTime, Timelike};
use proptest::prelude::*;

use super::super::period::tests::{instants, utc, zone};
use super::*;

/// From words with spaces between them.
fn schedule(time: &str, day: &str) -> Schedule {
    Schedule {
        time: time.split_whitespace().map(|text| text.parse().unwrap()).collect(),
        day: day.split_whitespace().map(|text| text.parse().unwrap()).collect(),
    }
}

/// In each case of zone, times, days of the week, date and number of days: the instants at which it begins and ceases to
/// hold, in turns, as `next_change` finds them. Instants are in UTC, without year and month; days are from noon to noon,
/// and it does not hold at the first noon.
fn check<const N: usize>(cases: [(&str, &str, &str, &str, i64, &str); N]) {
    for (name, time, day, date, days, expected) in cases {
        let (schedule, utc_zone, zone) = (schedule(time, day), zone("UTC"), zone(name));
        let mut now = utc(&format!("{date} 12:00"));
        let (end, mut held, mut changes) = (now + days * DAY_MS, false, Vec::new());
        while now < end {
            if schedule.holds(&zone, now) != held {
                held = !held;
                changes.push(utc_zone.show(now)["2026-03-".len()..].strip_suffix(":00").unwrap().to_owned());
            }
            now = schedule.next_change(&zone, now).unwrap();
        }
        assert_eq!(changes.join(", "), expected, "{name} `{time}` `{day}` from {date}");
    }
}

#[test]
fn times() {
    for (text, begin, end) in [
        ("9-18", 540, 1080),
        ("09-18", 540, 1080),
        ("23-7", 1380, 420),
        ("00:40-21:30", 40, 1290),
        ("0:05-0:06", 5, 6),
        ("0-24", 0, 1440),
        ("12-24:00", 720, 1440),
        ("12-0", 720, 0),
    ] {
        assert_eq!(text.parse(), Ok(TimeRange { begin, end }), "{text}");
    }
    for (text, error) in [
        (
            "9",
            "`9` is not a range of times, write hours such as 9-18 or 23-7, or minutes such as 00:40-21:30",
        ),
        ("9-25", "`25` in `9-25` is not a time of day, write an hour from 0 to 24 or a minute such as 21:30"),
        ("24-7", "`24-7` begins when the day is over, write 0 for the midnight that begins a day"),
        ("9-09:00", "`9-09:00` ends when it begins, write 0-24 for the whole day"),
    ] {
        assert_eq!(text.parse::<TimeRange>().unwrap_err().to_string(), error);
    }
    let wrong = ["", "-", "9-", "-9", "9-18-20", "9 - 18", "+9-18", "9:5-18", "9:60-18", "9-24:01", "009-18"];
    for text in wrong.into_iter().chain(["9-18h", "9:-18", ":30-18", "9:00:00-18", "١-٢", "9–18", "24:00-24"])
    {
        assert!(text.parse::<TimeRange>().is_err(), "{text}");
    }
}

#[test]
fn days() {
    for (text, first, last) in [
        ("Mon", 0, 0),
        ("sun", 6, 6),
        ("Mon-Fri", 0, 4),
        ("SAT-mon", 5, 0),
        ("Tue-Mon", 1, 0),
        ("Wed-Wed", 2, 2),
    ] {
        assert_eq!(text.parse(), Ok(DayRange { first, last }), "{text}");
    }
    assert_eq!(
        "Mon-Fry".parse::<DayRange>().unwrap_err().to_string(),
        "`Fry` in `Mon-Fry` is not a day, write Mon, Tue, Wed, Thu, Fri, Sat or Sun, or a range such as Mon-Fri"
    );
    for text in ["", "-", "Mon-", "-Fri", "Monday", "Mo", "1-5", "Mon - Fri", "Mon-Wed-Fri", "Mon,Tue"] {
        assert!(text.parse::<DayRange>().is_err(), "{text}");
    }
}

#[test]
fn errors_have_their_place_in_the_file() {
    #[derive(Debug, serde::Deserialize)]
    struct Keys {
        time: Vec<TimeRange>,
        day: Vec<DayRange>,
    }
    let keys: Keys = toml::from_str("time = [\"9-12\", \"13-18\"]\nday = [\"Mon-Fri\"]").unwrap();
    assert_eq!((keys.time.len(), keys.day), (2, vec![DayRange { first: 0, last: 4 }]));
    for (text, place, error) in [
        ("day = []\ntime = [\"9-12\", \"13-13\"]", "\"13-13\"", "`13-13` ends when it begins"),
        ("time = []\nday = [\"Mon\", \"Tues\"]", "\"Tues\"", "`Tues` in `Tues` is not a day"),
        ("day = []\ntime = [9]", "9", "expected times of day such as \"9-18\""),
    ] {
        let found = toml::from_str::<Keys>(text).unwrap_err();
        assert_eq!(&text[found.span().unwrap()], place);
        assert!(found.message().contains(error), "{found}");
    }
}

#[test]
fn ends_are_exclusive() {
    let (night, utc_zone) = (schedule("23-7", ""), zone("UTC"));
    let (begin, end) = (utc("2026-03-01 23:00"), utc("2026-03-02 07:00"));
    for (ms, holds) in [(begin - 1, false), (begin, true), (end - 1, true), (end, false)] {
        assert_eq!(night.holds(&utc_zone, ms), holds, "{ms}");
    }
    assert_eq!(night.next_change(&utc_zone, begin), Some(end));
    assert_eq!(night.next_change(&utc_zone, end - 1), Some(end));
}

#[test]
fn times_and_days_together() {
    check([
        // The date that the clock shows counts; 2026-02-27 is a Friday.
        ("UTC", "23-7", "Fri", "2026-02-26", 3, "27 00:00, 27 07:00, 27 23:00, 28 00:00"),
        ("UTC", "0-3 2-4 20-21", "", "2026-03-01", 1, "01 20:00, 01 21:00, 02 00:00, 02 04:00"),
        ("UTC", "", "Wed Sat-Mon", "2026-02-26", 7, "28 00:00, 03 00:00, 04 00:00, 05 00:00"),
        ("Asia/Kolkata", "9-17", "Mon-Fri", "2026-02-26", 4, "27 03:30, 27 11:30, 02 03:30, 02 11:30"),
        // The end of February in a leap year and in another, and of a year.
        ("UTC", "23-24", "", "2028-02-28", 2, "28 23:00, 29 00:00, 29 23:00, 01 00:00"),
        ("Asia/Kolkata", "23-1", "Sat", "2026-02-27", 2, "27 18:30, 27 19:30, 28 17:30, 28 18:30"),
        ("Europe/Berlin", "0-1", "Thu-Fri", "2026-12-30", 3, "30 23:00, 31 00:00, 31 23:00, 01 00:00"),
    ]);
}

#[test]
fn a_day_of_23_hours() {
    check([
        // 02:00 becomes 03:00 at 01:00 UTC.
        ("Europe/Berlin", "23-7", "", "2026-03-28", 1, "28 22:00, 29 05:00"),
        ("Europe/Berlin", "2-3", "", "2026-03-28", 1, ""),
        ("Europe/Berlin", "1-3", "", "2026-03-28", 1, "29 00:00, 29 01:00"),
        ("Europe/Berlin", "02:30-4", "", "2026-03-28", 1, "29 01:00, 29 02:00"),
        ("Europe/Berlin", "", "Sun", "2026-03-28", 2, "28 23:00, 29 22:00"),
    ]);
}

#[test]
fn a_day_of_25_hours() {
    check([
        // 03:00 becomes 02:00 at 01:00 UTC.
        ("Europe/Berlin", "23-7", "", "2026-10-24", 1, "24 21:00, 25 06:00"),
        ("Europe/Berlin", "2-3", "", "2026-10-24", 1, "25 00:00, 25 02:00"),
        ("Europe/Berlin", "1-3", "", "2026-10-24", 1, "24 23:00, 25 02:00"),
        ("Europe/Berlin", "02:15-02:45", "", "2026-10-24", 1, "25 00:15, 25 00:45, 25 01:15, 25 01:45"),
        ("Europe/Berlin", "02:30-4", "", "2026-10-24", 1, "25 00:30, 25 01:00, 25 01:30, 25 03:00"),
        ("Europe/Berlin", "", "Sun", "2026-10-24", 2, "24 22:00, 25 23:00"),
    ]);
}

#[test]
fn midnights_skipped_and_repeated() {
    check([
        // 00:00 on Sunday becomes 01:00 at 03:00 UTC.
        ("America/Sao_Paulo", "", "Sun", "2018-11-03", 2, "04 03:00, 05 02:00"),
        ("America/Sao_Paulo", "0-1", "", "2018-11-03", 1, ""),
        ("America/Sao_Paulo", "00:30-2", "", "2018-11-03", 1, "04 03:00, 04 04:00"),
        ("America/Sao_Paulo", "23-24", "", "2018-11-03", 1, "04 02:00, 04 03:00"),
        // 00:00 on Sunday becomes 23:00 on Saturday at 02:00 UTC.
        ("America/Sao_Paulo", "", "Sat", "2018-02-16", 3, "17 02:00, 18 03:00"),
        ("America/Sao_Paulo", "0-1", "", "2018-02-17", 1, "18 03:00, 18 04:00"),
        ("America/Sao_Paulo", "23-24", "", "2018-02-17", 1, "18 01:00, 18 03:00"),
        ("America/Sao_Paulo", "23:30-0", "", "2018-02-17", 1, "18 01:30, 18 02:00, 18 02:30, 18 03:00"),
        // 00:01 on Sunday becomes 23:01 on Saturday at 02:31 UTC.
        ("America/St_Johns", "", "Sun", "2009-10-31", 2, "01 02:30, 01 02:31, 01 03:30, 02 03:30"),
        // A Friday that was left out at 10:00 UTC.
        ("Pacific/Apia", "", "Fri", "2011-12-29", 3, ""),
        ("Pacific/Apia", "", "Thu Sat", "2011-12-28", 4, "29 10:00, 31 10:00"),
        // An hour on at 03:00 UTC of the 8th, and back at 02:00 UTC of the 15th.
        ("America/Recife", "", "Mon", "2000-10-07", 10, "09 02:00, 10 02:00, 16 03:00, 17 03:00"),
    ]);
}

#[test]
fn what_always_holds_never_changes() {
    let (always, berlin) = (Schedule::default(), zone("Europe/Berlin"));
    assert!(always.holds(&berlin, utc("2026-03-29 01:00")));
    assert_eq!(always.next_change(&berlin, utc("2026-03-29 01:00")), None);
}

#[test]
fn instants_outside_the_calendar_are_shown_in_utc() {
    let (noon, kolkata) = (schedule("12-13", "Mon-Sun"), zone("Asia/Kolkata"));
    for ms in [i64::MIN / 2, i64::MAX / 2] {
        let day = ms - ms.rem_euclid(DAY_MS);
        assert_eq!(noon.next_change(&kolkata, day), Some(day + DAY_MS / 2));
        assert!(noon.holds(&kolkata, day + DAY_MS / 2));
    }
    assert_eq!(noon.next_change(&kolkata, i64::MAX), None);
}

fn schedules() -> impl Strategy<Value = Schedule> {
    let time = (0..DAY_MINUTES, 0..=DAY_MINUTES).prop_filter_map("nothing between", |(begin, end)| {
        (begin != end).then_some(TimeRange { begin, end })
    });
    let hours = (0..24_i64, 1..24_i64)
        .prop_map(|(hour, hours)| TimeRange { begin: hour * 60, end: (hour + hours) % 24 * 60 });
    let day = (0..7_i64, 0..7_i64).prop_map(|(first, last)| DayRange { first, last });
    let time = proptest::collection::vec(prop_oneof![time, hours], 0..3);
    (time, proptest::collection::vec(day, 0..3)).prop_map(|(time, day)| Schedule { time, day })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn nothing_changes_before_the_next_change(
        schedule in schedules(),
        (zone, ms) in instants(),
        samples in proptest::collection::vec(0.0..1.0, 50),
    ) {
        let holds = schedule.holds(&zone, ms);
        if let Some(next) = schedule.next_change(&zone, ms) {
            prop_assert!(ms < next && next - ms <= DAY_MS);
            let samples = samples.into_iter().map(|part: f64| ms + ((next - ms) as f64 * part) as i64);
            for sample in samples.chain([next - 1]) {
                prop_assert_eq!(schedule.holds(&zone, sample), holds, "{}", sample);
            }
        } else {
            prop_assert_eq!((holds, schedule), (true, Schedule::default()));
        }
    }

    #[test]
    fn it_holds_by_what_the_clock_shows(schedule in schedules(), (zone, ms) in instants()) {
        let shown = NaiveDateTime::parse_from_str(&zone.show(ms), "%Y-%m-%d %H:%M:%S").unwrap();
        let minute = i64::from(shown.hour() * 60 + shown.minute());
        let day = i64::from(shown.weekday().num_days_from_monday());
        // Goes round from the begin to the end.
        let within = |from: i64, to: i64, at: i64, all: i64| (at - from).rem_euclid(all) <= (to - from).rem_euclid(all);
        let time = schedule.time.iter().any(|time| within(time.begin, time.end - 1, minute, DAY_MINUTES));
        let days = schedule.day.iter().any(|days| within(days.first, days.last, day, 7));
        let holds = (time || schedule.time.is_empty()) && (days || schedule.day.is_empty());
        prop_assert_eq!(schedule.holds(&zone, ms), holds);
    }
}
