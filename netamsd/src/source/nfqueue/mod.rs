//! The source that counts packets itself: netfilter hands them to the daemon's queues and waits for verdicts.

pub mod rules;
