//! The `netamsd` binary.

fn main() {}
