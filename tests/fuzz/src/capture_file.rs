//! The captures of `tests/traces`, for seeds. Frames are those of the pcap format, which nearly all are.

use std::fs;
use std::path::{Path, PathBuf};

const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;

/// The captures whose files have `most` bytes at most, in both formats.
pub fn files(most: u64) -> Vec<Vec<u8>> {
    let small = paths().into_iter().filter(|path| {
        let capture = path.extension().is_some_and(|kind| kind == "pcap" || kind == "pcapng");
        capture && fs::metadata(path).expect("a capture").len() <= most
    });
    small.map(|path| fs::read(path).expect("a capture")).collect()
}

fn paths() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces");
    let mut paths: Vec<_> =
        fs::read_dir(&folder).expect("tests/traces").map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    paths
}

/// Beginnings of frames, each with its link type (tcpdump.org), at most `most` of a capture, spread over it.
pub fn frames(most: usize, captured: usize) -> Vec<(u32, Vec<u8>)> {
    let pcap = paths().into_iter().filter(|path| path.extension().is_some_and(|kind| kind == "pcap"));
    pcap.flat_map(|path| {
        let frames = frames_of(&fs::read(&path).expect("a capture"));
        let step = frames.len().div_ceil(most).max(1);
        frames.into_iter().step_by(step).map(|(link, mut frame)| {
            frame.truncate(captured);
            (link, frame)
        })
    })
    .collect()
}

/// The whole records of a file (draft-ietf-opsawg-pcap), with their link type.
fn frames_of(file: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let little = file.first().is_some_and(|byte| *byte != 0xa1);
    let word = |at: usize| -> Option<u32> {
        let bytes = *file.get(at..)?.first_chunk()?;
        Some(if little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    };
    let mut frames = Vec::new();
    let mut at = FILE_HEADER;
    while let (Some(link), Some(len)) = (word(FILE_HEADER - 4), word(at + 8)) {
        let begin = at + RECORD_HEADER;
        at = begin + len as usize;
        let Some(frame) = file.get(begin..at) else { break };
        frames.push((link & 0xffff, frame.to_vec()));
    }
    frames
}
