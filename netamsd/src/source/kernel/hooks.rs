//! The programs on the interfaces' tc hooks: attaching them, keeping them there, taking over those of a killed daemon.
//!
//! A hook is known by interface index and direction, so that it stays when the interface is renamed. By tcx (Linux 6.6)
//! its link is pinned and survives the daemon; the next one replaces the program in place. By clsact the filter itself
//! survives and is found by its name. Other programs on the hook are left alone, and ours runs before them so that none
//! can hide packets from it; a clsact qdisc is never removed, since others may have come to use it.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    path::PathBuf,
};

use aya::{
    Ebpf,
    programs::{
        LinkOrder, SchedClassifier, TcAttachType, TestRun, TestRunOptions,
        links::{FdLink, Link, PinnedLink},
        tc::{NlOptions, SchedClassifierLink, TcAttachOptions, qdisc_add_clsact},
    },
};
use kmod_bpf::program;
use tracing::{info, warn};

use super::{
    super::Notice,
    KernelError,
    link::{self, Interface},
    sysbpf,
};

/// How programs are attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// A tcx link, Linux 6.6 and later.
    Tcx,
    /// A filter of a clsact qdisc.
    Clsact,
}

impl Style {
    /// Name as shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcx => "tcx",
            Self::Clsact => "clsact",
        }
    }
}

/// Direction, seen from this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Packets that the interface received.
    Ingress,
    /// Packets that the interface is to send.
    Egress,
}

impl Direction {
    pub(super) const BOTH: [Self; 2] = [Self::Ingress, Self::Egress];

    /// Name as shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }

    pub(super) fn attach_type(self) -> TcAttachType {
        match self {
            Self::Ingress => TcAttachType::Ingress,
            Self::Egress => TcAttachType::Egress,
        }
    }
}

/// What the programs are there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duty {
    /// Nothing: none is attached.
    None,
    /// Metering the wanted interfaces.
    Meter,
    /// That, and writing segment sizes into the marks of all packets that come in.
    MeterAndStamp,
}

/// One attached program, as reported.
#[derive(Debug, Clone)]
pub struct HookInfo {
    /// Interface name.
    pub interface: String,
    /// Interface index.
    pub ifindex: u32,
    /// Direction.
    pub direction: Direction,
    /// How it is attached.
    pub style: Style,
    /// Kernel id of the program.
    pub program_id: u32,
    /// Its name.
    pub program: &'static str,
    /// Place among the hook's programs, from 1.
    pub position: u32,
    /// Programs on the hook.
    pub programs: u32,
    /// Attached since, milliseconds UTC since 1970.
    pub since_ms: i64,
    /// Taken over from a former daemon: it was counting all the time.
    pub adopted: bool,
}

pub(super) enum Attachment {
    Tcx(PinnedLink),
    Clsact(SchedClassifierLink),
}

pub(super) struct Hook {
    interface: String,
    program: &'static str,
    program_id: u32,
    attachment: Attachment,
    since_ms: i64,
    adopted: bool,
    position: u32,
    programs: u32,
    /// The interface's packet counter when the program was last seen in its place.
    packets: u64,
}

/// Interface index and direction.
pub(super) type Key = (u32, Direction);

/// All hooks of the daemon.
pub struct Hooks {
    ebpf: Ebpf,
    pub(super) style: Style,
    pub(super) pins: PathBuf,
    wanted: Box<dyn Fn(&str) -> bool + Send>,
    duty: Duty,
    pub(super) hooks: BTreeMap<Key, Hook>,
    /// Interfaces that could not be attached to, so that each is reported once.
    refused: BTreeMap<u32, String>,
    /// Hooks without a program: how far the interface's counter was when they had one, `None` when they never had.
    gaps: BTreeMap<Key, Option<u64>>,
    /// Interfaces at the last look, wanted or not; `None` before the first.
    known: Option<HashSet<u32>>,
}

impl Hooks {
    /// Hooks with the programs of `ebpf`, which is loaded; links are pinned in `pins`. Nothing is attached yet.
    pub fn new(
        ebpf: Ebpf,
        style: Style,
        pins: PathBuf,
        wanted: Box<dyn Fn(&str) -> bool + Send>,
        duty: Duty,
    ) -> Self {
        Self {
            ebpf,
            style,
            pins,
            wanted,
            duty,
            hooks: BTreeMap::new(),
            refused: BTreeMap::new(),
            gaps: BTreeMap::new(),
            known: None,
        }
    }

    /// Says what the programs are for; the next [`Hooks::sync`] brings it about.
    pub fn set_duty(&mut self, duty: Duty) {
        self.duty = duty;
    }

    /// The program that belongs on a hook, if any.
    pub(super) fn program_for(&self, i: &Interface, d: Direction) -> Option<&'static str> {
        if self.duty == Duty::None {
            return None;
        }
        match d {
            Direction::Egress if (self.wanted)(&i.name) => Some(program::leave(i.ethernet)),
            Direction::Ingress if (self.wanted)(&i.name) && i.upper => Some(program::upper(i.ethernet)),
            Direction::Ingress if (self.wanted)(&i.name) => Some(program::enter(i.ethernet)),
            // What is not wanted fails in silence, and loopback's packets are in no queue unless it is.
            Direction::Ingress if self.duty == Duty::MeterAndStamp && i.name != "lo" && !i.unsupported => {
                Some(program::STAMP)
            }
            _ => None,
        }
    }

    /// Attaches to what is wanted and is not attached, lets go what is gone or no longer wanted, and repairs what was
    /// removed by others. To be called at start, after each announcement of the kernel and every second.
    ///
    /// # Errors
    /// When the interfaces cannot be listed. A single interface that fails is a notice.
    pub fn sync(&mut self, now_ms: i64) -> Result<Vec<Notice>, KernelError> {
        let present = link::interfaces().map_err(KernelError::Netlink)?;
        let mut notices = Vec::new();
        self.release(&present, &mut notices);
        for interface in &present {
            for direction in Direction::BOTH {
                let Some(program) = self.program_for(interface, direction) else { continue };
                match self.keep(interface, direction, program, now_ms, &mut notices) {
                    Ok(()) => {
                        self.refused.remove(&interface.index);
                    }
                    Err(e) => {
                        let why = e.to_string();
                        if self.refused.get(&interface.index) != Some(&why) {
                            notices.push(Notice::new(
                                "attach_failed",
                                format!("{}: {why}", interface.name),
                                0,
                            ));
                            self.refused.insert(interface.index, why);
                        }
                    }
                }
            }
        }
        self.known = Some(present.iter().map(|i| i.index).collect());
        Ok(notices)
    }

    /// Lets go of hooks whose interface vanished or is no longer wanted, and follows renames.
    fn release(&mut self, present: &[Interface], notices: &mut Vec<Notice>) {
        let find = |index: u32| present.iter().find(|i| i.index == index);
        let keys: Vec<Key> = self.hooks.keys().copied().collect();
        for key in keys {
            let once = key.1 == Direction::Ingress;
            let Some(interface) = find(key.0) else {
                if let Some(hook) = self.hooks.remove(&key) {
                    if once {
                        info!("interface {} is gone", hook.interface);
                    }
                    self.forget(key, hook);
                }
                continue;
            };
            let Some(hook) = self.hooks.get_mut(&key) else { continue };
            if hook.interface != interface.name {
                if once {
                    info!("interface {} is now {}", hook.interface, interface.name);
                }
                hook.interface.clone_from(&interface.name);
            }
            let program = hook.program;
            if self.program_for(interface, key.1) != Some(program)
                && let Some(hook) = self.hooks.remove(&key)
            {
                if once && self.duty != Duty::None && program != program::STAMP {
                    let detail = format!("{} is not configured; detached", interface.name);
                    notices.push(Notice::new("detached", detail, 0));
                }
                self.detach(key, hook);
            }
        }
        self.refused.retain(|index, _| find(*index).is_some());
        self.gaps.retain(|(index, _), _| find(*index).is_some());
    }

    /// Makes sure that our program is on the hook.
    fn keep(
        &mut self,
        i: &Interface,
        d: Direction,
        name: &'static str,
        now_ms: i64,
        notices: &mut Vec<Notice>,
    ) -> Result<(), KernelError> {
        if i.unsupported {
            return Err(KernelError::Unsupported);
        }
        let key = (i.index, d);
        let programs = self.programs_on(i.index, d)?;
        let packets = i.packets[d as usize];
        if let Some(hook) = self.hooks.get_mut(&key)
            && let Some(position) = programs.iter().position(|id| *id == hook.program_id)
        {
            hook.packets = packets;
            hook.programs = programs.len() as u32;
            let position = position as u32 + 1;
            if position > 1 && hook.position != position {
                let detail =
                    format!("{} {}: {} other programs run before ours", i.name, d.name(), position - 1);
                notices.push(Notice::new("not_first", detail, 0));
            }
            hook.position = position;
            return Ok(());
        }
        if let Some(lost) = self.hooks.remove(&key) {
            self.gaps.insert(key, Some(lost.packets));
            abandon(lost);
        } else if self.known.as_ref().is_some_and(|known| !known.contains(&i.index)) {
            self.gaps.insert(key, None);
        }
        self.attach(i, d, name, now_ms)?;
        if let Some(gap) = self.gaps.remove(&key).filter(|_| name != program::STAMP) {
            let counted = gap.unwrap_or(0);
            // A counter that went down belongs to another interface with the same index.
            let missed = packets.checked_sub(counted).unwrap_or(packets);
            let (at, passed) =
                (format!("{} {}", i.name, d.name()), format!("{missed} packets by the interface's counter"));
            if gap.is_some() {
                let detail = format!(
                    "{at}: our program had been removed and is attached again; {passed} since it was last seen"
                );
                notices.push(Notice::new("hook_replaced", detail, missed));
            } else if missed > 0 {
                let detail = format!("{at}: {passed} before the new interface was metered");
                notices.push(Notice::new("attached", detail, missed));
            }
        }
        Ok(())
    }

    fn programs_on(&self, ifindex: u32, d: Direction) -> Result<Vec<u32>, KernelError> {
        let ingress = d == Direction::Ingress;
        match self.style {
            Style::Tcx => sysbpf::tcx_programs(ifindex, ingress).map_err(KernelError::Query),
            Style::Clsact => {
                let filters = link::clsact_filters(ifindex, ingress).map_err(KernelError::Netlink)?;
                Ok(filters.into_iter().map(|f| f.program_id).collect())
            }
        }
    }

    fn attach(
        &mut self,
        i: &Interface,
        d: Direction,
        name: &'static str,
        now_ms: i64,
    ) -> Result<(), KernelError> {
        let failed = |e| KernelError::attach(&i.name, e);
        let (style, pin) = (self.style, self.pin(&(i.index, d)));
        let program = self.program(name)?;
        let program_id = program.info().map_err(failed)?.id();
        let attachment = match style {
            Style::Tcx => {
                let first = TcAttachOptions::TcxOrder(LinkOrder::first());
                let id = program.attach_with_options(&i.name, d.attach_type(), first).map_err(failed)?;
                let link = program.take_link(id).map_err(failed)?;
                let link = FdLink::try_from(link).map_err(|e| KernelError::attach(&i.name, e))?;
                // A link of an interface that is gone may still hold the name, and the folder may have been removed.
                let _ = fs::remove_file(&pin);
                fs::create_dir_all(pin.parent().unwrap_or(&pin))
                    .map_err(|e| KernelError::Pins(pin.clone(), e))?;
                Attachment::Tcx(link.pin(&pin).map_err(|e| KernelError::attach(&i.name, e))?)
            }
            Style::Clsact => {
                // It may be there already.
                let _ = qdisc_add_clsact(&i.name);
                let options =
                    |priority| TcAttachOptions::Netlink(NlOptions { priority, ..NlOptions::default() });
                let id = program
                    .attach_with_options(&i.name, d.attach_type(), options(1))
                    // Priority 1 belongs to a filter of another kind.
                    .or_else(|_| program.attach_with_options(&i.name, d.attach_type(), options(0)))
                    .map_err(failed)?;
                Attachment::Clsact(program.take_link(id).map_err(failed)?)
            }
        };
        self.insert(i, d, (name, program_id), attachment, now_ms, false);
        if !self.programs_on(i.index, d)?.contains(&program_id) {
            // Names were swapped between the look and the call: this is another device's hook.
            if let Some(hook) = self.hooks.remove(&(i.index, d)) {
                self.detach((i.index, d), hook);
            }
            return Err(KernelError::Gone);
        }
        info!("attached {name} to {} {} by {}", i.name, d.name(), style.name());
        Ok(())
    }

    pub(super) fn insert(
        &mut self,
        i: &Interface,
        d: Direction,
        (program, program_id): (&'static str, u32),
        attachment: Attachment,
        since_ms: i64,
        adopted: bool,
    ) {
        let hook = Hook {
            interface: i.name.clone(),
            program,
            program_id,
            attachment,
            since_ms,
            adopted,
            position: 1,
            programs: 1,
            packets: i.packets[d as usize],
        };
        self.hooks.insert((i.index, d), hook);
    }

    pub(super) fn program(&mut self, name: &str) -> Result<&mut SchedClassifier, KernelError> {
        let program = self.ebpf.program_mut(name).ok_or(KernelError::Object)?;
        program.try_into().map_err(|_| KernelError::Object)
    }

    /// The time in which stamps are given.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn stamp(&self) -> Result<u32, KernelError> {
        let failed = |e: &dyn std::fmt::Display| KernelError::Clock(e.to_string());
        let program = self.ebpf.program(program::CLOCK).ok_or(KernelError::Object)?;
        let program: &SchedClassifier = program.try_into().map_err(|e| failed(&e))?;
        // The kernel wants a packet, of at least an Ethernet header.
        let options = TestRunOptions { data_in: Some(&[0; 14]), ..TestRunOptions::new() };
        Ok(program.test_run(options).map_err(|e| failed(&e))?.return_value)
    }

    fn pin(&self, (index, direction): &Key) -> PathBuf {
        self.pins.join(format!("{index}-{}", direction.name()))
    }

    /// The interface is gone and took the program along.
    fn forget(&self, key: Key, hook: Hook) {
        if matches!(hook.attachment, Attachment::Tcx(_)) {
            let _ = fs::remove_file(self.pin(&key));
        }
        abandon(hook);
    }

    fn detach(&self, key: Key, hook: Hook) {
        let result = match hook.attachment {
            Attachment::Tcx(link) => link.unpin().map(drop).map_err(|e| e.to_string()),
            Attachment::Clsact(link) => link.detach().map_err(|e| e.to_string()),
        };
        if let Err(e) = result {
            warn!("cannot detach from {} {}: {e}", hook.interface, key.1.name());
        }
    }

    /// Detaches everything.
    pub fn detach_all(&mut self) {
        for (key, hook) in std::mem::take(&mut self.hooks) {
            self.detach(key, hook);
        }
        let _ = fs::remove_dir(&self.pins);
    }

    /// Lets go of everything without detaching: programs go on counting.
    pub fn leave_attached(&mut self) {
        std::mem::take(&mut self.hooks).into_values().for_each(abandon);
    }

    /// The hooks as they stand.
    pub fn list(&self) -> Vec<HookInfo> {
        let info = |(&(ifindex, direction), hook): (&Key, &Hook)| HookInfo {
            interface: hook.interface.clone(),
            ifindex,
            direction,
            style: self.style,
            program_id: hook.program_id,
            program: hook.program,
            position: hook.position,
            programs: hook.programs,
            since_ms: hook.since_ms,
            adopted: hook.adopted,
        };
        self.hooks.iter().map(info).collect()
    }
}

/// Lets go of a hook without touching what is on the interface: dropping the handle of a filter would remove whatever
/// has its priority and handle by now.
fn abandon(hook: Hook) {
    if let Attachment::Clsact(link) = hook.attachment {
        std::mem::forget(link);
    }
}
