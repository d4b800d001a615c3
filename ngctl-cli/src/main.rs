//! The `ngctl` binary.

fn main() {}
