//! First fragments remembered, so that later ones join their flow. Bounded: the oldest make room. Each layer of packets has
//! its own memory.

use std::collections::{HashMap, VecDeque};

use kmod_bpf::{FlowKey, FragmentKey, key_flag};

use crate::{
    packet::{Fragment, Packet},
    source::tables::FRAGMENTS,
};

/// Flows of the latest first fragments of one layer.
pub struct Fragments {
    /// 0: outer, 1: inner, as in [`FragmentKey`].
    layer: u16,
    /// Keyed by what a sender may choose: with a hash that he cannot foresee.
    flows: HashMap<FragmentKey, FlowKey>,
    oldest_first: VecDeque<FragmentKey>,
}

impl Fragments {
    /// Remembers nothing yet. `layer` is 0 for outermost packets, 1 for innermost ones of tunnels.
    pub fn new(layer: u16) -> Self {
        Self { layer, flows: HashMap::new(), oldest_first: VecDeque::new() }
    }

    /// The key of a packet's flow; that of its first fragment when it is a later one, flagged when that was not seen.
    pub fn join(&mut self, packet: &Packet) -> FlowKey {
        match packet.fragment {
            Fragment::Whole => packet.key,
            Fragment::First { id, proto } => {
                self.remember(self.identity(&packet.key, id, proto), packet.key);
                packet.key
            }
            Fragment::Later { id, proto } => {
                let first = self.flows.get(&self.identity(&packet.key, id, proto));
                first
                    .copied()
                    .unwrap_or(FlowKey { flags: packet.key.flags | key_flag::FRAGMENT, ..packet.key })
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

    fn identity(&self, key: &FlowKey, id: u32, proto: u8) -> FragmentKey {
        FragmentKey { src: key.src, dst: key.dst, id, proto, version: key.version, layer: self.layer }
    }
}
