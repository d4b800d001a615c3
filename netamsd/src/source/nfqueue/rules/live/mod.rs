//! The rules in a real kernel, between real packets: by iptables in both variants, and by nft.
//!
//! Nobody listens to the queues, and the rules have bypass: what is queued passes on. Where the kernel's nftables cannot
//! queue, `accept` stands in the place of the queue statement, which is no different for packets, counters and gates.

mod bed;
mod gates;
mod guests;

use std::time::{Duration, Instant};

use super::{
    Chain, Family, Gate, Installed, Iptables, Nft, Plan, Queues, Reading, Rules, RulesError, Tool, nft,
};
use bed::{Bed, in_router, require_live, run, succeeds};

/// Runs `test` once with each tool, in a router of its own each time.
fn with_each_tool(test: impl Fn(&Bed, Opener) + Sync) {
    if !require_live() {
        return;
    }
    for opener in [Opener("iptables"), Opener("iptables-legacy"), Opener("nft")] {
        in_router(|bed| match opener {
            // Some kernels do without.
            Opener("iptables-legacy") if !succeeds("iptables-legacy -t mangle -S") => {
                println!("skipped: iptables-legacy does not work here");
            }
            _ => test(bed, opener),
        });
    }
}

/// The name of a tool.
#[derive(Clone, Copy)]
struct Opener(&'static str);

impl Opener {
    fn rules(self) -> Rules {
        let tool = match self.0 {
            "nft" => Tool::Nft(Nft::find().unwrap()),
            name => Tool::Iptables(Iptables::named(name, &name.replace("ip", "ip6")).unwrap()),
        };
        Rules { tool, installed: None }
    }

    fn is_nft(self) -> bool {
        self.0 == "nft"
    }

    /// Everything that the tool shows, in words for comparison.
    fn ruleset(self) -> String {
        let text = if self.is_nft() {
            run("nft list ruleset", "")
        } else {
            [self.0, &self.0.replace("ip", "ip6")].map(|name| run(&format!("{name}-save -c"), "")).concat()
        };
        let line = |line: &str| match line.split_once(" [") {
            // The legacy variant zeroes the counters of built-in chains' policies whenever it changes a table.
            Some((policy, _)) if line.starts_with(':') => format!("{policy}\n"),
            _ => format!("{line}\n"),
        };
        text.lines().filter(|line| !line.starts_with('#')).map(line).collect()
    }

    /// Takes the rules away as somebody would who knows nothing of them.
    fn flush(self) {
        match self.0 {
            "nft" => drop(run("nft flush ruleset", "")),
            name => drop(run(&format!("{name} -t mangle -F"), "")),
        }
    }
}

/// Nothing is queued.
const CLOSED: Gate = Gate::Closed { clear: 0x800 };

/// Installs rules where there are none of this plan.
fn install(rules: &mut Rules, plan: &Plan, gate: &Gate) {
    let mut expected = Installed::New;
    if let Tool::Nft(nft) = &rules.tool
        && nft.try_queue().is_err()
    {
        nft.apply(&accepting(&nft::Layout::new(plan, gate).install_text())).unwrap();
        expected = Installed::Adopted;
    }
    assert_eq!(rules.install(plan, gate).unwrap(), expected);
}

/// The text with `accept` for each queue statement.
fn accepting(text: &str) -> String {
    let line = |line: &str| match (line.split_once("queue num"), line.split_once("comment")) {
        (Some((before, _)), Some((_, comment))) => format!("{before}accept comment{comment}\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

fn plan() -> Plan {
    Plan {
        chains: Chain::ALL.to_vec(),
        interfaces: vec!["in0".to_owned(), "out*".to_owned(), "lo".to_owned()],
        queues: Queues { first: 2050, count: 3 },
        output_queue: Some(2053),
        bypass: true,
    }
}

fn read(rules: &Rules) -> Reading {
    rules.read().unwrap().expect("the rules are there")
}

/// Packets and bytes of the rules in a chain, of both IP versions, that queue or that do not.
fn sum(reading: &Reading, chain: &str, queue: bool) -> (u64, u64) {
    let rules = reading.rules.iter();
    let rules =
        rules.filter(|r| r.queue == queue && r.chain.to_lowercase().trim_start_matches("netams-") == chain);
    rules.fold((0, 0), |(packets, bytes), rule| (packets + rule.packets, bytes + rule.bytes))
}

/// Packets that were queued from each chain.
fn queued(reading: &Reading) -> [u64; 3] {
    Chain::ALL.map(|chain| sum(reading, chain.name(), true).0)
}

/// Reads until packets that are on their way have been counted.
fn read_until(rules: &Rules, done: impl Fn(&Reading) -> bool) -> Reading {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let reading = read(rules);
        if done(&reading) {
            return reading;
        }
        assert!(Instant::now() < deadline, "the counters are not what they should be: {reading:#?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_passes_is_counted() {
    with_each_tool(|bed, opener| {
        let mut rules = opener.rules();
        install(&mut rules, &plan(), &Gate::Open);
        assert_eq!(queued(&read(&rules)), [0, 0, 0]);
        bed.forward([5, 4]);
        bed.loopback([2, 3]);
        bed.output([3, 1]);
        let reading = read_until(&rules, |reading| queued(reading) == [9, 5, 4]);
        assert_eq!(sum(&reading, "forward", true), (9, 5 * 128 + 4 * 148));
        assert_eq!(sum(&reading, "input", true), (5, 2 * 128 + 3 * 148));
        assert_eq!(sum(&reading, "output", true), (4, 3 * 128 + 148));
        assert_eq!(sum(&reading, "output", false), (4, 3 * 128 + 148), "through the gate");
        for rule in
            reading.rules.iter().filter(|rule| rule.text.contains("out") && rule.chain.ends_with("ORWARD"))
        {
            assert_eq!(rule.packets, 0, "counted once, where it came in: {}", rule.text);
        }
        if !opener.is_nft() {
            let of = |family| {
                let rules = reading.rules.iter().filter(|rule| rule.family == family && rule.queue);
                rules.map(|rule| rule.packets).sum::<u64>()
            };
            assert_eq!((of(Family::Ipv4), of(Family::Ipv6)), (10, 8));
        }
        assert!(reading.followed.is_empty());
    });
}

#[test]
fn every_interface_is_not_loopback() {
    with_each_tool(|bed, opener| {
        let mut rules = opener.rules();
        install(&mut rules, &Plan { interfaces: vec!["*".to_owned()], ..plan() }, &Gate::Open);
        bed.loopback([2, 2]);
        bed.forward([1, 1]);
        bed.output([1, 1]);
        let reading = read_until(&rules, |reading| queued(reading)[0] == 2);
        assert_eq!(queued(&reading), [2, 0, 2]);
        assert_eq!(sum(&reading, "input", false).0, 4, "back by the rule for loopback, before the gate");
    });
}

#[test]
fn the_same_plan_is_adopted_and_its_counters_go_on() {
    with_each_tool(|bed, opener| {
        let mut killed = opener.rules();
        install(&mut killed, &plan(), &Gate::Open);
        bed.output([3, 3]);
        let before = read_until(&killed, |reading| queued(reading) == [0, 0, 6]);

        let mut next = opener.rules();
        assert_eq!(next.read().unwrap(), None, "nothing was installed by this one");
        assert_eq!(next.install(&plan(), &Gate::Open).unwrap(), Installed::Adopted);
        assert_eq!(read(&next), before);

        let mut third = opener.rules();
        assert_eq!(third.install(&plan(), &CLOSED).unwrap(), Installed::Adopted);
        assert!(!read(&next).gated, "the gate is another's");
        assert_eq!(queued(&read(&next)), [0, 0, 6], "and hides nothing");
        bed.output([1, 1]);
        let reading = read_until(&third, |reading| sum(reading, "gate", false).0 >= 2);
        assert_eq!(queued(&reading), [0, 0, 6], "the gate is closed");
        third.set_gate(&Gate::Open).unwrap();
        bed.output([1, 1]);
        read_until(&third, |reading| queued(reading) == [0, 0, 8]);
    });
}

#[test]
fn another_plan_replaces_the_rules() {
    with_each_tool(|bed, opener| {
        let mut old = opener.rules();
        install(&mut old, &plan(), &Gate::Open);
        bed.output([1, 1]);
        read_until(&old, |reading| queued(reading) == [0, 0, 2]);
        let plan = Plan { chains: vec![Chain::Forward, Chain::Output], output_queue: None, ..plan() };
        let mut new = opener.rules();
        install(&mut new, &plan, &Gate::Open);
        assert_eq!(old.read().unwrap(), None);
        assert_eq!(queued(&read(&new)), [0, 0, 0], "new rules");
        bed.output([1, 1]);
        read_until(&new, |reading| queued(reading) == [0, 0, 2]);
        let text = opener.ruleset().to_lowercase();
        assert!(!text.contains("netams-input") && !text.contains("chain input"), "{text}");
        if !opener.is_nft() {
            let jumps = text.lines().filter(|line| line.ends_with("-j netams-output")).count();
            assert_eq!(jumps, 2, "one for each IP version:\n{text}");
        }
    });
}

#[test]
fn missing_and_changed_rules_are_noticed() {
    with_each_tool(|_, opener| {
        let mut rules = opener.rules();
        let breakers: &[&str] = match opener.0 {
            "nft" => &[
                "nft add rule inet netams gate accept",
                "nft add rule inet netams input counter accept",
                "nft flush chain inet netams output",
                "nft add chain inet netams more",
                "nft delete table inet netams",
            ],
            "iptables" => &[
                "iptables -t mangle -A NETAMS-GATE -j ACCEPT",
                "iptables -t mangle -D NETAMS-INPUT 2",
                "ip6tables -t mangle -D NETAMS-OUTPUT 1",
                "ip6tables -t mangle -F FORWARD",
                "iptables -t mangle -I FORWARD -j NETAMS-FORWARD",
                "iptables -t mangle -N NETAMS-OTHER",
            ],
            _ => &["iptables-legacy -t mangle -F INPUT", "ip6tables-legacy -t mangle -F NETAMS-FORWARD"],
        };
        for breaker in breakers {
            install(&mut rules, &plan(), &Gate::Handover { bit: 0x800 });
            assert!(read(&rules).gated);
            run(breaker, "");
            let gated = match breaker.to_lowercase() {
                foreign if foreign.ends_with("netams-other") => Some(true),
                gate if gate.contains("gate") => Some(false),
                _ => None,
            };
            assert_eq!(rules.read().unwrap().map(|reading| reading.gated), gated, "{breaker}");
            match &rules.tool {
                Tool::Nft(tool) => tool.remove().unwrap(),
                Tool::Iptables(tool) => tool.remove().unwrap(),
            }
        }
        install(&mut rules, &plan(), &Gate::Open);
        opener.flush();
        assert_eq!(rules.read().unwrap(), None);
        if opener.is_nft() {
            assert!(matches!(rules.set_gate(&CLOSED), Err(RulesError::Refused { .. })));
            assert_eq!(opener.ruleset(), "", "no gate without a table");
        }
        // Whatever is left, installing heals it.
        install(&mut rules, &plan(), &Gate::Open);
        read(&rules);
    });
}

#[test]
fn the_tool_is_chosen_by_what_the_kernel_can_do() {
    if !require_live() {
        return;
    }
    in_router(|_| {
        let before = run("nft list ruleset", "");
        let can_queue = Nft::find().unwrap().try_queue();
        let chosen = Rules::open(None).unwrap();
        match can_queue {
            Ok(()) => assert_eq!(chosen.backend().name(), "nft"),
            Err(RulesError::NoQueue(_)) => {
                assert_eq!(chosen.backend().name(), "iptables");
                let error = Rules::open(Some(super::Backend::Nft)).unwrap_err();
                assert!(matches!(error, RulesError::NoQueue(_)), "{error}");
            }
            Err(e) => panic!("{e}"),
        }
        assert_eq!(Rules::open(Some(super::Backend::Iptables)).unwrap().backend().name(), "iptables");
        assert_eq!(run("nft list ruleset", ""), before, "trying leaves nothing");
    });
}

/// Where the kernel's nftables cannot queue, that is all that it has to say against the rules.
#[test]
fn nft_understands_every_rule() {
    if !require_live() {
        return;
    }
    in_router(|_| {
        for gate in [
            Gate::Open,
            CLOSED,
            Gate::Handover { bit: 0x800 },
            Gate::Offload { mask: 0xff00_0000, accept: 0x0100_0000, drop: 0x0200_0000 },
        ] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), nft::Layout::new(&plan(), &gate).install_text()).unwrap();
            let program = super::tool::find("nft", "nftables").unwrap();
            let output =
                std::process::Command::new(program).args(["-c", "-f"]).arg(file.path()).output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            if Nft::find().unwrap().try_queue().is_ok() {
                assert!(output.status.success(), "{said}");
                continue;
            }
            // An error is `file:line:first-last: Error: message`, the rule, and a mark below what is meant.
            let lines: Vec<_> = said.lines().collect();
            assert!(!lines.is_empty() && lines.len() % 3 == 0, "{said}");
            for error in lines.chunks(3) {
                assert!(error[0].ends_with("Could not process rule: No such file or directory"), "{said}");
                let column: usize = error[0].split([':', '-']).nth(2).unwrap().parse().unwrap();
                assert!(error[1][column - 1..].starts_with("queue num "), "{said}");
            }
        }
    });
}
