//! What is wanted of netfilter, in no tool's words: which packets go to which queue, and what does not get that far.
//!
//! Pure. What the tools are told is made of these by [`super::iptables`] and [`super::nft`].

use super::RulesError;

/// Longest interface name, `IFNAMSIZ` without its final zero (`linux/if.h`); a prefix is shorter by the wildcard.
const NAME_MAX: usize = 15;

/// The place in netfilter where packets are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chain {
    /// Packets on their way through the box.
    Forward,
    /// Packets for the box.
    Input,
    /// Packets of the box.
    Output,
}

impl Chain {
    /// All of them, in the order in which they are installed and listed.
    pub const ALL: [Self; 3] = [Self::Forward, Self::Input, Self::Output];

    /// Name as configured and shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Input => "input",
            Self::Output => "output",
        }
    }
}

/// Adjacent queues over which packets are spread by their addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queues {
    /// Number of the first one.
    pub first: u16,
    /// How many, at least 1.
    pub count: u16,
}

impl Queues {
    pub(super) fn last(self) -> u16 {
        self.first.saturating_add(self.count.saturating_sub(1))
    }
}

/// Which packets are queued, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Where packets are taken.
    pub chains: Vec<Chain>,
    /// Names of interfaces, or prefixes of names that end in `*`. The loopback interface is meant only by `lo` itself,
    /// and then only in chain input, since a packet that the box sends to itself passes output and input.
    pub interfaces: Vec<String>,
    /// Where they go.
    pub queues: Queues,
    /// Where those of chain output go, if not there too.
    pub output_queue: Option<u16>,
    /// Packets pass when nobody listens to their queue; else they are dropped.
    pub bypass: bool,
}

/// What happens to a packet that is meant to be queued before it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// It is queued.
    Open,
    /// It is not when it has this bit in its mark, which says that it was counted elsewhere; the bit is cleared. Else it is,
    /// and has the bit from here on: whoever else meets it knows that it has been counted, also when nobody takes it from
    /// the queue.
    Handover {
        /// One bit of the packet mark.
        bit: u32,
    },
    /// It is not.
    Closed {
        /// Bits of the packet mark that are cleared.
        clear: u32,
    },
    /// It is not when its connection's mark has a verdict. One that comes back from a queue by `NF_REPEAT` with a verdict
    /// in its mark leaves that in its connection's mark; but a connection whose first packet is dropped is forgotten by
    /// conntrack, so that its next one is queued too.
    Offload {
        /// Bits of both marks that carry verdicts; not all 32.
        mask: u32,
        /// Value of these bits that lets packets pass.
        accept: u32,
        /// Value of these bits that drops packets.
        drop: u32,
    },
}

/// The interface of a packet that is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    In,
    Out,
}

/// One rule of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule<'a> {
    /// Loopback is not queued.
    Loopback(Side),
    /// Through the gate, when the interface matches.
    Gate(Option<(Side, &'a str)>),
    /// Queued, when the interface matches.
    Queue(Option<(Side, &'a str)>, Queues),
}

/// A rule in the words of its tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub text: String,
    /// Its packets are queued.
    pub queue: bool,
}

impl Plan {
    /// Whether rules can express it.
    ///
    /// # Errors
    /// Names the pattern or the queues that they cannot express.
    pub fn check(&self) -> Result<(), RulesError> {
        let Queues { first, count } = self.queues;
        if count == 0 || first.checked_add(count - 1).is_none() {
            return Err(RulesError::Queues { first, count });
        }
        match self.interfaces.iter().find(|pattern| !is_expressible(pattern)) {
            Some(pattern) => Err(RulesError::Pattern(pattern.clone())),
            None => Ok(()),
        }
    }

    /// The wanted chains, each once.
    pub(super) fn chains(&self) -> impl Iterator<Item = Chain> {
        Chain::ALL.into_iter().filter(|chain| self.chains.contains(chain))
    }

    /// The rules of one chain, in order.
    pub(super) fn rules(&self, chain: Chain) -> Vec<Rule<'_>> {
        let (sides, queues): (&[Side], _) = match (chain, self.output_queue) {
            (Chain::Forward, _) => (&[Side::In, Side::Out], self.queues),
            (Chain::Input, _) => (&[Side::In], self.queues),
            (Chain::Output, None) => (&[Side::Out], self.queues),
            (Chain::Output, Some(first)) => (&[Side::Out], Queues { first, count: 1 }),
        };
        let loopback = chain == Chain::Input && self.interfaces.iter().any(|pattern| pattern == "lo");
        let mut rules = Vec::new();
        // Nothing is forwarded from or to loopback.
        if !loopback
            && chain != Chain::Forward
            && self.interfaces.iter().any(|pattern| covers_loopback(pattern))
        {
            rules.push(Rule::Loopback(sides[0]));
        }
        let mut queue = |interface| rules.extend([Rule::Gate(interface), Rule::Queue(interface, queues)]);
        if self.interfaces.iter().any(|pattern| pattern == "*") {
            queue(None);
            return rules;
        }
        for pattern in self.interfaces.iter().filter(|pattern| loopback || *pattern != "lo") {
            sides.iter().for_each(|side| queue(Some((*side, pattern))));
        }
        rules
    }
}

/// Whether a pattern with a wildcard would match loopback.
fn covers_loopback(pattern: &str) -> bool {
    pattern.strip_suffix('*').is_some_and(|prefix| "lo".starts_with(prefix))
}

/// Whether both tools take the pattern for what it says. Other characters are possible in names, but mean something to
/// one of the tools.
fn is_expressible(pattern: &str) -> bool {
    let (name, max) = match pattern.strip_suffix('*') {
        Some(prefix) => (prefix, NAME_MAX - 1),
        None => (pattern, NAME_MAX),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@');
    !pattern.is_empty() && name.len() <= max && name.chars().all(plain)
}

/// Identity of a text, 64-bit FNV-1a: the same in every build, unlike the standard library's hashes.
pub(super) fn fingerprint(text: &str) -> String {
    // Offset basis and prime of 64 bits (draft-eastlake-fnv).
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUES: Queues = Queues { first: 2050, count: 3 };

    fn plan(interfaces: &[&str]) -> Plan {
        Plan {
            chains: Chain::ALL.to_vec(),
            interfaces: interfaces.iter().map(|i| (*i).to_owned()).collect(),
            queues: QUEUES,
            output_queue: None,
            bypass: true,
        }
    }

    /// What matches passes the gate, and is queued.
    fn gated(interface: Option<(Side, &str)>, queues: Queues) -> [Rule<'_>; 2] {
        [Rule::Gate(interface), Rule::Queue(interface, queues)]
    }

    #[test]
    fn each_chain_matches_its_sides() {
        let plan = Plan { output_queue: Some(2053), ..plan(&["eth0", "wg*"]) };
        let queue = |side, pattern| gated(Some((side, pattern)), QUEUES);
        assert_eq!(
            plan.rules(Chain::Forward),
            [
                queue(Side::In, "eth0"),
                queue(Side::Out, "eth0"),
                queue(Side::In, "wg*"),
                queue(Side::Out, "wg*")
            ]
            .concat()
        );
        assert_eq!(plan.rules(Chain::Input), [queue(Side::In, "eth0"), queue(Side::In, "wg*")].concat());
        let one = Queues { first: 2053, count: 1 };
        let queue = |pattern| gated(Some((Side::Out, pattern)), one);
        assert_eq!(plan.rules(Chain::Output), [queue("eth0"), queue("wg*")].concat());
    }

    #[test]
    fn loopback_is_meant_by_its_name_only() {
        let every = gated(None, QUEUES);
        let but_loopback = |side, rules: [Rule<'static>; 2]| [&[Rule::Loopback(side)][..], &rules].concat();
        for pattern in ["*", "l*", "lo*"] {
            let plan = plan(&[pattern]);
            let queued = |side| match pattern {
                "*" => every,
                _ => gated(Some((side, pattern)), QUEUES),
            };
            for (chain, side) in [(Chain::Input, Side::In), (Chain::Output, Side::Out)] {
                assert_eq!(plan.rules(chain), but_loopback(side, queued(side)), "{pattern}");
            }
        }
        let plan = plan(&["*", "lo"]);
        assert_eq!(plan.rules(Chain::Forward), every);
        assert_eq!(plan.rules(Chain::Input), every);
        assert_eq!(plan.rules(Chain::Output), but_loopback(Side::Out, every));
    }

    #[test]
    fn listed_loopback_is_queued_in_input_only() {
        let plan = plan(&["lo"]);
        assert_eq!(plan.rules(Chain::Forward), []);
        assert_eq!(plan.rules(Chain::Input), gated(Some((Side::In, "lo")), QUEUES));
        assert_eq!(plan.rules(Chain::Output), []);
    }

    #[test]
    fn what_rules_cannot_express_is_refused() {
        for pattern in ["eth0", "eth*", "*", "br-lan.10", "veth1@if2", "abcdefghijklmno", "abcdefghijklmn*"] {
            plan(&[pattern]).check().unwrap_or_else(|e| panic!("{pattern}: {e}"));
        }
        for pattern in [
            "",
            "et?0",
            "e*0",
            "**",
            "eth+",
            "!eth0",
            "a b",
            "a\"b",
            "a\nb",
            "a/b",
            "é",
            "abcdefghijklmnop",
            "abcdefghijklmno*",
        ] {
            let error = plan(&["eth0", pattern]).check().unwrap_err();
            assert!(matches!(&error, RulesError::Pattern(p) if p == pattern), "{pattern}: {error}");
        }
    }

    #[test]
    fn queues_are_16_bit_numbers() {
        let with = |first, count| Plan { queues: Queues { first, count }, ..plan(&["eth0"]) }.check();
        with(0, 64).unwrap();
        with(65_535, 1).unwrap();
        assert!(matches!(with(65_535, 2), Err(RulesError::Queues { first: 65_535, count: 2 })));
        assert!(matches!(with(0, 0), Err(RulesError::Queues { .. })));
    }

    /// Test vectors of draft-eastlake-fnv.
    #[test]
    fn the_fingerprint_is_fnv_1a() {
        assert_eq!(fingerprint(""), "cbf29ce484222325");
        assert_eq!(fingerprint("a"), "af63dc4c8601ec8c");
        assert_eq!(fingerprint("foobar"), "85944171f73967e8");
    }
}
