//! Frames that no capture has, and how they are made.

mod any;
mod ip;
mod link;
mod segments;
mod tunnel;

use super::{ip::*, segments::JUMBO_OPTION, *};

const SRC: [u8; 4] = [10, 0, 0, 1];
const DST: [u8; 4] = [192, 0, 2, 7];
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];

/// Source port 258, destination port 772, a TCP header of 32 bytes where it is one, and payload.
const UPPER: [u8; 64] = {
    let mut bytes = [0; 64];
    [bytes[0], bytes[1], bytes[2], bytes[3]] = [1, 2, 3, 4];
    bytes[12] = 8 << 4;
    bytes
};

/// A frame under construction; whatever is put in front of an IP header comes as EtherType and what follows it.
fn ethernet(parts: &[&[u8]]) -> Vec<u8> {
    [&[0xee; 12][..], &parts.concat()].concat()
}

/// An IPv4 packet with `options` words of options and a right total length.
fn ipv4(proto: u8, options: u8, payload: &[u8]) -> Vec<u8> {
    let header = 20 + usize::from(options) * 4;
    let mut ip = vec![0x45 + options, 0, 0, 0, 0xab, 0xcd, 0, 0, 64, proto, 0, 0];
    ip.extend([SRC, DST].concat());
    ip.resize(header, 1);
    ip.extend(payload);
    let len = ip.len() as u16;
    ip[2..4].copy_from_slice(&len.to_be_bytes());
    ip
}

/// An IPv6 packet with a right payload length.
fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x60, 0, 0, 0];
    ip.extend((payload.len() as u16).to_be_bytes());
    ip.extend([next, 64]);
    ip.extend([[0x11; 16], [0x22; 16]].concat());
    ip.extend(payload);
    ip
}

/// A chain of extension headers of the given kinds, 8 bytes each, in front of `upper` and its kind.
fn chain(kinds: &[u8], last: u8, upper: &[u8]) -> Vec<u8> {
    let next = kinds.iter().skip(1).chain([&last]);
    let headers = kinds.iter().zip(next).flat_map(|(_, next)| [*next, 0, 0, 0, 0, 0, 0, 0]);
    let packet: Vec<u8> = headers.chain(upper.iter().copied()).collect();
    ipv6(*kinds.first().unwrap_or(&last), &packet)
}

/// A UDP header, whose length says nothing, and its payload.
fn udp(sport: u16, dport: u16, payload: &[u8]) -> Vec<u8> {
    [&sport.to_be_bytes()[..], &dport.to_be_bytes(), &[0; 4], payload].concat()
}

fn parse4(packet: &[u8]) -> Parsed {
    parse_ip(packet, packet.len() as u32, ETHERTYPE_IPV4, Gso::NONE)
}

fn parse6(packet: &[u8]) -> Parsed {
    parse_ip(packet, packet.len() as u32, ETHERTYPE_IPV6, Gso::NONE)
}

fn parse_frame(frame: &[u8]) -> Parsed {
    parse_ethernet(frame, frame.len() as u32, Gso::NONE)
}

#[track_caller]
fn ip(parsed: Parsed) -> Packet {
    match parsed {
        Parsed::Ip(packet) => packet,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_ports(packet: &Packet, proto: u8, sport: u16, dport: u16) {
    let ports = (u16::from_be_bytes(packet.key.sport), u16::from_be_bytes(packet.key.dport));
    assert_eq!((packet.key.proto, ports), (proto, (sport, dport)));
}

/// The innermost packet of a frame.
fn innermost(frame: &[u8]) -> Option<Packet> {
    let len = frame.len() as u32;
    inner(frame, len, Gso::NONE, &ip(parse_frame(frame)))
}

/// What a captured part of a frame gives, with offsets of IP headers.
#[derive(Debug, PartialEq)]
enum Gives {
    NonIp,
    Malformed,
    Outer(usize),
    Inner(usize, usize),
}

/// What a frame gives when the capture cuts it short, each with the smallest captured length that gives it.
fn cuts(link: Link, frame: &[u8]) -> Vec<(usize, Gives)> {
    let len = frame.len() as u32;
    let mut all = Vec::new();
    for captured in 0..=frame.len() {
        let data = &frame[..captured];
        let gives = match parse_link(link, data, len, Gso::NONE) {
            Parsed::NonIp => Gives::NonIp,
            Parsed::Malformed => Gives::Malformed,
            Parsed::Ip(outer) => {
                // Lengths are those of the whole packet wherever it is cut.
                assert_eq!(outer.bytes, frame.len() as u64 - outer.l3 as u64);
                let inner = inner(data, len, Gso::NONE, &outer);
                inner.map_or(Gives::Outer(outer.l3), |inner| {
                    assert_eq!(inner.bytes, frame.len() as u64 - inner.l3 as u64);
                    Gives::Inner(outer.l3, inner.l3)
                })
            }
        };
        if all.last().is_none_or(|(_, last)| *last != gives) {
            all.push((captured, gives));
        }
    }
    all
}
