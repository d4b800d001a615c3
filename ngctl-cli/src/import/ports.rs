//! Ports of a policy: of either side, of the source, of the destination.
//!
//! `port s25 d110` is a source port or a destination port. The keys of a `[[policy]]` must all fit, so that ports of
//! different sides become a policy for each side, one of which must fit.

use super::names::Names;
use super::policy::Policy;
use super::target::Side;
use super::toml::Value;

/// Adds the ports to the policy at `at`, and the policies for the sides in front of it.
pub fn add(at: usize, mut ports: Vec<(Side, Value)>, names: &Names, policies: &mut Vec<Policy>) {
    // The same port on the one side or on the other is that port on either side.
    let both: Vec<Value> = ports
        .iter()
        .filter(|(side, value)| *side == Side::Source && ports.contains(&(Side::Destination, value.clone())))
        .map(|(_, value)| value.clone())
        .collect();
    ports.iter_mut().filter(|(_, value)| both.contains(value)).for_each(|(side, _)| *side = Side::Either);
    let of =
        |wanted: Side| ports.iter().filter(move |(side, _)| *side == wanted).map(|(_, value)| value.clone());
    let sides: Vec<Side> = [Side::Either, Side::Source, Side::Destination]
        .into_iter()
        .filter(|side| of(*side).next().is_some())
        .collect();
    if let [side] = sides[..] {
        policies[at].add(side.port_key(), of(side));
        return;
    }
    let (line, name) = (policies[at].line, policies[at].name.clone());
    let mut parts: Vec<Policy> = Vec::new();
    for side in sides {
        let mut part = Policy::new(line, &free_name(&format!("{name}-{side}"), names));
        part.add(side.port_key(), of(side));
        parts.push(part);
    }
    let mut choice: Vec<Value> = parts.iter().map(|part| Value::from(&part.name)).collect();
    let mut key = "policy_or";
    if !parts.is_empty() && !policies[at].values("policy_or").is_empty() {
        let mut any = Policy::new(line, &free_name(&format!("{name}-ports"), names));
        any.add("policy_or", choice);
        choice = vec![Value::from(&any.name)];
        key = "policy_and";
        parts.push(any);
    }
    policies[at].add(key, choice);
    policies.splice(at..at, parts);
}

fn free_name(wanted: &str, names: &Names) -> String {
    let mut name = wanted.to_owned();
    while names.policy(&name).is_some() {
        name.push('+');
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the ports become: `name: key value; ...`.
    fn added(ports: &str, other: Option<&str>) -> Vec<String> {
        let ports = ports.split(' ').map(|word| crate::import::target::sided(word, 65535).unwrap()).collect();
        let mut policy = Policy::new(1, "p");
        policy.add("policy_or", other.map(Value::from));
        let mut policies = vec![policy];
        add(0, ports, &Names::default(), &mut policies);
        let text = |policy: &Policy| {
            let entries: Vec<String> =
                policy.entries().map(|(key, value)| format!("{key} {value}")).collect();
            format!("{}: {}", policy.name, entries.join("; "))
        };
        policies.iter().map(text).collect()
    }

    #[test]
    fn each_side_is_what_it_was() {
        assert_eq!(added("80 b81", None), ["p: port [80, 81]"]);
        assert_eq!(added("s80:82 s8080", None), ["p: src_port [\"80-82\", 8080]"]);
        assert_eq!(added("d53", None), ["p: dst_port [53]"]);
        assert_eq!(added("s25 d25 b110", None), ["p: port [25, 110]"], "either side is said in two ways");
        assert_eq!(
            added("s1 d2", None),
            ["p-src: src_port [1]", "p-dst: dst_port [2]", "p: policy_or [\"p-src\", \"p-dst\"]"]
        );
        assert_eq!(
            added("1 d2", Some("q")),
            [
                "p-any: port [1]",
                "p-dst: dst_port [2]",
                "p-ports: policy_or [\"p-any\", \"p-dst\"]",
                "p: policy_or [\"q\"]; policy_and [\"p-ports\"]"
            ]
        );
    }
}
