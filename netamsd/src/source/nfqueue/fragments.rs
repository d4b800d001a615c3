//! First fragments remembered, so that later ones join their flow. Bounded: the oldest make room.

use std::collections::{HashMap, VecDeque};

use kmod_bpf::{FlowKey, FragmentKey, key_flag};

use crate::{
    packet::{Fragment, Packet},
    source::tables::FRAGMENTS,
};

/// Flows of the latest first fragments.
#[derive(Default)]
pub struct Fragments {
    /// Keyed by what a sender may choose: with a hash that he cannot foresee.
    flows: HashMap<FragmentKey, FlowKey>,
    oldest_first: VecDeque<FragmentKey>,
}

impl Fragments {
    /// The key of a packet's flow; that of its first fragment when it is a later one, flagged when that was not seen.
    pub fn join(&mut self, packet: &Packet) -> FlowKey {
        match packet.fragment {
            Fragment::Whole => packet.key,
            Fragment::First { id, proto } => {
                self.remember(identity(&packet.key, id, proto), packet.key);
                packet.key
            }
            Fragment::Later { id, proto } => {
                let first = self.flows.get(&identity(&packet.key, id, proto));
                first.copied().unwrap_or(FlowKey { flags: key_flag::FRAGMENT, ..packet.key })
            }
        }
    }

    fn remember(&mut self, fragment: FragmentKey, flow: FlowKey) {
        if self.flows.insert(fragment, flow).is_some() {
            return;
        }
        self.oldest_first.push_back(fragment);
        if self.oldest_first.len() > FRAGMENTS as usize
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.flows.remove(&oldest);
        }
    }
}

fn identity(key: &FlowKey, id: u32, proto: u8) -> FragmentKey {
    FragmentKey { src: key.src, dst: key.dst, id, proto, version: key.version, layer: 0 }
}
