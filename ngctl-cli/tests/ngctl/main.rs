//! The program as its users see it, against a daemon that gives prepared answers.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is how a test says what went wrong")]

mod behaviour;
mod fake;
mod gateway;
mod import;
mod transcripts;
