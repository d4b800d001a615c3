//! Random configurations and flows: few addresses, ports and VLANs, so that they often meet.

use std::net::Ipv6Addr;

use netamsd::{
    config::Config,
    flow::{Encapsulation, FlowKey, Tunnel},
};

/// Marsaglia's xorshift.
pub struct Random(pub u64);

const PROTOCOLS: [u8; 6] = [6, 17, 1, 58, 132, 47];

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    /// Less than `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Whether something happens that does once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// `[a, b]` of one to `most` values.
    fn list(&mut self, most: u64, mut value: impl FnMut(&mut Self) -> String) -> String {
        let count = 1 + self.below(most);
        let values: Vec<String> = (0..count).map(|_| value(self)).collect();
        format!("[{}]", values.join(", "))
    }

    fn range(&mut self, end: u64) -> String {
        let (a, b) = (self.below(end), self.below(end));
        if self.one_in(2) { a.to_string() } else { format!("\"{}-{}\"", a.min(b), a.max(b)) }
    }

    fn address(&mut self) -> String {
        match self.below(3) {
            0 => format!("2001:db8::{:x}", self.below(8)),
            _ => format!("10.0.{}.{}", self.below(4), self.below(8)),
        }
    }

    fn prefix(&mut self) -> String {
        match self.below(6) {
            0 => "2001:db8::/64".to_owned(),
            1 => format!("2001:db8::{:x}/127", self.below(4) * 2),
            2 => (*self.pick(&["0.0.0.0/0", "::/0", "10.0.0.0/22"])).to_owned(),
            3 => format!("10.0.{}.{}/30", self.below(4), self.below(2) * 4),
            4 => format!("10.0.{}.0/24", self.below(4)),
            _ => self.address(),
        }
    }

    /// A configuration, as text and parsed.
    pub fn config(&mut self) -> (String, Config) {
        loop {
            let text = self.text();
            match Config::parse(&text) {
                Ok(config) => return (text, self.with_files(config)),
                // It happens that an address has too many, or that a policy is too long.
                Err(e)
                    if ["hard quotas", " steps", "and its opposite"]
                        .iter()
                        .any(|limit| e.to_string().contains(limit)) => {}
                Err(e) => panic!("{e} in\n{text}"),
            }
        }
    }

    fn text(&mut self) -> String {
        let (units, policies) = (2 + self.below(10), 1 + self.below(10));
        let mut text = format!(
            "mode = \"divert\"\ntimezone = \"UTC\"\nas_file = \"systems\"\ndefault_policy = \"{}\"\n",
            self.pick(&["pass", "pass", "drop"])
        );
        if self.one_in(2) {
            text += &format!("local_policy = \"{}\"\n", self.pick(&["pass", "drop"]));
        }
        text += "[kernel]\ninterfaces = []\ntunnels = \"inner\"\n[accounting]\ncharge = \"inner\"\n";
        for policy in 0..policies {
            text += &self.policy(policy, units);
        }
        for unit in 0..units {
            text += &self.unit(unit, policies);
        }
        text
    }

    fn with_files(&mut self, mut config: Config) -> Config {
        for policy in config.policies.iter().filter(|policy| policy.file.is_some()) {
            let prefixes = (0..1 + self.below(20)).map(|_| self.net()).collect();
            config.files.prefixes.insert(policy.name.clone(), prefixes);
        }
        config.files.systems = (0..20).map(|_| (self.net(), 1 + self.below(4) as u32)).collect();
        config
    }

    fn net(&mut self) -> ipnet::IpNet {
        let text = self.prefix();
        text.parse().or_else(|_| text.parse::<std::net::IpAddr>().map(Into::into)).expect("a prefix")
    }

    fn policy(&mut self, number: u64, units: u64) -> String {
        let mut text = format!("[[policy]]\nname = \"p{number}\"\n");
        let protocol = |random: &mut Self| random.pick(&PROTOCOLS).to_string();
        let port = |random: &mut Self| random.range(8);
        for _ in 0..self.below(4) {
            let line = match self.below(15) {
                0 => format!("proto = {}", self.list(3, protocol)),
                1 => format!("port = {}", self.list(3, port)),
                2 => format!("src_port = {}", self.list(3, port)),
                3 => format!("dst_port = {}", self.list(3, port)),
                4 => format!("vlan = {}", self.list(2, |random| random.range(3))),
                5 => format!("vlan_inner = {}", self.list(2, |random| random.range(3))),
                6 => format!("gre_key = {}", self.list(2, |random| random.range(3))),
                7 => format!("vni = {}", self.list(2, |random| random.range(3))),
                8 => format!("ds = [\"{}\"]", self.pick(&["kernel", "nfqueue"])),
                9 => format!("units = {}", self.list(2, |random| format!("\"u{}\"", random.below(units)))),
                10 => "file = \"prefixes\"".to_owned(),
                11 => format!("addr = {}", self.list(3, |random| format!("\"{}\"", random.prefix()))),
                12 => format!("as = {}", self.list(2, |random| (1 + random.below(4)).to_string())),
                13 => format!("time = [\"{}\"]", self.pick(&["9-18", "23-7", "00:40-21:30", "13-14"])),
                _ => format!("day = [\"{}\"]", self.pick(&["Mon-Fri", "Sun", "Sat-Wed"])),
            };
            let key = line.split(' ').next().expect("a key");
            if !text.contains(&format!("\n{key} =")) {
                text += &line;
                text.push('\n');
            }
        }
        for key in ["policy_or", "policy_and"] {
            // Only earlier ones, so that there is no cycle.
            if number > 0 && self.one_in(4) {
                text += &format!("{key} = {}\n", self.list(3, |random| random.reference(number, false)));
            }
        }
        text
    }

    fn reference(&mut self, policies: u64, stop: bool) -> String {
        let not = if self.one_in(3) { "!" } else { "" };
        let stop = if stop && self.one_in(4) { "%" } else { "" };
        format!("\"{not}{stop}p{}\"", self.below(policies))
    }

    fn unit(&mut self, number: u64, policies: u64) -> String {
        let mut text = format!("[[unit]]\nname = \"u{number}\"\n");
        match self.below(if number == 0 { 3 } else { 4 }) {
            0 => text += &format!("kind = \"host\"\naddresses = [\"{}\"]\n", self.address()),
            1 => {
                let addresses = self.list(4, |random| format!("\"{}\"", random.address()));
                text += &format!("kind = \"cluster\"\naddresses = {addresses}\n");
            }
            2 => {
                let prefixes = self.list(3, |random| format!("\"{}\"", random.prefix()));
                text += &format!("kind = \"net\"\naddresses = {prefixes}\n");
            }
            _ => {
                let members = self.list(4, |random| format!("\"u{}\"", random.below(number)));
                text += &format!("kind = \"group\"\nmembers = {members}\n");
            }
        }
        if !text.contains("group") {
            match self.below(8) {
                0 => text += &format!("vlan = {}\n", 1 + self.below(2)),
                1 => text += &format!("vlan_inner = {}\n", 1 + self.below(2)),
                2 => text += &format!("gre_key = {}\n", self.below(3)),
                3 => text += &format!("vni = {}\n", self.below(3)),
                _ => {}
            }
        }
        if self.one_in(3) {
            text += &format!("fw_policy = {}\n", self.list(4, |random| random.reference(policies, true)));
        }
        if self.one_in(4) {
            text += "no_local_pass = true\n";
        }
        let policy = self.below(policies);
        let counted = self.one_in(3);
        if counted {
            let more = self.list(3, |random| random.reference(policies, true));
            let marks = *self.pick(&["", "!", "%"]);
            text += &format!("acct_policy = [{}, \"{marks}p{policy}\"]\n", more.trim_matches(['[', ']']));
        }
        for period in ["day", "week"].iter().take(self.below(3) as usize) {
            let direction = *self.pick(&["in", "out", "sum"]);
            text += &format!(
                "[[unit.quota]]\nperiod = \"{period}\"\nlimit = \"1TB\"\ndirection = \"{direction}\"\nhard = true\n"
            );
            if counted && self.one_in(2) {
                text += &format!("policy = \"p{policy}\"\n");
            }
        }
        text
    }

    /// A flow among the addresses, ports, VLANs and tunnels that configurations speak of.
    pub fn flow(&mut self) -> FlowKey {
        let version = if self.one_in(3) { 6 } else { 4 };
        let tunnel = self
            .one_in(3)
            .then(|| Tunnel { kind: *self.pick(&Encapsulation::ALL), key: self.below(3) as u32 });
        let proto = *self.pick(&PROTOCOLS);
        // Types of ICMPv6 around those of neighbour discovery.
        let dport = if proto == 58 { (130 + self.below(10)) << 8 } else { self.below(8) };
        FlowKey {
            src: self.end(version),
            dst: self.end(version),
            sport: self.below(8) as u16,
            dport: dport as u16,
            vlan: self.below(3) as u16,
            vlan_inner: self.below(3) as u16,
            tunnel,
            proto,
            version,
            fragment: self.one_in(8),
        }
    }

    fn end(&mut self, version: u8) -> Ipv6Addr {
        let near = !self.one_in(6);
        match version {
            6 if near => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, self.below(8) as u16),
            6 => Ipv6Addr::from_bits(u128::from(self.next()) << 64 | u128::from(self.next())),
            _ if near => {
                std::net::Ipv4Addr::new(10, 0, self.below(4) as u8, self.below(8) as u8).to_ipv6_mapped()
            }
            _ => std::net::Ipv4Addr::from_bits(self.next() as u32).to_ipv6_mapped(),
        }
    }
}
