//! What the daemon cannot do, it says in one sentence and with the exit code of sysexits(3).

use std::fs;
use std::process::Command;

use netams_tests::config::Config;
use netams_tests::daemon::{Daemon, Place, binary};
use netams_tests::disk::SmallDisk;
use netams_tests::lab::Lab;
use netams_tests::ns::{Namespace, assert_success, unique_name};
use netams_tests::require_live;

const USAGE: i32 = 64;
const DATA: i32 = 65;
const CANNOT_CREATE: i32 = 73;
const IO: i32 = 74;
const TEMPORARY: i32 = 75;
const NO_PERMISSION: i32 = 77;
const CONFIG: i32 = 78;

/// Runs the daemon, which must refuse with `code` and one last line that names each of `words`.
fn refuses(place: &Place, command: &mut Command, code: i32, words: &[&str]) {
    let (found, said) = place.refused(command);
    let sentence = said.lines().last().unwrap_or_default();
    assert_eq!(found, code, "exit code; said:\n{said}");
    let text = sentence.strip_prefix("netamsd: ").unwrap_or_else(|| panic!("begins with its name: {said}"));
    assert!(!text.ends_with('.'), "no full stop: {sentence}");
    assert!(!said.contains("panicked"), "{said}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {sentence}");
    }
}

fn refuses_config(namespace: &Namespace, toml: &str, words: &[&str]) {
    let place = Place::new(namespace, &Config::default());
    fs::write(place.config_file(), toml).expect("write the configuration");
    refuses(&place, &mut place.command(), CONFIG, words);
    refuses(&place, place.command().arg("--check"), CONFIG, words);
}

#[test]
fn configuration_errors_name_the_place_and_the_key() {
    if !require_live() {
        return;
    }
    let namespace = Namespace::new(&unique_name());
    let good = Config::default().toml("/nowhere".as_ref());
    refuses_config(&namespace, "[kernel\n", &["netams.toml:1:"]);
    refuses_config(&namespace, "", &["kernel.interfaces"]);
    refuses_config(&namespace, &format!("{good}[policy]\n"), &["netams.toml:", "policy"]);
    refuses_config(&namespace, &good.replace("spill", "spil"), &["netams.toml:", "spil"]);
    refuses_config(&namespace, &good.replace("\"auto\"", "\"xdp\""), &["netams.toml:", "xdp"]);
    refuses_config(&namespace, &good.replace("flows = 4096", "flows = 5000"), &["kernel.flows", "5000"]);
    refuses_config(&namespace, &good.replace("interval_ms = 200", "interval_ms = 1"), &["interval_ms", "50"]);
    let unit = |text: &str| format!("{good}[[unit]]\nname = \"u\"\n{text}\n");
    refuses_config(&namespace, &unit("kind = \"host\"\naddresses = [\"192.0.2.300\"]"), &["192.0.2.300"]);
    refuses_config(&namespace, &unit("kind = \"group\"\nmembers = [\"nobody\"]"), &["nobody"]);
    refuses_config(&namespace, &unit("kind = \"group\"\nmembers = [\"u\"]"), &["u"]);
}

#[test]
fn usage_errors() {
    if !require_live() {
        return;
    }
    let namespace = Namespace::new(&unique_name());
    let output = namespace.command(binary("netamsd")).arg("--nonsense").output().expect("run netamsd");
    assert_eq!(output.status.code(), Some(USAGE));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("--nonsense"), "{said}");
    let place = Place::new(&namespace, &Config::default());
    fs::remove_file(place.config_file()).expect("remove the configuration");
    refuses(&place, &mut place.command(), CONFIG, &["netams.toml"]);
}

#[test]
fn check_refuses_an_interface_that_does_not_exist() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let place = Place::new(&lab.router, &Config { interfaces: vec!["cl0", "nosuch0"], ..Config::default() });
    refuses(&place, place.command().arg("--check"), CONFIG, &["nosuch0"]);
    place.configure(&Config { interfaces: vec!["cl0", "nosuch*"], ..Config::default() });
    let checked = place.command().arg("--check").output().expect("run netamsd");
    assert!(checked.status.success(), "a pattern may match nothing: {checked:?}");
}

#[test]
fn missing_capabilities_are_named() {
    if !require_live() {
        return;
    }
    let namespace = Namespace::new(&unique_name());
    let place = Place::new(&namespace, &Config::default());
    for (dropped, named) in [("-bpf,-sys_admin", "CAP_BPF"), ("-net_admin,-sys_admin", "CAP_NET_ADMIN")] {
        let mut command = namespace.command("setpriv");
        command.arg(format!("--bounding-set={dropped}")).arg(binary("netamsd"));
        command.arg("--config").arg(place.config_file());
        refuses(&place, &mut command, NO_PERMISSION, &[named]);
    }
}

#[test]
fn all_threads_give_up_what_they_do_not_need() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let mut daemon = Daemon::start(&lab.router, &Config::default());
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("the threads of netamsd");
    for task in tasks {
        let status = fs::read_to_string(task.expect("a thread").path().join("status")).expect("its status");
        // CAP_NET_ADMIN is bit 12, CAP_BPF bit 39.
        for set in ["CapPrm", "CapEff"] {
            assert!(status.contains(&format!("{set}:\t0000008000001000\n")), "{status}");
        }
    }
}

#[test]
fn an_occupied_state_directory_is_refused() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let daemon = Daemon::start(&lab.router, &Config::default());
    let state = daemon.place.path().join("state");
    let second = Place::new(&lab.router, &Config { state: Some(state.clone()), ..Config::default() });
    refuses(&second, &mut second.command(), TEMPORARY, &[&state.display().to_string()]);
    assert!(daemon.ngctl(&["list"]).status.success(), "the first one goes on");
}

#[test]
fn a_state_directory_that_cannot_be_made_is_refused() {
    if !require_live() {
        return;
    }
    let namespace = Namespace::new(&unique_name());
    let state = Some("/proc/netams".into());
    let place = Place::new(&namespace, &Config { state, interfaces: vec![], ..Config::default() });
    refuses(&place, &mut place.command(), CANNOT_CREATE, &["/proc/netams"]);
}

#[test]
fn a_full_disk_at_start_is_refused() {
    if !require_live() {
        return;
    }
    let namespace = Namespace::new(&unique_name());
    let disk = SmallDisk::new(1 << 20);
    let state = Some(disk.path().join("state"));
    let place = Place::new(&namespace, &Config { state, interfaces: vec![], ..Config::default() });
    fs::create_dir(disk.path().join("state")).expect("the state folder");
    disk.fill();
    refuses(&place, &mut place.command(), IO, &["no space left", "state"]);
}

#[test]
fn a_newer_or_damaged_database_is_refused_and_left_alone() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let mut daemon = Daemon::start(&lab.router, &Config::default());
    assert_eq!(daemon.terminate(), 0, "{}", daemon.place.said());
    let database = daemon.place.path().join("state/netams.db");
    let name = database.display().to_string();
    let good = fs::read(&database).expect("the database");

    let upgraded = Command::new("sqlite3").arg(&database).arg("PRAGMA user_version=9999").output();
    assert_success(&upgraded.expect("run sqlite3"), "sqlite3");
    let newer = fs::read(&database).expect("the database");
    refuses(&daemon.place, &mut daemon.place.command(), DATA, &[&name, "9999"]);
    assert!(fs::read(&database).expect("the database") == newer, "the newer database was changed");

    fs::write(&database, vec![0x5a; good.len()]).expect("damage the database");
    refuses(&daemon.place, &mut daemon.place.command(), DATA, &[&name]);

    fs::write(&database, good).expect("repair the database");
    daemon.start_again();
}
