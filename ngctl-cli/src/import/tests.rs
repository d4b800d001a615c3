//! Tables: what a line becomes, and what is said of it.

use proptest::prelude::*;

use super::{Note, convert};

/// Words that mean something somewhere, and some that mean nothing anywhere.
const WORDS: &[&str] = &[
    "unit",
    "policy",
    "service",
    "set",
    "rule",
    "source",
    "type",
    "default",
    "restrict",
    "auto-units",
    "no",
    "&&",
    "\n",
    "\n",
    "\n",
    "oid",
    "name",
    "target",
    "host",
    "cluster",
    "net",
    "group",
    "user",
    "processor",
    "quota",
    "data-source",
    "storage",
    "ip",
    "mask",
    "parent",
    "acct-policy",
    "fw-policy",
    "bw",
    "in",
    "out",
    "sum",
    "port",
    "proto",
    "tos",
    "as",
    "vlan",
    "ds",
    "units",
    "file",
    "addr",
    "ifindex",
    "policy-or",
    "policy-and",
    "time",
    "day",
    "month",
    "all",
    "pass",
    "a",
    "b",
    "!a",
    "%b",
    "!%",
    "0A1",
    "1.2.3.4",
    "10.0.0.0/8",
    "255.0.255.0",
    "::1/64",
    "s80",
    "d1:2",
    "20G",
    "\"",
    "«x",
    "é",
    "Mon-Sun",
    "9-18",
    "sys-deny",
    "sys-allow-quota",
    "-i",
    "via",
    "\u{1b}[31m",
    "\\",
    "#",
    "–",
    "",
];

proptest! {
    #[test]
    fn any_words_are_read_and_what_is_written_is_toml(words in prop::collection::vec(prop::sample::select(WORDS), 0..80)) {
        if let Some((config, notes)) = convert(&format!("service processor 0\n{}", words.join(" "))) {
            let parsed = config.parse::<::toml::Table>();
            prop_assert!(parsed.is_ok(), "{config}");
            prop_assert!(notes.iter().all(|note| note.line > 0 && !note.text.contains('\n')));
        }
    }

    #[test]
    fn any_text_is_read(text in any::<String>()) {
        convert(&format!("service processor 0\n{text}"));
    }
}

/// What the lines of `service processor` become below the head, and the notes of these lines.
fn processor(lines: &str) -> (String, Vec<String>) {
    let head = "service data-source 1\nsource tee 1\nrule 1 via eth0\nservice processor\nrestrict all pass local pass\n";
    let (config, notes) = convert(&format!("{head}{lines}")).unwrap();
    let body = config.split_once("interfaces = [\"eth0\"]\n").unwrap().1.trim_start().to_owned();
    config.parse::<::toml::Table>().unwrap();
    (body, notes.into_iter().map(|note| note.text).collect())
}

fn texts(notes: &[Note]) -> Vec<&str> {
    notes.iter().map(|note| note.text.as_str()).collect()
}

#[test]
fn targets_become_keys() {
    for (target, expected, notes) in [
        ("proto ip", "", 0),
        ("proto tcp", "proto = [\"tcp\"]\n", 0),
        ("proto 94 tos 16 vlan 10 20:29", "proto = [94]\nvlan = [10, \"20-29\"]\n", 1),
        ("proto tcp port 25", "proto = [\"tcp\"]\nport = [25]\n", 0),
        ("as 65001 64512:65534", "as = [65001, \"64512-65534\"]\n", 1),
        ("as s65001", "as = [65001]\n", 2),
        ("ds 1", "ds = [\"kernel\"]\n", 0),
        ("ds 2", "ds = [\"kernel\"]\n", 1),
        ("units oid A1", "units = [\"u\"]\n", 0),
        ("units name u target proto udp", "proto = [\"udp\"]\nunits = [\"u\"]\n", 0),
        ("units gone", "", 1),
        ("file /a file /b", "file = \"/a\"\n", 2),
        ("addr 10.0.0.0/8 1.2.3.4", "addr = [\"10.0.0.0/8\", \"1.2.3.4\"]\n", 0),
        ("addr 10.0.0.1 mask 255.0.0.0 x", "addr = [\"10.0.0.0/8\"]\n", 1),
        ("ifindex em0", "", 1),
        ("ifindex s2", "", 1),
        ("ingress", "", 1),
        ("policy-or q !q", "policy_or = [\"q\", \"!q\"]\n", 0),
        ("policy-and q time 9-18 day sun", "policy_and = [\"q\"]\ntime = [\"9-18\"]\nday = [\"Sun\"]\n", 0),
        ("policy-and gone", "", 1),
        ("policy-or time time 9-18", "policy_or = [\"time\"]\ntime = [\"9-18\"]\n", 0),
        ("proto foo", "", 1),
        ("proto tcp foo", "proto = [\"tcp\"]\n", 1),
        ("layer7-detect urls", "", 1),
        ("colour red", "", 1),
        ("proto tcp bw 64K in 32K out", "proto = [\"tcp\"]\n", 1),
    ] {
        let lines = format!(
            "policy name q\npolicy name time\npolicy name p target {target}\nunit host oid A1 name u ip 1.1.1.1"
        );
        let (config, said) = processor(&lines);
        let (policy, _) = config.split_once("name = \"p\"\n").unwrap().1.split_once("\n[[unit]]").unwrap();
        assert_eq!((policy, said.len()), (expected, notes), "{target}: {said:?}");
        assert!(said.iter().all(|text| text.starts_with("policy p: ")), "{said:?}");
        let matches_more = said.iter().any(|text| text.contains("matches more"));
        let more = expected.is_empty() && target != "proto ip" || target.contains("tos");
        assert_eq!(matches_more, more, "{target}: {said:?}");
    }
}

#[test]
fn attributes_become_keys() {
    let host = "addresses = [\"1.1.1.1\"]\n";
    for (attributes, expected, notes) in [
        ("host name u ip 1.1.1.1", format!("kind = \"host\"\n{host}"), 0),
        ("user name u ip 1.1.1.1 email a@b", format!("kind = \"user\"\n{host}email = \"a@b\"\n"), 0),
        (
            "host name u ip 1.1.1.1 ip 1.1.1.2",
            "kind = \"cluster\"\naddresses = [\"1.1.1.1\", \"1.1.1.2\"]\n".into(),
            1,
        ),
        (
            "cluster name u ip 1.1.1.1 1.1.1.2",
            "kind = \"cluster\"\naddresses = [\"1.1.1.1\", \"1.1.1.2\"]\n".into(),
            0,
        ),
        ("host name u ip 1.1.1.0/24", "kind = \"net\"\naddresses = [\"1.1.1.0/24\"]\n".into(), 1),
        (
            "net name u ip 1.1.1.9 mask 255.255.255.0",
            "kind = \"net\"\naddresses = [\"1.1.1.0/24\"]\n".into(),
            1,
        ),
        ("net name u ip 1.1.1.1", format!("kind = \"net\"\n{host}"), 1),
        ("net name u ip 0.0.0.0/0 auto-units 1", "kind = \"net\"\naddresses = [\"0.0.0.0/0\"]\n".into(), 1),
        ("host name u ip 1.1.1.1 auto-units 1", format!("kind = \"host\"\n{host}"), 1),
        ("host name u ip 1.1.1.1 mac 00-11-22-AA-bb-CC", format!("kind = \"host\"\n{host}"), 1),
        (
            "host name u ip 1.1.1.1 description \"a b\"",
            format!("kind = \"host\"\n{host}description = \"a b\"\n"),
            0,
        ),
        (
            "host name u acct-policy ip !q %q ip 1.1.1.1",
            format!("kind = \"host\"\n{host}acct_policy = [\"ip\", \"!q\", \"%q\"]\n"),
            0,
        ),
        (
            "host name u ip 1.1.1.1 acct-policy C fw-policy q",
            format!("kind = \"host\"\n{host}acct_policy = [\"q\"]\nfw_policy = [\"q\"]\n"),
            0,
        ),
        (
            "host name u ip 1.1.1.1 fw-policy gone no-local-pass",
            format!("kind = \"host\"\n{host}no_local_pass = true\n"),
            2,
        ),
        ("host name u ip 1.1.1.1 bw 128K", format!("kind = \"host\"\n{host}"), 1),
        ("host name u ip 1.1.1.1 bw 128K in bw 2M out", format!("kind = \"host\"\n{host}"), 2),
        ("host name u ip 1.1.1.1 bw 1.5M out sys-deny", format!("kind = \"host\"\n{host}deny = true\n"), 1),
        ("host name u ip 1.1.1.1 sys-deny sys-allow", format!("kind = \"host\"\n{host}"), 0),
        (
            "host name u ip 1.1.1.1 sys-deny-block sys-deny-quota sys-allow-quota",
            format!("kind = \"host\"\n{host}deny = true\n"),
            0,
        ),
        ("host name u ip 1.1.1.1 sys-deny-money", format!("kind = \"host\"\n{host}deny = true\n"), 1),
        ("host name u ip 1.1.1.1 sys-deny-0F1", format!("kind = \"host\"\n{host}"), 1),
        ("host name u ip 1.1.1.1 ds-list 1,2", format!("kind = \"host\"\n{host}"), 0),
        ("host name u ip 1.1.1.1 ds-list 2", format!("kind = \"host\"\n{host}"), 1),
        ("host name u ip 1.1.1.1 colour red bw 1K in", format!("kind = \"host\"\n{host}"), 2),
        ("host name u ip 1.1.1.1 parent u parent v", format!("kind = \"host\"\n{host}"), 2),
    ] {
        let (config, said) = processor(&format!("policy name ip\npolicy oid 0C name q\nunit {attributes}"));
        assert_eq!(config.split_once("name = \"u\"\n").unwrap().1, expected, "{attributes}: {said:?}");
        assert_eq!(said.len(), notes, "{attributes}: {said:?}");
        assert!(said.iter().all(|text| text.starts_with("unit u: ")), "{said:?}");
    }
}

#[test]
fn units_that_netamsd_would_refuse_are_left_out_with_all_that_refers_to_them() {
    let lines = "policy name p target units name a units name b\nunit group name outer\nunit group name inner parent outer\n\
                 unit user name a ip auto parent inner\nunit user name b ip 1.1.1.1";
    let (config, said) = processor(lines);
    assert!(config.contains("units = [\"b\"]"), "{config}");
    assert_eq!(config.matches("[[unit]]").count(), 1, "{config}");
    let left_out =
        |name: &str| said.iter().any(|text| text.starts_with(&format!("unit {name}: it is left out")));
    assert!(["a", "inner", "outer"].into_iter().all(left_out), "{said:?}");
    assert!(said.contains(&"policy p: it asks for a unit that is left out".to_owned()), "{said:?}");
}

#[test]
fn defaults_are_for_later_units() {
    let lines = "policy name p\npolicy name q\nunit host name a ip 1.1.1.1\ndefault acct-policy p fw-policy q\n\
                 unit host name b ip 1.1.1.2 acct-policy q p\nunit host name c ip 1.1.1.3 nodefault\n\
                 unit host name d ip 1.1.1.4 ap-nodefault";
    let (config, said) = processor(lines);
    let lists: Vec<&str> =
        config.lines().filter(|line| line.contains("_policy") || line.starts_with("name")).collect();
    assert_eq!(
        lists[2..].join("\n"),
        "name = \"a\"\nname = \"b\"\nacct_policy = [\"q\", \"p\"]\nfw_policy = [\"q\"]\nname = \"c\"\nname = \"d\"\n\
         fw_policy = [\"q\"]"
    );
    assert_eq!(said.len(), 2, "{said:?}");
}

#[test]
fn what_is_the_default_of_netams_is_written_out() {
    for (lines, all, local) in [
        ("", "drop", "pass"),
        ("restrict all pass", "pass", "pass"),
        ("restrict local drop all pass", "pass", "drop"),
        ("restrict all maybe", "drop", "pass"),
    ] {
        let (config, _) = convert(&format!("service processor\n{lines}")).unwrap();
        assert!(
            config.contains(&format!("default_policy = \"{all}\"\nlocal_policy = \"{local}\"\n")),
            "{lines}"
        );
    }
}

#[test]
fn quotas_are_those_of_set() {
    let lines = "policy name p\npolicy name q\nunit host name u ip 1.1.1.1\n\
                 service quota\npolicy q\nsoft-treshold 75\n\
                 set name u policy p day 3M in 4M out soft-treshold 101\nset name u soft week 1G sum\n";
    let (config, said) = processor(lines);
    let quota = |period, limit, direction, rest| {
        format!(
            "\n[[unit.quota]]\nperiod = \"{period}\"\nlimit = \"{limit}\"\ndirection = \"{direction}\"\n{rest}\n"
        )
    };
    let expected = quota("day", "3MB", "in", "policy = \"p\"\nhard = true")
        + &quota("day", "4MB", "out", "policy = \"p\"\nhard = true")
        + &quota("week", "1GB", "sum", "warn = 75\npolicy = \"q\"\nhard = false");
    assert!(config.ends_with(&expected), "{config}");
    assert!(config.contains("acct_policy = [\"q\", \"p\"]\n"), "{config}");
    assert_eq!(
        said,
        [
            "unit u: `p` is added to its `acct_policy`, since a quota is by it",
            "unit u: `q` is added to its `acct_policy`, since a quota is by it",
            "quota of u: `101` is no percentage; `warn` is not written"
        ]
    );
}

#[test]
fn what_is_no_configuration_is_refused() {
    for text in [
        "",
        "debug none\nuser name x",
        "[kernel]\ninterfaces = []",
        "service nothing",
        "root:x:0:0",
        "policy",
        "unit",
    ] {
        assert_eq!(convert(text), None, "{text}");
    }
    assert!(convert("unit host name a ip 1.2.3.4").is_some(), "a part of a file");
}

#[test]
fn passwords_are_in_no_output() {
    let text = "user name admin password s3cret crypted s3cret\nservice processor\nradius auth web login x password s3cret\n\
                unit user name u ip 1.1.1.1 password s3cret\npassword s3cret\nservice storage 1\npassword s3cret\n\
                service quota\npassword s3cret\nservice data-source\npassword s3cret";
    let (config, notes) = convert(text).unwrap();
    assert!(!config.contains("s3cret"), "{config}");
    assert!(notes.iter().all(|note| !note.text.contains("s3cret")), "{notes:?}");
}

#[test]
fn old_lists_and_lost_letters_are_named() {
    let lists = "service processor\npolicy name p\nunit host name a ip 1.1.1.1 fw-policy p\n";
    let old = |version: &str| {
        let (_, notes) = convert(&format!("#NeTAMS version {version}\n{lists}")).unwrap();
        texts(&notes).iter().any(|text| text.starts_with("before 3.3.0"))
    };
    assert_eq!(
        ["3.1.10", "3.2.2 (build 1)", "3.3.0 (build 2117)", "3.4.0rc1", "x"].map(old),
        [true, true, false, false, true]
    );
    let (_, notes) =
        convert("service processor\nunit host name a ip 1.1.1.1 description \u{fffd}\u{fffd}").unwrap();
    assert!(texts(&notes).iter().any(|text| text.starts_with("1 lines are not UTF-8")), "{notes:?}");
}
