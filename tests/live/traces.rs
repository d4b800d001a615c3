//! Frames of real captures, injected into a wire, give the flows that a replay of the same frames gives.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use netams_tests::blast::Blast;
use netams_tests::config::Config;
use netams_tests::daemon::{Daemon, binary};
use netams_tests::lab::{Lab, Offloads};
use netams_tests::ledger::assert_ledger;
use netams_tests::ns::assert_success;
use netams_tests::require_live;
use serde::Deserialize;

/// A station that is not there: what is sent to it is metered, and taken up by nobody.
const NOBODY: [u8; 6] = [2, 0, 0, 0, 9, 9];
const ETHERNET: usize = 14;
const MTU: u32 = 65_535;
const TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];

/// What `netamsd replay --json` prints.
#[derive(Deserialize)]
struct Document {
    frames: u64,
    non_ip: u64,
    malformed: u64,
    outer: Vec<Row>,
    inner: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    ver: u8,
    src: IpAddr,
    dst: IpAddr,
    proto: u8,
    sport: u16,
    dport: u16,
    packets: u64,
    bytes: u64,
}

type Key = (u8, IpAddr, IpAddr, u8, u16, u16);
type Account = BTreeMap<Key, (u64, u64)>;

fn add(account: &mut Account, key: Key, packets: u64, bytes: u64) {
    let sum = account.entry(key).or_default();
    sum.0 += packets;
    sum.1 += bytes;
}

fn replayed(rows: &[Row]) -> Account {
    let mut account = Account::new();
    for r in rows {
        add(&mut account, (r.ver, r.src, r.dst, r.proto, r.sport, r.dport), r.packets, r.bytes);
    }
    account
}

fn metered(daemon: &Daemon, layer: &str) -> Account {
    let mut account = Account::new();
    for f in daemon.flows(&["--layer", layer]).flows {
        add(&mut account, (f.version, f.src, f.dst, f.proto, f.sport, f.dport), f.packets, f.bytes);
    }
    account
}

fn captures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces");
    let entries = fs::read_dir(folder).expect("the captures").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|kind| kind == "pcap")).collect();
    files.sort();
    files
}

/// The whole frames of a little-endian capture of Ethernet; none of another file.
fn frames(file: &[u8]) -> Vec<Vec<u8>> {
    let word =
        |at: usize| file.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize);
    let mut frames = Vec::new();
    if !matches!(word(0), Some(0xa1b2_c3d4 | 0xa1b2_3c4d)) || word(20) != Some(1) {
        return frames;
    }
    let mut at = 24;
    while let (Some(captured), Some(original)) = (word(at + 8), word(at + 12)) {
        let Some(frame) = file.get(at + 16..at + 16 + captured) else { break };
        if captured == original {
            frames.push(frame.to_vec());
        }
        at += 16 + captured;
    }
    frames
}

/// Whether a device takes the frame, and the network stack, which reads the tag of its own accord, hands it to the hooks.
fn is_taken(frame: &[u8]) -> bool {
    let tagged = frame.get(12..14).is_some_and(|kind| TAGS.contains(&[kind[0], kind[1]]));
    frame.len() > ETHERNET
        && frame.len() <= ETHERNET + MTU as usize
        && (!tagged || frame.len() >= ETHERNET + 4)
}

/// A capture of these frames.
fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 2 | 4 << 16, 0, 0, 262_144, 1] {
        file.extend(word.to_le_bytes());
    }
    for frame in frames {
        for word in [1, 0, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

#[test]
fn the_kernel_source_and_a_replay_of_the_same_frames_agree() {
    if !require_live() {
        return;
    }
    let mut all: Vec<Vec<u8>> =
        captures().iter().flat_map(|file| frames(&fs::read(file).expect("a capture"))).collect();
    all.retain(|frame| is_taken(frame));
    all.iter_mut().for_each(|frame| frame[..6].copy_from_slice(&NOBODY));
    assert!(all.len() > 80_000, "{} frames", all.len());

    let lab = Lab::with(Offloads::Off, MTU);
    let config = Config { tunnels: "inner", flows: 131_072, interfaces: vec!["cl0"], ..Config::default() };
    let daemon = Daemon::start(&lab.router, &config);
    let count = all.len() as u64;
    let sent = Blast::new(all.clone(), count).on_cpu(0).send(&lab.client, "eth0", &lab.router, "cl0");
    assert_eq!(sent, count);

    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("frames.pcap");
    fs::write(&file, pcap(&all)).expect("write the capture");
    let output = Command::new(binary("netamsd")).args(["replay", "--json", "--inner"]).arg(&file).output();
    let output = output.expect("run netamsd");
    assert_success(&output, "netamsd replay");
    let document: Document = serde_json::from_slice(&output.stdout).expect("the document");
    assert_eq!(document.frames, count);

    let ledger = daemon.ledger();
    assert_eq!((ledger.packets_in, ledger.packets_out), (count, 0), "{ledger:#?}");
    assert_eq!((ledger.non_ip, ledger.malformed), (document.non_ip, document.malformed), "{ledger:#?}");
    for (layer, rows) in [("outer", &document.outer), ("inner", &document.inner)] {
        let (metered, replayed) = (metered(&daemon, layer), replayed(rows));
        assert!(replayed.len() > 20, "{layer}: {}", replayed.len());
        let other = |a: &Account, b: &Account| -> Vec<_> {
            a.iter()
                .filter(|(key, counts)| b.get(key) != Some(counts))
                .map(|(key, counts)| (*key, *counts))
                .collect()
        };
        let (more, less) = (other(&metered, &replayed), other(&replayed, &metered));
        assert!(more.is_empty() && less.is_empty(), "{layer}: metered {more:#?}, replayed {less:#?}");
        println!("{layer}: {} flows of {count} frames alike", replayed.len());
    }
    assert_ledger(&ledger);
}
