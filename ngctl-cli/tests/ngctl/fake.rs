//! A daemon that gives prepared answers, on a socket of its own.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;

use netams_proto::{
    COOKIE, Error, Event, Flow, Flows, Greeting, Hello, Hook, InOut, Info, Ledger, Node, Request, Response,
    UnitTotals, Units, VERSION, Welcome, frame,
};
use tempfile::TempDir;

/// 2026-11-30 14:00:00 in Berlin.
pub const NOON: i64 = 1_796_043_600_000;

/// A running fake daemon; its thread ends with the test process.
pub struct FakeDaemon {
    folder: TempDir,
    asked: Arc<Mutex<Vec<Request>>>,
}

impl FakeDaemon {
    /// Welcomes each client and answers from `answer`.
    pub fn start(answer: fn(Request) -> Response) -> Self {
        Self::greeting(Greeting::Welcome(welcome()), answer)
    }

    /// Greets each client with `greeting`.
    pub fn greeting(greeting: Greeting, answer: fn(Request) -> Response) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let listener = UnixListener::bind(folder.path().join("sock")).unwrap();
        let record = asked.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let (record, greeting) = (record.clone(), greeting.clone());
                thread::spawn(move || serve(client.unwrap(), &greeting, answer, &record));
            }
        });
        Self { folder, asked }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("sock")
    }

    /// The requests since the last call.
    pub fn asked(&self) -> Vec<Request> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    pub fn ngctl(&self, args: &[&str]) -> Output {
        ngctl(&self.socket(), args).output().unwrap()
    }
}

/// `ngctl` for this socket, undisturbed by the environment of the test.
pub fn ngctl(socket: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ngctl"));
    command.args(args).env("NETAMS_SOCKET", socket).env_remove("COLUMNS").env_remove("NO_COLOR");
    command
}

pub fn welcome() -> Welcome {
    Welcome { cookie: COOKIE, version: VERSION, timezone: "Europe/Berlin".into() }
}

fn serve(
    mut client: UnixStream,
    greeting: &Greeting,
    answer: fn(Request) -> Response,
    record: &Mutex<Vec<Request>>,
) {
    if matches!(greeting, Greeting::Welcome(_)) {
        frame::read::<Hello>(&mut client, frame::MAX_REQUEST).unwrap();
    }
    frame::write(&mut client, greeting).unwrap();
    while let Ok(request) = frame::read::<Request>(&mut client, frame::MAX_REQUEST) {
        record.lock().unwrap().push(request.clone());
        // The client may have gone without waiting.
        let _ = frame::write(&mut client, &answer(request));
    }
}

/// What a small gateway would say.
pub fn gateway(request: Request) -> Response {
    match request {
        Request::Node => Response::Node(node()),
        Request::Info => Response::Info(Info {
            id: 0x3c5,
            packets_in: 85515,
            packets_out: 169_244,
            mode: 2,
            debug: 1,
            active_flows: 4,
            total_flows: 4,
            default_policy: 2,
        }),
        Request::Ledger => Response::Ledger(ledger()),
        Request::Flows(query) if query.unit.as_deref() == Some("nobody") => {
            Response::Error(Error::Invalid("no unit `nobody`; `ngctl units` shows the names".into()))
        }
        Request::Flows(query) => {
            let mut answer = flows();
            answer.flows.truncate(query.top.unwrap_or(u32::MAX) as usize);
            Response::Flows(answer)
        }
        Request::Units => Response::Units(units()),
        Request::Events(top) => Response::Events(events().into_iter().take(top as usize).collect()),
    }
}

fn node() -> Node {
    let hook = |interface: &str, ifindex, direction: &str, program: &str, position| Hook {
        interface: interface.into(),
        ifindex,
        direction: direction.into(),
        attach: "tcx".into(),
        program_id: 41 + ifindex,
        program: program.into(),
        position,
        programs: 2,
        since_ms: NOON,
    };
    Node {
        name: "netams".into(),
        kind: "netams".into(),
        id: 0x3c5,
        version: "0.1.0".into(),
        started_ms: NOON,
        hooks: vec![
            hook("eth0", 2, "egress", "netams_egress", 1),
            hook("eth0", 2, "ingress", "netams_ingress", 2),
        ],
    }
}

fn ledger() -> Ledger {
    Ledger {
        source: "kernel".into(),
        packets_in: 85515,
        packets_out: 169_244,
        already_counted: 1000,
        seen: 253_759,
        flow_packets: 253_700,
        flow_bytes: 1_258_291,
        overflow_packets: 9,
        overflow_bytes: 900,
        non_ip: 40,
        malformed: 10,
        commits: 12,
        last_commit_ms: NOON,
        ..Ledger::default()
    }
}

fn flows() -> Flows {
    let flow = |src: &str, sport, dst: &str, dport, proto, packets, bytes| Flow {
        version: if src.contains(':') { 6 } else { 4 },
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        proto,
        sport,
        dport,
        vlan: 0,
        vlan_inner: 0,
        fragment: false,
        first_ms: NOON - 60_000,
        last_ms: NOON,
        packets,
        bytes,
    };
    let tagged = Flow { vlan: 10, vlan_inner: 20, ..flow("10.0.0.7", 0, "10.0.0.8", 0, 47, 3, 300) };
    let fragment = Flow { fragment: true, ..flow("10.0.0.7", 0, "10.0.0.8", 0, 17, 2, 200) };
    Flows {
        flows: vec![
            flow("192.0.2.10", 443, "198.51.100.7", 50123, 6, 169_244, 1_258_291),
            flow("2001:db8:aaaa:bbbb:cccc:dddd:eeee:1", 53, "2001:db8::2", 40000, 17, 12, 1500),
            tagged,
            fragment,
            flow("10.0.0.1", 0, "10.0.0.2", 8 * 256, 1, 1, 84),
        ],
        matched: 5,
        packets: 169_262,
        bytes: 1_260_375,
        stale: None,
    }
}

fn units() -> Units {
    let used = |n| InOut { in_packets: n, in_bytes: n * 1000, out_packets: 2 * n, out_bytes: 2 * n * 1000 };
    let unit = |name: &str, kind: &str, n| UnitTotals {
        name: name.into(),
        kind: kind.into(),
        today: used(n),
        month: used(10 * n),
        total: used(100 * n),
    };
    Units { units: vec![unit("server", "host", 5), unit("all, and more", "group", 7)], stale: None }
}

fn events() -> Vec<Event> {
    let event = |kind: &str, detail: &str, missed| Event {
        time_ms: NOON,
        kind: kind.into(),
        detail: detail.into(),
        missed,
    };
    vec![
        event("hook_replaced", "eth0 ingress: another program took our place; attached again", 17),
        event("start", "netamsd 0.1.0 started", 0),
    ]
}
