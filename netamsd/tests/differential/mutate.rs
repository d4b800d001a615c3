//! Makes packets that nobody sends: a few changes at places that parsers read, the same ones in every run.

use netamsd::packet::Gso;

use crate::wrap;

/// IPv6 extension headers that are walked: hop-by-hop, routing, fragment, AH, destination options, mobility.
pub const EXTENSIONS: [u8; 6] = [0, 43, 44, 51, 60, 135];
/// Protocols that a parser treats in different ways.
const PROTOCOLS: [u8; 14] = [0, 1, 4, 6, 17, 33, 43, 44, 47, 51, 58, 60, 132, 136];
/// UDP ports of tunnels, and one that is none.
const PORTS: [u16; 5] = [4789, 8472, 6081, 2152, 53];
const ETHERTYPES_VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014): the same numbers for a seed.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Changes an Ethernet frame at one to four places, and says what kind of super-packet it is to be, if any.
pub fn mutate(random: &mut Random, frame: &mut Vec<u8>) -> Gso {
    for _ in 0..=random.below(4) {
        let l3 = layer3(frame);
        match random.below(17) {
            0 | 1 => flip(random, frame),
            2 => frame.truncate(random.below(frame.len().min(240) + 1)),
            3 => insert_tag(random, frame),
            4 => length_field(random, frame, l3),
            5 => fragment_field(random, frame, l3),
            6 => protocol(random, frame, l3),
            7 | 8 => insert_extensions(random, frame, l3),
            9 => insert_jumbo(frame, l3),
            10 => options(random, frame, l3),
            11..=14 => wrap::into_tunnel(random, frame),
            15 => wrap::below_link(random, frame),
            _ => frame.extend((0..random.below(64)).map(|_| 0)),
        }
    }
    if random.below(2) == 0 {
        return Gso::NONE;
    }
    Gso {
        size: *random.pick(&[1, 8, 536, 1400, 1448, 9000, 65535]),
        segs: *random.pick(&[0, 0, 0, 1, 2, 45, 65535]),
    }
}

/// Offset behind the VLAN tags, however many there are.
pub fn layer3(frame: &[u8]) -> usize {
    let mut at = 12;
    while frame
        .get(at..at + 2)
        .is_some_and(|kind| ETHERTYPES_VLAN.map(u16::to_be_bytes).contains(&[kind[0], kind[1]]))
    {
        at += 4;
    }
    at + 2
}

fn version(frame: &[u8], l3: usize) -> u8 {
    frame.get(l3).map_or(0, |first| first >> 4)
}

/// Writes where there is room.
fn put<const N: usize>(frame: &mut [u8], at: usize, bytes: [u8; N]) {
    if let Some(place) = frame.get_mut(at..at + N) {
        place.copy_from_slice(&bytes);
    }
}

fn flip(random: &mut Random, frame: &mut [u8]) {
    if !frame.is_empty() {
        let at = random.below(frame.len().min(200));
        frame[at] ^= 1 << random.below(8);
    }
}

fn insert_tag(random: &mut Random, frame: &mut Vec<u8>) {
    if frame.len() >= 12 {
        let kind = random.pick(&ETHERTYPES_VLAN).to_be_bytes();
        let [a, b, ..] = random.next().to_ne_bytes();
        frame.splice(12..12, [kind[0], kind[1], a, b]);
    }
}

fn length_field(random: &mut Random, frame: &mut [u8], l3: usize) {
    let there = frame.len().saturating_sub(l3) as u16;
    let (at, right) = match version(frame, l3) {
        6 => (l3 + 4, there.wrapping_sub(40)),
        _ => (l3 + 2, there),
    };
    let around = right.wrapping_add(random.below(5) as u16).wrapping_sub(2);
    let value = *random.pick(&[0, 1, 19, 20, 40, right, around, 0xffff]);
    put(frame, at, value.to_be_bytes());
}

fn fragment_field(random: &mut Random, frame: &mut [u8], l3: usize) {
    if version(frame, l3) == 4 {
        let value: u16 = *random.pick(&[0x2000, 0x2000, 0x4000, 0x0001, 0x2001, 0x1fff, 0x3fff, 0x8000]);
        put(frame, l3 + 6, value.to_be_bytes());
    }
}

fn protocol(random: &mut Random, frame: &mut [u8], l3: usize) {
    let at = if version(frame, l3) == 6 { l3 + 6 } else { l3 + 9 };
    put(frame, at, [*random.pick(&PROTOCOLS)]);
    // A port of a tunnel behind a header of usual length.
    let l4 = if version(frame, l3) == 6 { l3 + 40 } else { l3 + 20 };
    put(frame, l4 + 2, random.pick(&PORTS).to_be_bytes());
}

/// One to ten extension headers in front of what an IPv6 packet carries.
fn insert_extensions(random: &mut Random, frame: &mut Vec<u8>, l3: usize) {
    if version(frame, l3) != 6 || frame.len() < l3 + 40 {
        return;
    }
    for _ in 0..=random.below(10) {
        let kind = *random.pick(&EXTENSIONS);
        let size = random.below(3) as u8;
        let len = match kind {
            FRAGMENT => 8,
            AUTHENTICATION => (usize::from(size) + 2) * 4,
            _ => (usize::from(size) + 1) * 8,
        };
        let mut header: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        (header[0], header[1]) = (frame[l3 + 6], size);
        if kind == FRAGMENT {
            // Mostly whole or first ones: nothing behind a later one is looked at.
            let field: u16 = *random.pick(&[0, 0, 0, 1, 1, 1, 6, 8, 0xffff]);
            put(&mut header, 2, field.to_be_bytes());
        }
        frame[l3 + 6] = kind;
        frame.splice(l3 + 40..l3 + 40, header);
    }
}

/// The hop-by-hop header of a BIG TCP super-packet.
fn insert_jumbo(frame: &mut Vec<u8>, l3: usize) {
    if version(frame, l3) == 6 && frame.len() >= l3 + 40 {
        let next = frame[l3 + 6];
        frame.splice(l3 + 40..l3 + 40, [next, 0, 0xc2, 4, 0, 1, 0, 0]);
        frame[l3 + 6] = 0;
        put(frame, l3 + 4, [0, 0]);
    }
}

/// Another length of the IPv4 header, with or without the bytes that belong to it.
fn options(random: &mut Random, frame: &mut Vec<u8>, l3: usize) {
    if version(frame, l3) == 4 && frame.len() >= l3 + 20 {
        let words = random.below(16);
        frame[l3] = 0x40 | words as u8;
        if random.below(2) == 0 && words > 5 {
            frame.splice(l3 + 20..l3 + 20, vec![1; (words - 5) * 4]);
        }
    }
}
