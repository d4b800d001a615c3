//! Hard quotas in the programs: how much room they have, and how much of it is used.
//!
//! The programs add up what passes, in the half of the tables that the packet is counted in, and never take anything off. The
//! daemon says how far these sums may go: the limit, less what the store has, plus what of the sums the store has. The maps are
//! pinned with the flow tables; so a daemon that comes back goes on with them as they are, until it has committed both halves
//! and knows again what of the sums the store has.

use aya::maps::{Array, MapData};
use kmod_bpf::{QuotaRoom, QuotaUse};

use crate::source::mapping::Mapping;

/// BPF_F_LOCK of linux/bpf.h: takes the lock that is in the value.
const LOCKED: u64 = 4;

/// A [`QuotaUse`] as a map's value.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Value(QuotaUse);
// SAFETY: `QuotaUse` is made of integers and arrays of them, without padding: any bytes are one.
unsafe impl aya::Pod for Value {}

/// A quota as the daemon counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Bytes that may be used in a period.
    pub limit: u64,
    /// What the store has of this one.
    pub used: u64,
    /// When it began, milliseconds UTC since 1970.
    pub start_ms: i64,
}

/// The quotas of one set of maps.
pub struct Quotas {
    rooms: Mapping<QuotaRoom>,
    uses: Option<Array<MapData, Value>>,
    len: usize,
    /// The sums of each half when it was committed last, if they are known.
    committed: Vec<[Option<u64>; 2]>,
}

impl Quotas {
    pub(super) fn new(rooms: Mapping<QuotaRoom>, uses: MapData, len: usize) -> Self {
        let uses = Array::try_from(aya::maps::Map::Array(uses)).ok();
        let quotas = Self { rooms, uses, len, committed: vec![[None; 2]; len] };
        // What nobody has used yet is committed.
        let fresh = |n: usize| quotas.room(n).turn == 0;
        let committed = (0..len).map(|n| if fresh(n) { [Some(0); 2] } else { [None; 2] }).collect();
        Self { committed, ..quotas }
    }

    fn room(&self, number: usize) -> QuotaRoom {
        // SAFETY: inside the mapping; plain integers that this daemon alone writes.
        unsafe { self.rooms.as_ptr().add(number).read_volatile() }
    }

    fn sums(&self, number: usize) -> Option<QuotaUse> {
        Some(self.uses.as_ref()?.get(&(number as u32), LOCKED).ok()?.0)
    }

    /// Says that what the programs have counted in this half, which is quiet, is in the store.
    pub fn committed(&mut self, half: u8) {
        for number in 0..self.len {
            let sums = self.sums(number);
            if let Some(sums) = sums {
                self.committed[number][usize::from(half)] = Some(sums.used[usize::from(half)]);
            }
        }
    }

    /// How things stand in the store now, for each quota.
    pub fn set(&self, limits: &[Limit]) {
        for (number, (limit, committed)) in limits.iter().zip(&self.committed).enumerate() {
            let before = self.room(number);
            let [Some(a), Some(b)] = *committed else { continue };
            let again = before.turn == 0 || before.start_ms != limit.start_ms;
            let room = (limit.limit.saturating_add(a).saturating_add(b)).saturating_sub(limit.used);
            // SAFETY: inside the mapping; aligned words that the programs read one by one. The room of a new period is there
            // before its turn begins.
            unsafe {
                let at = self.rooms.as_ptr().add(number);
                (&raw mut (*at).room).write_volatile(room);
                if again {
                    (&raw mut (*at).start_ms).write_volatile(limit.start_ms);
                    (&raw mut (*at).turn).write_volatile(before.turn + 1);
                }
            }
        }
    }

    /// Whether a packet has found no room in each of them in this period.
    pub fn reached(&self) -> Vec<bool> {
        let reached = |number| {
            let turn = self.room(number).turn as u32;
            turn != 0 && self.sums(number).is_some_and(|sums| sums.over == turn)
        };
        (0..self.len).map(reached).collect()
    }
}
