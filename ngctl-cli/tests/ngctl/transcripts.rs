//! Transcripts of every command, in `cmd/`: what is typed, what is shown, and the exit code. Those in `cmd/kernel/` are
//! of a machine without netfilter queues.

use super::fake::FakeDaemon;
use super::gateway::{gateway, kernel_alone};

#[test]
fn every_command_shows_what_its_transcript_says() {
    let folders = [
        ("tests/cmd/*.trycmd", FakeDaemon::start(gateway)),
        ("tests/cmd/kernel/*.trycmd", FakeDaemon::start(kernel_alone)),
    ];
    for (files, daemon) in folders {
        trycmd::TestCases::new().env("NETAMS_SOCKET", daemon.socket().to_str().unwrap()).case(files).run();
    }
}
