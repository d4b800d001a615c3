//! The configuration file, for libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netams_fuzz::config::check(data));
