//! The rules in front of the queues, and what becomes of the packets: what the daemon can have changed while they flow.

use std::sync::atomic::Ordering;

use super::{
    NfqueueError, NfqueueSource,
    folder::namespace_folder,
    generation::Generation,
    rules::{self, Backend, Gate, Installed, Reading, RuleCounter, Rules, RulesError},
    worker::Decided,
};
use crate::source::Notice;

impl NfqueueSource {
    pub(super) fn rules(&mut self) -> Result<&mut Rules, NfqueueError> {
        if self.rules.is_none() {
            self.rules = Some(Rules::open(self.options.backend)?);
        }
        self.rules.as_mut().ok_or(NfqueueError::Rules(RulesError::NotInstalled))
    }

    /// Brings the rules in place, behind `gate`.
    ///
    /// # Errors
    /// When the tool fails.
    pub fn install(&mut self, gate: &Gate) -> Result<Installed, NfqueueError> {
        let plan = self.options.plan(self.stamped);
        Ok(self.rules()?.install(&plan, gate)?)
    }

    /// Takes over the rules that a killed daemon left, with whatever gate they have; whether there are any of this plan.
    ///
    /// # Errors
    /// When the tool fails.
    pub fn adopt(&mut self) -> Result<bool, NfqueueError> {
        for stamped in [false, true] {
            self.stamped = stamped;
            let plan = self.options.plan(self.stamped);
            if self.rules()?.adopt(&plan)? {
                // The account of these rules needs a place to be written to.
                self.ensure_tables()?;
                return Ok(true);
            }
        }
        self.stamped = false;
        Ok(false)
    }

    /// Replaces the gate.
    ///
    /// # Errors
    /// When the tool fails.
    pub fn set_gate(&mut self, gate: &Gate) -> Result<(), NfqueueError> {
        Ok(self.rules()?.set_gate(gate)?)
    }

    /// The gate of a handover.
    pub fn handover_gate(&self) -> Gate {
        Gate::Handover { bit: self.options.handover }
    }

    /// The gate through which nothing comes to the queues; packets that have been counted are marked no more.
    pub fn closed_gate(&self) -> Gate {
        Gate::Closed { clear: self.options.handover }
    }

    /// The gate when nothing is handed over.
    pub fn usual_gate(&self) -> Gate {
        match self.decided() {
            Some(Decided { mask, accept, drop }) => Gate::Offload { mask, accept, drop },
            None => Gate::Open,
        }
    }

    /// Removes the rules.
    ///
    /// # Errors
    /// When a tool fails.
    pub fn remove_rules(&mut self) -> Result<(), NfqueueError> {
        self.followed = false;
        Ok(match &mut self.rules {
            Some(rules) => rules.remove(),
            None => rules::remove(),
        }?)
    }

    /// All rules with their counters; `None` when they are not there, or, but for their gate, not as they were installed.
    ///
    /// # Errors
    /// When the tool fails.
    pub fn read_rules(&self) -> Result<Option<Reading>, NfqueueError> {
        self.rules.as_ref().map_or(Ok(None), |rules| Ok(rules.read()?))
    }

    /// What sets up the rules.
    pub fn backend(&self) -> Option<Backend> {
        self.rules.as_ref().map(Rules::backend)
    }

    /// Has each packet that is counted from now on marked, or not; waits until that is so.
    ///
    /// # Errors
    /// When a thread hangs.
    pub fn mark_counted(&self, on: bool) -> Result<(), NfqueueError> {
        let bit = if on { self.options.handover } else { 0 };
        self.orders.handover.store(bit, Ordering::SeqCst);
        self.settle()
    }

    /// Has every flow judged anew from now on. With verdicts in the connmark, all connections are decided anew; the gate has
    /// to be set after this.
    ///
    /// # Errors
    /// When a thread hangs, or the folder of the tables cannot be used.
    pub fn judge_anew(&mut self) -> Result<(), NfqueueError> {
        if self.offloads() {
            self.advance_generation()?;
        }
        // In this order: a new generation's marks never carry a former verdict.
        if let Some(judge) = &self.options.judge {
            judge.changed();
        }
        let words = self.decided().map_or([0; 3], |d| [d.mask, d.accept, d.drop]);
        for (word, value) in self.orders.offload.iter().zip(words) {
            word.store(value, Ordering::SeqCst);
        }
        self.settle()
    }

    pub(super) fn open_generation(&mut self) -> Result<&mut Generation, NfqueueError> {
        let generation = match self.generation.take() {
            Some(generation) => generation,
            None => {
                let root = namespace_folder(&self.options.folder)?;
                Generation::open(&root).map_err(|e| NfqueueError::Folder(root, e))?
            }
        };
        Ok(self.generation.insert(generation))
    }

    fn advance_generation(&mut self) -> Result<(), NfqueueError> {
        let root = namespace_folder(&self.options.folder)?;
        self.open_generation()?.advance().map_err(|e| NfqueueError::Folder(root, e))
    }

    /// Verdicts in the connmark: six bits of generation, so that those of a former policy say nothing, and two of verdict.
    fn decided(&self) -> Option<Decided> {
        const ACCEPT: u32 = 1;
        const DROP: u32 = 2;
        let mask = self.options.offload?;
        let generation = self.generation.as_ref()?.number();
        let value = |verdict| (generation << 2 | verdict) << mask.trailing_zeros();
        Some(Decided { mask, accept: value(ACCEPT), drop: value(DROP) })
    }

    /// The rules that queue and that a daemon of whatever plan has left, with a place to write what they have counted to.
    ///
    /// # Errors
    /// When a tool fails, or the tables cannot be made.
    pub fn find_queue_rules(&mut self) -> Result<Vec<RuleCounter>, NfqueueError> {
        let found = rules::find_queue_rules()?;
        if !found.is_empty() {
            self.ensure_tables()?;
        }
        Ok(found)
    }

    /// Looks whether the rules are still there, and brings them back with the gate that they had; the answer says how, when
    /// they were not as they should be.
    ///
    /// # Errors
    /// When the tool fails.
    pub fn watch_rules(&mut self) -> Result<(Option<Installed>, Option<Notice>), NfqueueError> {
        let Some(reading) = self.read_rules()?.filter(|reading| reading.gated) else {
            let installed = self.rules()?.restore()?;
            let detail = match installed {
                Installed::New => "the netfilter rules had been removed or changed and are in place again",
                Installed::Adopted => {
                    "the gate of the netfilter rules had been changed and is as it was; their counters went on"
                }
            };
            return Ok((Some(installed), Some(Notice::new("rules_replaced", detail.to_owned(), 0))));
        };
        let followed = !reading.followed.is_empty();
        let notice = (followed && !self.followed).then(|| {
            let chains: Vec<_> =
                reading.followed.iter().map(|(f, c)| format!("{} {}", f.name(), c.name())).collect();
            let detail = format!(
                "rules of others come after ours in table mangle ({}): queued packets do not reach them",
                chains.join(", ")
            );
            Notice::new("not_last", detail, 0)
        });
        self.followed = followed;
        Ok((None, notice))
    }
}
