//! The programs on the interfaces' tc hooks: attaching them, keeping them there, taking over those of a killed daemon.
//!
//! A hook is known by interface index and direction, so that it stays when the interface is renamed. By tcx (Linux 6.6)
//! its link is pinned and survives the daemon; the next one replaces the program in place. By clsact the filter itself
//! survives and is found by its name. Other programs on the hook are left alone, and ours runs before them so that none
//! can hide packets from it; a clsact qdisc is never removed, since others may have come to use it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use aya::{
    Ebpf,
    programs::{
        LinkOrder, SchedClassifier, TcAttachType, TestRun, TestRunOptions,
        links::{FdLink, Link, PinnedLink},
        tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle, qdisc_add_clsact},
    },
};
use kmod_bpf::program;
use tracing::{info, warn};

use super::{
    KernelError, Notice,
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
    const BOTH: [Self; 2] = [Self::Ingress, Self::Egress];

    /// Name as shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }

    fn attach_type(self) -> TcAttachType {
        match self {
            Self::Ingress => TcAttachType::Ingress,
            Self::Egress => TcAttachType::Egress,
        }
    }
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
}

enum Attachment {
    Tcx(PinnedLink),
    Clsact(SchedClassifierLink),
}

struct Hook {
    interface: String,
    program: &'static str,
    program_id: u32,
    attachment: Attachment,
    since_ms: i64,
    position: u32,
    programs: u32,
    /// The interface's packet counter when the program was last seen in its place.
    packets: u64,
}

type Key = (u32, Direction);

/// All hooks of the daemon.
pub struct Hooks {
    ebpf: Ebpf,
    style: Style,
    pins: PathBuf,
    wanted: Box<dyn Fn(&str) -> bool + Send>,
    hooks: BTreeMap<Key, Hook>,
    /// Interfaces that could not be attached to, so that each is reported once.
    refused: BTreeMap<u32, String>,
    started: bool,
}

impl Hooks {
    /// Hooks with the programs of `ebpf`, which is loaded; links are pinned in `pins`. Nothing is attached yet.
    pub fn new(ebpf: Ebpf, style: Style, pins: PathBuf, wanted: Box<dyn Fn(&str) -> bool + Send>) -> Self {
        Self { ebpf, style, pins, wanted, hooks: BTreeMap::new(), refused: BTreeMap::new(), started: false }
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
            if !(self.wanted)(&interface.name) {
                continue;
            }
            for direction in Direction::BOTH {
                let key = (interface.index, direction);
                match self.keep(interface, direction, now_ms, &mut notices) {
                    Ok(()) => {
                        self.refused.remove(&interface.index);
                    }
                    Err(e) => {
                        if let Some(hook) = self.hooks.remove(&key) {
                            abandon(hook);
                        }
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
        self.started = true;
        Ok(notices)
    }

    /// Takes over what a killed daemon left: pinned links get our program in place of theirs, those that nobody wants
    /// any more are removed, and so are filters of the other style.
    ///
    /// # Errors
    /// When interfaces or pins cannot be listed.
    pub fn adopt(&mut self, now_ms: i64) -> Result<(), KernelError> {
        let present = link::interfaces().map_err(KernelError::Netlink)?;
        fs::create_dir_all(&self.pins).map_err(|e| KernelError::Pins(self.pins.clone(), e))?;
        let entries = fs::read_dir(&self.pins).map_err(|e| KernelError::Pins(self.pins.clone(), e))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            let Some((index, direction)) = pin_key(&path) else { continue };
            let interface = present.iter().find(|i| i.index == index && (self.wanted)(&i.name));
            let adopted = match interface {
                Some(i) if self.style == Style::Tcx => self.adopt_pin(i, direction, &path, now_ms),
                _ => Err(KernelError::Gone),
            };
            if adopted.is_err() {
                fs::remove_file(&path).map_err(|e| KernelError::Pins(path.clone(), e))?;
            }
        }
        for interface in &present {
            for direction in Direction::BOTH {
                self.adopt_filters(interface, direction, now_ms)?;
            }
        }
        Ok(())
    }

    fn adopt_pin(
        &mut self,
        i: &Interface,
        d: Direction,
        path: &Path,
        now_ms: i64,
    ) -> Result<(), KernelError> {
        let link = FdLink::from(PinnedLink::from_pin(path).map_err(|e| KernelError::attach(&i.name, e))?);
        let link = SchedClassifierLink::try_from(link).map_err(|e| KernelError::attach(&i.name, e))?;
        let name = program_for(i, d);
        let program = self.program(name)?;
        let id = program.attach_to_link(link).map_err(|e| KernelError::attach(&i.name, e))?;
        let link = program.take_link(id).map_err(|e| KernelError::attach(&i.name, e))?;
        let program_id = program.info().map_err(|e| KernelError::attach(&i.name, e))?.id();
        // The pin stays where it is; this only gets a handle of it.
        drop(link);
        let pinned = PinnedLink::from_pin(path).map_err(|e| KernelError::attach(&i.name, e))?;
        self.insert(i, d, name, program_id, Attachment::Tcx(pinned), now_ms);
        Ok(())
    }

    /// By clsact, takes over the first filter of ours and removes any other; by tcx, removes all of ours.
    fn adopt_filters(&mut self, i: &Interface, d: Direction, now_ms: i64) -> Result<(), KernelError> {
        let filters = link::clsact_filters(i.index, d == Direction::Ingress).map_err(KernelError::Netlink)?;
        for filter in filters.iter().filter(|f| f.name.starts_with(program::PREFIX)) {
            let handle = TcHandle::from(filter.handle);
            let link = SchedClassifierLink::attached(&i.name, d.attach_type(), filter.priority, handle, None)
                .map_err(|e| KernelError::attach(&i.name, e))?;
            let wanted = self.style == Style::Clsact && (self.wanted)(&i.name);
            if !wanted || self.hooks.contains_key(&(i.index, d)) {
                link.detach().map_err(|e| KernelError::attach(&i.name, e))?;
                continue;
            }
            let name = program_for(i, d);
            let program = self.program(name)?;
            let id = program.attach_to_link(link).map_err(|e| KernelError::attach(&i.name, e))?;
            let link = program.take_link(id).map_err(|e| KernelError::attach(&i.name, e))?;
            let program_id = program.info().map_err(|e| KernelError::attach(&i.name, e))?.id();
            self.insert(i, d, name, program_id, Attachment::Clsact(link), now_ms);
        }
        Ok(())
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
            if !(self.wanted)(&interface.name)
                && let Some(hook) = self.hooks.remove(&key)
            {
                let detail = format!("{} is not configured; detached", interface.name);
                notices.push(Notice::new("detached", detail, 0));
                self.detach(key, hook);
            }
        }
        self.refused.retain(|index, _| find(*index).is_some());
    }

    /// Makes sure that our program is on the hook.
    fn keep(
        &mut self,
        i: &Interface,
        d: Direction,
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
        let lost = self.hooks.remove(&key).map(|hook| (hook.packets, abandon(hook)));
        self.attach(i, d, now_ms)?;
        if let Some((counted, ())) = lost {
            let missed = packets.saturating_sub(counted);
            let detail = format!(
                "{} {}: our program had been removed; attached again, at most {missed} packets not counted",
                i.name,
                d.name()
            );
            notices.push(Notice::new("hook_replaced", detail, missed));
        } else if self.started && packets > 0 {
            let detail =
                format!("{} {}: attached to a new interface after {packets} packets", i.name, d.name());
            notices.push(Notice::new("attached", detail, packets));
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

    fn attach(&mut self, i: &Interface, d: Direction, now_ms: i64) -> Result<(), KernelError> {
        let failed = |e| KernelError::attach(&i.name, e);
        let (style, pin) = (self.style, self.pin(&(i.index, d)));
        let name = program_for(i, d);
        let program = self.program(name)?;
        let program_id = program.info().map_err(failed)?.id();
        let attachment = match style {
            Style::Tcx => {
                let first = TcAttachOptions::TcxOrder(LinkOrder::first());
                let id = program.attach_with_options(&i.name, d.attach_type(), first).map_err(failed)?;
                let link = program.take_link(id).map_err(failed)?;
                let link = FdLink::try_from(link).map_err(|e| KernelError::attach(&i.name, e))?;
                // A link of an interface that is gone may still hold the name.
                let _ = fs::remove_file(&pin);
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
        self.insert(i, d, name, program_id, attachment, now_ms);
        info!("attached {name} to {} {} by {}", i.name, d.name(), style.name());
        Ok(())
    }

    fn insert(
        &mut self,
        i: &Interface,
        d: Direction,
        program: &'static str,
        program_id: u32,
        attachment: Attachment,
        since_ms: i64,
    ) {
        let hook = Hook {
            interface: i.name.clone(),
            program,
            program_id,
            attachment,
            since_ms,
            position: 1,
            programs: 1,
            packets: i.packets[d as usize],
        };
        self.hooks.insert((i.index, d), hook);
    }

    fn program(&mut self, name: &str) -> Result<&mut SchedClassifier, KernelError> {
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
        };
        self.hooks.iter().map(info).collect()
    }
}

/// Removes every filter of ours from one direction of an interface's clsact qdisc.
///
/// # Errors
/// When filters cannot be listed or removed.
pub fn remove_filters(i: &Interface, d: Direction) -> Result<(), KernelError> {
    let filters = link::clsact_filters(i.index, d == Direction::Ingress).map_err(KernelError::Netlink)?;
    for filter in filters.iter().filter(|f| f.name.starts_with(program::PREFIX)) {
        let link = SchedClassifierLink::attached(
            &i.name,
            d.attach_type(),
            filter.priority,
            filter.handle.into(),
            None,
        )
        .map_err(|e| KernelError::attach(&i.name, e))?;
        link.detach().map_err(|e| KernelError::attach(&i.name, e))?;
    }
    Ok(())
}

/// Lets go of a hook without touching what is on the interface: dropping the handle of a filter would remove whatever
/// has its priority and handle by now.
fn abandon(hook: Hook) {
    if let Attachment::Clsact(link) = hook.attachment {
        std::mem::forget(link);
    }
}

fn program_for(i: &Interface, d: Direction) -> &'static str {
    match d {
        Direction::Egress => program::leave(i.ethernet),
        Direction::Ingress if i.upper => program::upper(i.ethernet),
        Direction::Ingress => program::enter(i.ethernet),
    }
}

fn pin_key(path: &Path) -> Option<Key> {
    let (index, direction) = path.file_name()?.to_str()?.split_once('-')?;
    let direction = Direction::BOTH.into_iter().find(|d| d.name() == direction)?;
    Some((index.parse().ok()?, direction))
}
