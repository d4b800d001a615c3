//! The replay of a capture, for libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netams_fuzz::capture::check(data));
