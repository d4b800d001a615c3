//! Flow tables in the kernel: pinned maps, shared with the programs.

use std::{collections::HashMap, fs, io, os::fd::AsFd, path::Path};

use aya::maps::{MapData, MapError, lpm_trie};
use kmod_bpf::{Control, FlowKey, PrefixKey, SCOPE_BITS, SpillValue, map};

use super::{KernelError, sysbpf};
use crate::{
    flow::{Encapsulation, Prefix, Scope, Source, Tunnel},
    source::{
        mapping::Mapping,
        tables::{self, Backing, Geometry, Memory, TablesError, Tunnels},
    },
};

/// What of a packet beside its address, and the address: [`kmod_bpf::PrefixKey`] without its length.
pub type PrefixData = [u8; size_of::<PrefixKey>() - size_of::<u32>()];
type PrefixTable = aya::maps::LpmTrie<MapData, PrefixData, u32>;

/// Tables that the programs fill.
pub type Tables = tables::Tables<Maps>;

/// The second level, a hash map.
pub struct Maps {
    spill: MapData,
}

impl Backing for Maps {
    const SOURCE: Source = Source::Kernel;

    fn grace_period(&self) -> io::Result<()> {
        sysbpf::grace_period()
    }

    fn spilled(&self, half: u8) -> io::Result<Vec<(FlowKey, SpillValue)>> {
        let mut entries = sysbpf::read_hash(self.spill.fd().as_fd())?;
        entries.retain(|(key, _): &(FlowKey, SpillValue)| key.used == kmod_bpf::USED + half);
        Ok(entries)
    }

    fn clear_spilled(&mut self, half: u8) -> io::Result<()> {
        let keys: Vec<FlowKey> = self.spilled(half)?.into_iter().map(|(key, _)| key).collect();
        sysbpf::delete_from_hash(self.spill.fd().as_fd(), &keys)
    }
}

/// Gives the fresh maps in `dir` their prefixes and their identity; until then [`open`] does not accept them. Classes never
/// change: a half may hold counts under them.
///
/// # Errors
/// When the maps cannot be opened or written.
pub fn initialize(
    dir: &Path,
    geometry: Geometry,
    id: u64,
    store: u64,
    tunnels: Tunnels,
    prefixes: &[Prefix],
) -> Result<(), KernelError> {
    let mut table = prefix_table(dir)?;
    insert_prefixes(&mut table, prefixes).map_err(|e| TablesError::map(&dir.join(map::PREFIXES), e))?;
    let control: Mapping<Control> = mapping(dir, map::CONTROL, 1)?;
    // SAFETY: no program that uses these maps is attached yet.
    unsafe { control.as_ptr().write_volatile(tables::fresh_control(geometry, id, store, tunnels)) };
    Ok(())
}

/// Says which quotas the maps in `dir` have.
///
/// # Errors
/// When the map cannot be opened.
pub fn set_quotas(dir: &Path, quotas: u64) -> Result<(), KernelError> {
    let control: Mapping<Control> = mapping(dir, map::CONTROL, 1)?;
    // SAFETY: as in `initialize`.
    unsafe { (&raw mut (*control.as_ptr()).quotas).write_volatile(quotas) };
    Ok(())
}

/// Gives each prefix its class: its place, from 1.
///
/// # Errors
/// When the table has no room.
pub fn insert_prefixes<T: std::borrow::BorrowMut<MapData>>(
    table: &mut aya::maps::LpmTrie<T, PrefixData, u32>,
    prefixes: &[Prefix],
) -> Result<(), MapError> {
    for (class, prefix) in (1..).zip(prefixes) {
        let key = lpm_trie::Key::new(SCOPE_BITS + u32::from(prefix.len), prefix_data(prefix));
        table.insert(&key, class, 0)?;
    }
    Ok(())
}

/// Opens the tables pinned in `dir`; `None` when they were never completed.
///
/// # Errors
/// When a map cannot be opened or mapped, or has the layout of another version.
pub fn open(dir: &Path) -> Result<Option<Tables>, KernelError> {
    let path = |name: &str| dir.join(name);
    if map::ALL.iter().any(|name| !path(name).exists()) {
        return Ok(None);
    }
    let control = mapping(dir, map::CONTROL, 1)?;
    let Some(head) = tables::head(dir, &control)? else { return Ok(None) };
    let spill = pinned(dir, map::SPILL)?;
    let spill_entries = spill.info().map_err(|e| TablesError::map(&path(map::SPILL), e))?.max_entries();
    let geometry = Geometry { cpus: head.cpus, sets: head.sets, spill: spill_entries, classes: head.classes };
    let entries: HashMap<_, _> = geometry.entries().into_iter().collect();
    let len = |name| entries[name] as usize;
    let mut prefixes = HashMap::new();
    for entry in prefix_table(dir)?.iter() {
        let (prefix, class) = entry.map_err(|e| TablesError::map(&path(map::PREFIXES), e))?;
        prefixes.insert(class, prefix_of(&prefix.data(), prefix.prefix_len()));
    }
    let memory = Memory {
        control,
        counters: mapping(dir, map::COUNTERS, len(map::COUNTERS))?,
        flows: mapping(dir, map::FLOWS, len(map::FLOWS))?,
        overflow: mapping(dir, map::OVERFLOW, len(map::OVERFLOW))?,
    };
    Ok(Some(Tables::new(dir, &head, spill_entries, memory, prefixes, Maps { spill })))
}

/// The fields of the key in their order; numbers as the programs write them.
fn prefix_data(prefix: &Prefix) -> PrefixData {
    let Scope { vlan, vlan_inner, tunnel } = prefix.scope;
    let (kind, key) = tunnel.map_or((0, 0), |tunnel| (tunnel.kind.number(), tunnel.key));
    let mut data: PrefixData = [0; _];
    data[..2].copy_from_slice(&vlan.to_ne_bytes());
    data[2..4].copy_from_slice(&vlan_inner.to_ne_bytes());
    data[4..8].copy_from_slice(&key.to_ne_bytes());
    data[8..12].copy_from_slice(&u32::from(kind).to_ne_bytes());
    data[12..].copy_from_slice(&prefix.address.octets());
    data
}

/// The way back; `len` counts all bits of the key.
fn prefix_of(data: &PrefixData, len: u32) -> Prefix {
    let [v0, v1, i0, i1, t0, t1, t2, t3, k0, k1, k2, k3, address @ ..] = *data;
    let kind = Encapsulation::from_number(u32::from_ne_bytes([k0, k1, k2, k3]) as u8);
    let tunnel = kind.map(|kind| Tunnel { kind, key: u32::from_ne_bytes([t0, t1, t2, t3]) });
    let scope =
        Scope { vlan: u16::from_ne_bytes([v0, v1]), vlan_inner: u16::from_ne_bytes([i0, i1]), tunnel };
    Prefix { scope, address: address.into(), len: (len - SCOPE_BITS) as u8 }
}

/// Removes a folder of pins; the maps vanish with their last user. bpffs has no deeper levels here.
///
/// # Errors
/// Those of removing files.
pub fn remove(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        fs::remove_file(entry?.path())?;
    }
    fs::remove_dir(dir)
}

fn pinned(dir: &Path, name: &str) -> Result<MapData, TablesError> {
    let path = dir.join(name);
    MapData::from_pin(&path).map_err(|e| TablesError::map(&path, e))
}

fn prefix_table(dir: &Path) -> Result<PrefixTable, TablesError> {
    PrefixTable::try_from(aya::maps::Map::LpmTrie(pinned(dir, map::PREFIXES)?))
        .map_err(|e| TablesError::map(&dir.join(map::PREFIXES), e))
}

fn mapping<T>(dir: &Path, name: &str, len: usize) -> Result<Mapping<T>, TablesError> {
    Mapping::new(pinned(dir, name)?.fd().as_fd(), len).map_err(|e| TablesError::map(&dir.join(name), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_prefixes_are_those_of_the_programs() {
        let tunnel = Some(Tunnel { kind: Encapsulation::Geneve, key: 0x12_3456 });
        let prefix = Prefix {
            scope: Scope { vlan: 10, vlan_inner: 20, tunnel },
            address: "2001:db8::7".parse().unwrap(),
            len: 48,
        };
        let data = prefix_data(&prefix);
        let value = |name: &str| {
            let field = PrefixKey::FIELDS.iter().find(|(field, ..)| *field == name);
            let (_, offset, size) = *field.unwrap();
            data[offset - size_of::<u32>()..][..size].to_vec()
        };
        assert_eq!(value("vlan"), 10u16.to_ne_bytes());
        assert_eq!(value("vlan_inner"), 20u16.to_ne_bytes());
        assert_eq!(value("tunnel"), 0x12_3456u32.to_ne_bytes());
        assert_eq!(value("tunnel_kind"), u32::from(kmod_bpf::tunnel::GENEVE).to_ne_bytes());
        assert_eq!(value("addr"), prefix.address.octets());
        for prefix in [prefix, Prefix { scope: Scope::ANY, len: 0, ..prefix }] {
            assert_eq!(prefix_of(&prefix_data(&prefix), SCOPE_BITS + u32::from(prefix.len)), prefix);
        }
    }
}
