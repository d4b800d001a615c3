//! The `netams-bench` binary.

fn main() {}
