//! Taking over what a killed daemon left on the hooks.

use std::{fs, path::Path};

use aya::programs::{
    links::{FdLink, Link, PinnedLink},
    tc::{SchedClassifierLink, TcHandle},
};
use kmod_bpf::program;

use super::{
    KernelError,
    hooks::{Attachment, Direction, Hooks, Key, Style},
    link::{self, Interface},
};

impl Hooks {
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
            let interface = present.iter().find(|i| i.index == index);
            let program = interface.and_then(|i| Some((i, self.program_for(i, direction)?)));
            let adopted = match program {
                Some((i, name)) if self.style == Style::Tcx => {
                    self.adopt_pin(i, direction, name, &path, now_ms)
                }
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
        name: &'static str,
        path: &Path,
        now_ms: i64,
    ) -> Result<(), KernelError> {
        let link = FdLink::from(PinnedLink::from_pin(path).map_err(|e| KernelError::attach(&i.name, e))?);
        let link = SchedClassifierLink::try_from(link).map_err(|e| KernelError::attach(&i.name, e))?;
        let program = self.program(name)?;
        let id = program.attach_to_link(link).map_err(|e| KernelError::attach(&i.name, e))?;
        let link = program.take_link(id).map_err(|e| KernelError::attach(&i.name, e))?;
        let program_id = program.info().map_err(|e| KernelError::attach(&i.name, e))?.id();
        // The pin stays where it is; this only gets a handle of it.
        drop(link);
        let pinned = PinnedLink::from_pin(path).map_err(|e| KernelError::attach(&i.name, e))?;
        self.insert(i, d, (name, program_id), Attachment::Tcx(pinned), now_ms, true);
        Ok(())
    }

    /// By clsact, takes over the first filter of ours and removes any other; by tcx, removes all of ours.
    fn adopt_filters(&mut self, i: &Interface, d: Direction, now_ms: i64) -> Result<(), KernelError> {
        let filters = link::clsact_filters(i.index, d == Direction::Ingress).map_err(KernelError::Netlink)?;
        for filter in filters.iter().filter(|f| f.name.starts_with(program::PREFIX)) {
            let handle = TcHandle::from(filter.handle);
            let link = SchedClassifierLink::attached(&i.name, d.attach_type(), filter.priority, handle, None)
                .map_err(|e| KernelError::attach(&i.name, e))?;
            let name = self.program_for(i, d).filter(|_| self.style == Style::Clsact);
            let Some(name) = name.filter(|_| !self.hooks.contains_key(&(i.index, d))) else {
                link.detach().map_err(|e| KernelError::attach(&i.name, e))?;
                continue;
            };
            let program = self.program(name)?;
            let id = program.attach_to_link(link).map_err(|e| KernelError::attach(&i.name, e))?;
            let link = program.take_link(id).map_err(|e| KernelError::attach(&i.name, e))?;
            let program_id = program.info().map_err(|e| KernelError::attach(&i.name, e))?.id();
            self.insert(i, d, (name, program_id), Attachment::Clsact(link), now_ms, true);
        }
        Ok(())
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

fn pin_key(path: &Path) -> Option<Key> {
    let (index, direction) = path.file_name()?.to_str()?.split_once('-')?;
    let direction = Direction::BOTH.into_iter().find(|d| d.name() == direction)?;
    Some((index.parse().ok()?, direction))
}
