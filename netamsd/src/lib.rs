//! netamsd: meters a gateway's traffic, charges it to units, keeps it in SQLite and answers `ngctl`.
//!
//! Read this first. A *source* counts packets and yields batches of [`flow`] counts; *policy* says which units they
//! belong to; the *store* commits both in one transaction; *control* answers questions. [`daemon`] joins them.
//!
//! ```text
//! control -> netams-proto        daemon -> control, store, source, policy        source, policy, store -> flow
//!                                                                                source -> packet
//! ```
//!
//! `flow`, `packet` and `policy` do no I/O; only `source::kernel` sees aya, and only sources and [`packet`], which reads the
//! headers of packets that reach user space, see `kmod-bpf`; only `store` sees rusqlite.

pub mod check;
pub mod config;
pub mod control;
pub mod daemon;
pub mod flow;
pub mod packet;
pub mod policy;
pub mod replay;
pub mod source;
pub mod store;
pub mod sys;
