//! Who is attached where, asked of the kernel and not of the daemon.

use std::fmt;

use aya::programs::{SchedClassifier, TcAttachType};

use crate::ns::{Namespace, run};

/// Direction of a tc hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Packets that enter by the interface.
    Ingress,
    /// Packets that leave by it.
    Egress,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        })
    }
}

impl From<Direction> for TcAttachType {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Ingress => Self::Ingress,
            Direction::Egress => Self::Egress,
        }
    }
}

/// The ways in which programs can be attached here, as `kernel.attach` names them: tcx came with Linux 6.6.
pub fn ways() -> &'static [&'static str] {
    let tcx = SchedClassifier::query_tcx("lo", TcAttachType::Ingress).is_ok();
    if tcx { &["tcx", "clsact"] } else { &["clsact"] }
}

/// Kernel ids of the programs on a hook: those of tcx, then those of clsact, each in the order in which they run.
pub fn programs(namespace: &Namespace, device: &str, direction: Direction) -> Vec<u32> {
    let query = || SchedClassifier::query_tcx(device, direction.into());
    // Kernels before 6.6 have no tcx and refuse the question.
    let tcx = namespace.enter(query).map_or_else(|_| Vec::new(), |(_, programs)| programs);
    let mut ids: Vec<u32> = tcx.iter().map(aya::programs::ProgramInfo::id).collect();
    let json = namespace.run(&format!("tc -j filter show dev {device} {direction}"));
    let filters: serde_json::Value = serde_json::from_str(&json).expect("tc prints JSON");
    let clsact = filters.as_array().into_iter().flatten();
    ids.extend(clsact.filter_map(|filter| filter["options"]["prog"]["id"].as_u64()).map(|id| id as u32));
    ids
}

/// Takes the program `id` off its tcx hook, as an administrator can do to any program: `bpftool link detach`.
pub fn detach_tcx(id: u32) {
    let json = run("bpftool -j link show");
    let links: serde_json::Value = serde_json::from_str(&json).expect("bpftool prints JSON");
    let mut links = links.as_array().into_iter().flatten();
    let link =
        links.find(|link| link["prog_id"].as_u64() == Some(id.into())).and_then(|link| link["id"].as_u64());
    let link = link.unwrap_or_else(|| panic!("program {id} has no link in {json}"));
    run(&format!("bpftool link detach id {link}"));
}

/// Kernel id of the first map of a program.
pub(crate) fn program_map(program: u32) -> u64 {
    let json = run(&format!("bpftool -j prog show id {program}"));
    let info: serde_json::Value = serde_json::from_str(&json).expect("bpftool prints JSON");
    info["map_ids"][0].as_u64().unwrap_or_else(|| panic!("no map in {json}"))
}
