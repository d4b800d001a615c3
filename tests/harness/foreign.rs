//! Somebody else's tc programs: attached before or after ours, they count what they see and let it pass.

use std::fs;
use std::path::PathBuf;

use aya::Ebpf;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, SchedClassifier};
use tempfile::TempDir;

use crate::hooks::{Direction, program_map};
use crate::ns::{Namespace, run};

/// Leaves the decision to the next program (TC_ACT_UNSPEC), as every well-behaved observer does.
const SOURCE: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} passed SEC(".maps");
SEC("classifier") int foreign(struct __sk_buff *skb)
{
    __u32 key = 0;
    __u64 *count = bpf_map_lookup_elem(&passed, &key);
    if (count)
        __sync_fetch_and_add(count, 1);
    return -1;
}
"#;

/// Where among the programs of a tcx hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Before those that are there.
    First,
    /// After those that are there.
    Last,
}

/// An attached foreign program. A tcx one is detached when dropped; a clsact one goes with its interface.
pub struct Foreign {
    program: u32,
    _loaded: Option<Ebpf>,
}

impl Foreign {
    /// Attaches by `tc filter add` with preference `pref` (lower runs first); makes the clsact qdisc when it is missing.
    pub fn clsact(namespace: &Namespace, device: &str, direction: Direction, pref: u16) -> Self {
        let (_place, object) = compile();
        if !namespace.run(&format!("tc qdisc show dev {device}")).contains("clsact") {
            namespace.run(&format!("tc qdisc add dev {device} clsact"));
        }
        let object = object.display();
        namespace.run(&format!(
            "tc filter add dev {device} {direction} pref {pref} bpf da obj {object} sec classifier"
        ));
        let json = namespace.run(&format!("tc -j filter show dev {device} {direction} pref {pref}"));
        let filters: serde_json::Value = serde_json::from_str(&json).expect("tc prints JSON");
        let ids = filters.as_array().into_iter().flatten();
        let program = ids.filter_map(|f| f["options"]["prog"]["id"].as_u64()).next();
        Self { program: program.expect("the filter that was added") as u32, _loaded: None }
    }

    /// Attaches by a tcx link.
    pub fn tcx(namespace: &Namespace, device: &str, direction: Direction, place: Place) -> Self {
        let (_place, object) = compile();
        let mut loaded = Ebpf::load_file(&object).expect("load the foreign object");
        let order = match place {
            Place::First => LinkOrder::first(),
            Place::Last => LinkOrder::last(),
        };
        let program: &mut SchedClassifier =
            loaded.program_mut("foreign").expect("the program").try_into().expect("a classifier");
        program.load().expect("load the foreign program");
        let attach =
            || program.attach_with_options(device, direction.into(), TcAttachOptions::TcxOrder(order));
        namespace.enter(attach).expect("attach the foreign program");
        let program = program.info().expect("program info").id();
        Self { program, _loaded: Some(loaded) }
    }

    /// Kernel id of the program.
    pub fn program(&self) -> u32 {
        self.program
    }

    /// Packets it has let pass (super-packets count as one).
    pub fn passed(&self) -> u64 {
        let map = program_map(self.program);
        let json = run(&format!("bpftool -j map dump id {map}"));
        let entries: serde_json::Value = serde_json::from_str(&json).expect("bpftool prints JSON");
        entries[0]["formatted"]["value"].as_u64().unwrap_or_else(|| panic!("no count in {json}"))
    }
}

fn compile() -> (TempDir, PathBuf) {
    let place = TempDir::new().expect("a temporary folder");
    let (source, object) = (place.path().join("foreign.bpf.c"), place.path().join("foreign.bpf.o"));
    fs::write(&source, SOURCE).expect("write the foreign source");
    let include = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    run(&format!("clang -O2 -g -target bpf -I{include} -c {} -o {}", source.display(), object.display()));
    (place, object)
}
