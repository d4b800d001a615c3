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

/// Runs the daemon, which must refuse with `code` and `expected` as its last line; `[PLACE]` stands for the folder.
fn refuses(place: &Place, command: &mut Command, code: i32, expected: &str) {
    let (found, said) = place.refused(command);
    assert_eq!(found, code, "exit code; said:\n{said}");
    let sentence = said.lines().last().unwrap_or_default();
    assert_eq!(
        sentence.replace(&place.path().display().to_string(), "[PLACE]"),
        format!("netamsd: {expected}")
    );
}

fn refuses_config(namespace: &Namespace, toml: &str, problem: &str) {
    let place = Place::new(namespace, &Config::default());
    fs::write(place.config_file(), toml).expect("write the configuration");
    let expected = format!("[PLACE]/netams.toml{problem}");
    refuses(&place, &mut place.command(), CONFIG, &expected);
    refuses(&place, place.command().arg("--check"), CONFIG, &expected);
}

#[test]
fn configuration_errors_name_the_place_and_the_key() {
    if !require_live() {
        return;
    }
    let namespace = Namespace::new(&unique_name());
    let good = Config::default().toml("/nowhere".as_ref());
    refuses_config(&namespace, "[kernel\n", ":1:8: unclosed table, expected `]`");
    refuses_config(
        &namespace,
        "",
        ": kernel.interfaces is missing, list the interfaces to meter, or none with interfaces = []",
    );
    refuses_config(
        &namespace,
        &format!("{good}[polisy]\n"),
        ":20:2: unknown field `polisy`, expected one of `state`, `timezone`, `source`, `mode`, `default_policy`, `local_policy`, `kernel`, `nfqueue`, `accounting`, `control`, `log`, `quota`, `unit`, `policy`, `as_file`",
    );
    refuses_config(
        &namespace,
        &good.replace("spill", "spil"),
        ":7:1: unknown field `spil`, expected one of `interfaces`, `attach`, `flows`, `spill`, `tunnels`, `on_exit`, `bpffs`",
    );
    refuses_config(
        &namespace,
        &good.replace("\"auto\"", "\"xdp\""),
        ":5:10: kernel.attach: unknown variant `xdp`, expected one of `auto`, `tcx`, `clsact`",
    );
    refuses_config(
        &namespace,
        &good.replace("flows = 4096", "flows = 5000"),
        ":6:9: kernel.flows is 5000, it must be a power of two such as 8192",
    );
    refuses_config(
        &namespace,
        &good.replace("interval_ms = 200", "interval_ms = 1"),
        ":12:15: accounting.interval_ms is 1, it must be from 50 to 3600000",
    );
    let unit = |text: &str| format!("{good}[[unit]]\nname = \"u\"\n{text}\n");
    refuses_config(
        &namespace,
        &unit("kind = \"host\"\naddresses = [\"192.0.2.300\"]"),
        ":23:14: unit.addresses: `192.0.2.300` is neither an IP address nor a prefix such as 10.0.0.0/8",
    );
    refuses_config(
        &namespace,
        &unit("kind = \"group\"\nmembers = [\"nobody\"]"),
        ":21:8: unit `u` has the member `nobody`, but there is no unit of that name",
    );
    refuses_config(
        &namespace,
        &unit("kind = \"group\"\nmembers = [\"u\"]"),
        ":21:8: unit `u` is in a cycle of groups, u -> u, remove one of these members",
    );
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
    refuses(
        &place,
        &mut place.command(),
        CONFIG,
        "[PLACE]/netams.toml: cannot be read: No such file or directory (os error 2)",
    );
}

#[test]
fn check_refuses_an_interface_that_does_not_exist() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let place = Place::new(&lab.router, &Config { interfaces: vec!["cl0", "nosuch0"], ..Config::default() });
    refuses(
        &place,
        place.command().arg("--check"),
        CONFIG,
        "there is no interface nosuch0; correct kernel.interfaces, or ignore this if it will appear later",
    );
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
        refuses(
            &place,
            &mut command,
            NO_PERMISSION,
            &format!("metering needs {named}; run as root or set AmbientCapabilities="),
        );
    }
}

#[test]
fn without_programs_their_capabilities_are_not_needed() {
    if !require_live() {
        return;
    }
    let namespace = Namespace::new(&unique_name());
    let place = Place::new(&namespace, &Config { source: "off", interfaces: vec![], ..Config::default() });
    let mut command = namespace.command("setpriv");
    command.args(["--bounding-set=-bpf,-sys_admin,-perfmon"]).arg(binary("netamsd"));
    command.arg("--config").arg(place.config_file()).arg("--check");
    assert_success(&command.output().expect("run netamsd"), "netamsd --check");
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
        // CAP_NET_ADMIN is bit 12, CAP_NET_RAW bit 13, CAP_BPF bit 39.
        for set in ["CapPrm", "CapEff"] {
            assert!(status.contains(&format!("{set}:\t0000008000003000\n")), "{status}");
        }
    }
}

#[test]
fn an_occupied_state_directory_is_refused() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let mut daemon = Daemon::start(&lab.router, &Config::default());
    let state = daemon.place.path().join("state");
    let second = Place::new(&lab.router, &Config { state: Some(state.clone()), ..Config::default() });
    refuses(
        &second,
        &mut second.command(),
        TEMPORARY,
        &format!(
            "the state folder {} is in use by netamsd with pid {}; stop that one or set another `state`",
            state.display(),
            daemon.pid()
        ),
    );
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
    refuses(
        &place,
        &mut place.command(),
        CANNOT_CREATE,
        "cannot create the state folder /proc/netams: No such file or directory (os error 2); choose another one by `state`",
    );
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
    refuses(
        &place,
        &mut place.command(),
        IO,
        &format!("no space left on the disk for {}/state/netams.db; free some", disk.path().display()),
    );
}

#[test]
fn no_room_for_the_tables_of_queues_is_refused() {
    if !require_live() {
        return;
    }
    let namespace = Namespace::new(&unique_name());
    let disk = SmallDisk::new(1 << 16);
    let place = Place::new(&namespace, &Config { interfaces: vec!["eth0"], ..Config::nfqueue("exact") });
    let toml = fs::read_to_string(place.config_file()).expect("read the configuration");
    let elsewhere = toml.replace(
        &format!("tables = {:?}", place.path().join("tables")),
        &format!("tables = {:?}", disk.path().join("tables")),
    );
    fs::write(place.config_file(), elsewhere).expect("write the configuration");
    let (code, said) = place.refused(&mut place.command());
    assert_eq!(code, IO, "{said}");
    let sentence = said.lines().last().unwrap_or_default();
    assert!(sentence.starts_with("netamsd: no room for flow tables of "), "{said}");
    assert!(sentence.contains(&disk.path().display().to_string()), "{said}");
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
    let good = fs::read(&database).expect("the database");

    let upgraded = Command::new("sqlite3").arg(&database).arg("PRAGMA user_version=9999").output();
    assert_success(&upgraded.expect("run sqlite3"), "sqlite3");
    let newer = fs::read(&database).expect("the database");
    refuses(
        &daemon.place,
        &mut daemon.place.command(),
        DATA,
        "[PLACE]/state/netams.db has schema version 9999, this release supports up to 4; install the newer release",
    );
    assert!(fs::read(&database).expect("the database") == newer, "the newer database was changed");

    fs::write(&database, vec![0x5a; good.len()]).expect("damage the database");
    refuses(
        &daemon.place,
        &mut daemon.place.command(),
        DATA,
        "[PLACE]/state/netams.db is damaged (file is not a database); stop the daemon and restore a copy, or move the file away to start anew",
    );

    fs::write(&database, good).expect("repair the database");
    daemon.start_again();
}
