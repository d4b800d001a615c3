//! Traffic that is sent through a laboratory's router, and what came of it.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use netams_tests::blast::Blast;
use netams_tests::frame::{Frame, UDP};
use netams_tests::lab::{CL0_MAC, CLIENT_MAC, CLIENT4, Lab, Offloads, SINK4};
use netams_tests::tcp::iperf;
use netams_tests::truth::device;
use nix::unistd::{SysconfVar, sysconf};

/// Payload of a full TCP segment at an MTU of 1500 with timestamps.
pub const SEGMENT: f64 = 1448.0;
/// CPUs of the sender and of the receiver.
const CPUS: &str = "0,1";

/// A kind of traffic.
pub struct Load {
    /// Name in tables and in `--loads`.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// At both ends and in the router.
    pub offloads: Offloads,
    /// TCP streams; without, a flood of datagrams.
    streams: Option<u32>,
}

/// All of them.
pub const LOADS: [Load; 5] = [
    Load { name: "G1", about: "TCP, 1 stream, super-packets", offloads: Offloads::On, streams: Some(1) },
    Load { name: "G4", about: "TCP, 4 streams, super-packets", offloads: Offloads::On, streams: Some(4) },
    Load { name: "M1", about: "TCP, 1 stream, offloads off", offloads: Offloads::Off, streams: Some(1) },
    Load { name: "M4", about: "TCP, 4 streams, offloads off", offloads: Offloads::Off, streams: Some(4) },
    Load { name: "U", about: "UDP of 64 bytes as fast as it goes", offloads: Offloads::Off, streams: None },
];

/// What came of one measurement.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Wire packets a second that were delivered; those of TCP are received payload by full segments.
    pub rate: f64,
    /// Processor time of the whole machine, everything included, for each of them, in microseconds.
    pub cpu: f64,
    /// Share of the packets sent that never arrived; 0 for TCP, which sends them again.
    pub lost: f64,
}

impl Load {
    /// Sends for the time `each`.
    pub fn run(&self, lab: &Lab, each: Duration) -> anyhow::Result<Sample> {
        match self.streams {
            Some(streams) => tcp(lab, each, streams),
            None => flood(lab, each),
        }
    }
}

fn tcp(lab: &Lab, each: Duration, streams: u32) -> anyhow::Result<Sample> {
    let (time, streams) = (each.as_secs_f64().to_string(), streams.to_string());
    let busy = busy()?;
    // One report at the end; a connection that does not come about is a failure, and no wait.
    let more = ["-t", &time, "-P", &streams, "-A", CPUS, "-i", "0", "--connect-timeout", "5000"];
    let report = iperf(lab, 5201, 4, &more);
    let busy = self::busy()? - busy;
    let received = &report["end"]["sum_received"];
    let number = |name: &str| received[name].as_f64().with_context(|| format!("iperf3 tells no {name}"));
    let packets = number("bytes")? / SEGMENT;
    anyhow::ensure!(packets > 0.0, "nothing was received");
    Ok(Sample { rate: packets / number("seconds")?, cpu: busy * 1e6 / packets, lost: 0.0 })
}

/// Frames of one flow from one CPU, counted at the last interface; the server discards them.
fn flood(lab: &Lab, each: Duration) -> anyhow::Result<Sample> {
    let frame = Frame::eth(CL0_MAC, CLIENT_MAC).ipv4(CLIENT4, SINK4, UDP, &[]).udp(5202, 5202).payload(64);
    let stop = Arc::new(AtomicBool::new(false));
    let blast = Blast::new(vec![frame.build()], u64::MAX).on_cpu(0).until(&stop);
    let arrived = || device(&lab.server, "eth0").rx_packets;
    let before = (arrived(), busy()?, Instant::now());
    let sender = lab.client.spawn(move || blast.transmit("eth0"));
    std::thread::sleep(each);
    let delivered = (arrived() - before.0) as f64;
    let (busy, took) = (busy()? - before.1, before.2.elapsed());
    stop.store(true, Ordering::Relaxed);
    let sent = sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    // What waits in a queue still comes.
    let mut last = 0;
    while last != arrived() {
        last = arrived();
        std::thread::sleep(Duration::from_millis(100));
    }
    anyhow::ensure!(delivered > 0.0, "nothing arrived");
    Ok(Sample {
        rate: delivered / took.as_secs_f64(),
        cpu: busy * 1e6 / delivered,
        lost: 1.0 - (last - before.0) as f64 / sent as f64,
    })
}

/// Seconds that all processors together have worked since the machine started: user, nice, system, irq and softirq of
/// /proc/stat (proc_stat(5)), in ticks of 10 ms.
fn busy() -> anyhow::Result<f64> {
    let text = fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat is empty")?;
    let ticks: Vec<f64> = line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    let hertz = sysconf(SysconfVar::CLK_TCK)?.context("no tick")?;
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = ticks[..] else {
        anyhow::bail!("cannot read /proc/stat: {line}");
    };
    Ok((user + nice + system + irq + softirq) / hertz as f64)
}
