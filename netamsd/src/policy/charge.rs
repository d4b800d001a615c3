//! What a batch adds to which unit.
//!
//! Counts are first added up by class and only then spread over the units of each class, so that nested groups cost
//! nothing per flow. A lookup is cheaper than remembering the class of every address.

use std::net::Ipv6Addr;

use rustc_hash::FxHashMap;

use super::program::{Side, Verdict};
use super::{Engine, Units, Zone};
use crate::flow::{Account, Batch, CHANGED, FlowDelta, InOut, Layer, UnitCharge};

impl Engine {
    /// What a batch adds to the accounts of each unit: its traffic ([`Units::charge`]), what of it policies hold for, and
    /// what was dropped. Ascending by unit, account and hour; overflow is in no account of a policy.
    pub fn charge(&self, batch: &Batch, now_ms: i64) -> Vec<UnitCharge> {
        let mut charges = self.units().charge(batch, &self.zone, now_ms);
        let mut sums: FxHashMap<(u32, Account, i64), InOut> = FxHashMap::default();
        if self.has_accounts() {
            self.charge_policies(batch, &mut sums);
        }
        self.charge_dropped(batch, &mut sums);
        charges.extend(sums.into_iter().map(|((unit, account, hour_ms), counts)| UnitCharge {
            unit,
            account,
            hour_ms,
            counts,
        }));
        charges.sort_unstable_by_key(|charge| (charge.unit, charge.account, charge.hour_ms));
        charges
    }

    fn charge_policies(&self, batch: &Batch, sums: &mut FxHashMap<(u32, Account, i64), InOut>) {
        let (mut hour, mut steady, mut schedules) = (0..0, 0..0, Vec::new());
        let mut policies = Vec::new();
        for flow in batch.flows.iter().filter(|flow| is_charged(flow, batch.charged)) {
            let ms = flow.last_ms;
            if !hour.contains(&ms) {
                hour = self.zone.hour_start(ms)..self.zone.next_hour(ms);
            }
            if !steady.contains(&ms) {
                steady = ms..self.next_change(ms).unwrap_or(i64::MAX);
                schedules = self.schedules_at(ms);
            }
            let subject = self.subject(&flow.key, batch.source);
            for side in Side::BOTH {
                for unit in subject.units_of(side) {
                    self.counted_by(*unit, &subject, side, &schedules, &mut policies);
                    for policy in &policies {
                        let sum = sums.entry((unit.0, Account::Policy(*policy), hour.start)).or_default();
                        add(sum, side, flow);
                    }
                }
            }
        }
    }

    fn charge_dropped(&self, batch: &Batch, sums: &mut FxHashMap<(u32, Account, i64), InOut>) {
        for flow in &batch.dropped {
            let hour = self.zone.hour_start(flow.last_ms);
            let subject = self.subject(&flow.key, batch.source);
            let account = Account::Dropped(self.reason(&subject).map_or(CHANGED, Verdict::name));
            for side in Side::BOTH {
                for unit in subject.units_of(side) {
                    add(sums.entry((unit.0, account, hour)).or_default(), side, flow);
                }
            }
        }
    }
}

/// Out of the source's unit, into the destination's.
fn add(sum: &mut InOut, side: Side, flow: &FlowDelta) {
    let (packets, bytes) = match side {
        Side::Source => (&mut sum.out_packets, &mut sum.out_bytes),
        Side::Destination => (&mut sum.in_packets, &mut sum.in_bytes),
    };
    *packets += flow.packets;
    *bytes += flow.bytes;
}

impl Units {
    /// What a batch adds to each unit, one entry a unit and hour, ascending.
    ///
    /// A flow's counts are `out` for each unit of its source and `in` for each unit of its destination, in the hour of
    /// its last packet. A unit with both sides gets both. By the inner layer, a packet in a tunnel is charged as its inner
    /// flow and not as the outer one that carries it; by the outer layer, inner flows are not charged. Overflow has no time
    /// of its own and falls in the hour of `now_ms`.
    pub fn charge(&self, batch: &Batch, zone: &Zone, now_ms: i64) -> Vec<UnitCharge> {
        let mut by_class: FxHashMap<(u32, i64), InOut> = FxHashMap::default();
        let mut hour = 0..0;
        for flow in batch.flows.iter().filter(|flow| is_charged(flow, batch.charged)) {
            if !hour.contains(&flow.last_ms) {
                hour = zone.hour_start(flow.last_ms)..zone.next_hour(flow.last_ms);
            }
            let classes = |address: Ipv6Addr| self.classes_of(flow.key.scope(), address);
            classes(flow.key.src).for_each(|class| {
                let source = by_class.entry((class, hour.start)).or_default();
                source.out_packets += flow.packets;
                source.out_bytes += flow.bytes;
            });
            classes(flow.key.dst).for_each(|class| {
                let destination = by_class.entry((class, hour.start)).or_default();
                destination.in_packets += flow.packets;
                destination.in_bytes += flow.bytes;
            });
        }
        let now = zone.hour_start(now_ms);
        for overflow in &batch.overflow {
            let class = self.class_in(overflow.scope, overflow.address);
            by_class.entry((class, now)).or_default().add(&overflow.counts);
        }
        self.by_unit(by_class)
    }

    /// Adds up classes to units.
    fn by_unit(&self, by_class: FxHashMap<(u32, i64), InOut>) -> Vec<UnitCharge> {
        let mut by_unit: FxHashMap<(u32, i64), [i64; 4]> = FxHashMap::default();
        for ((class, hour_ms), counts) in by_class {
            let counts = [counts.in_packets, counts.in_bytes, counts.out_packets, counts.out_bytes];
            for (unit, weight) in self.of_class(class) {
                let sums = by_unit.entry((unit.0, hour_ms)).or_default();
                sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += weight * count as i64);
            }
        }
        let charge = |((unit, hour_ms), sums): ((u32, i64), [i64; 4])| {
            // Below 0 only where a former configuration had other scopes, whose overflow cannot be told apart.
            let [in_packets, in_bytes, out_packets, out_bytes] = sums.map(|sum| sum.max(0) as u64);
            UnitCharge {
                unit,
                account: Account::Traffic,
                hour_ms,
                counts: InOut { in_packets, in_bytes, out_packets, out_bytes },
            }
        };
        let mut charges: Vec<_> = by_unit.into_iter().map(charge).collect();
        charges.sort_unstable_by_key(|charge| (charge.unit, charge.hour_ms));
        charges
    }
}

fn is_charged(flow: &FlowDelta, layer: Layer) -> bool {
    match layer {
        Layer::Outer => flow.key.tunnel.is_none(),
        Layer::Inner => !flow.carrier,
    }
}

#[cfg(test)]
mod tests {
    use super::super::UnitKind;
    use super::super::units::tests::{mapped, scoped, unit};
    use super::*;
    use crate::flow::{Encapsulation, FlowKey, OverflowDelta, Scope, Tunnel};

    const HOUR_MS: i64 = 3_600_000;

    fn flow(src: &str, dst: &str, packets: u64, bytes: u64, last_ms: i64) -> FlowDelta {
        let key = FlowKey {
            src: mapped(src),
            dst: mapped(dst),
            sport: 1,
            dport: 2,
            vlan: 0,
            vlan_inner: 0,
            tunnel: None,
            proto: 17,
            version: 4,
            fragment: false,
        };
        FlowDelta { key, estimated: false, carrier: false, packets, bytes, first_ms: last_ms - 10, last_ms }
    }

    fn counts(in_packets: u64, in_bytes: u64, out_packets: u64, out_bytes: u64) -> InOut {
        InOut { in_packets, in_bytes, out_packets, out_bytes }
    }

    fn overflow(scope: Scope, address: &str, counts: InOut) -> OverflowDelta {
        OverflowDelta { scope, address: mapped(address), counts }
    }

    fn charge(batch: &Batch, now_ms: i64) -> Vec<UnitCharge> {
        let units = Units::new(&[
            unit("lan", UnitKind::Net, &["10.0.0.0/8"]),
            unit("server", UnitKind::Host, &["10.0.0.1"]),
            unit("all", UnitKind::Group, &["lan", "server"]),
        ]);
        units.charge(batch, &Zone::parse("UTC").unwrap(), now_ms)
    }

    #[test]
    fn sides_of_a_flow_are_charged_by_direction() {
        let flows = vec![
            flow("10.0.0.1", "192.0.2.1", 2, 200, 5),
            flow("192.0.2.1", "10.0.0.1", 3, 3000, 6),
            flow("10.0.0.2", "192.0.2.1", 1, 40, 7),
            flow("192.0.2.1", "192.0.2.2", 9, 900, 8),
        ];
        let expected = [
            UnitCharge { unit: 0, account: Account::Traffic, hour_ms: 0, counts: counts(3, 3000, 3, 240) },
            UnitCharge { unit: 1, account: Account::Traffic, hour_ms: 0, counts: counts(3, 3000, 2, 200) },
            UnitCharge { unit: 2, account: Account::Traffic, hour_ms: 0, counts: counts(3, 3000, 3, 240) },
        ];
        assert_eq!(charge(&Batch { flows, ..Batch::default() }, 0), expected);
    }

    #[test]
    fn a_unit_with_both_sides_gets_both() {
        let inside = Batch { flows: vec![flow("10.0.0.2", "10.0.0.1", 2, 200, 5)], ..Batch::default() };
        let expected = [
            UnitCharge { unit: 0, account: Account::Traffic, hour_ms: 0, counts: counts(2, 200, 2, 200) },
            UnitCharge { unit: 1, account: Account::Traffic, hour_ms: 0, counts: counts(2, 200, 0, 0) },
            UnitCharge { unit: 2, account: Account::Traffic, hour_ms: 0, counts: counts(2, 200, 2, 200) },
        ];
        assert_eq!(charge(&inside, 0), expected);

        let itself = Batch { flows: vec![flow("10.0.0.1", "10.0.0.1", 2, 200, 5)], ..Batch::default() };
        assert!(charge(&itself, 0).iter().all(|charge| charge.counts == counts(2, 200, 2, 200)));
    }

    #[test]
    fn the_last_packet_of_a_flow_decides_its_hour() {
        let flows = vec![
            flow("10.0.0.2", "192.0.2.1", 1, 100, HOUR_MS + 5),
            flow("10.0.0.2", "192.0.2.1", 1, 100, HOUR_MS - 1),
            flow("10.0.0.2", "192.0.2.1", 1, 100, HOUR_MS),
        ];
        let charges = charge(&Batch { flows, ..Batch::default() }, 0);
        let lan: Vec<_> = charges.iter().filter(|charge| charge.unit == 0).collect();
        assert_eq!(lan.len(), 2);
        assert_eq!((lan[0].hour_ms, lan[0].counts.out_packets), (0, 1));
        assert_eq!((lan[1].hour_ms, lan[1].counts.out_packets), (HOUR_MS, 2));
    }

    #[test]
    fn overflow_falls_in_the_current_hour() {
        let overflow = vec![
            overflow(Scope::ANY, "10.0.0.1", counts(1, 10, 2, 20)),
            overflow(Scope::ANY, "10.9.0.0", counts(4, 40, 8, 80)),
            overflow(Scope::ANY, "192.0.2.1", counts(9, 9, 9, 9)),
        ];
        let expected = [
            UnitCharge {
                unit: 0,
                account: Account::Traffic,
                hour_ms: HOUR_MS,
                counts: counts(5, 50, 10, 100),
            },
            UnitCharge { unit: 1, account: Account::Traffic, hour_ms: HOUR_MS, counts: counts(1, 10, 2, 20) },
            UnitCharge {
                unit: 2,
                account: Account::Traffic,
                hour_ms: HOUR_MS,
                counts: counts(5, 50, 10, 100),
            },
        ];
        assert_eq!(charge(&Batch { overflow, ..Batch::default() }, HOUR_MS + 1), expected);
    }

    /// A packet in a tunnel from 192.0.2.1 to 192.0.2.2, and one that no tunnel carries.
    fn layers() -> Vec<FlowDelta> {
        let mut inner = flow("10.0.0.1", "10.0.0.2", 1, 100, 5);
        inner.key.tunnel = Some(Tunnel { kind: Encapsulation::Vxlan, key: 7 });
        let outer = FlowDelta { carrier: true, ..flow("192.0.2.1", "192.0.2.2", 1, 150, 5) };
        vec![outer, inner, flow("192.0.2.1", "10.0.0.1", 1, 40, 5)]
    }

    #[test]
    fn one_layer_is_charged() {
        let vni = Scope { tunnel: layers()[1].key.tunnel, ..Scope::ANY };
        let units = Units::new(&[
            unit("carrier", UnitKind::Net, &["192.0.2.0/24"]),
            unit("lan", UnitKind::Net, &["10.0.0.0/8"]),
            scoped("tenant", &["10.0.0.2/32"], vni),
            unit("all", UnitKind::Group, &["carrier", "lan", "tenant"]),
        ]);
        let utc = Zone::parse("UTC").unwrap();
        let charge = |charged| {
            let batch = Batch { flows: layers(), charged, ..Batch::default() };
            let charges = units.charge(&batch, &utc, 0);
            charges.iter().map(|charge| (charge.unit, charge.counts)).collect::<Vec<_>>()
        };
        assert_eq!(
            charge(Layer::Outer),
            [(0, counts(1, 150, 2, 190)), (1, counts(1, 40, 0, 0)), (3, counts(2, 190, 2, 190))]
        );
        assert_eq!(
            charge(Layer::Inner),
            [
                (0, counts(0, 0, 1, 40)),
                (1, counts(2, 140, 1, 100)),
                (2, counts(1, 100, 0, 0)),
                (3, counts(2, 140, 2, 140)),
            ]
        );
    }

    #[test]
    fn overflow_is_charged_to_the_units_of_its_scope() {
        let [ten, twenty] = [10, 20].map(|vlan| Scope { vlan, ..Scope::ANY });
        let units = Units::new(&[
            unit("lan", UnitKind::Net, &["10.1.0.0/16"]),
            scoped("ten", &["10.0.0.0/8"], ten),
            scoped("twenty", &["10.0.0.0/8"], twenty),
            unit("all", UnitKind::Group, &["lan", "ten", "twenty"]),
        ]);
        // What a source counts of a packet to 10.1.0.1 in VLAN 10, two to 10.0.0.1 there, and four to 10.1.0.1 elsewhere.
        let overflow = vec![
            overflow(Scope::ANY, "10.1.0.0", counts(5, 500, 0, 0)),
            overflow(ten, "10.1.0.0", counts(1, 100, 0, 0)),
            overflow(ten, "10.0.0.0", counts(2, 200, 0, 0)),
        ];
        let charges = units.charge(&Batch { overflow, ..Batch::default() }, &Zone::parse("UTC").unwrap(), 0);
        let charge = |unit, counts| UnitCharge { unit, account: Account::Traffic, hour_ms: 0, counts };
        assert_eq!(
            charges,
            [
                charge(0, counts(5, 500, 0, 0)),
                charge(1, counts(3, 300, 0, 0)),
                charge(3, counts(7, 700, 0, 0)),
            ]
        );
    }

    #[test]
    fn overflow_of_a_scope_that_is_gone_is_charged_to_nobody() {
        let units = Units::new(&[unit("lan", UnitKind::Net, &["10.0.0.0/8"])]);
        let gone = Scope { vlan: 10, ..Scope::ANY };
        let overflow = vec![overflow(gone, "10.0.0.0", counts(5, 500, 0, 0))];
        let charges = units.charge(&Batch { overflow, ..Batch::default() }, &Zone::parse("UTC").unwrap(), 0);
        assert_eq!(charges, []);
    }
}
