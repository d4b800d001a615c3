//! What is said to the tool and how its answers are read, without the tool.

use super::*;

const CLOSED: Gate = Gate::Closed { clear: 0x800 };

fn plan() -> Plan {
    Plan {
        chains: Chain::ALL.to_vec(),
        interfaces: vec!["eth0".to_owned(), "w*".to_owned(), "lo".to_owned()],
        queues: Queues { first: 2050, count: 3 },
        output_queue: Some(2053),
        bypass: true,
    }
}

#[test]
fn installing() {
    let plan = Plan { interfaces: vec!["*".to_owned(), "lo".to_owned()], ..plan() };
    assert_eq!(
        Layout::new(&plan, &CLOSED).install_text(),
        "\
add table inet netams
delete table inet netams
table inet netams {
\tchain gate {
\t\tcounter meta mark set meta mark & 0xfffff7ff accept comment \"netams:a06956dc392f4f09\"
\t}
\tchain forward {
\t\ttype filter hook forward priority -149; policy accept;
\t\tcounter jump gate comment \"netams:fe5897304b2cb1b0\"
\t\tcounter queue num 2050-2052 bypass comment \"netams:fe5897304b2cb1b0\"
\t}
\tchain input {
\t\ttype filter hook input priority -149; policy accept;
\t\tcounter jump gate comment \"netams:fe5897304b2cb1b0\"
\t\tcounter queue num 2050-2052 bypass comment \"netams:fe5897304b2cb1b0\"
\t}
\tchain output {
\t\ttype filter hook output priority -149; policy accept;
\t\toifname \"lo\" counter return comment \"netams:fe5897304b2cb1b0\"
\t\tcounter jump gate comment \"netams:fe5897304b2cb1b0\"
\t\tcounter queue num 2053 bypass comment \"netams:fe5897304b2cb1b0\"
\t}
}
"
    );
}

#[test]
fn rules_name_interfaces() {
    let plan = Plan { bypass: false, output_queue: None, ..plan() };
    let text = |chain| lines(&plan, chain).into_iter().map(|line| line.text).collect::<Vec<_>>();
    assert_eq!(
        text(Chain::Forward),
        [
            "iifname \"eth0\" counter jump gate",
            "iifname \"eth0\" counter queue num 2050-2052",
            "oifname \"eth0\" counter jump gate",
            "oifname \"eth0\" counter queue num 2050-2052",
            "iifname \"w*\" counter jump gate",
            "iifname \"w*\" counter queue num 2050-2052",
            "oifname \"w*\" counter jump gate",
            "oifname \"w*\" counter queue num 2050-2052",
        ]
    );
    assert_eq!(text(Chain::Input)[5], "iifname \"lo\" counter queue num 2050-2052");
    assert_eq!(text(Chain::Output).len(), 4, "lo is queued in input only");
}

#[test]
fn gates() {
    let text = |gate| gate_text(&gate);
    assert_eq!(text(Gate::Open), "flush chain inet netams gate\n");
    assert_eq!(
        text(Gate::Handover { bit: 0x800 }),
        "\
flush chain inet netams gate
add rule inet netams gate counter meta mark set meta mark ^ 0x00000800 comment \"netams:5c8db5025146ae7f\"
add rule inet netams gate meta mark & 0x00000800 == 0x00000000 counter accept comment \"netams:5c8db5025146ae7f\"
"
    );
    let offload = Gate::Offload { mask: 0xff00_0000, accept: 0x0100_0000, drop: 0x0200_0000 };
    let texts: Vec<_> = gate_lines(&offload).into_iter().map(|line| line.text).collect();
    assert_eq!(
        texts,
        [
            "ct mark & 0xff000000 == 0x01000000 counter accept",
            "ct mark & 0xff000000 == 0x02000000 counter drop",
            "meta mark & 0xff000000 == 0x01000000 counter ct mark set ct mark & 0x00ffffff | 0x01000000 meta mark set meta mark & 0x00ffffff accept",
            "meta mark & 0xff000000 == 0x02000000 counter ct mark set ct mark & 0x00ffffff | 0x02000000 drop",
        ]
    );
}

/// By libnftables-json(5) and nft 1.0.6: one chain, and a closed gate.
const LISTED: &str = r#"{"nftables": [
    {"metainfo": {"version": "1.0.6", "release_name": "Lester Gooch #5", "json_schema_version": 1}},
    {"table": {"family": "inet", "name": "netams", "handle": 2}},
    {"chain": {"family": "inet", "table": "netams", "name": "gate", "handle": 1}},
    {"chain": {"family": "inet", "table": "netams", "name": "output", "handle": 2, "type": "filter", "hook": "output", "prio": -149, "policy": "accept"}},
    {"rule": {"family": "inet", "table": "netams", "chain": "gate", "handle": 3, "comment": "netams:a06956dc392f4f09", "expr": [
        {"counter": {"packets": 9, "bytes": 900}},
        {"mangle": {"key": {"meta": {"key": "mark"}}, "value": {"&": [{"meta": {"key": "mark"}}, 4294965247]}}}, {"accept": null}]}},
    {"rule": {"family": "inet", "table": "netams", "chain": "output", "handle": 4, "comment": "netams:77bba7b00962afa9", "expr": [
        {"match": {"op": "==", "left": {"meta": {"key": "oifname"}}, "right": "eth0"}},
        {"counter": {"packets": 30, "bytes": 3000}}, {"jump": {"target": "gate"}}]}},
    {"rule": {"family": "inet", "table": "netams", "chain": "output", "handle": 5, "comment": "netams:77bba7b00962afa9", "expr": [
        {"match": {"op": "==", "left": {"meta": {"key": "oifname"}}, "right": "eth0"}},
        {"counter": {"packets": 1, "bytes": 100}}, {"queue": {"num": 2053, "flags": "bypass"}}]}},
    {"rule": {"family": "inet", "table": "netams", "chain": "output", "handle": 7, "comment": "netams:77bba7b00962afa9", "expr": [
        {"match": {"op": "==", "left": {"meta": {"key": "oifname"}}, "right": "w*"}},
        {"counter": {"packets": 2, "bytes": 201}}, {"jump": {"target": "gate"}}]}},
    {"rule": {"family": "inet", "table": "netams", "chain": "output", "handle": 6, "comment": "netams:77bba7b00962afa9", "expr": [
        {"match": {"op": "==", "left": {"meta": {"key": "oifname"}}, "right": "w*"}},
        {"counter": {"packets": 18446744073709551615, "bytes": 200}}, {"queue": {"num": 2053, "flags": ["bypass"]}}]}}
]}"#;

fn output_alone() -> Plan {
    Plan { chains: vec![Chain::Output], ..plan() }
}

#[test]
fn counters_are_read_back() {
    let layout = Layout::new(&output_alone(), &CLOSED);
    let listing = Listing::parse(LISTED).unwrap();
    assert!(layout.has_plan(&listing) && layout.has_gate(&listing));
    let counters = layout.counters(&listing);
    let brief: Vec<_> =
        counters.iter().map(|c| (c.chain.as_str(), c.text.as_str(), c.queue, c.packets, c.bytes)).collect();
    assert_eq!(
        brief,
        [
            ("output", "oifname \"eth0\" counter jump gate", false, 30, 3000),
            ("output", "oifname \"eth0\" counter queue num 2053 bypass", true, 1, 100),
            ("output", "oifname \"w*\" counter jump gate", false, 2, 201),
            ("output", "oifname \"w*\" counter queue num 2053 bypass", true, u64::MAX, 200),
            ("gate", "counter meta mark set meta mark & 0xfffff7ff accept", false, 9, 900),
        ]
    );
    assert!(counters.iter().all(|counter| counter.family == Family::Both));
}

#[test]
fn what_queues_is_found_without_a_plan() {
    let layout = Layout::new(&output_alone(), &CLOSED);
    let listing = Listing::parse(LISTED).unwrap();
    let known = layout.counters(&listing).into_iter().filter(|rule| rule.queue);
    assert!(listing.queue_rules().eq(known));
    let every = LISTED
        .replace(r#"{"match": {"op": "==", "left": {"meta": {"key": "oifname"}}, "right": "eth0"}},"#, "");
    let spread = every.replace(r#""num": 2053, "flags": "bypass""#, r#""num": {"range": [2050, 2052]}"#);
    let texts: Vec<_> = Listing::parse(&spread).unwrap().queue_rules().map(|rule| rule.text).collect();
    assert_eq!(texts, ["counter queue num 2050-2052", "oifname \"w*\" counter queue num 2053 bypass"]);
}

#[test]
fn any_change_is_noticed() {
    let layout = Layout::new(&output_alone(), &CLOSED);
    let has = |text: &str| {
        let listing = Listing::parse(text).unwrap();
        (layout.has_plan(&listing), layout.has_gate(&listing))
    };
    for (was, is) in [
        ("\"prio\": -149", "\"prio\": -150"),
        ("\"policy\": \"accept\"", "\"policy\": \"drop\""),
        ("\"name\": \"output\"", "\"name\": \"input\""),
        ("\"handle\": 5, \"comment\": \"netams:77bba7b00962afa9\"", "\"handle\": 9"),
        (
            "\"handle\": 5, \"comment\": \"netams:77bba7b00962afa9\"",
            "\"handle\": 5, \"comment\": \"netams:5\"",
        ),
        (
            "\"name\": \"gate\", \"handle\": 1}},",
            "\"name\": \"gate\", \"handle\": 1}}, {\"chain\": {\"name\": \"new\"}},",
        ),
        ("\"chain\": \"output\", \"handle\": 6", "\"chain\": \"gate\", \"handle\": 6"),
    ] {
        assert!(LISTED.contains(was), "{was}");
        assert!(!has(&LISTED.replacen(was, is, 1)).0, "{was}");
    }
    assert_eq!(has(&LISTED.replace("netams:a06956dc392f4f09\"", "netams:0\"")), (true, false));
    assert!(!Layout::new(&plan(), &CLOSED).has_plan(&Listing::parse(LISTED).unwrap()));
}

#[test]
fn what_is_no_listing_is_an_error() {
    assert!(matches!(Listing::parse("{\"nftables\": 1}"), Err(RulesError::Listing(_))));
    assert!(matches!(Listing::parse(""), Err(RulesError::Listing(_))));
}
