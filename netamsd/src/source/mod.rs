//! Where counts come from. Each source is a folder and yields [`crate::flow::Batch`]es; none knows units or the store.

pub mod kernel;
pub mod nfqueue;
