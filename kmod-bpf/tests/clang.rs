//! A machine without clang is told what to install.

use std::process::Command;

#[test]
fn a_missing_clang_is_named_in_a_sentence() {
    let folder = std::env::temp_dir().join(format!("kmod-bpf-clang-{}", std::process::id()));
    let output = Command::new(env!("CARGO"))
        .args(["check", "--quiet", "--offline", "--package", "kmod-bpf", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .arg("--target-dir")
        .arg(&folder)
        .env("CLANG", "no-such-clang")
        .output()
        .expect("run cargo");
    std::fs::remove_dir_all(&folder).expect("remove the build folder");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    let expected = "cannot run no-such-clang (No such file or directory (os error 2)), which compiles the kernel programs; \
                    install it with `apt-get install clang`, or name it in CLANG";
    assert!(said.contains(expected), "{said}");
}
