//! What passed while nobody counted, told by the interfaces' own counters.

use std::collections::HashMap;

use tracing::warn;

use super::{drain::DrainError, meter::Meter};
use crate::{
    config::{DataSource, interface_matches},
    flow::Source,
    source::{
        Notice,
        kernel::{self, KernelSource, Metered, Tables},
        unix_ms,
    },
    store,
};

/// How far two accounts were at a look at the netfilter rules: passes of interfaces, of which a forwarded packet makes two.
pub(super) struct Passed {
    /// By the interfaces' own counters, by index.
    interfaces: HashMap<u32, u64>,
    /// Of packets that came out of queues.
    queues: u64,
}

impl Passed {
    /// Passes since `before` that have led to no queue. Interfaces that have come or gone since tell nothing.
    fn unqueued_since(&self, before: &Self) -> u64 {
        let moved = |(index, now): (&u32, &u64)| Some(now.saturating_sub(*before.interfaces.get(index)?));
        let interfaces: u64 = self.interfaces.iter().filter_map(moved).sum();
        interfaces.saturating_sub(self.queues.saturating_sub(before.queues))
    }
}

impl Meter {
    /// Remembers how far interfaces and queues are. Passes since this was called last that have led to no queue, but for
    /// the few of packets under way at both moments.
    pub(super) fn unqueued(&mut self) -> u64 {
        let now = match self.passed() {
            Ok(now) => now,
            Err(e) => {
                warn!("cannot tell what passes the queues by: {e}");
                return 0;
            }
        };
        let before = self.passed.replace(now);
        let (Some(before), Some(now)) = (before, &self.passed) else { return 0 };
        now.unqueued_since(&before)
    }

    fn passed(&self) -> Result<Passed, DrainError> {
        let interfaces = self.queued_interfaces()?.into_iter().map(|m| (m.index, m.packets)).collect();
        let queues = self.nfqueue.list()?.iter().map(|queue| queue.passes).sum();
        Ok(Passed { interfaces, queues })
    }

    /// Records the gap before this start.
    pub(super) fn come_back(&mut self) {
        match self.gap() {
            Ok(notice) => {
                let source =
                    if self.active == DataSource::Nfqueue { Source::Nfqueue } else { Source::Kernel };
                self.notices.insert(0, (unix_ms(), source, notice));
            }
            Err(e) => warn!("the gap before this start is not in the ledger: {e}"),
        }
    }

    /// The way that the own counters of interfaces that were metered then, by whichever source, have moved since the last
    /// commit, except where the former daemon's program was still in its place. Where there were still rules in front of
    /// queues they know better: they have counted all the time.
    fn gap(&self) -> Result<Notice, DrainError> {
        let now = self.metered()?;
        let mut names: Vec<&str> = now.iter().map(|m| m.name.as_str()).collect();
        if self.active == DataSource::Nfqueue {
            names = vec!["netfilter queues"];
        }
        let mut detail =
            format!("metering {}", if names.is_empty() { "nothing".into() } else { names.join(", ") });
        // What the tables hold was counted after the last commit, and is no gap.
        let held = self.held();
        if held > 0 {
            detail = format!("{detail}; took over {held} packets of a former daemon that were not committed");
        }
        let (last, boot, mut missed) = (self.writer.last_metered()?, &self.boot, 0);
        let present = kernel::passed_interfaces(|_| true)?;
        let same = |m: &&Metered, then: &store::Metered| m.name == then.interface && m.index == then.ifindex;
        let gone: Vec<_> = last
            .iter()
            .filter(|then| !now.iter().any(|m| same(&m, then) && m.adopted && then.boot == *boot))
            .filter(|_| !self.went_on)
            .collect();
        if let Some(since_ms) = gone.iter().map(|then| then.time_ms).min() {
            detail = format!("{detail}; not metered since {}", utc(since_ms));
            if gone.iter().all(|then| then.boot == *boot) {
                for then in gone {
                    let passed = present
                        .iter()
                        .find(|m| same(m, then))
                        .map(|m| m.packets.saturating_sub(then.packets));
                    missed += passed.unwrap_or(0);
                }
                if !now.iter().any(|m| m.adopted) {
                    missed = missed.saturating_sub(held + self.nfqueue.held());
                }
                detail = format!("{detail}, {missed} packets by the interfaces' counters");
            } else {
                detail =
                    format!("{detail}: the machine was restarted, and what was not committed then is lost");
            }
        }
        Ok(Notice { kind: "started", detail, missed })
    }

    /// Packets through all hooks that are in tables of a former daemon and not in the store.
    fn held(&self) -> u64 {
        let former = self.former.iter().map(Tables::live_counters);
        let inherited =
            self.kernel.iter().filter(|kernel| kernel.inherited()).map(KernelSource::live_counters);
        former.chain(inherited).map(|c| c.packets_in + c.packets_out).sum()
    }

    /// The interfaces that are metered now.
    fn metered(&self) -> Result<Vec<Metered>, DrainError> {
        match &self.kernel {
            Some(kernel) if self.kernel_counts() => Ok(kernel.metered()?),
            _ if self.queues_count() => self.queued_interfaces(),
            _ => Ok(Vec::new()),
        }
    }

    /// The interfaces whose packets are queued.
    fn queued_interfaces(&self) -> Result<Vec<Metered>, DrainError> {
        let patterns = &self.nfqueue.options().interfaces;
        Ok(kernel::passed_interfaces(|name| interface_matches(patterns, name))?)
    }

    /// Has the next transaction write how far the interfaces' own counters are. What is known of them is no reason to keep
    /// counts back: when they cannot be asked, the last answer stands. It also does when the daemon ends and nothing is
    /// metered any more: the next one has to know what was.
    pub(super) fn remember_metered(&mut self) {
        let time_ms = unix_ms();
        let row = |m: Metered| store::Metered {
            interface: m.name,
            ifindex: m.index,
            packets: m.packets,
            time_ms,
            boot: self.boot.clone(),
        };
        match self.metered() {
            Ok(metered) if self.ending && metered.is_empty() => {}
            Ok(metered) => self.writer.set_metered(metered.into_iter().map(row).collect()),
            Err(e) => warn!("cannot read the counters of the interfaces: {e}"),
        }
    }
}

fn utc(ms: i64) -> String {
    chrono::DateTime::from_timestamp_millis(ms)
        .map_or_else(String::new, |t| t.format("%F %T UTC").to_string())
}

/// The kernel's name for the time since it was started.
pub(super) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
