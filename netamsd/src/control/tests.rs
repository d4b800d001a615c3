//! The server over a real socket: manners towards good, bad and too many clients.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as Client;
use std::path::{Path, PathBuf};

use netams_proto::{COOKIE, FlowQuery, Flows, Hello, Ledgers, Units, VERSION, Welcome};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;

const ZONE: &str = "Europe/Berlin";

fn config(folder: &TempDir, max_connections: u32) -> ControlConfig {
    ControlConfig {
        socket: folder.path().join("run/control.sock"),
        group: "netams-no-such-group".into(),
        others_may_read: false,
        max_connections,
        timezone: ZONE.into(),
    }
}

/// A server that runs until it is stopped.
struct Running {
    folder: TempDir,
    socket: PathBuf,
    stop: oneshot::Sender<()>,
    server: JoinHandle<Result<(), ControlError>>,
}

impl Running {
    fn start(max_connections: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = config(&folder, max_connections);
        let socket = config.socket.clone();
        let (stop, stopped) = oneshot::channel();
        let server = Server::bind(config).unwrap();
        let shutdown = async { stopped.await.unwrap() };
        Self { folder, socket, stop, server: tokio::spawn(server.run(answer, shutdown)) }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.server.await.unwrap().unwrap();
        assert!(!self.socket.exists(), "the socket file stays behind");
        drop(self.folder);
    }

    /// Runs a blocking client against the server.
    async fn client<T: Send + 'static>(&self, act: impl FnOnce(&Path) -> T + Send + 'static) -> T {
        let socket = self.socket.clone();
        tokio::task::spawn_blocking(move || act(&socket)).await.unwrap()
    }
}

async fn answer(request: Request) -> Response {
    match request {
        Request::Ledger => Response::Ledger(Ledgers { started_ms: 7, ..Ledgers::default() }),
        Request::Units => panic!("a handler that fails"),
        Request::Flows(query) => {
            Response::Flows(Flows { matched: query.top.unwrap_or(0).into(), ..Flows::default() })
        }
        _ => Response::Units(Units::default()),
    }
}

fn greet(socket: &Path) -> (Client, Greeting) {
    let mut client = Client::connect(socket).unwrap();
    frame::write(&mut client, &Hello { cookie: COOKIE, version: VERSION }).unwrap();
    let greeting = frame::read(&mut client, frame::MAX_RESPONSE).unwrap();
    (client, greeting)
}

fn ask(client: &mut Client, request: &Request) -> io::Result<Response> {
    frame::write(client, request)?;
    frame::read(client, frame::MAX_RESPONSE)
}

fn ledger_works(socket: &Path) {
    let (mut client, _) = greet(socket);
    let expected = Response::Ledger(Ledgers { started_ms: 7, ..Ledgers::default() });
    assert_eq!(ask(&mut client, &Request::Ledger).unwrap(), expected);
}

/// What the server says to raw bytes instead of a hello, and that it closes then.
fn greeting_to(socket: &Path, bytes: &[u8]) -> Greeting {
    let mut client = Client::connect(socket).unwrap();
    client.write_all(bytes).unwrap();
    let greeting = frame::read(&mut client, frame::MAX_RESPONSE).unwrap();
    assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)), "the connection stays open");
    greeting
}

#[tokio::test]
async fn requests_are_answered_in_turn() {
    let server = Running::start(4);
    server
        .client(|socket| {
            let (mut client, greeting) = greet(socket);
            let welcome = Welcome { cookie: COOKIE, version: VERSION, timezone: ZONE.into() };
            assert_eq!(greeting, Greeting::Welcome(welcome));
            for top in 1..4 {
                let query = FlowQuery { top: Some(top), ..FlowQuery::default() };
                let Response::Flows(flows) = ask(&mut client, &Request::Flows(query)).unwrap() else {
                    panic!()
                };
                assert_eq!(flows.matched, u64::from(top));
            }
        })
        .await;
    server.stop().await;
}

#[tokio::test]
async fn strangers_to_the_protocol_are_told_so() {
    let server = Running::start(4);
    server
        .client(|socket| {
            let cookie = frame::encode(&Hello { cookie: 1, version: VERSION }).unwrap();
            let not_netams: [&[u8]; 4] =
                [b"GET / HTTP/1.1\r\n\r\n", &[0; 64], &[4, 0, 0, 0, b'{', b'"', 0xff, 0], &cookie];
            for bytes in not_netams {
                assert_eq!(greeting_to(socket, bytes), Greeting::Refused(Error::NotNetams), "{bytes:?}");
            }
            let old = frame::encode(&Hello { cookie: COOKIE, version: VERSION + 1 }).unwrap();
            let mismatch = Error::Version { daemon: VERSION, client: VERSION + 1 };
            assert_eq!(greeting_to(socket, &old), Greeting::Refused(mismatch));
            ledger_works(socket);
        })
        .await;
    server.stop().await;
}

#[tokio::test]
async fn a_broken_request_is_named_and_ends_its_connection() {
    let server = Running::start(4);
    server
        .client(|socket| {
            let oversize = (frame::MAX_REQUEST + 1).to_le_bytes();
            let unknown = frame::encode(&"no such request").unwrap();
            for (bytes, part) in [(&oversize[..], "the limit is 65536"), (&unknown[..], "not a request")] {
                let (mut client, _) = greet(socket);
                client.write_all(bytes).unwrap();
                let response = frame::read(&mut client, frame::MAX_RESPONSE).unwrap();
                let Response::Error(Error::Invalid(why)) = response else { panic!("{response:?}") };
                assert!(why.contains(part), "{why}");
                assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
            }
            ledger_works(socket);
        })
        .await;
    server.stop().await;
}

#[tokio::test]
async fn silent_and_cut_clients_block_nobody() {
    let server = Running::start(4);
    server
        .client(|socket| {
            let _silent = Client::connect(socket).unwrap();
            let mut half = Client::connect(socket).unwrap();
            half.write_all(&[9, 0]).unwrap();
            ledger_works(socket);
        })
        .await;
    server.stop().await;
}

#[tokio::test]
async fn one_connection_too_many_is_refused_until_one_ends() {
    let server = Running::start(2);
    server
        .client(|socket| {
            let (first, _) = greet(socket);
            let (_second, greeting) = greet(socket);
            assert!(matches!(greeting, Greeting::Welcome(_)));
            let mut third = Client::connect(socket).unwrap();
            let refused: Greeting = frame::read(&mut third, frame::MAX_RESPONSE).unwrap();
            assert_eq!(refused, Greeting::Refused(Error::Busy(2)));
            drop(first);
            let deadline = std::time::Instant::now() + Duration::from_secs(10);
            loop {
                let mut next = Client::connect(socket).unwrap();
                // Refused before it is read, so this write may meet a closed socket.
                let _ = frame::write(&mut next, &Hello { cookie: COOKIE, version: VERSION });
                match frame::read(&mut next, frame::MAX_RESPONSE).unwrap() {
                    Greeting::Welcome(_) => break,
                    Greeting::Refused(error) => assert_eq!(error, Error::Busy(2)),
                }
                assert!(
                    std::time::Instant::now() < deadline,
                    "the slot of a closed connection is not given back"
                );
            }
        })
        .await;
    server.stop().await;
}

#[tokio::test]
async fn a_panicking_handler_costs_one_connection() {
    let server = Running::start(4);
    server
        .client(|socket| {
            let (mut client, _) = greet(socket);
            assert!(ask(&mut client, &Request::Units).is_err());
            ledger_works(socket);
        })
        .await;
    server.stop().await;
}

#[tokio::test]
async fn shutdown_closes_idle_connections() {
    let server = Running::start(4);
    let (mut client, _) = server.client(greet).await;
    server.stop().await;
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_dead_socket_is_replaced_and_a_living_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder, 4);
    std::fs::create_dir_all(config.socket.parent().unwrap()).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&config.socket).unwrap());
    assert!(config.socket.exists());

    let server = Server::bind(config.clone()).unwrap();
    let again = Server::bind(config.clone()).unwrap_err();
    assert!(matches!(again, ControlError::InUse { .. }), "{again}");
    drop(server);
    assert!(!config.socket.exists());

    std::fs::write(&config.socket, "kept").unwrap();
    let other = Server::bind(config.clone()).unwrap_err();
    assert!(matches!(other, ControlError::NotASocket { .. }), "{other}");
    assert_eq!(std::fs::read_to_string(&config.socket).unwrap(), "kept");
}

#[test]
fn the_mode_follows_the_configuration() {
    for (others_may_read, expected) in [(false, 0o660), (true, 0o666)] {
        let folder = tempfile::tempdir().unwrap();
        let config = ControlConfig { others_may_read, ..config(&folder, 4) };
        let _server = Server::bind(config.clone()).unwrap();
        assert_eq!(std::fs::metadata(&config.socket).unwrap().permissions().mode() & 0o777, expected);
    }
}

#[test]
fn a_quarter_of_the_connections_is_kept_for_administrators() {
    for (max, full, read) in [(64, 64, 48), (8, 8, 6), (2, 2, 2), (1, 1, 1)] {
        assert_eq!((limit(max, Access::Full), limit(max, Access::Read)), (full, read));
    }
}
