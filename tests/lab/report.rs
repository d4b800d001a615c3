//! What is printed: the lab, the comparison, and the daemon's own answers.

use netams_tests::daemon::Daemon;
use netams_tests::ledger::flow_total;
use netams_tests::ns::assert_success;
use netams_tests::truth::Traffic;

use crate::traffic::Line;

/// The lab.
pub const PICTURE: &str = "\
Three network namespaces; netamsd meters both interfaces of the router, segmentation offloads are on:

  client eth0 ------------- cl0 router sv0 ------------- eth0 server ---> sink
  192.0.2.2              netamsd, mode tee              198.51.100.2      203.0.113.0/24
  2001:db8:1::2                                         2001:db8:2::2     2001:db8:ff::/48
";

/// Prints everything; whether each line agrees and the ledger adds up.
pub fn print(daemon: &Daemon, lines: &[Line]) -> bool {
    println!("\nWhat the senders' queues let out, and what netamsd metered of it (layer-3 bytes):\n");
    let mut all = (Traffic::default(), Traffic::default());
    row("traffic", "way", ["packets sent", "bytes", "packets metered", "bytes"].map(str::to_owned), "differ");
    let mut differing = 0;
    for line in lines {
        let select: Vec<&str> = line.select.iter().map(String::as_str).collect();
        let metered = flow_total(daemon, &select);
        all.0 += line.sent;
        all.1 += metered;
        differing += u32::from(compare(&line.what, line.way, line.sent, metered));
    }
    differing += u32::from(compare("the sum", "", all.0, all.1));
    differing += u32::from(compare("all flows there are", "", all.0, flow_total(daemon, &[])));
    for question in [&["msg", "netams:", "info"][..], &["units"], &["ledger"]] {
        println!("\n$ ngctl {}", question.join(" "));
        let answer = daemon.ngctl(question);
        assert_success(&answer, "ngctl");
        print!("{}", String::from_utf8_lossy(&answer.stdout));
    }
    let identity = identity(daemon, all.0.packets);
    match (differing, identity) {
        (0, true) => println!("\nEvery line agrees, to the packet and to the byte."),
        (0, false) => println!("\nEvery line agrees, but the ledger does not add up."),
        _ => println!("\n{differing} lines differ."),
    }
    differing == 0 && identity
}

/// Prints the ledger's identity in numbers; whether it holds, nothing is missing, and it is about what was `sent`.
fn identity(daemon: &Daemon, sent: u64) -> bool {
    let l = daemon.ledger();
    println!(
        "\nseen {} = flows {} + overflow {} + non_ip {} + malformed {} + dropped {} + lost {}",
        l.seen, l.flow_packets, l.overflow_packets, l.non_ip, l.malformed, l.dropped, l.lost
    );
    println!("packets_in {}, sent {sent}; missed {}", l.packets_in, l.missed);
    let accounted = l.flow_packets + l.overflow_packets + l.non_ip + l.malformed + l.dropped;
    l.seen == accounted && l.lost == 0 && l.missed == 0 && l.packets_in == sent
}

/// Prints a line; whether it differs.
fn compare(what: &str, way: &str, sent: Traffic, metered: Traffic) -> bool {
    let cells = [sent.packets, sent.bytes, metered.packets, metered.bytes].map(grouped);
    let packets = metered.packets as i128 - sent.packets as i128;
    let bytes = metered.bytes as i128 - sent.bytes as i128;
    let difference =
        if sent == metered { "0".to_owned() } else { format!("{packets:+} packets, {bytes:+} bytes") };
    row(what, way, cells, &difference);
    sent != metered
}

fn row(what: &str, way: &str, [sent, sent_bytes, metered, metered_bytes]: [String; 4], difference: &str) {
    println!(
        "{what:<25}{way:<16}{sent:>12} {sent_bytes:>14} {metered:>15} {metered_bytes:>14} {difference:>6}"
    );
}

/// A number with its thousands apart.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_apart() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (12_345_678, "12,345,678")] {
            assert_eq!(grouped(number), text);
        }
    }
}
