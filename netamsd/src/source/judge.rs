//! Who says whether a packet passes, for the source in user space.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use super::tables::flow_key;
use crate::flow::FlowKey;

/// Flows whose verdicts a thread remembers.
const KNOWN: usize = 4096;

/// Says whether packets of a flow pass, and when that may have changed. Clones are one judge.
#[derive(Clone)]
pub struct Judge {
    passes: Arc<dyn Fn(&FlowKey) -> bool + Send + Sync>,
    generation: Arc<AtomicU32>,
}

impl Judge {
    /// By a function, whose answers are believed until [`changed`](Self::changed).
    pub fn new(passes: impl Fn(&FlowKey) -> bool + Send + Sync + 'static) -> Self {
        Self { passes: Arc::new(passes), generation: Arc::default() }
    }

    /// Says that every flow is to be judged anew.
    pub fn changed(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }
}

impl fmt::Debug for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Judge")
    }
}

/// The verdicts that one thread has heard.
pub struct Verdicts {
    judge: Judge,
    generation: u32,
    /// By hash; a later flow takes the place of an earlier one.
    known: Vec<Option<(kmod_bpf::FlowKey, bool)>>,
}

impl Verdicts {
    /// None yet.
    pub fn new(judge: Judge) -> Self {
        let generation = judge.generation.load(Ordering::SeqCst);
        Self { judge, generation, known: vec![None; KNOWN] }
    }

    /// Whether a packet of this flow passes; `hash` is any hash of the key.
    pub fn passes(&mut self, key: &kmod_bpf::FlowKey, hash: u64) -> bool {
        let generation = self.judge.generation.load(Ordering::SeqCst);
        if generation != self.generation {
            self.known.fill(None);
            self.generation = generation;
        }
        let known = &mut self.known[hash as usize % KNOWN];
        match known {
            Some((flow, passes)) if flow == key => *passes,
            _ => {
                let passes = (self.judge.passes)(&flow_key(key));
                *known = Some((*key, passes));
                passes
            }
        }
    }
}
