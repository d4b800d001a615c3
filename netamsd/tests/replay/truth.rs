//! Real captures give what the truth beside them says, flow by flow; see `tests/traces/README.md`.

use std::{
    fs,
    io::Write,
    net::IpAddr,
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};
use serde_json::Value;

use crate::{Bench, document};

/// All captures.
pub fn captures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/traces");
    let entries = fs::read_dir(folder).expect("the captures").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<_> = entries
        .filter(|path| path.extension().is_some_and(|kind| kind == "pcap" || kind == "pcapng"))
        .collect();
    files.sort();
    files
}

/// Packed in two members, as a file that was appended to is.
pub fn gzip(file: &[u8]) -> Vec<u8> {
    let member = |part: &[u8]| {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(part).expect("pack");
        packed.finish().expect("pack")
    };
    let (a, b) = file.split_at(file.len() / 2);
    [member(a), member(b)].concat()
}

/// Key and counts of each flow of a layer, in the order of the document.
fn flows(document: &Value, layer: &str) -> Vec<(u64, IpAddr, IpAddr, [u64; 5])> {
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value} is no number"));
    let address = |value: &Value| {
        value.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{value}"))
    };
    let flow = |flow: &Value| {
        let numbers = ["proto", "sport", "dport", "packets", "bytes"].map(|field| number(&flow[field]));
        (number(&flow["ver"]), address(&flow["src"]), address(&flow["dst"]), numbers)
    };
    document[layer].as_array().expect("an array of flows").iter().map(flow).collect()
}

fn assert_same(found: &Value, truth: &Value, file: &Path) {
    for term in ["frames", "non_ip", "malformed"] {
        assert_eq!(found[term], truth[term], "{term}: {}", file.display());
    }
    for layer in ["outer", "inner"] {
        let (found, mut truth) = (flows(found, layer), flows(truth, layer));
        truth.sort();
        assert_eq!(found, truth, "{layer}: {}", file.display());
    }
}

#[test]
fn every_capture_gives_its_truth_as_a_file_and_packed_through_a_pipe() {
    let bench = Bench::new();
    let files = captures();
    assert_eq!(files.len(), 127);
    for file in files {
        let truth = fs::read(file.with_extension("json")).expect("the truth");
        let truth: Value = serde_json::from_slice(&truth).expect("JSON");
        let found = document(&bench.replay(&["--json", "--inner"], &file));
        assert_eq!(found["file"], file.file_name().unwrap().to_str().unwrap());
        assert_same(&found, &truth, &file);
        let packed = gzip(&fs::read(&file).expect("the capture"));
        let piped = document(&bench.pipe(&["--json", "--inner"], packed));
        assert_same(&piped, &truth, &file);
    }
}

#[test]
fn without_inner_there_are_outer_flows_alone() {
    let bench = Bench::new();
    let file = captures().into_iter().find(|file| file.ends_with("tunnel-geneve--geneve-gcp.pcap")).unwrap();
    let both = document(&bench.replay(&["--json", "--inner"], &file));
    let outer = document(&bench.replay(&["--json"], &file));
    assert_eq!(outer["outer"], both["outer"]);
    assert_eq!(outer["inner"], serde_json::json!([]));
    assert_eq!(both["inner"].as_array().unwrap().len(), 1);
}
