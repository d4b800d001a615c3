//! `netamsd replay` from outside: real captures against their truth, captures made up here, stores, units, exit codes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod formats;
mod made;
mod program;
mod stores;
mod truth;

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
};

use serde_json::Value;
use tempfile::TempDir;

/// A folder for files, and for the temporary folders of replays.
struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("tmp")).expect("a folder");
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file.
    fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        fs::write(self.path(name), content).expect("write a file");
        self.path(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netamsd"));
        command.arg("replay").args(arguments).env("TMPDIR", self.path("tmp"));
        command
    }

    /// Runs `netamsd replay` over a file. Its temporary folder is gone afterwards.
    fn replay(&self, arguments: &[&str], capture: &Path) -> Output {
        let output = self.command(arguments).arg(capture).stdin(Stdio::null()).output().expect("run netamsd");
        self.assert_nothing_left();
        output
    }

    /// Runs `netamsd replay -` with these bytes piped in.
    fn pipe(&self, arguments: &[&str], capture: Vec<u8>) -> Output {
        let mut command = self.command(arguments);
        command.arg("-").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("run netamsd");
        let mut stdin = child.stdin.take().expect("a pipe");
        // It need not read to the end.
        let writer = thread::spawn(move || drop(stdin.write_all(&capture)));
        let output = child.wait_with_output().expect("wait for netamsd");
        writer.join().expect("the writer");
        self.assert_nothing_left();
        output
    }

    fn assert_nothing_left(&self) {
        let left: Vec<_> = fs::read_dir(self.path("tmp")).expect("a folder").collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("no signal")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

/// Standard output, after a run that has nothing to say on standard error.
fn stdout(output: &Output) -> String {
    assert_eq!((code(output), stderr(output).as_str()), (0, ""));
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn document(output: &Output) -> Value {
    serde_json::from_str(&stdout(output)).expect("JSON")
}
