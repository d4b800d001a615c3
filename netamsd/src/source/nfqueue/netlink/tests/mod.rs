//! The parser against hostile bytes, and a real queue in a network namespace of each test's own.

mod live;
mod net;
mod parse;
mod refused;
