//! What must hold for any bytes that come from outside: a check, and inputs to begin with, for each thing that reads them.
//!
//! A check panics when something does not hold. libFuzzer looks for bytes that make it panic, and is guided by which parts of
//! the program each input reaches; `./run` builds and runs that. The test `known_inputs` needs no fuzzer: it gives the checks
//! their seeds and the inputs of `regressions/`, each of which once made a check fail.

#![forbid(unsafe_code)]

pub mod capture;
mod capture_file;
pub mod config;
pub mod control;
pub mod packet;

/// Something that reads bytes from outside.
pub struct Target {
    /// Name of its program, and of its folder in `regressions/`.
    pub name: &'static str,
    /// Panics when something does not hold for these bytes.
    pub check: fn(&[u8]),
    /// Inputs that are as they should be.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: [Target; 4] = [
    Target { name: "packet", check: packet::check, seeds: packet::seeds },
    Target { name: "capture", check: capture::check, seeds: capture::seeds },
    Target { name: "control", check: control::check, seeds: control::seeds },
    Target { name: "config", check: config::check, seeds: config::seeds },
];
