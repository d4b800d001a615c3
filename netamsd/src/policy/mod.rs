//! Which units traffic belongs to and which hours, days and months it falls in.
//!
//! Pure: data in, data out. No kernel, no store and no clock of its own; the one look outside is [`Zone::local`], which
//! asks the system for the name of its time zone.

mod charge;
mod period;
mod unit;
mod units;

pub use period::{Zone, ZoneError};
pub use unit::{PrefixError, UnitConfig, UnitKind};
pub use units::{UnitId, Units};
