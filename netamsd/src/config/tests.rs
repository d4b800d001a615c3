//! The sample file, and the sentence for everything that is refused.

use super::*;

const SAMPLE: &str = include_str!("../../netams.toml");

/// The smallest file with `rest` after it, on line 3.
fn parse(rest: &str) -> Result<Config, ConfigError> {
    Config::parse(&format!("[kernel]\ninterfaces = []\n{rest}"))
}

fn sentence(rest: &str) -> String {
    parse(rest).unwrap_err().to_string()
}

/// The sample with its example lines made real.
fn sample_with_examples() -> String {
    let lines = SAMPLE.lines().map(|line| match line.strip_prefix('#') {
        Some(example) if !example.is_empty() && !example.starts_with(' ') => example,
        // What the examples need.
        _ if line.starts_with("tunnels = ") => "tunnels = \"inner\"",
        _ if line.starts_with("charge = ") => "charge = \"inner\"",
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_sample_has_the_defaults() {
    let sample = Config::parse(SAMPLE).unwrap();
    let kernel = KernelConfig { interfaces: vec!["eth0".to_owned()], ..KernelConfig::default() };
    assert_eq!(sample, Config { kernel, ..Config::default() });
}

#[test]
fn the_smallest_file_has_the_defaults() {
    assert_eq!(parse("").unwrap(), Config::default());
}

#[test]
fn the_sample_names_every_key() {
    for (table, header) in [
        ("", ""),
        ("kernel", "[kernel]"),
        ("nfqueue", "[nfqueue]"),
        ("accounting", "[accounting]"),
        ("control", "[control]"),
        ("log", "[log]"),
        ("quota", "[quota]"),
        ("unit", "[[unit]]"),
        ("unit.quota", "[[unit]]\nname = \"a\"\nkind = \"net\"\n[[unit.quota]]"),
        ("policy", "[[policy]]"),
    ] {
        let error = Config::parse(&format!("{header}\nnonsense = 1")).unwrap_err().to_string();
        let (_, expected) = error.split_once("expected ").unwrap();
        let keys: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        assert!(!keys.is_empty(), "{error}");
        let text = sample_with_examples();
        for key in keys {
            let said = |line: &str| {
                let line = line.trim_start_matches('[');
                line.strip_prefix(key).is_some_and(|rest| rest.starts_with([' ', ']']))
            };
            assert!(text.lines().any(said), "{table}: {key}");
        }
    }
}

#[test]
fn the_examples_of_the_sample_parse() {
    let config = Config::parse(&sample_with_examples()).unwrap();
    let units: Vec<_> = config.units.iter().map(|unit| (unit.name.as_str(), unit.kind)).collect();
    assert_eq!(
        units,
        [
            ("server", UnitKind::Host),
            ("bob", UnitKind::User),
            ("router", UnitKind::Cluster),
            ("lan", UnitKind::Net),
            ("tenant", UnitKind::Net),
            ("customer", UnitKind::Net),
            ("branch", UnitKind::Net),
            ("overlay", UnitKind::Net),
            ("all", UnitKind::Group),
            ("student", UnitKind::Host),
        ]
    );
    assert_eq!(config.units[0].addresses[0].to_string(), "192.0.2.10/32");
    let selectors = |unit: &UnitConfig| (unit.vlan, unit.vlan_inner, unit.gre_key, unit.vni);
    assert_eq!(
        config.units[4..8].iter().map(selectors).collect::<Vec<_>>(),
        [
            (Some(10), None, None, None),
            (Some(100), Some(20), None, None),
            (None, None, Some(7), None),
            (None, None, None, Some(5001)),
        ]
    );
    assert_eq!(config.units[8].members, ["server", "router", "lan"]);
    let accounts: Vec<String> = config.units[9].acct_policy.iter().map(ToString::to_string).collect();
    assert_eq!(accounts, ["%peering", "web", "!mail"]);
    assert_eq!(config.policies.len(), 12);
    let quotas: Vec<String> = config.units[9].quotas.iter().map(ToString::to_string).collect();
    assert_eq!(quotas, ["month from 15 sum", "day in web"]);
    assert_eq!((config.local_policy, config.as_file), (Some(DefaultPolicy::Pass), Some("pfx2as.txt".into())));
}

#[test]
fn every_key_is_read() {
    let config = Config::parse(
        r#"
        state = "/state"
        timezone = "Europe/Berlin"
        source = "nfqueue"
        mode = "divert"
        default_policy = "drop"
        local_policy = "pass"
        as_file = "systems"
        [kernel]
        interfaces = ["wan*"]
        attach = "clsact"
        flows = 256
        spill = 1000
        tunnels = "inner"
        on_exit = "stay"
        bpffs = "/bpf"
        [nfqueue]
        chains = ["output", "forward"]
        first_queue = 0
        queues = 64
        pin = false
        gso = "estimate"
        fail = "closed"
        offload = true
        backend = "iptables"
        copy_bytes = 96
        max_packets = 1048576
        stamp_mask = 0x0ffff000
        handover_mark = 0x80000000
        connmark_mask = 255
        tables = "/tables"
        [accounting]
        interval_ms = 50
        idle_timeout_s = 1
        active_timeout_s = 2
        keep_flows_days = 3
        charge = "inner"
        [control]
        socket = "/socket"
        group = "wheel"
        others_may_read = true
        max_connections = 1
        [log]
        level = "trace"
        [quota]
        notify = ["/bin/true", "x"]
        notify_timeout_s = 3
        "#,
    );
    let expected = Config {
        state: "/state".into(),
        timezone: Zone::parse("Europe/Berlin").unwrap(),
        source: DataSource::Nfqueue,
        mode: Mode::Divert,
        default_policy: DefaultPolicy::Drop,
        local_policy: Some(DefaultPolicy::Pass),
        kernel: KernelConfig {
            interfaces: vec!["wan*".to_owned()],
            attach: Attach::Clsact,
            flows: 256,
            spill: 1000,
            tunnels: Tunnels::Inner,
            on_exit: OnExit::Stay,
            bpffs: "/bpf".into(),
        },
        nfqueue: NfqueueConfig {
            chains: vec![Chain::Output, Chain::Forward],
            first_queue: 0,
            queues: 64,
            pin: false,
            gso: Gso::Estimate,
            fail: Fail::Closed,
            offload: true,
            backend: Backend::Iptables,
            copy_bytes: 96,
            max_packets: 1_048_576,
            stamp_mask: 0x0fff_f000,
            handover_mark: 0x8000_0000,
            connmark_mask: 0xff,
            tables: "/tables".into(),
        },
        accounting: AccountingConfig {
            interval_ms: 50,
            idle_timeout_s: 1,
            active_timeout_s: 2,
            keep_flows_days: 3,
            charge: Charge::Inner,
        },
        control: ControlConfig {
            socket: "/socket".into(),
            group: "wheel".to_owned(),
            others_may_read: true,
            max_connections: 1,
        },
        log: LogConfig { level: LogLevel::Trace },
        quota: QuotasConfig { notify: vec!["/bin/true".into(), "x".into()], notify_timeout_s: 3 },
        units: Vec::new(),
        policies: Vec::new(),
        as_file: Some("systems".into()),
        files: Files::default(),
    };
    assert_eq!(config.unwrap(), expected);
}

#[test]
fn files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("netams.toml");
    let absent = Config::load(&path).unwrap_err().to_string();
    assert_eq!(absent, format!("{}: cannot be read: No such file or directory (os error 2)", path.display()));

    std::fs::write(&path, "[kernel]\ninterfaces = []\nflows = 1000\n").unwrap();
    let wrong = Config::load(&path).unwrap_err().to_string();
    let expected = "kernel.flows is 1000, it must be a power of two such as 1024";
    assert_eq!(wrong, format!("{}:3:9: {expected}", path.display()));

    std::fs::write(&path, SAMPLE).unwrap();
    assert_eq!(Config::load(&path), Config::parse(SAMPLE));
}

#[test]
fn syntax_and_types() {
    for (rest, expected) in [
        ("flows = ", "line 3, column 9: string values must be quoted, expected literal string"),
        ("flows = 256\nflows = 512", "line 4, column 1: duplicate key at `flows`"),
        ("spill = \"many\"", "line 3, column 9: kernel.spill: invalid type: string \"many\", expected u32"),
        ("spill = -1", "line 3, column 9: kernel.spill: invalid value: integer `-1`, expected u32"),
        (
            "mode = \"tee\"",
            "line 3, column 1: unknown field `mode`, expected one of `interfaces`, `attach`, `flows`, `spill`, \
             `tunnels`, `on_exit`, `bpffs`",
        ),
        (
            "[nfqueue]\ngso = \"off\"",
            "line 4, column 7: nfqueue.gso: unknown variant `off`, expected one of `auto`, `exact`, `estimate`",
        ),
        (
            "[nfqueue]\nfail = \"shut\"",
            "line 4, column 8: nfqueue.fail: unknown variant `shut`, expected `open` or `closed`",
        ),
        (
            "[nfqueue]\nbackend = \"ipfw\"",
            "line 4, column 11: nfqueue.backend: unknown variant `ipfw`, expected one of `auto`, `nft`, `iptables`",
        ),
        (
            "[nfqueue]\nchains = [\"forward\", \"prerouting\"]",
            "line 4, column 22: nfqueue.chains: unknown variant `prerouting`, expected one of `forward`, `input`, \
             `output`",
        ),
        (
            "[accounting]\nintervall_ms = 5000",
            "line 4, column 1: unknown field `intervall_ms`, expected one of `interval_ms`, `idle_timeout_s`, \
             `active_timeout_s`, `keep_flows_days`, `charge`",
        ),
        (
            "[acounting]\ninterval_ms = 5000",
            "line 3, column 2: unknown field `acounting`, expected one of `state`, `timezone`, `source`, \
             `mode`, `default_policy`, `local_policy`, `kernel`, `nfqueue`, `accounting`, `control`, `log`, `quota`, `unit`, \
             `policy`, `as_file`",
        ),
        (
            "[control]\nothers_may_read = \"no\"",
            "line 4, column 19: control.others_may_read: invalid type: string \"no\", expected a boolean",
        ),
        ("[[unit]]\nname = \"a\"\naddresses = []", "line 3, column 1: missing field `kind`"),
        (
            "[[unit]]\nname = \"a\"\nkind = \"nett\"",
            "line 5, column 8: unit.kind: unknown variant `nett`, expected one of `host`, `user`, `cluster`, `net`, \
             `group`",
        ),
        (
            "[[unit]]\nname = \"a\"\nkind = \"net\"\nadresses = []",
            "line 6, column 1: unknown field `adresses`, expected one of `name`, `kind`, `addresses`, `members`, \
             `vlan`, `vlan_inner`, `gre_key`, `vni`, `acct_policy`, `fw_policy`, `quota`, \
             `deny`, `description`, `email`, `no_local_pass`",
        ),
    ] {
        assert_eq!(sentence(rest), expected);
    }
}

#[test]
fn an_error_does_not_disturb_a_terminal() {
    for (rest, expected) in [
        ("\"\\u001b[2J\" = 1", "unknown field `\\u{1b}[2J`"),
        ("[[unit]]\nname = \"a\"\nkind = \"\\t\"", "unit.kind: unknown variant `\\t`"),
        (
            "[[unit]]\nname = \"a\"\nkind = \"host\"\naddresses = [\"\\u0007\"]",
            "unit.addresses: `\\u{7}` is neither",
        ),
    ] {
        let sentence = sentence(rest);
        assert!(sentence.contains(expected) && !sentence.contains(char::is_control), "{sentence:?}");
    }
}

#[test]
fn words_at_the_top() {
    let end = "[kernel]\ninterfaces = []";
    for (line, expected) in [
        (
            "source = \"ebpf\"",
            "line 1, column 10: source: unknown variant `ebpf`, expected one of `kernel`, `nfqueue`, `off`",
        ),
        ("mode = \"off\"", "line 1, column 8: mode: unknown variant `off`, expected `tee` or `divert`"),
        (
            "default_policy = \"deny\"",
            "line 1, column 18: default_policy: unknown variant `deny`, expected `pass` or `drop`",
        ),
        (
            "local_policy = \"deny\"",
            "line 1, column 16: local_policy: unknown variant `deny`, expected `pass` or `drop`",
        ),
    ] {
        assert_eq!(Config::parse(&format!("{line}\n{end}")).unwrap_err().to_string(), expected);
    }
    for source in ["kernel", "nfqueue", "off"] {
        let config = Config::parse(&format!("source = {source:?}\nmode = \"divert\"\n{end}")).unwrap();
        assert_eq!(config.mode, Mode::Divert, "{source}");
    }
}

#[test]
fn netfilter_has_fewer_patterns() {
    let parse = |source, pattern: &str| {
        Config::parse(&format!("source = {source:?}\n[kernel]\ninterfaces = [\"eth0\", {pattern:?}]"))
    };
    for pattern in ["*", "wan*"] {
        assert_eq!(parse("nfqueue", pattern).unwrap().kernel.interfaces[1], pattern);
    }
    for pattern in ["eth?", "*.100"] {
        assert_eq!(parse("kernel", pattern).unwrap().kernel.interfaces[1], pattern);
        let error = parse("nfqueue", pattern).unwrap_err().to_string();
        let expected = "with source = \"nfqueue\" write names, or beginnings such as wan*";
        assert_eq!(
            error,
            format!("line 3, column 14: kernel.interfaces: netfilter cannot match `{pattern}`, {expected}")
        );
    }
}

#[test]
fn interfaces_have_no_default() {
    let missing = "kernel.interfaces is missing, list the interfaces to meter, or none with interfaces = []";
    assert_eq!(Config::parse("").unwrap_err().to_string(), missing);
    let without = Config::parse("\n[kernel]\nflows = 256").unwrap_err().to_string();
    assert_eq!(without, format!("line 2, column 1: {missing}"));
}

#[test]
fn values() {
    let long = "x".repeat(108);
    for (rest, expected) in [
        ("flows = 255", "line 3, column 9: kernel.flows is 255, it must be from 256 to 16777216"),
        ("flows = 257", "line 3, column 9: kernel.flows is 257, it must be a power of two such as 512"),
        ("flows = 33554432", "line 3, column 9: kernel.flows is 33554432, it must be from 256 to 16777216"),
        ("spill = 0", "line 3, column 9: kernel.spill is 0, it must be from 256 to 16777216"),
        ("bpffs = \"\"", "line 3, column 9: kernel.bpffs is empty, remove it to have the default"),
        (
            "[accounting]\ninterval_ms = 49",
            "line 4, column 15: accounting.interval_ms is 49, it must be from 50 to 3600000",
        ),
        (
            "[accounting]\ninterval_ms = 3600001",
            "line 4, column 15: accounting.interval_ms is 3600001, it must be from 50 to 3600000",
        ),
        (
            "[accounting]\nidle_timeout_s = 0",
            "line 4, column 18: accounting.idle_timeout_s is 0, it must be from 1 to 604800",
        ),
        (
            "[accounting]\nactive_timeout_s = 0",
            "line 4, column 20: accounting.active_timeout_s is 0, it must be from 1 to 604800",
        ),
        (
            "[accounting]\nkeep_flows_days = 0",
            "line 4, column 19: accounting.keep_flows_days is 0, it must be from 1 to 36500",
        ),
        (
            "[control]\nmax_connections = 0",
            "line 4, column 19: control.max_connections is 0, it must be from 1 to 4096",
        ),
        (
            "[control]\nsocket = \"\"",
            "line 4, column 10: control.socket is empty, remove it to have the default",
        ),
        (
            &format!("[control]\nsocket = \"{long}\""),
            "line 4, column 10: control.socket has 108 bytes, a socket path has at most 107",
        ),
        (
            "[control]\ngroup = \"\"",
            "line 4, column 9: control.group is empty, remove it to have the default",
        ),
    ] {
        assert_eq!(sentence(rest), expected);
    }
    for (text, expected) in [
        ("state = \"\"", "line 1, column 9: state is empty, remove it to have the default"),
        (
            "timezone = \"Mars\"",
            "line 1, column 12: timezone: unknown time zone `Mars`, use an IANA name such as Europe/Berlin, or local",
        ),
    ] {
        let text = format!("{text}\n[kernel]\ninterfaces = []");
        assert_eq!(Config::parse(&text).unwrap_err().to_string(), expected);
    }
}

#[test]
fn interface_patterns() {
    for (pattern, expected) in [
        ("", "no interface can match ``, write a name such as eth0, or wan* or eth?"),
        ("eth\\u00070", "no interface can match `eth\\u{7}0`, write a name such as eth0, or wan* or eth?"),
        ("eth0, eth1", "no interface can match `eth0, eth1`, write a name such as eth0, or wan* or eth?"),
        ("br-0123456789abcdef", "no interface can match `br-0123456789abcdef`, names have at most 15 bytes"),
    ] {
        let error =
            Config::parse(&format!("[kernel]\ninterfaces = [\"{pattern}\"]")).unwrap_err().to_string();
        assert_eq!(error, format!("line 2, column 14: kernel.interfaces: {expected}"));
    }
}

#[test]
fn one_unit() {
    for (unit, expected) in [
        (
            r#"kind = "host", addresses = ["10.0.0.300"]"#,
            "line 3, column 43: unit.addresses: `10.0.0.300` is neither an IP address nor a prefix such as 10.0.0.0/8",
        ),
        (
            r#"kind = "net", addresses = ["10.0.0.0/8", "10.1.0.0/8"]"#,
            "line 3, column 56: unit.addresses: `10.1.0.0/8` has bits set beyond its prefix length, write 10.0.0.0/8",
        ),
        (
            r#"kind = "host", addresses = [1]"#,
            "line 3, column 43: unit.addresses: invalid type: integer `1`, expected an IP address or a prefix",
        ),
        (
            r#"kind = "host", addresses = ["192.0.2.1", "192.0.2.2"]"#,
            "line 3, column 10: unit `x` is a host with 2 addresses, leave it one or make it a cluster",
        ),
        (
            r#"kind = "host", addresses = ["10.0.0.0/8"]"#,
            "line 3, column 10: unit `x` is a host with the prefix 10.0.0.0/8, give addresses or make it a net",
        ),
        (r#"kind = "host""#, "line 3, column 10: unit `x` is a host without addresses, give it some"),
        (
            r#"kind = "cluster", addresses = ["10.0.0.1", "10.0.0.0/31"]"#,
            "line 3, column 10: unit `x` is a cluster with the prefix 10.0.0.0/31, give addresses or make it a net",
        ),
        (
            r#"kind = "cluster", addresses = []"#,
            "line 3, column 10: unit `x` is a cluster without addresses, give it some",
        ),
        (
            r#"kind = "net", addresses = ["10.0.0.0/8"], members = ["y"]"#,
            "line 3, column 10: unit `x` is a net with members, only a group has members",
        ),
        (
            r#"kind = "group", members = []"#,
            "line 3, column 10: unit `x` is a group without members, give it some",
        ),
        (
            r#"kind = "group", addresses = ["10.0.0.0/8"], members = ["x"]"#,
            "line 3, column 10: unit `x` is a group with addresses, move them to a unit of their own and make that \
             a member",
        ),
    ] {
        let text = format!("unit = [\n\n{{ name = \"x\", {unit} }}]\n[kernel]\ninterfaces = []");
        assert_eq!(Config::parse(&text).unwrap_err().to_string(), expected);
    }
}

#[test]
fn units_of_vlans_and_tunnels() {
    let net = r#"name = "x", kind = "net", addresses = ["10.0.0.0/8"]"#;
    let group = r#"name = "x", kind = "group", members = ["y"]"#;
    let text = |unit: &str, charge: &str| {
        format!(
            "unit = [{{ {unit} }}, {{ name = \"y\", kind = \"host\", addresses = [\"192.0.2.1\"] }}]\n\
             [kernel]\ninterfaces = []\ntunnels = \"inner\"\n[accounting]\ncharge = {charge:?}"
        )
    };
    let not_charged = "but the packets in tunnels are charged only with accounting.charge = \"inner\", set that or remove it";
    for (start, more, charge, expected) in [
        (net, "vlan = 0", "outer", "has vlan = 0, a VLAN id is from 1 to 4094".to_owned()),
        (net, "vlan = 4095", "outer", "has vlan = 4095, a VLAN id is from 1 to 4094".to_owned()),
        (net, "vlan_inner = 5000", "inner", "has vlan_inner = 5000, a VLAN id is from 1 to 4094".to_owned()),
        (
            net,
            "vni = 16777216",
            "inner",
            "has vni = 16777216, a VNI has 24 bits and is at most 16777215".to_owned(),
        ),
        (
            net,
            "vni = 1, gre_key = 1",
            "inner",
            "has gre_key and vni, but a packet is directly in one tunnel, remove one of them".to_owned(),
        ),
        (net, "vni = 1", "outer", format!("has vni, {not_charged}")),
        (net, "gre_key = 1, vlan = 3", "outer", format!("has gre_key, {not_charged}")),
        (group, "vlan = 3", "outer", "is a group with vlan, give that to its members instead".to_owned()),
        (
            group,
            "gre_key = 3",
            "inner",
            "is a group with gre_key, give that to its members instead".to_owned(),
        ),
    ] {
        let error = Config::parse(&text(&format!("{start}, {more}"), charge)).unwrap_err().to_string();
        assert_eq!(error, format!("line 1, column 18: unit `x` {expected}"));
    }
    for (more, charge) in [
        ("vlan = 1, vlan_inner = 4094", "outer"),
        ("vlan_inner = 1", "outer"),
        ("vlan = 4094, gre_key = 4294967295", "inner"),
        ("gre_key = 0", "inner"),
        ("vni = 0, vlan_inner = 9", "inner"),
        ("vni = 16777215", "inner"),
    ] {
        Config::parse(&text(&format!("{net}, {more}"), charge)).unwrap();
    }
    assert_eq!(
        Config::parse(&text(&format!("{net}, vlan = -1"), "outer")).unwrap_err().to_string(),
        "line 1, column 72: unit.vlan: invalid value: integer `-1`, expected u32"
    );
}

#[test]
fn charging_by_inner_flows_needs_them() {
    let expected = "accounting.charge is \"inner\", but inner flows are accounted only with kernel.tunnels = \
                    \"inner\", set that too";
    for tunnels in ["", "tunnels = \"outer\"\n"] {
        let line = 4 + tunnels.lines().count();
        assert_eq!(
            sentence(&format!("{tunnels}[accounting]\ncharge = \"inner\"")),
            format!("line {line}, column 10: {expected}")
        );
    }
    let config = parse("tunnels = \"inner\"").unwrap();
    assert_eq!(config.accounting.charge, Charge::Outer);
    for (rest, expected) in [
        (
            "tunnels = \"both\"",
            "line 3, column 11: kernel.tunnels: unknown variant `both`, expected `outer` or `inner`",
        ),
        (
            "[accounting]\ncharge = \"both\"",
            "line 4, column 10: accounting.charge: unknown variant `both`, expected `outer` or `inner`",
        ),
    ] {
        assert_eq!(sentence(rest), expected);
    }
}

/// Units of a name and members; a unit without members is a host.
fn units(units: &[(&str, &[&str])]) -> String {
    let tables = units.iter().map(|(name, members)| match members {
        [] => format!("[[unit]]\nname = \"{name}\"\nkind = \"host\"\naddresses = [\"192.0.2.1\"]\n"),
        _ => format!("[[unit]]\nname = \"{name}\"\nkind = \"group\"\nmembers = {members:?}\n"),
    });
    tables.collect()
}

#[test]
fn units_among_each_other() {
    for (names, expected) in [
        (&[("a", &[][..]), ("a", &[])][..], "line 8, column 8: unit `a` is there twice, rename one"),
        (&[("", &[])], "line 4, column 8: unit `` has an empty name, give it one"),
        (
            &[("a\\u001b[31m", &[])],
            "line 4, column 8: unit `a\\u{1b}[31m` has a control character in its name, remove it",
        ),
        (
            &[("a", &["b", "c"]), ("b", &[])],
            "line 4, column 8: unit `a` has the member `c`, but there is no unit of that name",
        ),
        (
            &[("a", &["a"])],
            "line 4, column 8: unit `a` is in a cycle of groups, a -> a, remove one of these members",
        ),
        (
            &[("top", &["h", "a"]), ("h", &[]), ("a", &["b"]), ("b", &["h", "c"]), ("c", &["a"])],
            "line 12, column 8: unit `a` is in a cycle of groups, a -> b -> c -> a, remove one of these members",
        ),
    ] {
        assert_eq!(sentence(&units(names)), expected);
    }
}

#[test]
fn units_may_share_addresses_and_members() {
    let diamond = units(&[("top", &["a", "b"]), ("a", &["h"]), ("b", &["h", "i"]), ("h", &[]), ("i", &[])]);
    let config = parse(&diamond).unwrap();
    assert_eq!(config.units[3].addresses, config.units[4].addresses);
}

#[test]
fn the_example_of_the_readme_parses() {
    const README: &str = include_str!("../../../README.md");
    let from = README.find("    mode = \"divert\"\n").expect("the example");
    let lines = README[from..].lines().take_while(|line| line.is_empty() || line.starts_with("    "));
    let example: Vec<&str> = lines.map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
    let text = format!("{}\n[kernel]\ninterfaces = []\n", example.join("\n"));
    let config = Config::parse(&text).unwrap();
    assert_eq!(config.mode, Mode::Divert);
    assert_eq!(
        config.policies.iter().map(|policy| policy.name.as_str()).collect::<Vec<_>>(),
        ["web", "peering", "night"]
    );
    assert_eq!((config.units[0].quotas.len(), config.units[0].acct_policy.len()), (2, 2));
}

/// A configuration with these lines behind `kernel.interfaces`; what it is refused for.
fn refused(lines: &str) -> String {
    let text = format!("[kernel]\ninterfaces = []\n{lines}");
    Config::parse(&text).unwrap_err().to_string()
}

#[test]
fn wrong_policies_and_quotas_are_refused_with_their_place() {
    let unit = "[[unit]]\nname = \"u\"\nkind = \"host\"\naddresses = [\"10.0.0.1\"]\n";
    let policy = "[[policy]]\nname = \"p\"\n";
    for (lines, expected) in [
        (
            format!("{policy}port = [70000]\n"),
            "line 4, column 8: policy `p` has 70000 in port, the largest is 65535",
        ),
        (
            format!("{policy}port = [\"9-8\"]\n"),
            "line 5, column 9: policy.port: `9-8` is neither a number nor a range such as 8000-8100",
        ),
        (format!("{policy}colour = 1\n"), "line 5, column 1: unknown field `colour`"),
        (format!("{policy}{policy}"), "line 6, column 8: policy `p` is there twice, rename one"),
        (
            format!("{policy}units = [\"x\"]\n"),
            "policy `p` has `x` in units, but there is no unit of that name",
        ),
        (
            format!("{policy}policy_or = [\"x\"]\n"),
            "policy `p` refers to `x`, but there is no policy of that name",
        ),
        (
            format!("{policy}policy_or = [\"%p\"]\n"),
            "policy `p` has `%p` in policy_or or policy_and, where % means nothing",
        ),
        (
            format!("{policy}policy_or = [\"q\"]\n[[policy]]\nname = \"q\"\npolicy_and = [\"!p\"]\n"),
            "line 4, column 8: policy `p` is in a cycle of policies, p -> q -> p, remove one of these references",
        ),
        (format!("{policy}as = [1]\n"), "policy `p` has as, but as_file is missing"),
        (format!("{policy}time = [\"25-26\"]\n"), "line 5, column 9: policy.time"),
        (
            format!("{unit}acct_policy = [\"x\"]\n"),
            "line 4, column 8: unit `u` has `x` in acct_policy, but there is no policy of that name",
        ),
        (format!("{unit}fw_policy = []\n"), "unit `u` has an empty fw_policy"),
        (
            format!("{unit}[[unit.quota]]\nperiod = \"day\"\nlimit = 0\n"),
            "line 4, column 8: unit `u` has a quota with the limit 0",
        ),
        (
            format!("{unit}[[unit.quota]]\nperiod = \"day\"\nlimit = \"1 gig\"\n"),
            "line 9, column 9: unit.quota.limit: `1 gig` is no number of bytes",
        ),
        (
            format!("{unit}[[unit.quota]]\nperiod = \"day\"\nlimit = 1\nbilling_day = 2\n"),
            "unit `u` has a quota with a billing_day and another period than \"month\"",
        ),
        (
            format!("{unit}[[unit.quota]]\nperiod = \"day\"\nlimit = 1\npolicy = \"p\"\n{policy}"),
            "unit `u` has a quota by the policy `p`, which is not in its acct_policy",
        ),
        (
            format!("{unit}{0}{0}", "[[unit.quota]]\nperiod = \"day\"\nlimit = 1\n"),
            "unit `u` has two quotas for `day sum`, remove one",
        ),
    ] {
        let said = refused(&lines);
        assert!(said.contains(expected), "{said}\n{expected}");
        assert!(said.starts_with("line ") && !said.contains('\n'), "{said}");
    }
    let hours = ["hour", "day", "week", "month"];
    let quotas =
        hours.map(|period| format!("[[unit.quota]]\nperiod = \"{period}\"\nlimit = 1\nhard = true\n"));
    assert!(
        refused(&format!("{unit}{}", quotas.concat()))
            .contains("with 4 hard quotas, of its groups as well, at most 3")
    );
    let ports: Vec<String> = (0..70).map(|port| (port * 2).to_string()).collect();
    assert!(
        refused(&format!("{policy}port = [{}]\n", ports.join(", "))).contains("takes 142 steps, at most 128")
    );
}

#[test]
fn a_bad_line_of_a_file_has_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("netams.toml");
    std::fs::write(&path, "[kernel]\ninterfaces = []\n[[policy]]\nname = \"p\"\nfile = \"list\"\n").unwrap();
    let load = || Config::load(&path).map_err(|e| e.to_string());
    let list = folder.path().join("list");
    assert!(load().unwrap_err().starts_with(&format!("{}: cannot be read: ", list.display())));
    std::fs::write(&list, "10.0.0.0/8\n10.0.0.0/33 # too long\n").unwrap();
    assert_eq!(
        load().unwrap_err(),
        format!(
            "{}:2:1: `10.0.0.0/33` is neither an IP address nor a prefix such as 10.0.0.0/8",
            list.display()
        )
    );
    std::fs::write(&list, "10.0.0.0/8\n").unwrap();
    assert_eq!(load().unwrap().files.prefixes["p"].len(), 1);
}
