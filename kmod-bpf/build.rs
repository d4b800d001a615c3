//! Compiles the kernel programs: `src/bpf/*.bpf.c` -> `$OUT_DIR/*.o`, by clang for the BPF target.

use std::{env, path::PathBuf, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=src/bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let out = PathBuf::from(env::var("OUT_DIR").unwrap_or_default());
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    for program in ["netams", "variants", "answer", "verdicts"] {
        let status = Command::new(&clang)
            .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3"])
            // Debian keeps asm/types.h in the architecture's folder, which the BPF target does not search.
            .arg(format!("-I/usr/include/{arch}-linux-gnu"))
            .arg("-c")
            .arg(format!("src/bpf/{program}.bpf.c"))
            .arg("-o")
            .arg(out.join(format!("{program}.o")))
            .status();
        match status {
            Ok(status) if status.success() => {}
            Ok(_) => fail(&format!(
                "{clang} could not compile src/bpf/{program}.bpf.c; its headers come with `apt-get install libbpf-dev linux-libc-dev`"
            )),
            Err(e) => fail(&format!(
                "cannot run {clang} ({e}), which compiles the kernel programs; install it with `apt-get install clang`, or name it in CLANG"
            )),
        }
    }
}

fn fail(why: &str) -> ! {
    println!("cargo::error={why}");
    std::process::exit(1)
}
