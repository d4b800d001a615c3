//! A daemon that gives prepared answers, on a socket of its own.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;

use netams_proto::{COOKIE, Greeting, Hello, Request, Response, VERSION, Welcome, frame};
use tempfile::TempDir;

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
