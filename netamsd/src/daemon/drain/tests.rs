//! The account of the rules, without rules.

use super::*;
use crate::source::nfqueue::rules::Family;

fn rule(packets: u64) -> nfqueue::RuleCounter {
    let (chain, text) = ("NETAMS-FORWARD".to_owned(), "-A NETAMS-FORWARD -j NFQUEUE".to_owned());
    nfqueue::RuleCounter { chain, text, queue: true, family: Family::Ipv4, packets, bytes: 0 }
}

/// An account that is looked at from time to time.
struct Account {
    reference: Reference,
    ledger: Counters,
    now: Instant,
}

impl Account {
    fn new() -> Self {
        Self { reference: Reference::new(Vec::new()), ledger: Counters::default(), now: Instant::now() }
    }

    /// So much later the rule has counted `packets`, and `waiting` of them wait; `queued` more have come out of the queue.
    fn look(&mut self, later: Duration, packets: u64, waiting: u64, queued: u64) -> u64 {
        self.now += later;
        let look = self.reference.look_at(Some(&[rule(packets)]), 0, waiting);
        let mut batch = Counters { queued, ..Counters::default() };
        self.reference.settle(&self.ledger, &mut batch, &look, false, self.now);
        self.reference.committed(look);
        self.ledger.add(&batch);
        batch.bypassed
    }
}

#[test]
fn what_is_nowhere_is_bypassed_while_others_come_and_go() {
    let mut account = Account::new();
    assert_eq!(account.look(Duration::ZERO, 1000, 0, 1000), 0);
    // 70 are nowhere, of which 20 are only late.
    assert_eq!(account.look(STILL / 2, 2000, 100, 830), 0);
    assert_eq!(account.look(STILL, 3000, 100, 1020), 0, "none was nowhere at the first look");
    assert_eq!(account.look(STILL, 4000, 0, 1100), 50);
    assert_eq!(account.look(STILL, 5000, 0, 1000), 0, "once");
    assert_eq!(outstanding(&account.ledger), 0);
}

#[test]
fn what_waits_in_a_queue_is_not_bypassed() {
    let mut account = Account::new();
    for _ in 0..5 {
        assert_eq!(account.look(STILL, 1000, 300, if account.ledger.queued == 0 { 700 } else { 0 }), 0);
    }
    assert_eq!(account.look(STILL, 1000, 0, 300), 0);
    assert_eq!(outstanding(&account.ledger), 0);
}

#[test]
fn silence_closes_the_account() {
    let mut account = Account::new();
    account.look(Duration::ZERO, 1000, 0, 990);
    account.look(STILL / 2, 1000, 0, 0);
    account.look(STILL, 1000, 0, 0);
    assert_eq!((account.ledger.bypassed, outstanding(&account.ledger)), (10, 0));
    // Segments of super-packets.
    account.look(STILL, 1100, 0, 150);
    account.look(STILL, 1100, 0, 0);
    account.look(STILL, 1100, 0, 0);
    assert_eq!((account.ledger.reference, outstanding(&account.ledger)), (1150, 0));
}

#[test]
fn rules_that_are_away_leave_the_account_as_it_is() {
    let mut reference = Reference::new(Vec::new());
    let look = reference.look_at(Some(&[rule(1000)]), 0, 0);
    reference.committed(look);
    let away = reference.look(None, 5, 0);
    assert_eq!((away.packets, away.full), (0, 5));
    reference.committed(away);
    assert_eq!(reference.look_at(Some(&[rule(1007)]), 5, 0).packets, 7);
    assert_eq!(reference.look_at(Some(&[rule(3)]), 5, 0).packets, 3, "reset");
}

#[test]
fn the_kernels_counters_of_full_queues_wrap() {
    let mut reference = Reference::new(Vec::new());
    let full = |reference: &mut Reference, total| {
        let look = reference.look_at(None, total, 0);
        let full = look.full;
        reference.committed(look);
        full
    };
    for near in [1 << 30, 2 << 30, 3 << 30, (4 << 30) - 1] {
        assert!(full(&mut reference, near) > 0);
    }
    assert_eq!(full(&mut reference, 6), 7);
    assert_eq!(full(&mut reference, 4), 0, "a queue was lost");
    assert_eq!(full(&mut reference, 7), 1);
}
