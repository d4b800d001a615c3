//! Asks the kernel's parser, by BPF_PROG_TEST_RUN.

use std::{error::Error, mem::offset_of};

use aya::{
    Ebpf,
    maps::{Array, MapData},
    programs::{Program, TestRun, TestRunOptions},
};
use kmod_bpf::{ANSWER_OBJECT, Answer, FlowKey};
use netamsd::packet::{Fragment, Gso};
use nix::unistd::geteuid;

/// Programs of [`ANSWER_OBJECT`].
const ETHERNET: &str = "answer_ethernet";
const L3: &str = "answer_l3";
/// Bytes of a frame that BPF_PROG_TEST_RUN takes everywhere: a page without what the kernel puts around a packet.
pub const MAX_FRAME: usize = 3584;

/// Whether BPF_PROG_TEST_RUN takes a frame: since 2025 (`net/bpf/test_run.c`) none that is said to be IP and has no room for
/// the header, and never one without anything behind the Ethernet header.
pub fn takes(frame: &[u8]) -> bool {
    let least = match frame.get(12..14) {
        Some([0x08, 0x00]) => 20,
        Some([0x86, 0xdd]) => 40,
        _ => 1,
    };
    frame.len() >= 14 + least
}

/// What kind of device a packet is of.
#[derive(Debug, Clone, Copy)]
pub enum Layer {
    /// With an Ethernet header.
    Ethernet,
    /// Without.
    Ip,
}

/// What a parser says of a frame.
#[derive(Debug, PartialEq, Eq)]
pub struct Answers {
    /// Of the outermost packet.
    pub outer: Said,
    /// Of the innermost one, if it is a tunnel.
    pub inner: Option<Said>,
}

/// What a parser says of a packet.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// It belongs to a flow.
    Ip { key: FlowKey, fragment: Fragment, packets: u32, bytes: u64, headers_unknown: bool },
    /// It is neither IPv4 nor IPv6.
    NonIp { packets: u32 },
    /// It is said to be IP and is not.
    Malformed { packets: u32 },
}

/// An [`Answer`] as a map's value.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Value(Answer);
// SAFETY: `Answer` is made of integers and arrays of them, without padding: any bytes are one.
unsafe impl aya::Pod for Value {}

/// The loaded programs.
pub struct Kernel {
    ebpf: Ebpf,
    answer: Array<MapData, Value>,
}

impl Kernel {
    /// Loads them. Where that cannot be, prints why, or panics where `NETAMS_REQUIRE_LIVE=1` forbids to skip.
    pub fn load() -> Option<Self> {
        if !geteuid().is_root() {
            let reason = "needs root for BPF";
            let required = std::env::var_os("NETAMS_REQUIRE_LIVE").is_some_and(|v| v == "1");
            assert!(!required, "the differential test cannot run: {reason}");
            println!("skipped: {reason}");
            return None;
        }
        Some(Self::loaded().expect("the kernel takes the programs"))
    }

    fn loaded() -> Result<Self, Box<dyn Error>> {
        let mut ebpf = Ebpf::load(ANSWER_OBJECT)?;
        for name in [ETHERNET, L3] {
            match ebpf.program_mut(name) {
                Some(Program::SchedClassifier(program)) => program.load()?,
                Some(Program::CgroupSkb(program)) => program.load()?,
                _ => return Err(format!("no program {name}").into()),
            }
        }
        let answer = Array::try_from(ebpf.take_map("answer").ok_or("no map")?)?;
        Ok(Self { ebpf, answer })
    }

    /// What the kernel's parser says of a frame; for both layers it has an Ethernet header.
    pub fn ask(&self, layer: Layer, frame: &[u8], gso: Gso) -> Answers {
        let context = context(gso);
        let options =
            TestRunOptions { data_in: Some(frame), ctx_in: Some(&context), ..TestRunOptions::new() };
        let name = match layer {
            Layer::Ethernet => ETHERNET,
            Layer::Ip => L3,
        };
        let result = match self.ebpf.program(name) {
            Some(Program::SchedClassifier(program)) => program.test_run(options),
            Some(Program::CgroupSkb(program)) => program.test_run(options),
            _ => panic!("no program {name}"),
        };
        let result = result.unwrap_or_else(|e| panic!("{e:?}: {layer:?}, {gso:?}, {frame:02x?}"));
        assert_eq!(result.return_value, 1, "the program finds its map");
        let answer = |index| self.answer.get(&index, 0).expect("an answer").0;
        let inner = said(answer(1));
        Answers { outer: said(answer(0)), inner: matches!(inner, Said::Ip { .. }).then_some(inner) }
    }
}

fn said(answer: Answer) -> Said {
    let (id, proto) = (answer.fragment_id, answer.fragment_proto);
    match answer.parsed {
        0 => Said::Ip {
            key: answer.key,
            fragment: match answer.fragment {
                0 => Fragment::Whole,
                1 => Fragment::First { id, proto },
                2 => Fragment::Later { id, proto },
                other => panic!("fragment {other}"),
            },
            packets: answer.segs,
            bytes: answer.bytes,
            headers_unknown: answer.headers_unknown != 0,
        },
        1 => Said::NonIp { packets: answer.segs },
        2 => Said::Malformed { packets: answer.segs },
        other => panic!("parsed {other}"),
    }
}

/// `struct __sk_buff` of `linux/bpf.h` as far as a test run may set it, with a super-packet's segments.
fn context(gso: Gso) -> [u8; 192] {
    #[repr(C)]
    struct SkBuff {
        before: [u32; 41],
        gso_segs: u32,
        sk: u64,
        gso_size: u32,
        after: [u32; 3],
    }
    const { assert!(size_of::<SkBuff>() == 192) };
    let mut context = [0; 192];
    for (at, value) in [(offset_of!(SkBuff, gso_segs), gso.segs), (offset_of!(SkBuff, gso_size), gso.size)] {
        context[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    context
}
