//! The compiled policies in maps of the programs, which judge packets by them also when the daemon is gone.

use std::os::fd::AsFd;

use aya::{Ebpf, maps::lpm_trie};
use kmod_bpf::{QuotaRule, Rule, UnitRules, map};

use super::{
    KernelError,
    quotas::{Limit, Quotas},
};
use crate::{flow::Prefix, source::mapping::Mapping};

/// What packets are judged by. Class numbers are those of the prefixes: their places, from 1.
#[derive(Debug, Default)]
pub struct Policies {
    /// Where the units of each class begin among the words, 0 if there are none; of class 0 as well.
    pub class_units: Vec<u64>,
    /// Sequences of units, and of policies.
    pub words: Vec<u64>,
    /// Of unit 0, which stands for none, and of each unit.
    pub units: Vec<UnitRules>,
    /// The steps of the policies.
    pub rules: Vec<Rule>,
    /// Prefixes of each list and their values; they have no scope.
    pub lists: Vec<Vec<(Prefix, u32)>>,
    /// How many schedules there are.
    pub schedules: usize,
    /// Which packets are charged to which quota.
    pub quota_rules: Vec<QuotaRule>,
    /// Says whether former maps have the same quotas; 0 where there are none.
    pub quotas: u64,
}

impl Policies {
    /// Entries of each map.
    pub fn sizes(&self) -> [(&'static str, u32); 9] {
        let size = |len: usize| len.max(1) as u32;
        [
            (map::CLASS_UNITS, size(self.class_units.len())),
            (map::WORDS, size(self.words.len())),
            (map::UNITS, size(self.units.len())),
            (map::RULES, size(self.rules.len())),
            (map::SCHEDULES, size(self.schedules)),
            (map::QUOTA_RULES, size(self.quota_rules.len())),
            (map::QUOTA_ROOMS, size(self.quota_rules.len())),
            (map::QUOTA_USES, size(self.quota_rules.len())),
            (map::LISTS, size(self.lists.iter().map(Vec::len).sum())),
        ]
    }

    /// Fills the maps of programs that do not run yet.
    ///
    /// # Errors
    /// When the object has other maps, or they have no room.
    pub fn install(&self, ebpf: &mut Ebpf) -> Result<Switches, KernelError> {
        fill(ebpf, map::CLASS_UNITS, &self.class_units)?;
        fill(ebpf, map::WORDS, &self.words)?;
        fill(ebpf, map::RULES, &self.rules)?;
        fill(ebpf, map::QUOTA_RULES, &self.quota_rules)?;
        let rooms = map_all(ebpf, map::QUOTA_ROOMS, self.quota_rules.len())?;
        let uses = match ebpf.take_map(map::QUOTA_USES) {
            Some(aya::maps::Map::Array(data)) => data,
            _ => return Err(KernelError::Object),
        };
        let units = fill(ebpf, map::UNITS, &self.units)?;
        let schedules = fill(ebpf, map::SCHEDULES, &vec![0u64; self.schedules])?;
        let failed = |e: aya::maps::MapError| KernelError::Load(format!("{}: {e}", map::LISTS));
        let lists = ebpf.map_mut(map::LISTS).ok_or(KernelError::Object)?;
        let mut lists = aya::maps::LpmTrie::<_, [u8; 20], u32>::try_from(lists).map_err(failed)?;
        for (number, prefixes) in (0u32..).zip(&self.lists) {
            for (prefix, value) in prefixes {
                let mut data = [0; 20];
                data[..4].copy_from_slice(&number.to_ne_bytes());
                data[4..].copy_from_slice(&prefix.address.octets());
                let key = lpm_trie::Key::new(u32::BITS + u32::from(prefix.len), data);
                lists.insert(&key, value, 0).map_err(failed)?;
            }
        }
        Ok(Switches { units, schedules, quotas: Quotas::new(rooms, uses, self.quota_rules.len()) })
    }
}

/// What of the policies changes while they are in force.
pub struct Switches {
    units: Mapping<UnitRules>,
    schedules: Mapping<u64>,
    pub(super) quotas: Quotas,
}

impl Switches {
    /// How the hard quotas stand in the store.
    pub fn set_quotas(&self, limits: &[Limit]) {
        self.quotas.set(limits);
    }

    /// The flags of unit 0 and of each unit, and which schedules hold, from now on.
    pub fn set(&self, flags: &[u32], schedules: &[bool]) {
        for (unit, flags) in flags.iter().enumerate().take(self.units.len()) {
            // SAFETY: an aligned word inside the mapping, which programs read at once.
            unsafe { (&raw mut (*self.units.as_ptr().add(unit)).flags).write_volatile(*flags) };
        }
        for (schedule, holds) in schedules.iter().enumerate().take(self.schedules.len()) {
            // SAFETY: as above.
            unsafe { self.schedules.as_ptr().add(schedule).write_volatile(u64::from(*holds)) };
        }
    }
}

fn map_all<T>(ebpf: &mut Ebpf, name: &'static str, len: usize) -> Result<Mapping<T>, KernelError> {
    let Some(aya::maps::Map::Array(data)) = ebpf.map_mut(name) else { return Err(KernelError::Object) };
    Mapping::new(data.fd().as_fd(), len.max(1)).map_err(|e| KernelError::Load(format!("{name}: {e}")))
}

fn fill<T: Copy>(ebpf: &mut Ebpf, name: &'static str, values: &[T]) -> Result<Mapping<T>, KernelError> {
    let mapping: Mapping<T> = map_all(ebpf, name, values.len())?;
    for (index, value) in values.iter().enumerate() {
        // SAFETY: inside the mapping, and no program runs yet.
        unsafe { mapping.as_ptr().add(index).write(*value) };
    }
    Ok(mapping)
}
