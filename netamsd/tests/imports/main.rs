//! Who may know whom: the arrows between the parts of the workspace, held against its source.
//!
//! Each rule is a line in a table. A path counts wherever it is written, in `use` or in the middle of code, in tests too.

mod paths;

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// Crates, and the only folders or files that may name them.
const CRATES: [(&[&str], &[&str]); 6] = [
    (&["aya"], &["netamsd/src/source/kernel/", "kmod-bpf/", "bench/", "tests/harness/"]),
    // The layout of the tables that every source fills, and of the policies that the kernel evaluates too.
    (
        &["kmod_bpf"],
        &[
            "netamsd/src/source/",
            "netamsd/src/packet/",
            "netamsd/src/policy/",
            "kmod-bpf/",
            "bench/",
            "tests/harness/",
            "tests/fuzz/",
        ],
    ),
    (&["rusqlite"], &["netamsd/src/store/"]),
    (&["tokio"], &["netamsd/src/control/", "netamsd/src/daemon/", "netamsd/src/replay/"]),
    (&["prettytable"], &["ngctl-cli/src/render/", "bench/"]),
    // The live tests know the daemon from outside only.
    (&["netamsd"], &["netamsd/", "bench/", "tests/fuzz/"]),
];

/// Modules of netamsd, and the other ones that they may name. `daemon`, `replay` and `check` join everything.
const MODULES: [(&str, &[&str]); 8] = [
    ("flow", &[]),
    ("packet", &[]),
    ("policy", &["flow"]),
    ("source", &["flow", "packet"]),
    ("store", &["flow"]),
    ("control", &[]),
    ("config", &["policy"]),
    ("sys", &[]),
];

/// Modules without I/O and without a clock of their own.
const PURE: [&str; 3] = ["flow", "packet", "policy"];
/// What these may name of netamsd's dependencies.
const PURE_CRATES: [&str; 6] = ["chrono", "chrono_tz", "ipnet", "rustc_hash", "serde", "thiserror"];
/// What they may not name of the standard library.
const IMPURE_STD: [&str; 11] = [
    "std::env",
    "std::fs",
    "std::io",
    "std::net::TcpListener",
    "std::net::TcpStream",
    "std::net::UdpSocket",
    "std::os",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
];
/// Except: the name of the system's time zone, for `timezone = "local"`; the layout of a flow key, and of compiled policies.
const PURE_EXCEPTIONS: [(&str, &str); 5] = [
    // As its ranges stand in a configuration.
    ("netamsd/src/policy/schedule/tests.rs", "toml"),
    ("netamsd/src/policy/period.rs", "iana_time_zone"),
    ("netamsd/src/packet/", "kmod_bpf"),
    ("netamsd/src/policy/", "kmod_bpf"),
    // How single values are written for people.
    ("netamsd/src/policy/conditions.rs", "netams_proto"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn manifest(folder: &Path) -> Table {
    let file = folder.join("Cargo.toml");
    let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    text.parse().unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

fn members() -> Vec<String> {
    let members = strings(&manifest(&root())["workspace"]["members"]);
    assert!(members.len() > 3, "the members of the workspace: {members:?}");
    members
}

/// Every source file, by its path from the root, with the paths that it names. Tests of this folder are left out: they
/// name everything.
fn sources() -> Vec<(String, Vec<String>)> {
    let mut files = BTreeSet::new();
    for member in members() {
        collect(&root().join(member), &mut files);
    }
    let name = |file: &Path| {
        let inside = file.strip_prefix(root()).expect("a file of the workspace");
        inside.to_str().expect("an ASCII path").to_owned()
    };
    let text = |file: &Path| fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let sources = files.iter().filter(|file| !file.starts_with(root().join("netamsd/tests")));
    sources.map(|file| (name(file), paths::named(&module(&name(file)), &text(file)))).collect()
}

fn collect(folder: &Path, into: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the workspace") {
        let path = entry.expect("an entry of a folder").path();
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.insert(path);
        }
    }
}

/// The module that a file is: `netamsd/src/policy/units.rs` is `policy`, `units`.
fn module(file: &str) -> Vec<String> {
    let inside = file.split_once("/src/").map_or(file, |(_, inside)| inside).trim_end_matches(".rs");
    inside.split('/').filter(|part| !["mod", "lib", "main"].contains(part)).map(str::to_owned).collect()
}

fn starts(path: &str, with: &str) -> bool {
    path.strip_prefix(with).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// The part of netamsd that a file belongs to.
fn part(file: &str) -> Option<&str> {
    let inside = file.strip_prefix("netamsd/src/")?;
    inside.split(['/', '.']).next()
}

fn assert_none(broken: &[String], rule: &str) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

#[test]
fn each_crate_is_known_to_its_places_only() {
    let mut broken = Vec::new();
    let mut met = BTreeSet::new();
    for (file, paths) in sources() {
        for (crates, places) in CRATES {
            for name in crates.iter().filter(|name| paths.iter().any(|path| starts(path, name))) {
                met.insert(*name);
                if !places.iter().any(|place| file.starts_with(place)) {
                    broken.push(format!("{file} names {name}"));
                }
            }
        }
    }
    assert_none(&broken, "only some places may name these crates");
    let all: BTreeSet<_> = CRATES.iter().flat_map(|(crates, _)| *crates).copied().collect();
    assert_eq!(met, all, "a crate that nobody names has no rule");
}

#[test]
fn modules_of_the_daemon_know_only_those_below_them() {
    let mut broken = Vec::new();
    for (file, paths) in sources() {
        let Some((own, allowed)) = MODULES.iter().find(|(name, _)| part(&file) == Some(name)) else {
            continue;
        };
        for path in paths.iter().filter(|path| starts(path, "crate")) {
            let named = path.split("::").nth(1).unwrap_or_default();
            if named != *own && !allowed.contains(&named) {
                broken.push(format!("{file} names {path}"));
            }
        }
    }
    assert_none(&broken, "source, store and policy know flow, source packet too; control knows none of them");
}

#[test]
fn flow_packet_and_policy_do_no_io() {
    let manifest = manifest(&root().join("netamsd"));
    let dependencies = ["dependencies"].iter().filter_map(|kind| manifest[*kind].as_table());
    let dependencies: Vec<_> =
        dependencies.flat_map(Table::keys).map(|name| name.replace('-', "_")).collect();
    assert!(PURE_CRATES.iter().all(|name| dependencies.contains(&(*name).to_owned())), "{dependencies:?}");
    let mut broken = Vec::new();
    for (file, paths) in
        sources().into_iter().filter(|(file, _)| part(file).is_some_and(|p| PURE.contains(&p)))
    {
        for path in paths {
            let head = path.split("::").next().unwrap_or_default();
            let foreign = dependencies.iter().any(|name| name == head) && !PURE_CRATES.contains(&head);
            let excepted =
                PURE_EXCEPTIONS.iter().any(|(place, name)| file.starts_with(place) && *name == head);
            if foreign && !excepted || IMPURE_STD.iter().any(|name| starts(&path, name)) {
                broken.push(format!("{file} names {path}"));
            }
        }
    }
    assert_none(&broken, "flow, packet and policy are pure");
}

#[test]
fn ngctl_is_built_without_the_daemon_and_its_database() {
    let lock: Table = fs::read_to_string(root().join("Cargo.lock")).unwrap().parse().unwrap();
    let packages = lock["package"].as_array().unwrap().iter();
    let needs: HashMap<&str, Vec<String>> = packages
        .map(|package| {
            let needs = package.get("dependencies").map(strings).unwrap_or_default();
            // "name", or "name version" where there are several.
            let names = needs.iter().map(|need| need.split(' ').next().unwrap_or_default().to_owned());
            (package["name"].as_str().unwrap(), names.collect())
        })
        .collect();
    let mut reached = BTreeSet::from(["ngctl-cli"]);
    let mut next = vec!["ngctl-cli"];
    while let Some(package) = next.pop() {
        next.extend(needs[package].iter().map(String::as_str).filter(|need| reached.insert(need)));
    }
    assert!(reached.contains("netams-proto"), "{reached:?}");
    for package in ["netamsd", "kmod-bpf", "aya", "rusqlite", "libsqlite3-sys", "tokio"] {
        assert!(needs.contains_key(package), "{package} is not in Cargo.lock");
        assert!(!reached.contains(package), "ngctl-cli needs {package}");
    }
}

#[test]
fn every_crate_inherits_the_lints() {
    for member in members() {
        let manifest = manifest(&root().join(&member));
        let inherited =
            manifest.get("lints").and_then(|lints| lints.get("workspace")).and_then(Value::as_bool);
        assert_eq!(inherited, Some(true), "[lints] workspace = true is missing in {member}/Cargo.toml");
    }
}
