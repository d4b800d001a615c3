//! Transcripts of every command, in `cmd/`: what is typed, what is shown, and the exit code.

use super::fake::{FakeDaemon, gateway};

#[test]
fn every_command_shows_what_its_transcript_says() {
    let daemon = FakeDaemon::start(gateway);
    trycmd::TestCases::new()
        .env("NETAMS_SOCKET", daemon.socket().to_str().unwrap())
        .case("tests/cmd/*.trycmd")
        .run();
}
