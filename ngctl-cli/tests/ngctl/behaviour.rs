//! What transcripts cannot show: questions as they arrive at the daemon, refusals, files, pipes and broken pipes.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Output, Stdio};

use super::fake::{FakeDaemon, ngctl, welcome};
use super::gateway::{NOON, gateway};
use netams_proto::{
    Error, FlowQuery, FlowSort, Flows, Greeting, Layer, Ledgers, Request, Response, Rules, SourceKind,
    SourceStatus, Units, VERSION, Verdict, Welcome,
};

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn options_arrive_as_a_query() {
    let daemon = FakeDaemon::start(gateway);
    let all = "flows --top 7 --unit server --src 10.0.0.0/8 --dst ::ffff:192.0.2.1 --proto udp --port 53 --layer inner --sort last";
    let mut words: Vec<&str> = all.split(' ').collect();
    words.extend(["--since", "2026-11-30 14:00"]);
    assert!(daemon.ngctl(&words).status.success());
    let query = FlowQuery {
        unit: Some("server".into()),
        src: Some("10.0.0.0/8".parse().unwrap()),
        dst: Some("192.0.2.1/32".parse().unwrap()),
        proto: Some(17),
        port: Some(53),
        since_ms: Some(NOON),
        layer: Layer::Inner,
        sort: FlowSort::Last,
        top: Some(7),
    };
    assert_eq!(daemon.asked(), [Request::Flows(query)]);

    assert!(daemon.ngctl(&["flows"]).status.success());
    assert_eq!(daemon.asked(), [Request::Flows(FlowQuery::default())]);
    assert!(daemon.ngctl(&["events"]).status.success());
    assert_eq!(daemon.asked(), [Request::Events(50)]);
}

#[test]
fn messages_set_what_their_word_says_and_ask_without_one() {
    let daemon = FakeDaemon::start(gateway);
    let cases = [
        ("source", Request::Source),
        ("source kernel", Request::SetSource(SourceKind::Kernel)),
        ("source nfqueue", Request::SetSource(SourceKind::Nfqueue)),
        ("source off", Request::SetSource(SourceKind::Off)),
        ("default_policy", Request::Source),
        ("default_policy pass", Request::SetDefaultPolicy(Verdict::Pass)),
        ("default_policy drop", Request::SetDefaultPolicy(Verdict::Drop)),
    ];
    for (message, request) in cases {
        let words: Vec<&str> = ["msg", "netams:"].into_iter().chain(message.split(' ')).collect();
        assert!(daemon.ngctl(&words).status.success(), "{message}");
        assert_eq!(daemon.asked(), [request], "{message}");
    }
    for message in ["source drop", "source kern", "default_policy off", "info off", "ledger kernel"] {
        let words: Vec<&str> = ["msg", "netams:"].into_iter().chain(message.split(' ')).collect();
        assert_eq!(daemon.ngctl(&words).status.code(), Some(64), "{message}");
        assert_eq!(daemon.asked(), [], "{message}");
    }
}

#[test]
fn the_socket_may_be_named_before_or_after_the_command() {
    let daemon = FakeDaemon::start(gateway);
    let socket = daemon.socket();
    let socket = socket.to_str().unwrap();
    for words in [["--socket", socket, "list"], ["list", "--socket", socket]] {
        let output = ngctl(Path::new("/nonexistent"), &words).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }
}

#[test]
fn json_is_the_answer_itself() {
    let daemon = FakeDaemon::start(gateway);
    let shown: Flows = serde_json::from_str(&stdout(&daemon.ngctl(&["flows", "--json"]))).unwrap();
    assert_eq!(Response::Flows(shown), gateway(Request::Flows(FlowQuery::default())));
    let shown: Units = serde_json::from_str(&stdout(&daemon.ngctl(&["units", "--json"]))).unwrap();
    assert_eq!(Response::Units(shown), gateway(Request::Units));
    let shown: SourceStatus = serde_json::from_str(&stdout(&daemon.ngctl(&["source", "--json"]))).unwrap();
    assert_eq!(Response::Source(shown), gateway(Request::Source));
    let shown: Rules = serde_json::from_str(&stdout(&daemon.ngctl(&["rules", "--json"]))).unwrap();
    assert_eq!(Response::Rules(shown), gateway(Request::Rules));
    let shown: Ledgers =
        serde_json::from_str(&stdout(&daemon.ngctl(&["msg", "netams:", "ledger", "--json"]))).unwrap();
    assert_eq!(Response::Ledger(shown), gateway(Request::Ledger));
}

#[test]
fn each_refusal_has_its_exit_code_and_sentence() {
    let refusals = [
        (Error::NotNetams, 76, "this is not the netams protocol"),
        (
            Error::Version { daemon: 9, client: VERSION },
            76,
            "daemon speaks protocol 9, client 4; install the same",
        ),
        (Error::Busy(64), 75, "limit of 64 connections; try again"),
        (Error::Denied("uid 7 \x1b[31mis nobody".into()), 77, "permission denied: uid 7 [31mis nobody"),
        (Error::Closing, 75, "shutting down"),
    ];
    for (error, code, sentence) in refusals {
        let daemon = FakeDaemon::greeting(Greeting::Refused(error), gateway);
        let output = daemon.ngctl(&["list"]);
        assert_eq!(output.status.code(), Some(code), "{sentence}");
        let said = stderr(&output);
        assert!(
            said.starts_with("ngctl: ") && said.contains(sentence) && said.lines().count() == 1,
            "{said}"
        );
    }
}

#[test]
fn errors_to_a_question_have_their_exit_codes() {
    type Answer = fn(Request) -> Response;
    let cases: [(Answer, i32, &str); 4] = [
        (|_| Response::Error(Error::Store("disk full".into())), 75, "store: disk full"),
        (|_| Response::Error(Error::Invalid("no such unit".into())), 65, "no such unit"),
        (|_| Response::Error(Error::Failed("no queues".into())), 71, "ngctl: no queues; nothing has changed"),
        (|_| Response::Units(Units::default()), 70, "answered `ledger` with something else"),
    ];
    for (answer, code, sentence) in cases {
        let output = FakeDaemon::start(answer).ngctl(&["ledger"]);
        assert_eq!(output.status.code(), Some(code));
        assert!(stderr(&output).contains(sentence), "{}", stderr(&output));
    }
}

#[test]
fn a_daemon_of_another_version_or_zone_is_named() {
    let newer = Welcome { version: VERSION + 1, ..welcome() };
    let elsewhere = Welcome { timezone: "Mars/Olympus".into(), ..welcome() };
    for (welcome, sentence) in [(newer, "daemon speaks protocol 5"), (elsewhere, "time zone `Mars/Olympus`")]
    {
        let output = FakeDaemon::greeting(Greeting::Welcome(welcome), gateway).ngctl(&["units"]);
        assert_eq!(output.status.code(), Some(76));
        assert!(stderr(&output).contains(sentence), "{}", stderr(&output));
    }
}

#[test]
fn whatever_else_listens_is_not_believed() {
    for (bytes, code) in
        [(&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], 76), (&[2, 0, 0, 0, b'{', b'}'], 76), (&[], 74)]
    {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let other = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            client.read_exact(&mut [0; 4]).unwrap();
            client.write_all(bytes).unwrap();
        });
        let output = ngctl(&socket, &["list"]).output().unwrap();
        other.join().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
    }
}

#[test]
fn a_socket_that_nobody_serves_is_unavailable() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("sock");
    drop(UnixListener::bind(&socket).unwrap());
    let output = ngctl(&socket, &["list"]).output().unwrap();
    assert_eq!(output.status.code(), Some(69));
    assert!(stderr(&output).contains("nobody listens; is it running?"), "{}", stderr(&output));
}

#[test]
fn a_stale_answer_is_shown_with_a_warning() {
    let daemon = FakeDaemon::start(|request| match request {
        Request::Units => {
            Response::Units(Units { stale: Some("database is locked".into()), ..Units::default() })
        }
        Request::Flows(_) => {
            Response::Flows(Flows { stale: Some("database is locked".into()), ..Flows::default() })
        }
        _ => {
            Response::Ledger(Ledgers { store_error: Some("database is locked".into()), ..Ledgers::default() })
        }
    });
    for command in ["units", "flows", "ledger"] {
        let output = daemon.ngctl(&[command]);
        assert!(output.status.success());
        assert!(
            stderr(&output).starts_with("ngctl: warning: ") && stderr(&output).contains("database is locked")
        );
        assert!(!stdout(&output).is_empty());
    }
}

#[test]
fn a_file_is_run_up_to_its_first_failure() {
    let daemon = FakeDaemon::start(gateway);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("commands");
    std::fs::write(&file, "# comment\n\nmsg netams: info # counters\nflows --unit nobody\nlist\n").unwrap();
    let output = daemon.ngctl(&["-f", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(65));
    assert_eq!(
        stderr(&output),
        format!("ngctl: {}:4: no unit `nobody`; `ngctl units` shows the names\n", file.display())
    );
    assert!(stdout(&output).starts_with("Rec'd response"));
    assert!(!stdout(&output).contains("total nodes"), "the line after the failure was run");
}

#[test]
fn a_pipe_is_read_without_a_prompt_until_quit() {
    let daemon = FakeDaemon::start(gateway);
    for (input, code, said) in
        [("list\nquit\nbogus\n", 0, ""), ("li\n'\n", 64, "ngctl: stdin:2: a quotation mark")]
    {
        let mut command = ngctl(&daemon.socket(), &[]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        assert!(stdout(&output).starts_with("There are 1 total nodes:"), "{}", stdout(&output));
        assert!(stderr(&output).starts_with(said));
    }
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let daemon = FakeDaemon::start(|request| {
        let Response::Flows(mut flows) = gateway(request) else { panic!() };
        flows.flows = std::iter::repeat_n(flows.flows[0].clone(), 5000).collect();
        Response::Flows(flows)
    });
    let mut command = ngctl(&daemon.socket(), &["flows"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0; 10]).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}

#[test]
fn a_full_disk_is_an_io_failure() {
    let daemon = FakeDaemon::start(gateway);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = ngctl(&daemon.socket(), &["list"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(74));
    assert!(stderr(&output).contains("cannot write the output"), "{}", stderr(&output));
}

#[test]
fn tables_fit_the_width_they_are_given() {
    let daemon = FakeDaemon::start(gateway);
    let commands = [
        "flows",
        "units",
        "ledger",
        "events",
        "source",
        "rules",
        "msg netams: default_policy",
        "show netams:",
    ];
    for command in commands.map(|command| command.split(' ').collect::<Vec<_>>()) {
        for width in [60, 80, 120] {
            let output =
                ngctl(&daemon.socket(), &command).env("COLUMNS", width.to_string()).output().unwrap();
            for line in stdout(&output).lines().filter(|line| !line.starts_with("  Name:")) {
                assert!(line.chars().count() <= width, "{command:?} at {width}: {line}");
            }
        }
    }
}
