//! Which units and policies traffic belongs to, whether it passes, and which hours, days and months it falls in.
//!
//! Pure: data in, data out. No kernel, no store and no clock of its own; the one look outside is [`Zone::local`], which
//! asks the system for the name of its time zone.

mod charge;
mod compile;
mod conditions;
mod engine;
mod lists;
mod period;
mod program;
mod quota;
mod schedule;
mod unit;
mod units;

pub use compile::{Files, TooLong};
pub use conditions::{Numbers, PolicyConfig, Protocol, Reference};
pub use engine::{Engine, EngineSetup, Explanation, Quota, Undecided, UnitExplanation};
pub use kmod_bpf::{MAX_FLOW_QUOTAS, MAX_LIST, MAX_RULES, MAX_UNITS};
pub use lists::{LineError, PrefixList, parse_prefixes, parse_systems};
pub use period::{Period, Zone, ZoneError};
pub use program::{Program, Side, State, Subject, UnitSays, Verdict};
pub use quota::{Direction, PeriodName, QuotaConfig, QuotaState, Size};
pub use schedule::{DayRange, Schedule, ScheduleError, TimeRange};
pub use unit::{PrefixError, UnitConfig, UnitKind};
pub use units::{UnitId, Units};
