//! Rules of others beside ours, rules of ours that nobody remembers, and what is left when ours are gone.

use super::{
    super::remove,
    CLOSED, Chain, Family, Gate, Installed, Opener, Plan, Rules, Tool,
    bed::{in_router, require_live, run},
    install, plan, read, with_each_tool,
};

fn remove_own(rules: &Rules) {
    match &rules.tool {
        Tool::Nft(tool) => tool.remove().unwrap(),
        Tool::Iptables(tool) => tool.remove().unwrap(),
    }
}

/// Rules of others, some of them beside ours.
fn invite(opener: Opener) {
    if opener.is_nft() {
        return drop(run("nft -f -", "
            table inet filter {
                set hosts { type ipv4_addr; elements = { 192.0.2.1, 192.0.2.2 }; }
                chain forward { type filter hook forward priority 0; policy drop; ip saddr @hosts counter accept; };
            }
            table ip mangle { chain FORWARD { type filter hook forward priority -150; meta mark set 0x1; }; }
        "));
    }
    for family in [opener.0.to_owned(), opener.0.replace("ip", "ip6")] {
        run(
            &format!("{family}-restore"),
            "\
*mangle
:FORWARD DROP [3:300]
:OTHERS - [0:0]
[5:500] -A FORWARD -i in0 -p udp -m comment --comment \"for \\\"others\\\" -j NETAMS-GATE\" -j OTHERS
-A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
-A OTHERS -j MARK --set-xmark 0x1/0x1
COMMIT
*nat
-A POSTROUTING -o out0 -j MASQUERADE
COMMIT
*filter
:NETAMS-OUTPUT - [0:0]
-A OUTPUT -j NETAMS-OUTPUT
COMMIT
",
        );
    }
}

/// Everything that the tool shows, without what is ours.
fn without_ours(opener: Opener) -> String {
    let text = opener.ruleset();
    if opener.is_nft() {
        let (before, ours) = text.split_once("table inet netams {").expect("our table");
        let (_, after) = ours.split_once("\n}\n").expect("the end of our table");
        return before.to_owned() + after;
    }
    let mut table = "";
    let mut others = String::new();
    for line in text.lines() {
        if line.starts_with('*') {
            table = line;
        }
        // The same name in another table, or in somebody's comment, is not ours.
        if table != "*mangle" || !line.contains("NETAMS-") || line.contains("others") {
            others += &format!("{line}\n");
        }
    }
    others
}

#[test]
fn rules_of_others_stay_as_they_are() {
    with_each_tool(|_, opener| {
        invite(opener);
        let before = opener.ruleset();
        let mut rules = opener.rules();
        let without_ours = || without_ours(opener);
        let plan = Plan { chains: vec![Chain::Forward, Chain::Input], ..plan() };
        install(&mut rules, &plan, &Gate::Open);
        assert_eq!(without_ours(), before);
        rules.set_gate(&Gate::Handover { bit: 0x800 }).unwrap();
        assert_eq!(without_ours(), before);
        let other = Plan { chains: vec![Chain::Input], ..plan };
        install(&mut rules, &other, &CLOSED);
        assert_eq!(without_ours(), before);
        read(&rules);
        remove_own(&rules);
        assert_eq!(opener.ruleset(), before);
        assert_eq!(rules.read().unwrap(), None);
    });
}

#[test]
fn rules_behind_our_jump_are_told() {
    with_each_tool(|_, opener| {
        if opener.is_nft() {
            return;
        }
        invite(opener);
        let mut rules = opener.rules();
        install(&mut rules, &plan(), &Gate::Open);
        assert_eq!(read(&rules).followed, [], "ours is the last");
        run(&format!("{} -t mangle -A FORWARD -j OTHERS", opener.0.replace("ip", "ip6")), "");
        run(&format!("{} -t mangle -A INPUT -p udp", opener.0), "");
        assert_eq!(read(&rules).followed, [(Family::Ipv4, Chain::Input), (Family::Ipv6, Chain::Forward)]);
    });
}

#[test]
fn removing_needs_to_know_nothing() {
    if !require_live() {
        return;
    }
    in_router(|_| {
        remove().unwrap();
        assert_eq!(run("nft list ruleset", ""), "", "nothing is made to look for it");
        for opener in [Opener("iptables"), Opener("nft")] {
            install(&mut opener.rules(), &plan(), &CLOSED);
            assert!(opener.ruleset().to_lowercase().contains("netams"));
            remove().unwrap();
            assert!(!opener.ruleset().to_lowercase().contains("netams"), "{}", opener.ruleset());
            remove().unwrap();
        }
    });
}

#[test]
fn rules_made_with_the_other_tool_are_removed() {
    if !require_live() {
        return;
    }
    in_router(|_| {
        let (iptables, nft) = (Opener("iptables"), Opener("nft"));
        install(&mut iptables.rules(), &plan(), &Gate::Open);
        let mut rules = nft.rules();
        install(&mut rules, &plan(), &Gate::Open);
        assert!(!iptables.ruleset().contains("NETAMS"), "{}", iptables.ruleset());
        read(&rules);
        let mut rules = iptables.rules();
        assert_eq!(rules.install(&plan(), &Gate::Open).unwrap(), Installed::New);
        assert!(!nft.ruleset().contains("inet netams"), "{}", nft.ruleset());
        read(&rules);
    });
}
