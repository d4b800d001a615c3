//! How a replay ends: exit codes, what is said on standard error, signals.

use std::{
    fs,
    io::Write,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use netamsd::store::{FlowSelection, Reader};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::made::{Order, Shot, ethernet, udp};
use crate::truth::gzip;
use crate::{Bench, code, document, stderr, stdout};

fn capture(frames: usize) -> Vec<u8> {
    let frame = ethernet(&[], &udp([10, 0, 0, 1], [192, 0, 2, 1], [1000, 53], 100));
    let shots: Vec<_> =
        (0..frames).map(|n| Shot { time_ms: n as i64 * 10_000, frame: frame.clone() }).collect();
    Order::BOTH[0].pcap_of(false, 1, &shots)
}

#[test]
fn what_is_cut_short_is_said_and_the_rest_counts() {
    let bench = Bench::new();
    let whole = capture(5);
    let cut = &whole[..whole.len() - 1];
    let packed = gzip(&whole);
    for (name, file) in [("cut.pcap", cut), ("cut.pcap.gz", &packed[..packed.len() - 9])] {
        let file = bench.file(name, file);
        let output = bench.replay(&["--json"], &file);
        let said = format!("netamsd: {}: the file ends inside a record, which is left out\n", file.display());
        assert_eq!((code(&output), stderr(&output)), (0, said), "{name}");
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(
            document["frames"].as_u64().is_some_and(|frames| (1..=5).contains(&frames)),
            "{name}: {document}"
        );
    }
    let damaged = [&whole[..], &[0xff; 100]].concat();
    let output = bench.pipe(&["--json"], damaged);
    assert_eq!(code(&output), 0);
    assert_eq!(
        stderr(&output),
        "netamsd: standard input: a record cannot be right, and reading stopped there\n"
    );
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((document["frames"].as_u64(), document["file"].as_str()), (Some(5), Some("-")));
}

#[test]
fn what_follows_gzip_data_is_left_out() {
    let bench = Bench::new();
    let whole = capture(5);
    let members = [gzip(&whole[..100]), gzip(&whole[100..])].concat();
    let said = |name: &str| {
        let path = bench.path(name);
        format!("netamsd: {}: what follows the gzip data is none, and is left out\n", path.display())
    };
    for (name, behind, said) in [
        ("two.pcap.gz", &b""[..], String::new()),
        ("padded.pcap.gz", &[0; 20_000], String::new()),
        ("garbage.pcap.gz", b"garbage", said("garbage.pcap.gz")),
        ("both.pcap.gz", b"\0\0garbage", said("both.pcap.gz")),
    ] {
        let file = bench.file(name, &[&members[..], behind].concat());
        let output = bench.replay(&["--json"], &file);
        assert_eq!((code(&output), stderr(&output)), (0, said), "{name}");
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["frames"], 5, "{name}");
    }
}

#[test]
fn what_a_failed_replay_leaves_in_a_named_store_is_said() {
    let bench = Bench::new();
    let order = Order::BOTH[0];
    let frame = ethernet(&[], &udp([10, 0, 0, 1], [192, 0, 2, 1], [1000, 53], 100));
    let mut file = [order.section(), order.interface(1, 0, &[]), order.interface(127, 0, &[])].concat();
    for (interface, seconds) in [(0, 0), (0, 10), (0, 20), (1, 30)] {
        file.extend(order.enhanced(interface, seconds * 1_000_000, frame.len() as u32, &frame));
    }
    let (file, store) = (bench.file("made.pcapng", &file), bench.path("store"));
    let output = bench.replay(&["--store", store.to_str().unwrap()], &file);
    let said = stderr(&output);
    assert_eq!(code(&output), 65, "{said}");
    // The third one is of a batch that has no end.
    let kept = format!("; the 2 packets before that are in {} and stay there\n", store.display());
    assert!(said.contains("link type 127") && said.ends_with(&kept), "{said}");
    let flows = Reader::open(&store).unwrap().flows(&FlowSelection::default()).unwrap();
    assert_eq!(flows.packets, 2);
    assert!(!stderr(&bench.replay(&[], &file)).contains("stay"), "a temporary store does not stay");
}

#[test]
fn a_capture_without_frames_is_none_the_less_one() {
    let bench = Bench::new();
    let found = document(&bench.pipe(&["--json"], capture(0)));
    let empty =
        serde_json::json!({"file": "-", "frames": 0, "non_ip": 0, "malformed": 0, "outer": [], "inner": []});
    assert_eq!(found, empty);
    assert!(stdout(&bench.pipe(&[], capture(0))).starts_with("standard input: 0 frames\n"));
}

#[test]
fn exit_codes_and_one_sentence_each() {
    let bench = Bench::new();
    let good = bench.file("good.pcap", &capture(2));
    let mut packed = gzip(&capture(2000));
    // Its checksum.
    let end = packed.len();
    packed[end - 8] ^= 1;
    let held = bench.path("held");
    let lock = netamsd::sys::lock_state(&held).unwrap();
    let in_the_way = bench.file("in-the-way", b"");
    let newer = bench.path("newer");
    fs::create_dir(&newer).unwrap();
    bench.file("newer/netams.db", b"this is no database, and long enough for SQLite to see that");
    let config = bench.file("bad.toml", b"nonsense = 1\n");
    let text = |path: &std::path::PathBuf| path.to_str().unwrap().to_owned();

    let cases = [
        (vec![text(&bench.path("absent.pcap"))], 66, "cannot open"),
        (vec![text(&bench.path("tmp"))], 66, "cannot open"),
        (
            vec![text(&bench.file("text", b"only some text, which is no capture"))],
            65,
            "not a pcap or pcapng file",
        ),
        (vec![text(&bench.file("wlan.pcap", &Order::BOTH[0].pcap_of(false, 127, &[])))], 65, "link type 127"),
        (vec![text(&bench.file("bad.pcap.gz", &packed))], 65, "cannot be read"),
        (vec!["--store".into(), text(&held), text(&good)], 75, "in use"),
        (vec!["--store".into(), text(&in_the_way), text(&good)], 73, "choose another folder by --store"),
        (vec!["--store".into(), text(&newer), text(&good)], 65, "damaged"),
        (vec!["--config".into(), text(&config), text(&good)], 78, "nonsense"),
    ];
    for (arguments, wanted, sentence) in cases {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (capture, options) = arguments.split_last().unwrap();
        let output = bench.replay(options, capture.as_ref());
        let said = stderr(&output);
        assert_eq!(code(&output), wanted, "{arguments:?}: {said}");
        assert!(
            said.starts_with("netamsd: ") && said.contains(sentence) && said.lines().count() == 1,
            "{said}"
        );
        assert!(output.stdout.is_empty());
    }
    drop(lock);
    for usage in [&["--top", "many"][..], &["--no-such-option"]] {
        assert_eq!(code(&bench.replay(usage, &good)), 64);
    }
    let gone = bench.command(&[]).arg(&good).env("TMPDIR", bench.path("absent")).output().unwrap();
    assert_eq!(code(&gone), 73, "{}", stderr(&gone));
}

/// Starts a replay of a pipe and waits until it has made its folder.
fn waiting(bench: &Bench, arguments: &[&str]) -> Child {
    let mut command = bench.command(arguments);
    let command = command.arg("-").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("run netamsd");
    child.stdin.as_mut().unwrap().write_all(&capture(3)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while fs::read_dir(bench.path("tmp")).unwrap().next().is_none() {
        assert!(Instant::now() < deadline, "the replay has begun");
        thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn a_signal_ends_it_while_it_waits_for_more() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let bench = Bench::new();
        let mut child = waiting(&bench, &["--json"]);
        // Held open: what ends it is the signal.
        let stdin = child.stdin.take();
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(code(&output), 130, "{signal}");
        let said = stderr(&output);
        assert!(said.starts_with("netamsd: interrupted") && said.lines().count() == 1, "{said}");
        assert!(output.stdout.is_empty());
        bench.assert_nothing_left();
        drop(stdin);
    }
}

#[test]
fn a_signal_ends_it_while_nobody_writes_to_a_named_pipe() {
    let bench = Bench::new();
    let pipe = bench.path("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut command = bench.command(&["--json"]);
    let child = command.arg(&pipe).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Once there is a reader it has asked for signals.
    let deadline = Instant::now() + Duration::from_secs(20);
    let flags = nix::fcntl::OFlag::O_WRONLY | nix::fcntl::OFlag::O_NONBLOCK;
    let writer = loop {
        match nix::fcntl::open(&pipe, flags, nix::sys::stat::Mode::empty()) {
            Ok(writer) => break writer,
            Err(e) => assert!(Instant::now() < deadline, "the replay has opened the pipe: {e}"),
        }
        thread::sleep(Duration::from_millis(5));
    };
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((code(&output), stderr(&output).as_str()), (130, "netamsd: interrupted\n"));
    bench.assert_nothing_left();
    drop(writer);
}

#[test]
fn a_reader_that_has_gone_is_an_error() {
    let bench = Bench::new();
    let mut child = waiting(&bench, &["--json"]);
    drop(child.stdout.take());
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 74, "{}", stderr(&output));
    bench.assert_nothing_left();
}
