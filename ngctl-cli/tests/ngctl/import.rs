//! `ngctl import`, which needs no daemon: `tests/import/` has a NeTAMS configuration with everything that is read, and what
//! becomes of it. With `NETAMS_BLESS=1` the expected files are written anew.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use super::fake::ngctl;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import")
}

/// Runs it in `folder` with a socket that nobody listens on.
fn import(folder: &Path, words: &[&str]) -> Output {
    let mut command = ngctl(Path::new("/nonexistent/sock"), &["import"]);
    command.current_dir(folder).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn the_sample_becomes_the_expected_configuration_and_report() {
    let output = import(&folder(), &["netams.cfg"]);
    assert_eq!(output.status.code(), Some(1));
    let (config, report) = (text(&output.stdout), text(&output.stderr));
    config.parse::<toml::Table>().unwrap();
    for (name, found) in [("netams.toml", &config), ("report.txt", &report)] {
        let path = folder().join(name);
        if std::env::var_os("NETAMS_BLESS").is_some() {
            fs::write(&path, found).unwrap();
        }
        assert_eq!(*found, fs::read_to_string(&path).unwrap(), "{name}");
    }
}

#[test]
fn a_file_is_overwritten_only_by_force() {
    let dir = tempfile::tempdir().unwrap();
    let whole = "service processor\nrestrict all pass local pass\nunit host name a ip 192.0.2.1\n\
                 service data-source 1\ntype libpcap\nsource eth0\n";
    fs::write(dir.path().join("netams.cfg"), whole).unwrap();
    let run = |words: &[&str]| import(dir.path(), words);

    let output = run(&["netams.cfg", "--output", "new.toml"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!((text(&output.stdout), text(&output.stderr)), (String::new(), String::new()));
    let written = fs::read_to_string(dir.path().join("new.toml")).unwrap();
    assert_eq!(written, text(&run(&["netams.cfg"]).stdout));

    fs::write(dir.path().join("new.toml"), "mine, and longer than what would be written\n".repeat(99))
        .unwrap();
    let output = run(&["netams.cfg", "--output", "new.toml"]);
    assert_eq!(output.status.code(), Some(73));
    assert_eq!(
        text(&output.stderr),
        "ngctl: new.toml exists; name another file, or overwrite it with --force\n"
    );
    assert!(fs::read_to_string(dir.path().join("new.toml")).unwrap().starts_with("mine"));
    assert_eq!(run(&["netams.cfg", "--output", "new.toml", "--force"]).status.code(), Some(0));
    assert_eq!(fs::read_to_string(dir.path().join("new.toml")).unwrap(), written);
    assert_eq!(run(&["netams.cfg", "--output", "nowhere/new.toml"]).status.code(), Some(73));
}

#[test]
fn letters_of_another_encoding_are_named_and_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let koi8 = b"service processor\nunit host name a ip 192.0.2.1 description \"\xf5\xde\xc5\xd4\"\n";
    fs::write(dir.path().join("netams.cfg"), koi8).unwrap();
    let output = import(dir.path(), &["netams.cfg"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("netams.cfg:2: 1 lines are not UTF-8"), "{}", text(&output.stderr));
    text(&output.stdout).parse::<toml::Table>().unwrap();
}
