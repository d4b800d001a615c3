//! The packets themselves: tcpdump at an interface, counted by reading its file.
//!
//! Only where offloads are off is a captured packet a wire packet.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::ns::Namespace;
use crate::truth::Traffic;

/// A capture that is going on.
pub struct Capture {
    tcpdump: Child,
    messages: BufReader<ChildStderr>,
    place: TempDir,
}

impl Capture {
    /// Starts to capture what `device` receives and the pcap `filter` selects; returns when it does.
    pub fn start(namespace: &Namespace, device: &str, filter: &str) -> Self {
        let place = TempDir::new().expect("a temporary folder");
        let mut tcpdump = namespace
            .command("tcpdump")
            .args(["-i", device, "-Q", "in", "-s", "96", "-B", "65536", "-Z", "root"])
            .args(["--immediate-mode", "-U", "-w"])
            .arg(place.path().join("pcap"))
            .arg(filter)
            .stderr(Stdio::piped())
            .spawn()
            .expect("start tcpdump");
        let mut messages = BufReader::new(tcpdump.stderr.take().expect("tcpdump's messages"));
        let mut line = String::new();
        while !line.contains("listening on") {
            line.clear();
            assert_ne!(
                messages.read_line(&mut line).expect("tcpdump's messages"),
                0,
                "tcpdump did not start"
            );
        }
        Self { tcpdump, messages, place }
    }

    /// Ends the capture once it holds `expected` packets, or after 5 seconds without them, and counts it: tcpdump
    /// forgets what it has not read yet when it is told to stop. Panics when the kernel dropped some of it.
    pub fn stop(mut self, expected: u64) -> Traffic {
        let file = self.place.path().join("pcap");
        let captured = || count(&fs::read(&file).expect("the capture"));
        let started = Instant::now();
        while captured().packets < expected && started.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(20));
        }
        kill(Pid::from_raw(self.tcpdump.id() as i32), Signal::SIGINT).expect("stop tcpdump");
        self.tcpdump.wait().expect("wait for tcpdump");
        let mut said = String::new();
        self.messages.read_to_string(&mut said).expect("tcpdump's messages");
        assert!(said.contains("\n0 packets dropped by kernel"), "the capture is not complete: {said}");
        captured()
    }
}

/// Adds up a pcap file of Ethernet frames: 24 bytes of file header, 16 bytes before each frame. What is not yet written
/// in full at its end is not counted.
fn count(pcap: &[u8]) -> Traffic {
    let mut sum = Traffic::default();
    let mut rest = pcap.get(24..).unwrap_or_default();
    while rest.len() >= 16 {
        let kept = u32::from_ne_bytes([rest[8], rest[9], rest[10], rest[11]]) as usize;
        let Some(frame) = rest.get(16..16 + kept) else { break };
        let field = |at: usize| u64::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
        sum.packets += 1;
        sum.bytes += match field(12) {
            0x0800 => field(16),
            0x86dd => 40 + field(18),
            other => panic!("captured ethernet type {other:#06x}"),
        };
        rest = &rest[16 + kept..];
    }
    sum
}
