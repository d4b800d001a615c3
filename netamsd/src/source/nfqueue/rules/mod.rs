//! The netfilter rules that hand packets to the daemon's queues: installed, read, changed and removed.
//!
//! They are in an nft table or in iptables chains of their own; each change is one transaction (iptables: one for each
//! IP version), and nobody else's rule is touched. Rules outlive the daemon. The next one adopts them when they are
//! those of its plan, so that their counters, the reference of the ledger, go on; [`remove`] needs to know no plan.
//!
//! What is meant to be queued passes the *gate* before, which decides whether it is and can be changed while the counters
//! behind it go on. A packet that a queue's reader accepts skips what follows in the same iptables chain, so the jump to
//! our chain is appended last; an nft table is a hook of its own and hides nothing. The legacy variant of iptables, by
//! whomever it is used, zeroes the counters of the built-in chains' policies at each change; those of rules go on.
//!
//! Other sources and queues are not known here, nor who listens to them.

mod error;
mod iptables;
#[cfg(test)]
mod live;
mod nft;
mod plan;
mod tool;

use tracing::warn;

pub use error::RulesError;
use iptables::Iptables;
use nft::Nft;
pub use plan::{Chain, Gate, Plan, Queues};

/// The tool that rules are made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// `nft`: table `inet netams`.
    Nft,
    /// `iptables-restore` and `ip6tables-restore`, whichever variant the system has chosen: chains `NETAMS-*` of table
    /// mangle.
    Iptables,
}

impl Backend {
    /// Name as configured and shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nft => "nft",
            Self::Iptables => "iptables",
        }
    }
}

/// IP version that a rule is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4 alone.
    Ipv4,
    /// IPv6 alone.
    Ipv6,
    /// Both in one rule.
    Both,
}

impl Family {
    /// Name as shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
            Self::Both => "both",
        }
    }
}

/// A rule of ours and what it has matched since it was installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleCounter {
    /// Its chain, as the tool names it.
    pub chain: String,
    /// The rule as the tool would show it, without its counter.
    pub text: String,
    /// What it matches is queued: these rules are the reference of the ledger.
    pub queue: bool,
    /// IP version.
    pub family: Family,
    /// Matched packets; a super-packet is one.
    pub packets: u64,
    /// Matched layer-3 bytes; a super-packet has one header.
    pub bytes: u64,
}

/// All rules of ours at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// In the order of the chains; without those of a gate that somebody has changed.
    pub rules: Vec<RuleCounter>,
    /// The gate is as it was set.
    pub gated: bool,
    /// Where rules of others follow our jump: they do not see packets that come back from a queue.
    pub followed: Vec<(Family, Chain)>,
}

/// What [`Rules::install`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Installed {
    /// The plan's rules were there; their counters go on.
    Adopted,
    /// They were not; all counters begin at zero.
    New,
}

/// The rules of this network namespace.
#[derive(Debug)]
pub struct Rules {
    tool: Tool,
    installed: Option<(Plan, Gate)>,
}

#[derive(Debug)]
enum Tool {
    Nft(Nft),
    Iptables(Iptables),
}

impl Rules {
    /// Chooses the tool; `None` is nft if it can queue on this kernel, else iptables. Changes nothing.
    ///
    /// # Errors
    /// When the tool is not there, or not permitted, or nft is wanted and cannot queue.
    pub fn open(backend: Option<Backend>) -> Result<Self, RulesError> {
        let nft = || Nft::find().and_then(|nft| nft.try_queue().map(|()| Tool::Nft(nft)));
        let iptables = || Iptables::find().map(Tool::Iptables);
        let tool = match backend {
            Some(Backend::Nft) => nft()?,
            Some(Backend::Iptables) => iptables()?,
            None => match nft() {
                Ok(tool) => tool,
                Err(e @ RulesError::NotPermitted(_)) => return Err(e),
                Err(RulesError::Missing { .. }) => iptables().map_err(|_| RulesError::NoTool)?,
                Err(_) => iptables()?,
            },
        };
        Ok(Self { tool, installed: None })
    }

    /// The tool that was chosen.
    pub fn backend(&self) -> Backend {
        match self.tool {
            Tool::Nft(_) => Backend::Nft,
            Tool::Iptables(_) => Backend::Iptables,
        }
    }

    /// Brings the rules of `plan` in place, behind `gate`. Rules of this plan that are there already stay as they are but
    /// for the gate; those of another plan are replaced, and those made with the other tool are removed.
    ///
    /// # Errors
    /// When `plan` cannot be expressed, or the tool fails. By iptables, IPv4's rules may then be in place without IPv6's.
    pub fn install(&mut self, plan: &Plan, gate: &Gate) -> Result<Installed, RulesError> {
        plan.check()?;
        let other = match self.tool {
            Tool::Nft(_) => Iptables::find().and_then(|tool| tool.remove()),
            Tool::Iptables(_) => Nft::find().and_then(|tool| tool.remove()),
        };
        match other {
            Ok(()) | Err(RulesError::Missing { .. }) => {}
            Err(e) => warn!("cannot look for rules of the other nfqueue.backend: {e}"),
        }
        let installed = match &self.tool {
            Tool::Nft(tool) => tool.install(plan, gate),
            Tool::Iptables(tool) => tool.install(plan, gate),
        }?;
        self.installed = Some((plan.clone(), *gate));
        Ok(installed)
    }

    /// Takes over the rules of `plan`, whatever their gate, when they are there; says whether they are. Changes nothing.
    ///
    /// # Errors
    /// When the tool fails.
    pub fn adopt(&mut self, plan: &Plan) -> Result<bool, RulesError> {
        let there = match &self.tool {
            Tool::Nft(tool) => tool.has(plan),
            Tool::Iptables(tool) => tool.has(plan),
        }?;
        if there {
            self.installed = Some((plan.clone(), Gate::Open));
        }
        Ok(there)
    }

    /// Looks which of `gates` the rules that were taken over have; it is theirs from then on. `None` when it is none of them.
    ///
    /// # Errors
    /// When the tool fails.
    pub fn recognize_gate(&mut self, gates: &[Gate]) -> Result<Option<Gate>, RulesError> {
        let Some((plan, former)) = self.installed.clone() else { return Ok(None) };
        for gate in gates {
            self.installed = Some((plan.clone(), *gate));
            if self.read()?.is_some() {
                return Ok(Some(*gate));
            }
        }
        self.installed = Some((plan, former));
        Ok(None)
    }

    /// The gate as it was set last.
    pub fn gate(&self) -> Option<Gate> {
        self.installed.as_ref().map(|(_, gate)| *gate)
    }

    /// Brings back what was installed.
    ///
    /// # Errors
    /// As [`Rules::install`].
    pub fn restore(&mut self) -> Result<Installed, RulesError> {
        let (plan, gate) = self.installed.clone().ok_or(RulesError::NotInstalled)?;
        self.install(&plan, &gate)
    }

    /// Removes the rules, as [`remove`] does.
    ///
    /// # Errors
    /// Those of [`remove`].
    pub fn remove(&mut self) -> Result<(), RulesError> {
        self.installed = None;
        remove()
    }

    /// Replaces the gate. All other counters go on.
    ///
    /// # Errors
    /// When nothing was installed, or it is no longer there, or the tool fails. By iptables, IPv4's gate may then be
    /// changed without IPv6's.
    pub fn set_gate(&mut self, gate: &Gate) -> Result<(), RulesError> {
        let (_, installed) = self.installed.as_mut().ok_or(RulesError::NotInstalled)?;
        match &self.tool {
            Tool::Nft(tool) => tool.set_gate(gate),
            Tool::Iptables(tool) => tool.set_gate(gate),
        }?;
        *installed = *gate;
        Ok(())
    }

    /// Reads all counters; `None` when the rules are not there, or not as they were installed. A gate that somebody has
    /// changed hides no counters of the rules behind it. Runs one process for each IP version at most.
    ///
    /// # Errors
    /// When the tool fails.
    pub fn read(&self) -> Result<Option<Reading>, RulesError> {
        let Some((plan, gate)) = &self.installed else { return Ok(None) };
        match &self.tool {
            Tool::Nft(tool) => tool.read(plan, gate),
            Tool::Iptables(tool) => tool.read(plan, gate),
        }
    }
}

/// The rules of ours that queue, in this network namespace, whoever made them, with whichever tool, for whatever plan; with
/// the names that [`Rules::read`] gave them. Changes nothing.
///
/// # Errors
/// When a tool fails.
pub fn find_queue_rules() -> Result<Vec<RuleCounter>, RulesError> {
    let nft = Nft::find().and_then(|tool| tool.queue_rules());
    let iptables = Iptables::find().and_then(|tool| tool.queue_rules());
    let mut found = Vec::new();
    for rules in [nft, iptables] {
        match rules {
            Ok(rules) => found.extend(rules),
            Err(RulesError::Missing { .. }) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(found)
}

/// Removes all rules of ours from this network namespace, whoever made them, with whichever tool, for whatever plan.
/// What iptables makes for itself, the table mangle and its empty built-in chains, stays.
///
/// # Errors
/// When a tool fails; the other one has then still been tried.
pub fn remove() -> Result<(), RulesError> {
    let nft = Nft::find().and_then(|tool| tool.remove());
    let iptables = Iptables::find().and_then(|tool| tool.remove());
    for result in [nft, iptables] {
        match result {
            // Nobody can have made rules with a tool that is not there.
            Ok(()) | Err(RulesError::Missing { .. }) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
