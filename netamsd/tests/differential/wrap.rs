//! Puts packets into tunnels and below PPPoE and MPLS, mostly as these ought to be, now and then with a wrong field.

use crate::mutate::{Random, layer3};

const IP_IN_IP: u8 = 4;
const IPV6_IN_IP: u8 = 41;
const GRE: u8 = 47;
const UDP: u8 = 17;

/// EtherType that a packet has by its first nibble.
fn ethertype(packet: &[u8]) -> [u8; 2] {
    if packet.first().is_some_and(|first| first >> 4 == 6) { [0x86, 0xdd] } else { [0x08, 0x00] }
}

/// Puts a header between the EtherType and what it announces: PPPoE with PPP, or a stack of MPLS labels.
pub fn below_link(random: &mut Random, frame: &mut Vec<u8>) {
    let l3 = layer3(frame);
    if frame.len() < l3 {
        return;
    }
    let six = ethertype(&frame[l3..]) == [0x86, 0xdd];
    let (kind, header): ([u8; 2], Vec<u8>) = match random.below(4) {
        0 => ([0x88, 0x64], [&PPPOE[..], &[0x00, if six { 0x57 } else { 0x21 }]].concat()),
        1 => ([0x88, 0x64], [&PPPOE[..], &[if six { 0x57 } else { 0x21 }]].concat()),
        2 => {
            ([0x88, 0x64], [&PPPOE[..], &[0x02, *random.pick(&[0x81, 0x83, 0x85])], &labels(random)].concat())
        }
        _ => ([0x88, *random.pick(&[0x47, 0x48])], labels(random)),
    };
    frame[l3 - 2..l3].copy_from_slice(&kind);
    frame.splice(l3..l3, header);
}

const PPPOE: [u8; 6] = [0x11, 0, 0, 1, 0, 0];

/// One to 80 labels, the last one at the bottom.
fn labels(random: &mut Random) -> Vec<u8> {
    let count = *random.pick(&[1, 1, 1, 2, 3, 64, 65, 80]);
    let label = |n: usize| [n as u8, 0, u8::from(n + 1 == count), 64];
    (0..count).flat_map(label).collect()
}

/// Puts the packet of a frame into a tunnel, whose outer header takes its place.
pub fn into_tunnel(random: &mut Random, frame: &mut Vec<u8>) {
    let l3 = layer3(frame);
    if frame.len() < l3 {
        return;
    }
    let packet = frame.split_off(l3);
    let (proto, payload) = match random.below(8) {
        0 | 1 => (if ethertype(&packet) == [0x08, 0x00] { IP_IN_IP } else { IPV6_IN_IP }, packet),
        2 | 3 => (GRE, gre(random, packet)),
        4 => (UDP, udp([0x12, 0xb5], true, vxlan(random, packet))),
        5 => (UDP, udp([0x17, 0xc1], true, geneve(random, packet))),
        6 => (UDP, udp([0x0d, 0xd8], random.below(2) == 0, teredo(random, packet))),
        _ => (UDP, udp([0x08, 0x68], random.below(2) == 0, gtp(random, packet))),
    };
    let (kind, header) = outer(random, proto, payload.len());
    frame[l3 - 2..l3].copy_from_slice(&kind);
    frame.extend(header);
    frame.extend(payload);
}

fn outer(random: &mut Random, proto: u8, len: usize) -> ([u8; 2], Vec<u8>) {
    let byte = random.below(256) as u8;
    if random.below(3) == 0 {
        let length = (len as u16).to_be_bytes();
        let mut header = vec![0x60, 0, 0, 0, length[0], length[1], proto, 64];
        header.resize(40, byte);
        return ([0x86, 0xdd], header);
    }
    let length = (len as u16).wrapping_add(20).to_be_bytes();
    // Mostly whole, now and then a first fragment or a later one.
    let flags = *random.pick(&[0, 0, 0, 0, 0x20, 0x01]);
    let mut header = vec![0x45, 0, length[0], length[1], byte, 1, flags, 0, 64, proto];
    header.resize(20, byte);
    ([0x08, 0x00], header)
}

fn ethernet(random: &mut Random, packet: Vec<u8>) -> Vec<u8> {
    let mut frame = vec![2; 12];
    for _ in 0..*random.pick(&[0, 0, 0, 1, 2, 3]) {
        frame.extend([*random.pick(&[0x81, 0x88, 0x91]), 0, 0, random.below(9) as u8]);
        let kind = frame.len() - 4;
        frame[kind + 1] = if frame[kind] == 0x88 { 0xa8 } else { 0 };
    }
    frame.extend(ethertype(&packet));
    frame.extend(packet);
    if random.below(6) == 0 {
        below_link(random, &mut frame);
    }
    frame
}

/// A payload and its type, in GRE and Geneve.
fn carried(random: &mut Random, packet: Vec<u8>) -> ([u8; 2], Vec<u8>) {
    match random.below(8) {
        0..=3 => (ethertype(&packet), packet),
        4..=6 => ([0x65, 0x58], ethernet(random, packet)),
        _ => ([0x88, 0x0b], packet),
    }
}

fn gre(random: &mut Random, packet: Vec<u8>) -> Vec<u8> {
    let flags = *random.pick(&[0x00u8, 0x00, 0x20, 0x80, 0x10, 0xb0, 0x40]);
    let (kind, payload) = carried(random, packet);
    let version = u8::from(random.below(20) == 0);
    let options = (flags & 0xb0).count_ones() as usize * 4;
    let mut header = vec![flags, version, kind[0], kind[1]];
    header.resize(4 + options, random.below(256) as u8);
    [header, payload].concat()
}

fn vxlan(random: &mut Random, packet: Vec<u8>) -> Vec<u8> {
    let flags = *random.pick(&[0x08, 0x08, 0x08, 0x0c, 0x00]);
    [vec![flags, 0, 0, 0, 1, 2, random.below(256) as u8, 0], ethernet(random, packet)].concat()
}

fn geneve(random: &mut Random, packet: Vec<u8>) -> Vec<u8> {
    let words = random.below(4);
    let version = *random.pick(&[0x00u8, 0x00, 0x00, 0x00, 0x40]);
    let (kind, payload) = carried(random, packet);
    let mut header = vec![version | words as u8, 0, kind[0], kind[1], 3, 4, 5, 0];
    header.resize(8 + words * 4, 0xee);
    [header, payload].concat()
}

fn teredo(random: &mut Random, packet: Vec<u8>) -> Vec<u8> {
    let mut header = Vec::new();
    if random.below(2) == 0 {
        let (id, value) = (random.below(4), random.below(4));
        header.extend([0, 1, id as u8, value as u8]);
        header.resize(4 + id + value + 9, 0xaa);
    }
    if random.below(2) == 0 {
        header.extend([0, 0, 1, 2, 3, 4, 5, 6]);
    }
    [header, packet].concat()
}

fn gtp(random: &mut Random, packet: Vec<u8>) -> Vec<u8> {
    let flags = *random.pick(&[0x30u8, 0x30, 0x32, 0x34, 0x37, 0x20]);
    let kind = *random.pick(&[255, 255, 255, 255, 1]);
    let mut header = vec![flags, kind, 0, 0, 0, 7, 7, random.below(256) as u8];
    if flags & 7 != 0 {
        let extensions = random.below(3) * usize::from(flags & 4 != 0);
        header.extend([0, 0, 0, if extensions > 0 { 0x85 } else { 0 }]);
        for n in (0..extensions).rev() {
            let words = 1 + random.below(2);
            header.push(words as u8);
            header.resize(header.len() + words * 4 - 2, 0);
            header.push(if n > 0 { 0x85 } else { 0 });
        }
    }
    [header, packet].concat()
}

fn udp(port: [u8; 2], to: bool, payload: Vec<u8>) -> Vec<u8> {
    let other = [0xc0, 0x01];
    let (source, destination) = if to { (other, port) } else { (port, other) };
    let length = (payload.len() as u16).wrapping_add(8).to_be_bytes();
    [&[source[0], source[1], destination[0], destination[1], length[0], length[1], 0, 0], &payload[..]]
        .concat()
}
