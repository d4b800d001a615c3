//! The source in user space.

pub mod cache;
mod estimate;
mod fragments;
mod journal;
mod prefixes;
pub mod shared;
#[cfg(test)]
mod tests;
