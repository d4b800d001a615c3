//! What is refused although it parses.

use std::ops::RangeInclusive;

use super::*;

/// `sun_path` of `unix(7)`, without its final zero.
const SOCKET_PATH_MAX: usize = 107;
const SLOTS: RangeInclusive<u32> = 256..=16_777_216;
const INTERVAL_MS: RangeInclusive<u32> = 50..=3_600_000;
/// A week, the longest active timeout that common NetFlow exporters take.
const TIMEOUT_S: RangeInclusive<u32> = 1..=604_800;
const KEEP_DAYS: RangeInclusive<u32> = 1..=36_500;
const NOTIFY_S: RangeInclusive<u32> = 1..=3_600;
const CONNECTIONS: RangeInclusive<u32> = 1..=4_096;

impl Config {
    /// Checks everything that the types do not express; [`Config::load`] and [`Config::parse`] have done so.
    pub fn validate(&self) -> Result<(), Problem> {
        not_empty("state", &self.state)?;
        self.kernel.interfaces.iter().try_for_each(|pattern| interfaces::check(pattern))?;
        let inexpressible = self.kernel.interfaces.iter().find(|pattern| !netfilter_pattern(pattern));
        if let Some(pattern) = inexpressible.filter(|_| self.source == DataSource::Nfqueue) {
            return Err(Problem::NetfilterPattern(pattern.clone()));
        }
        in_range("kernel.flows", self.kernel.flows, SLOTS)?;
        if !self.kernel.flows.is_power_of_two() {
            return Err(Problem::NotPowerOfTwo { key: "kernel.flows", value: self.kernel.flows });
        }
        in_range("kernel.spill", self.kernel.spill, SLOTS)?;
        not_empty("kernel.bpffs", &self.kernel.bpffs)?;
        self.nfqueue.validate()?;
        in_range("accounting.interval_ms", self.accounting.interval_ms, INTERVAL_MS)?;
        in_range("accounting.idle_timeout_s", self.accounting.idle_timeout_s, TIMEOUT_S)?;
        in_range("accounting.active_timeout_s", self.accounting.active_timeout_s, TIMEOUT_S)?;
        in_range("accounting.keep_flows_days", self.accounting.keep_flows_days, KEEP_DAYS)?;
        not_empty("control.socket", &self.control.socket)?;
        let length = self.control.socket.as_os_str().len();
        if length > SOCKET_PATH_MAX {
            return Err(Problem::LongSocket { length, max: SOCKET_PATH_MAX });
        }
        not_empty("control.group", Path::new(&self.control.group))?;
        in_range("control.max_connections", self.control.max_connections, CONNECTIONS)?;
        in_range("quota.notify_timeout_s", self.quota.notify_timeout_s, NOTIFY_S)?;
        if self.accounting.charge == Charge::Inner && self.kernel.tunnels == Tunnels::Outer {
            return Err(Problem::ChargeWithoutTunnels);
        }
        units::check(&self.units, self.accounting.charge)?;
        policies::check(self)
    }
}

pub(super) fn in_range(key: &'static str, value: u32, range: RangeInclusive<u32>) -> Result<(), Problem> {
    if range.contains(&value) {
        Ok(())
    } else {
        Err(Problem::Range { key, value, min: *range.start(), max: *range.end() })
    }
}

pub(super) fn not_empty(key: &'static str, value: &Path) -> Result<(), Problem> {
    if value.as_os_str().is_empty() { Err(Problem::Empty(key)) } else { Ok(()) }
}
