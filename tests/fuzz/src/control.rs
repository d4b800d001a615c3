//! [`netams_proto`]: whoever may open the control socket, and whoever answers on it, can send any bytes.
//!
//! The first byte of an input says what the others are.

use std::io::ErrorKind;

use netams_proto::frame::{self, MAX_REQUEST, MAX_RESPONSE};
use netams_proto::{
    COOKIE, Error, Event, Flow, FlowQuery, FlowSort, Flows, Greeting, Hello, Hook, Info, Layer, Ledger,
    Ledgers, NfqueueStatus, Node, Queue, Request, Response, Rule, Rules, SourceKind, SourceStatus, Tunnel,
    UnitTotals, Units, VERSION, Verdict, Welcome,
};
use serde::{Serialize, de::DeserializeOwned};

/// What a client says on one connection; bodies of single messages.
const CONVERSATION: u8 = 0;
/// The bodies of single messages.
const HELLO: u8 = 1;
const GREETING: u8 = 2;
const REQUEST: u8 = 3;
const RESPONSE: u8 = 4;

/// What can be decoded is the same after it was encoded again, and everything else is refused.
pub fn check(data: &[u8]) {
    let Some((&kind, bytes)) = data.split_first() else { return };
    match kind {
        CONVERSATION => converse(bytes),
        HELLO => survives::<Hello>(bytes),
        GREETING => survives::<Greeting>(bytes),
        REQUEST => survives::<Request>(bytes),
        RESPONSE => survives::<Response>(bytes),
        _ => {}
    }
}

fn survives<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(body: &[u8]) {
    let Ok(message) = frame::decode::<T>(body) else { return };
    let bytes = frame::encode(&message).expect("what was decoded can be encoded");
    let again: T = frame::read(&mut &bytes[..], MAX_RESPONSE).expect("what was encoded can be decoded");
    assert_eq!(again, message);
    assert_eq!(frame::encode(&again).expect("as before"), bytes);
}

/// Reading ends, and what was read is what the client's bytes are up to there.
fn converse(mut bytes: &[u8]) {
    if read::<Hello>(&mut bytes) {
        while read::<Request>(&mut bytes) {}
    }
}

/// Whether there is such a message; it takes its own bytes and no others.
fn read<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &mut &[u8]) -> bool {
    let before = *bytes;
    match frame::read::<T>(bytes, MAX_REQUEST) {
        Ok(message) => {
            let (len, body) = before.split_first_chunk().expect("a length");
            let body = &body[..u32::from_le_bytes(*len) as usize];
            assert_eq!(before.len(), 4 + body.len() + bytes.len());
            assert_eq!(frame::decode::<T>(body).expect("the body of the frame"), message);
            survives::<T>(body);
            true
        }
        Err(e) => {
            assert!(matches!(e.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof), "{e}");
            false
        }
    }
}

/// Every message, and a conversation of all requests.
pub fn seeds() -> Vec<Vec<u8>> {
    let hello = Hello { cookie: COOKIE, version: VERSION };
    let mut conversation = framed(&hello);
    let mut seeds = vec![body(HELLO, &hello)];
    seeds.extend(greetings().iter().map(|greeting| body(GREETING, greeting)));
    for request in requests() {
        conversation.extend(framed(&request));
        seeds.push(body(REQUEST, &request));
    }
    seeds.extend(responses().iter().map(|response| body(RESPONSE, response)));
    seeds.push([vec![CONVERSATION], conversation].concat());
    seeds
}

fn framed(message: &impl Serialize) -> Vec<u8> {
    frame::encode(message).expect("a message")
}

fn body(kind: u8, message: &impl Serialize) -> Vec<u8> {
    [&[kind], &framed(message)[4..]].concat()
}

fn greetings() -> Vec<Greeting> {
    let welcome = Welcome { cookie: COOKIE, version: VERSION, timezone: "Europe/Berlin".into() };
    let errors = [
        Error::NotNetams,
        Error::Version { daemon: 2, client: 1 },
        Error::Busy(16),
        Error::Denied("by somebody".into()),
        Error::Closing,
    ];
    errors.into_iter().map(Greeting::Refused).chain([Greeting::Welcome(welcome)]).collect()
}

fn requests() -> Vec<Request> {
    let query = FlowQuery {
        unit: Some("lan".into()),
        src: Some([192, 0, 2, 0].into()).map(|address: std::net::IpAddr| address.into()),
        dst: "2001:db8::/32".parse().ok(),
        proto: Some(6),
        port: Some(443),
        since_ms: Some(1_700_000_000_000),
        layer: Layer::Inner,
        sort: FlowSort::Last,
        top: Some(10),
    };
    let mut requests = vec![
        Request::Node,
        Request::Info,
        Request::Ledger,
        Request::Flows(query),
        Request::Flows(FlowQuery::default()),
        Request::Units,
        Request::Events(20),
        Request::Source,
        Request::Rules,
    ];
    requests.extend(SourceKind::ALL.map(Request::SetSource));
    requests.extend(Verdict::ALL.map(Request::SetDefaultPolicy));
    requests
}

fn responses() -> Vec<Response> {
    let hook = Hook {
        interface: "eth0".into(),
        ifindex: 2,
        direction: "ingress".into(),
        attach: "tcx".into(),
        program_id: 7,
        program: "netams_in".into(),
        position: 1,
        programs: 2,
        since_ms: 1_700_000_000_000,
    };
    let flow = Flow {
        version: 4,
        src: [192, 0, 2, 1].into(),
        dst: [198, 51, 100, 7].into(),
        proto: 6,
        sport: 49152,
        dport: 443,
        vlan: 5,
        vlan_inner: 0,
        tunnel: Some(Tunnel { kind: "vxlan".into(), key: 7 }),
        fragment: false,
        estimated: true,
        first_ms: 1_700_000_000_000,
        last_ms: 1_700_000_000_500,
        packets: 10,
        bytes: 5000,
    };
    let unit = UnitTotals {
        name: "lan".into(),
        kind: "net".into(),
        today: Default::default(),
        month: Default::default(),
        total: Default::default(),
        dropped: Default::default(),
        blocked: false,
        over_quota: true,
    };
    let status = SourceStatus {
        source: SourceKind::Nfqueue,
        since_ms: 1_700_000_000_000,
        switches: 1,
        mode: "tee".into(),
        default_policy: Verdict::Pass,
        packets_per_s: 1234.5,
        bits_per_s: 9_876_543.25,
        nfqueue: Some(NfqueueStatus { queues: vec![Queue::default()], ..NfqueueStatus::default() }),
    };
    let node = Node {
        name: "netams".into(),
        kind: "netams".into(),
        id: 0x45e_7582,
        version: "0.1.0".into(),
        started_ms: 1_700_000_000_000,
        hooks: vec![hook],
    };
    let info = Info {
        id: 1,
        packets_in: 2,
        packets_out: 3,
        mode: 1,
        debug: 0,
        active_flows: 8,
        total_flows: 9,
        default_policy: 2,
    };
    let event =
        Event { time_ms: 1_700_000_000_000, kind: "hook_replaced".into(), detail: "eth0".into(), missed: 3 };
    vec![
        Response::Node(node),
        Response::Info(info),
        Response::Ledger(Ledgers { ledgers: vec![Ledger::default()], ..Ledgers::default() }),
        Response::Flows(Flows { flows: vec![flow], ..Flows::default() }),
        Response::Units(Units { units: vec![unit], ..Units::default() }),
        Response::Events(vec![event]),
        Response::Source(status),
        Response::Rules(Rules { backend: "nft".into(), rules: vec![Rule::default()] }),
        Response::Error(Error::Failed("no such interface".into())),
        Response::Error(Error::Store("disk full".into())),
    ]
}
