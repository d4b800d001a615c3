//! What is wrong with a configuration, and where: one sentence.

use std::fmt;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::UnitKind;

/// A configuration that is refused. Shown as `netams.toml:12:9: what is wrong`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, when it came from one.
    pub file: Option<PathBuf>,
    /// The place in it, when the problem has one.
    pub position: Option<Position>,
    /// What is wrong.
    pub problem: Problem,
}

/// A place in a text; both counts start at 1, columns are characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Character in the line.
    pub column: usize,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Read(String),
    /// Not TOML, an unknown key, or a value of the wrong type.
    #[error("{}{message}", key.as_ref().map(|key| format!("{key}: ")).unwrap_or_default())]
    Toml {
        /// Path of the key whose value it is.
        key: Option<String>,
        /// The parser's words.
        message: String,
    },
    /// The key without a default is missing.
    #[error("kernel.interfaces is missing, list the interfaces to meter, or none with interfaces = []")]
    NoInterfaces,
    /// A number beyond its limits.
    #[error("{key} is {value}, it must be from {min} to {max}")]
    Range {
        /// Path of the key.
        key: &'static str,
        /// As configured.
        value: u32,
        /// Least value allowed.
        min: u32,
        /// Largest value allowed.
        max: u32,
    },
    /// A table size that cannot be masked.
    #[error("{key} is {value}, it must be a power of two such as {}", value.next_power_of_two())]
    NotPowerOfTwo {
        /// Path of the key.
        key: &'static str,
        /// As configured.
        value: u32,
    },
    /// Text that must say something.
    #[error("{0} is empty, remove it to have the default")]
    Empty(&'static str),
    /// The socket's path does not fit the kernel's address structure.
    #[error("control.socket has {length} bytes, a socket path has at most {max}")]
    LongSocket {
        /// Bytes of the path.
        length: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// No interface can be called that.
    #[error(
        "kernel.interfaces: no interface can match `{}`, write a name such as eth0, or wan* or eth?",
        .0.escape_debug()
    )]
    Pattern(String),
    /// Longer than any interface name.
    #[error("kernel.interfaces: no interface can match `{0}`, names have at most 15 bytes")]
    LongPattern(String),
    /// Rules cannot say it.
    #[error(
        "kernel.interfaces: netfilter cannot match `{}`, with source = \"nfqueue\" write names, or beginnings such as wan*",
        .0.escape_debug()
    )]
    NetfilterPattern(String),
    /// A chain would queue its packets twice.
    #[error("nfqueue.chains has `{0}` twice, remove one")]
    ChainTwice(&'static str),
    /// More queues than numbers.
    #[error(
        "nfqueue needs queues up to number {last}, the last there can be is {max}, lower nfqueue.first_queue"
    )]
    QueueNumbers {
        /// The last that is needed.
        last: u32,
        /// The last there can be.
        max: u32,
    },
    /// A mask or mark of the wrong form.
    #[error("{key} is {value:#x}, it must be {wanted} such as {example:#x}")]
    Bits {
        /// Path of the key.
        key: &'static str,
        /// As configured.
        value: u32,
        /// Its form.
        wanted: &'static str,
        /// A value of that form.
        example: u32,
    },
    /// One bit of the fwmark for two things.
    #[error("nfqueue.handover_mark is {mark:#x}, a bit of nfqueue.stamp_mask ({mask:#x}), choose another")]
    SharedBit {
        /// `handover_mark`.
        mark: u32,
        /// `stamp_mask`.
        mask: u32,
    },
    /// Charging by what is not accounted.
    #[error(
        "accounting.charge is \"inner\", but inner flows are accounted only with kernel.tunnels = \"inner\", set that too"
    )]
    ChargeWithoutTunnels,
    /// Something about one unit.
    #[error("unit `{}` {problem}", name.escape_debug())]
    Unit {
        /// Which unit.
        name: String,
        /// What about it.
        problem: UnitProblem,
    },
    /// Something about one policy.
    #[error("policy `{}` {problem}", name.escape_debug())]
    Policy {
        /// Which policy.
        name: String,
        /// What about it.
        problem: PolicyProblem,
    },
    /// A file that the configuration names.
    #[error("{0}")]
    File(String),
}

/// What is wrong with a policy; continues "policy `x` ...".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyProblem {
    /// Nameless.
    #[error("has an empty name, give it one")]
    EmptyName,
    /// The name would be taken for something else.
    #[error("has a name that begins with ! or % or has a control character, give it another")]
    Name,
    /// Another policy has the name.
    #[error("is there twice, rename one")]
    Duplicate,
    /// A number that no packet has.
    #[error("has {value} in {key}, the largest is {max}")]
    Range {
        /// The key.
        key: &'static str,
        /// As configured.
        value: u32,
        /// The largest.
        max: u32,
    },
    /// AS 0 is nobody's (RFC 7607).
    #[error("has 0 in as, which is no autonomous system, begin at 1")]
    SystemZero,
    /// Nothing tells which prefix is in which system.
    #[error("has as, but as_file is missing, name a file of prefixes and their systems there")]
    NoSystems,
    /// A unit that is not configured.
    #[error("has `{}` in units, but there is no unit of that name", .0.escape_debug())]
    UnknownUnit(String),
    /// A policy that is not configured.
    #[error("refers to `{}`, but there is no policy of that name", .0.escape_debug())]
    UnknownPolicy(String),
    /// A mark that has no meaning there.
    #[error("has `{}` in policy_or or policy_and, where % means nothing, remove it", .0.escape_debug())]
    Stop(String),
    /// A policy in itself; the way round.
    #[error("is in a cycle of policies, {0}, remove one of these references")]
    Cycle(String),
    /// Too long for the evaluators.
    #[error("takes {0} steps, at most {max} are looked at, use ranges or a file or divide it", max = crate::policy::MAX_RULES)]
    Long(usize),
}

/// What is wrong with a unit; continues "unit `x` ...".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitProblem {
    /// Nameless.
    #[error("has an empty name, give it one")]
    EmptyName,
    /// The name would disturb a terminal.
    #[error("has a control character in its name, remove it")]
    ControlCharacter,
    /// Another unit has the name.
    #[error("is there twice, rename one")]
    Duplicate,
    /// A host or user with several addresses.
    #[error("is a {0} with {1} addresses, leave it one or make it a cluster")]
    Addresses(UnitKind, usize),
    /// A host or cluster with something wider than an address.
    #[error("is a {kind} with the prefix {prefix}, give addresses or make it a net")]
    Prefix {
        /// Host or cluster.
        kind: UnitKind,
        /// The first such prefix.
        prefix: IpNet,
    },
    /// Nothing to match.
    #[error("is a {0} without addresses, give it some")]
    NoAddresses(UnitKind),
    /// A group with addresses of its own.
    #[error("is a group with addresses, move them to a unit of their own and make that a member")]
    GroupAddresses,
    /// A group of nothing.
    #[error("is a group without members, give it some")]
    NoMembers,
    /// No VLAN id.
    #[error("has {key} = {id}, a VLAN id is from 1 to 4094")]
    Vlan {
        /// `vlan` or `vlan_inner`.
        key: &'static str,
        /// As configured.
        id: u32,
    },
    /// No network identifier.
    #[error("has vni = {0}, a VNI has 24 bits and is at most 16777215")]
    Vni(u32),
    /// Two tunnels at once.
    #[error("has gre_key and vni, but a packet is directly in one tunnel, remove one of them")]
    TwoTunnels,
    /// A tunnel's key where units are charged by what is around it.
    #[error(
        "has {0}, but the packets in tunnels are charged only with accounting.charge = \"inner\", set that or remove it"
    )]
    TunnelNotCharged(&'static str),
    /// A group with selectors of its own.
    #[error("is a group with {0}, give that to its members instead")]
    GroupSelector(&'static str),
    /// Members in something else than a group.
    #[error("is a {0} with members, only a group has members")]
    Members(UnitKind),
    /// A member that is not configured.
    #[error("has the member `{}`, but there is no unit of that name", .0.escape_debug())]
    UnknownMember(String),
    /// A policy that is not configured.
    #[error("has `{}` in {key}, but there is no policy of that name", policy.escape_debug())]
    UnknownPolicy {
        /// `acct_policy` or `fw_policy`.
        key: &'static str,
        /// As configured.
        policy: String,
    },
    /// Both would be counted as one.
    #[error("has `{}` and its opposite in acct_policy, which would be counted together, remove one", .0.escape_debug())]
    Opposite(String),
    /// More than are looked at.
    #[error("has {length} policies in {key}, at most {max} are looked at, join some by policy_or", max = crate::policy::MAX_LIST)]
    LongList {
        /// `acct_policy` or `fw_policy`.
        key: &'static str,
        /// How many.
        length: usize,
    },
    /// A list that lets nothing pass.
    #[error("has an empty fw_policy, which lets nothing pass, give it a policy or remove the key")]
    EmptyList,
    /// A quota of nothing.
    #[error("has a quota with the limit 0, which lets nothing pass, give it more or block the unit")]
    NoLimit,
    /// No percentage.
    #[error("has a quota with warn = {0}, it must be from 1 to 100 percent")]
    Warning(u8),
    /// No day of a month.
    #[error("has a quota with billing_day = {0}, it must be from 1 to 31")]
    BillingDay(u8),
    /// Only months have one.
    #[error("has a quota with a billing_day and another period than \"month\", remove one of them")]
    BillingPeriod,
    /// Nothing is counted by it.
    #[error("has a quota by the policy `{}`, which is not in its acct_policy, add it there", .0.escape_debug())]
    QuotaPolicy(String),
    /// Two of the same.
    #[error("has two quotas for `{0}`, remove one")]
    QuotaTwice(String),
    /// In too many units at once.
    #[error("has an address that is in {0} units at once, at most {max} are looked at, leave some groups away", max = crate::policy::MAX_UNITS)]
    Crowded(usize),
    /// More hard quotas than are kept with a flow.
    #[error("has an address with {0} hard quotas, of its groups as well, at most {max} are enforced, make some soft", max = super::policies::MAX_SIDE_QUOTAS)]
    ManyQuotas(usize),
    /// A group in itself; the way round.
    #[error("is in a cycle of groups, {0}, remove one of these members")]
    Cycle(String),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.position) {
            (Some(file), Some(at)) => write!(f, "{}:{}:{}: ", file.display(), at.line, at.column)?,
            (Some(file), None) => write!(f, "{}: ", file.display())?,
            (None, Some(at)) => write!(f, "line {}, column {}: ", at.line, at.column)?,
            (None, None) => {}
        }
        self.problem.fmt(f)
    }
}

impl std::error::Error for ConfigError {}

impl From<Problem> for ConfigError {
    fn from(problem: Problem) -> Self {
        Self { file: None, position: None, problem }
    }
}

impl ConfigError {
    /// A problem found in a document that parses.
    pub(super) fn new(text: &str, document: &Spanned<DeTable<'_>>, problem: Problem) -> Self {
        let position = offset_of(document.get_ref(), &problem).map(|offset| Position::of(text, offset));
        Self { position, ..problem.into() }
    }

    /// Text that is not TOML.
    pub(super) fn syntax(text: &str, error: &toml::de::Error) -> Self {
        // "duplicate key" and its like do not say which.
        let culprit = error.span().and_then(|span| text.get(span)).unwrap_or_default();
        let near = match culprit {
            "" => String::new(),
            culprit if culprit.contains(char::is_control) => String::new(),
            culprit => format!(" at `{culprit}`"),
        };
        Self::toml(text, None, error, &near)
    }

    /// TOML with an unknown key or a value of the wrong type.
    pub(super) fn types(text: &str, document: &Spanned<DeTable<'_>>, error: &toml::de::Error) -> Self {
        let key = error.span().and_then(|span| key_at(document.get_ref(), span.start));
        Self::toml(text, key, error, "")
    }

    fn toml(text: &str, key: Option<String>, error: &toml::de::Error, near: &str) -> Self {
        let lines: Vec<_> = error.message().lines().map(str::trim).collect();
        let message = printable(&format!("{}{near}", lines.join(", ")));
        let position = error.span().map(|span| Position::of(text, span.start));
        Self { position, ..Problem::Toml { key, message }.into() }
    }

    pub(super) fn in_file(self, path: &Path) -> Self {
        Self { file: Some(path.to_owned()), ..self }
    }
}

impl Position {
    fn of(text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        Self { line, column: before[line_start..].chars().count() + 1 }
    }
}

/// The parser's words quote the file, whose strings can have what would disturb a terminal.
fn printable(text: &str) -> String {
    let printable = |c: char| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() };
    text.chars().map(printable).collect()
}

/// Where the value is that a problem is about.
fn offset_of(document: &DeTable<'_>, problem: &Problem) -> Option<usize> {
    let path = match problem {
        Problem::Read(_) | Problem::Toml { .. } | Problem::File(_) => return None,
        Problem::NoInterfaces => "kernel",
        Problem::Range { key, .. } | Problem::NotPowerOfTwo { key, .. } | Problem::Empty(key) => key,
        Problem::LongSocket { .. } => "control.socket",
        Problem::Pattern(_) | Problem::LongPattern(_) | Problem::NetfilterPattern(_) => "kernel.interfaces",
        Problem::ChainTwice(_) => "nfqueue.chains",
        Problem::QueueNumbers { .. } => "nfqueue.first_queue",
        Problem::Bits { key, .. } => key,
        Problem::SharedBit { .. } => {
            let [mark, mask] = ["nfqueue.handover_mark", "nfqueue.stamp_mask"];
            return offset_of_key(document, mark).or_else(|| offset_of_key(document, mask));
        }
        Problem::ChargeWithoutTunnels => "accounting.charge",
        Problem::Unit { name, .. } => return offset_of_named(document, "unit", name),
        Problem::Policy { name, .. } => return offset_of_named(document, "policy", name),
    };
    offset_of_key(document, path)
}

fn offset_of_key(document: &DeTable<'_>, path: &str) -> Option<usize> {
    let mut keys = path.split('.');
    let mut value = document.get(keys.next()?)?;
    for key in keys {
        value = value.get_ref().get(key)?;
    }
    Some(value.span().start)
}

/// A unit or policy by its name; of two, the second is the one too many.
fn offset_of_named(document: &DeTable<'_>, kind: &str, name: &str) -> Option<usize> {
    let all = document.get(kind)?.get_ref().as_array()?;
    let names = all.iter().filter_map(|one| one.get_ref().get("name"));
    let mut same = names.filter(|value| value.get_ref().as_str() == Some(name));
    same.next_back().map(|value| value.span().start)
}

/// Path of the key whose value, not itself a table, is at `offset`.
fn key_at(table: &DeTable<'_>, offset: usize) -> Option<String> {
    table.iter().find_map(|(key, value)| match value.get_ref() {
        DeValue::Table(table) => key_at(table, offset).map(|rest| format!("{}.{rest}", key.get_ref())),
        DeValue::Array(array) if array.iter().any(|element| element.get_ref().is_table()) => {
            let tables = array.iter().filter_map(|element| element.get_ref().as_table());
            tables
                .into_iter()
                .find_map(|table| key_at(table, offset))
                .map(|rest| format!("{}.{rest}", key.get_ref()))
        }
        _ => value.span().contains(&offset).then(|| key.get_ref().to_string()),
    })
}
