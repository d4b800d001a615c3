//! Messages of the control socket, for libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netams_fuzz::control::check(data));
