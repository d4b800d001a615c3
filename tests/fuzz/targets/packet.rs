//! The header parser of user space, for libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netams_fuzz::packet::check(data));
