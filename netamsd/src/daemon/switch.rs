//! From one source to another while packets flow: none is missed, and none is counted twice.
//!
//! ```text
//! packet --> tc ingress --------> netfilter --------------------> tc egress -->
//!            kernel source        gate, queue: nfqueue source     kernel source
//! ```
//!
//! While both may count, a packet that has been counted has one bit in its mark, and whoever meets the bit does not count
//! it. The programs set it at ingress and clear it at egress. The gate clears it and lets the packet by; what it lets to the
//! queue gets the bit, since it is counted there, or by the rule when nobody takes it from the queue. Between two steps a
//! grace period passes, so that packets under way when a step was taken have gone by. Every step leaves a state in which
//! this holds; so a daemon that is killed in between leaves one that the next daemon can go on from.

use tracing::{error, info, warn};

use super::{
    drain::{DrainError, outstanding},
    meter::Meter,
    rates::Rates,
};
use crate::{
    config::DataSource,
    flow::{Counters, Source},
    source::{
        Notice,
        kernel::{Duty, KernelError, KernelSource, flag},
        nfqueue::{Gate, GsoMode, Installed, NfqueueError},
        tables::TablesError,
        unix_ms,
    },
    store::StoreError,
};

/// Why a switch was not made.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// The kernel source.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The source in user space.
    #[error(transparent)]
    Nfqueue(#[from] NfqueueError),
    /// Flow tables.
    #[error(transparent)]
    Tables(#[from] TablesError),
    /// The last counts of a source that ends cannot be stored.
    #[error(transparent)]
    Drain(#[from] DrainError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no kernel source.
    #[error("the kernel source could not be set up when the daemon started; see its messages")]
    NoKernel,
    /// Neither what was asked for can be had, nor what was there before.
    #[error("{why}, and the source {from} cannot be had back: {worse}; ask for the one that is wanted again")]
    Stranded {
        /// Why it was not done.
        why: Box<SwitchError>,
        /// The source that counted.
        from: &'static str,
        /// Why it does not count again.
        worse: Box<SwitchError>,
    },
    /// A default policy can neither be enforced nor taken back.
    #[error(
        "{why}, and the former policy cannot be enforced again: {worse}; ask for the one that is wanted again"
    )]
    Undecided {
        /// Why it was not done.
        why: Box<SwitchError>,
        /// Why it was not taken back.
        worse: Box<SwitchError>,
    },
    /// Nothing is enforced.
    #[error("mode is \"tee\", which drops nothing; set mode = \"divert\"")]
    Tee,
}

impl Meter {
    /// Counts by `to` from now on. After an error the former source counts, unless the error is [`SwitchError::Stranded`].
    pub(super) fn switch(&mut self, to: DataSource) -> Result<(), SwitchError> {
        if to == self.active && !self.stranded {
            return Ok(());
        }
        self.require(to)?;
        let from = self.active;
        if let Err(e) = self.change(to) {
            if !self.ruled {
                self.give_up_queues();
            }
            return Err(match self.change(from) {
                Ok(()) => {
                    self.stranded = false;
                    e
                }
                Err(worse) => {
                    self.stranded = true;
                    let stranded =
                        SwitchError::Stranded { why: e.into(), from: name(from), worse: worse.into() };
                    error!("{stranded}");
                    stranded
                }
            });
        }
        self.stranded = false;
        let detail = format!("source is {}, was {}", name(to), name(from));
        info!("{detail}");
        self.active = to;
        self.since_ms = unix_ms();
        self.switches += 1;
        let source = if to == DataSource::Nfqueue { Source::Nfqueue } else { Source::Kernel };
        self.notices.push((self.since_ms, source, Notice::new("source", detail, 0)));
        // What the former source had counted belongs to the time before.
        self.drain(true);
        self.at_switch = Some((self.since_ms, self.baselines()));
        self.rates = Rates::default();
        Ok(())
    }

    /// Begins with the source that is configured, from whatever a former daemon left.
    ///
    /// # Errors
    /// When that source cannot be had; what was made is removed, and what was found goes on as it did.
    pub fn begin(&mut self, source: DataSource) -> Result<(), SwitchError> {
        let adopted = self.adopt_rules(source);
        let counted = self.kernel_counts();
        let (ruled, flags) = (self.ruled, self.kernel.as_ref().map_or(0, KernelSource::flags));
        if let Err(e) = adopted.and_then(|()| self.change(source)) {
            self.withdraw(ruled, flags);
            return Err(e);
        }
        // Hooks that still count know themselves which of them did.
        self.went_on |= counted && !self.kernel_counts();
        info!("source is {}", name(source));
        self.active = source;
        self.since_ms = unix_ms();
        Ok(())
    }

    /// Takes over the rules of a former daemon; removes those that are of no use. What rules of another plan have counted is
    /// committed before they go.
    fn adopt_rules(&mut self, source: DataSource) -> Result<(), SwitchError> {
        // Rules are looked for only where there can be some: asking may make the kernel load modules.
        let ours = self.reference.is_known() || !self.nfqueue.former().is_empty();
        if ours && self.nfqueue.adopt()? {
            self.ruled = true;
            self.went_on = true;
            self.nfqueue.remember_gate()?;
            return Ok(());
        }
        if ours {
            self.went_on = self.close_former_account().unwrap_or_else(|e| {
                warn!("what the rules of a former daemon have counted since its last commit is not in the ledger: {e}");
                false
            });
        }
        if (ours || self.nfqueue.found()) && source != DataSource::Nfqueue {
            self.nfqueue.remove_leftovers()?;
        }
        Ok(())
    }

    /// Removes what a daemon that does not start has made. What a former one left goes on as it did: its rules if there were
    /// any, behind their gate, and its programs, which were told these flags.
    fn withdraw(&mut self, ruled: bool, flags: u32) {
        if !ruled {
            self.give_up_queues();
        } else if let Err(e) = self.nfqueue.restore_gate() {
            warn!("cannot give the netfilter rules the gate back that they had: {e}");
        }
        self.nfqueue.stop();
        let empty =
            !ruled && self.nfqueue.live_counters().is_some_and(|counters| counters == Counters::default());
        if empty && let Err(e) = self.nfqueue.remove_tables() {
            warn!("cannot remove the flow tables of the queues: {e}");
        }
        let Some(mut kernel) = self.kernel.take() else { return };
        if kernel.inherited() || !self.former.is_empty() {
            kernel.tables().set_flags(flags);
            kernel.leave();
        } else if let Err(e) = kernel.detach().and_then(|()| kernel.remove()) {
            warn!("cannot remove the programs: {e}");
        }
    }

    /// Whether this daemon can have that source at all.
    fn require(&self, source: DataSource) -> Result<(), SwitchError> {
        let programs =
            source == DataSource::Kernel || source == DataSource::Nfqueue && self.nfqueue.offloads();
        if programs && self.kernel.is_none() {
            return Err(SwitchError::NoKernel);
        }
        Ok(())
    }

    fn change(&mut self, to: DataSource) -> Result<(), SwitchError> {
        self.require(to)?;
        match to {
            DataSource::Kernel => self.count_by_kernel(),
            DataSource::Nfqueue => self.count_by_queues(),
            DataSource::Off => self.count_by_none(),
        }
    }

    /// Whether the programs count what they see.
    pub(super) fn kernel_counts(&self) -> bool {
        let counts = |kernel: &KernelSource| kernel.is_attached() && kernel.flags() & flag::PAUSED == 0;
        self.kernel.as_ref().is_some_and(counts)
    }

    /// Whether rules lead to queues that count. Otherwise those that are there only ask for verdicts, and the programs count
    /// everything.
    pub(super) fn queues_count(&self) -> bool {
        let handing_over = self.kernel.as_ref().is_some_and(|kernel| kernel.flags() & flag::HANDOVER != 0);
        self.ruled && (handing_over || !self.kernel_counts())
    }

    /// Has the programs do this, and waits until all do.
    fn command(&mut self, flags: u32, duty: Duty) -> Result<(), SwitchError> {
        let Some(kernel) = &mut self.kernel else { return Ok(()) };
        kernel.tables().set_flags(flags);
        let notices = kernel.set_duty(duty, unix_ms())?;
        kernel.tables().grace_period()?;
        self.note(Source::Kernel, notices);
        Ok(())
    }

    fn count_by_kernel(&mut self) -> Result<(), SwitchError> {
        if self.queues_count() {
            self.hand_over_to_kernel()?;
        } else if self.ruled {
            self.remove_queues()?;
        }
        self.command(0, Duty::Meter)
    }

    fn hand_over_to_kernel(&mut self) -> Result<(), SwitchError> {
        if !self.kernel_counts() {
            let stamp = self.stamp();
            let duty = if stamp == 0 { Duty::Meter } else { Duty::MeterAndStamp };
            // All programs are in place before any of them counts.
            self.command(flag::PAUSED | flag::HANDOVER | stamp, duty)?;
            self.nfqueue.mark_counted(true)?;
            self.set_gate(&self.nfqueue.handover_gate())?;
            self.command(flag::HANDOVER | stamp, duty)?;
        }
        // From here on the programs count what is not counted in the queues.
        self.set_gate(&self.nfqueue.closed_gate())?;
        self.end_queues()
    }

    fn count_by_queues(&mut self) -> Result<(), SwitchError> {
        if self.nfqueue.offloads() {
            if self.queues_count() {
                self.hand_over_to_kernel()?;
            }
            self.command(0, Duty::Meter)?;
            self.nfqueue.judge_anew()?;
            self.nfqueue.start(false)?;
            self.install(&self.nfqueue.usual_gate())?;
            return Ok(());
        }
        if self.ruled && !self.queues_count() {
            // A former daemon's, which only asked for verdicts: what they have counted is in no account of queues.
            self.remove_queues()?;
        }
        let counting = self.kernel_counts();
        let stamp = if self.kernel.is_some() { self.wanted_stamp() } else { 0 };
        let duty = match (stamp, counting) {
            (0, false) => Duty::None,
            (0, true) => Duty::Meter,
            _ => Duty::MeterAndStamp,
        };
        self.nfqueue.judge_anew()?;
        self.nfqueue.mark_counted(counting)?;
        self.command(stamp | if counting { flag::HANDOVER } else { flag::PAUSED }, duty)?;
        // From here on every packet that the programs have counted is marked, and each super-packet has its size. Where a
        // killed daemon has left rules, packets come at once.
        if !self.nfqueue.is_running() {
            self.reference.rebound();
            self.nfqueue.start(stamp != 0)?;
        }
        let gate = if counting { self.nfqueue.handover_gate() } else { self.nfqueue.usual_gate() };
        self.install(&gate)?;
        if counting {
            self.command(stamp | flag::HANDOVER | flag::PAUSED, duty)?;
            self.nfqueue.set_gate(&self.nfqueue.usual_gate())?;
            // The programs are needed as long as packets come from the queues with the bit that the gate has set.
            self.nfqueue.catch_up()?;
            self.nfqueue.mark_counted(false)?;
        }
        self.command(stamp | flag::PAUSED, if stamp == 0 { Duty::None } else { Duty::MeterAndStamp })
    }

    pub(super) fn count_by_none(&mut self) -> Result<(), SwitchError> {
        if self.queues_count() {
            self.set_gate(&self.nfqueue.closed_gate())?;
            self.end_queues()?;
        } else if self.ruled {
            self.remove_queues()?;
        }
        self.command(flag::PAUSED, Duty::None)
    }

    /// Replaces the gate; where the kernel source can tell, the packets that have passed the former one are in the queues
    /// then, or past them.
    fn set_gate(&mut self, gate: &Gate) -> Result<(), SwitchError> {
        self.nfqueue.set_gate(gate)?;
        match &mut self.kernel {
            Some(kernel) => Ok(kernel.tables().grace_period()?),
            None => Ok(()),
        }
    }

    /// Puts the rules in place, and begins or goes on with the account that they keep. While none are there the store has no
    /// counters: the next daemon then knows that none of what the rules have counted is in an account.
    fn install(&mut self, gate: &Gate) -> Result<(), SwitchError> {
        if self.ruled {
            if self.nfqueue.install(gate)? == Installed::New {
                self.reference.restart();
            }
            return Ok(());
        }
        self.reference.restart();
        self.writer.keep_rule_counters(Vec::new())?;
        // Nothing is queued before the rules of both IP versions are there: half of them would be nobody's.
        if self.nfqueue.install(&self.nfqueue.closed_gate())? == Installed::Adopted {
            // What they have counted until now is in the account of another state folder.
            let counters = self.reference.begin_at(self.nfqueue.read_rules()?);
            self.writer.keep_rule_counters(counters)?;
        }
        self.ruled = true;
        self.unqueued();
        Ok(self.nfqueue.set_gate(gate)?)
    }

    /// Ends the queues after the last packet that they have to count has come.
    fn end_queues(&mut self) -> Result<(), SwitchError> {
        if let Err(e) = self.nfqueue.wait_until_empty() {
            self.note(Source::Nfqueue, vec![Notice::new("queue_stuck", e.to_string(), 0)]);
            // What queues were too full for is known as long as they are there; what they still hold comes out no more.
            self.drain_queues(true, false)?;
            self.nfqueue.stop();
        }
        // The account is closed while there are still rules to read.
        self.drain_queues(true, true)?;
        self.remove_queues()
    }

    /// Takes back what was begun for queues that no rules lead to, or not all of them.
    fn give_up_queues(&mut self) {
        if !self.nfqueue.is_running() {
            return;
        }
        if let Err(e) = self.nfqueue.remove_rules() {
            error!("cannot remove netfilter rules: {e}");
        }
        self.nfqueue.stop();
        if let Err(e) = self.nfqueue.mark_counted(false) {
            error!("{e}");
        }
    }

    fn remove_queues(&mut self) -> Result<(), SwitchError> {
        self.nfqueue.remove_rules()?;
        self.ruled = false;
        self.reference.restart();
        self.writer.set_rule_counters(Vec::new());
        self.nfqueue.stop();
        Ok(())
    }

    /// The flag by which segment sizes are stamped, as it is now.
    fn stamp(&self) -> u32 {
        self.kernel.as_ref().map_or(0, |kernel| kernel.flags() & flag::STAMP)
    }

    fn wanted_stamp(&self) -> u32 {
        if self.nfqueue.options().gso == GsoMode::Auto { flag::STAMP } else { 0 }
    }

    /// Brings rules back that somebody removed, with what passed meanwhile on record.
    pub(super) fn watch_rules(&mut self) {
        match self.nfqueue.watch_rules() {
            Ok((brought_back, mut notice)) => {
                let missed = if self.nfqueue.offloads() { 0 } else { self.unqueued() };
                if brought_back == Some(Installed::New) {
                    self.reference.restart();
                }
                if let Some(notice) = notice.as_mut().filter(|_| brought_back.is_some()) {
                    notice.missed = missed;
                    notice.detail += &format!(
                        "; since they were seen last, packets passed interfaces {missed} times without coming out of a queue"
                    );
                }
                self.note(Source::Nfqueue, notice.into_iter().collect());
            }
            Err(e) => warn!("cannot look after the netfilter rules: {e}"),
        }
        // Also closes the account when nothing moves.
        self.drain(true);
    }

    /// Packets that wait in queues, by the account of the rules.
    pub(super) fn waiting(&self) -> u64 {
        u64::try_from(outstanding(&self.writer.ledger(Source::Nfqueue).counters)).unwrap_or(0)
    }
}

/// As configured.
pub(super) fn name(source: DataSource) -> &'static str {
    match source {
        DataSource::Kernel => "kernel",
        DataSource::Nfqueue => "nfqueue",
        DataSource::Off => "off",
    }
}
