//! Changes of verdicts while packets flow: in force for flows that are known already, and kept in the store.
//!
//! Both sources keep a flow's verdict with the flow. The threads of the queues forget theirs when they are told to. In the
//! kernel's tables a flow has it until its epoch ends; so the epoch is ended, and until that is done (the store may not take
//! the batch) the programs judge each packet.

use tracing::{info, warn};

use super::{meter::Meter, setup::undecided, switch::SwitchError};
use crate::{
    config::{DefaultPolicy, Mode},
    flow::Source,
    policy::{Engine, UnitId},
    source::{Notice, kernel::flag, unix_ms},
};

impl Meter {
    /// Does this with packets that no policy decides, from now on; running connections are decided anew. After an error the
    /// former policy is in force, unless the error is [`SwitchError::Undecided`].
    pub(super) fn set_default_policy(&mut self, policy: DefaultPolicy) -> Result<(), SwitchError> {
        if self.mode == Mode::Tee && policy == DefaultPolicy::Drop {
            return Err(SwitchError::Tee);
        }
        let [former, wanted] = [self.default_policy, policy].map(|all| undecided(all, self.local_policy));
        if let Err(e) = self.change_verdicts(|engine| engine.set_undecided(wanted)) {
            return Err(match self.change_verdicts(|engine| engine.set_undecided(former)) {
                Ok(()) => e,
                Err(worse) => SwitchError::Undecided { why: e.into(), worse: worse.into() },
            });
        }
        if policy != self.default_policy {
            let drop = policy == DefaultPolicy::Drop;
            self.announce(
                "default_policy",
                format!("default policy is {}", if drop { "drop" } else { "pass" }),
            );
        }
        self.default_policy = policy;
        Ok(())
    }

    /// Blocks a unit, or no longer, for good: also after a restart.
    pub(super) fn set_blocked(&mut self, unit: UnitId, blocked: bool) -> Result<(), SwitchError> {
        if self.mode == Mode::Tee && blocked {
            return Err(SwitchError::Tee);
        }
        // What cannot be kept is not done. That a unit is allowed is to be said only of one that would be blocked.
        let said = (blocked || self.engine.is_denied(unit)).then_some(blocked);
        let (before, stored) =
            (self.engine.blocked()[unit.0 as usize], self.writer.blocked()?[unit.0 as usize]);
        self.writer.set_blocked(unit.0, said)?;
        if let Err(e) = self.change_verdicts(|engine| {
            engine.set_blocked(unit, blocked);
        }) {
            let back = self.change_verdicts(|engine| {
                engine.set_blocked(unit, before);
            });
            return Err(match self.writer.set_blocked(unit.0, stored).map_err(SwitchError::from).and(back) {
                Ok(()) => e,
                Err(worse) => SwitchError::Undecided { why: e.into(), worse: worse.into() },
            });
        }
        if blocked != before {
            let name = &self.engine.units().names()[unit.0 as usize];
            let detail = format!("unit {name} is {}", if blocked { "blocked" } else { "no longer blocked" });
            self.announce(if blocked { "blocked" } else { "allowed" }, detail);
        }
        Ok(())
    }

    pub(super) fn announce(&mut self, kind: &'static str, detail: String) {
        info!("{detail}");
        let source = if self.queues_count() { Source::Nfqueue } else { Source::Kernel };
        self.notices.push((unix_ms(), source, Notice::new(kind, detail, 0)));
    }

    /// Has packets judged as they are after `change`. What was counted before is stored before, by the reasons of then.
    pub(super) fn change_verdicts(&mut self, change: impl FnOnce(&Engine)) -> Result<(), SwitchError> {
        if self.mode == Mode::Tee {
            change(&self.engine);
            return Ok(());
        }
        self.drain(false);
        change(&self.engine);
        if let Some(kernel) = &mut self.kernel {
            let flags = kernel.flags();
            kernel.tables().set_flags(flags | flag::REJUDGE);
            let state = self.engine.state();
            kernel.set_state(&state.flags, &state.schedules);
            // Programs that began before may still give a flow that is new a former verdict; its half is not empty then, and
            // ends below.
            kernel.tables().grace_period()?;
        }
        self.nfqueue.judge_anew()?;
        if self.ruled && self.nfqueue.offloads() {
            self.nfqueue.set_gate(&self.nfqueue.usual_gate())?;
            self.reading = None;
        }
        // A half that was kept back goes first.
        self.drain(false);
        Ok(())
    }

    /// Lets slots have verdicts again once all of them are of the present.
    pub(super) fn settle_verdicts(&mut self) {
        let Some(kernel) = &mut self.kernel else { return };
        let flags = kernel.flags();
        if flags & flag::REJUDGE == 0 || self.trouble.is_some() {
            return;
        }
        // What is in the half that is being filled now was judged by the present state, packet by packet.
        kernel.tables().set_flags(flags & !flag::REJUDGE);
        if let Err(e) = kernel.tables().grace_period() {
            warn!("{e}");
        }
    }
}
