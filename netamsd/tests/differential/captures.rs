//! The captures of `tests/traces`, frame by frame; see the README there.

use std::{fs, path::PathBuf};

use netamsd::packet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Link};
use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError, create_reader, traits::PcapNGPacketBlock};

/// One record of a capture.
pub struct Frame {
    /// What `data` begins with.
    pub link: Link,
    /// What was captured.
    pub data: Vec<u8>,
    /// Original length, at least that of `data`.
    pub len: u32,
}

impl Frame {
    /// What a raw IP capture says that the packet is; `None` of other captures.
    pub fn ethertype(&self) -> Option<u16> {
        let version = self.data.first().map(|first| first >> 4);
        match self.link {
            Link::Ipv4 => Some(ETHERTYPE_IPV4),
            Link::Ipv6 => Some(ETHERTYPE_IPV6),
            // Of neither version is malformed, and is so whichever is announced.
            Link::Ip => Some(if version == Some(6) { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 }),
            _ => None,
        }
    }
}

/// Where the captures are.
pub fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/traces"))
}

/// All captures by file name, in its order.
pub fn all() -> Vec<(String, Vec<Frame>)> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder())
        .expect("tests/traces")
        .map(|entry| entry.expect("an entry of tests/traces").path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "pcap" || kind == "pcapng"))
        .collect();
    files.sort();
    let name = |path: &PathBuf| path.file_name().expect("a file").to_string_lossy().into_owned();
    files.iter().map(|path| (name(path), frames(&fs::read(path).expect("a capture")))).collect()
}

/// The complete records of a capture; reading stops at one that the file cuts short.
fn frames(file: &[u8]) -> Vec<Frame> {
    // The buffer holds the whole file and a largest block.
    let mut reader = create_reader(file.len() + (1 << 20), file).expect("a pcap or pcapng file");
    let mut links = Vec::new();
    let mut frames = Vec::new();
    let mut push = |link: Option<&Link>, data: &[u8], len: u32| {
        let link = *link.expect("an interface that was described");
        frames.push(Frame { link, data: data.to_vec(), len: len.max(data.len() as u32) });
    };
    loop {
        let consumed = match reader.next() {
            Ok((consumed, block)) => {
                match block {
                    PcapBlockOwned::LegacyHeader(header) => links.push(link(header.network)),
                    PcapBlockOwned::Legacy(record) => push(links.first(), record.data, record.origlen),
                    PcapBlockOwned::NG(Block::SectionHeader(_)) => links.clear(),
                    PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
                        links.push(link(interface.linktype));
                    }
                    PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                        push(links.get(packet.if_id as usize), packet.packet_data(), packet.origlen);
                    }
                    PcapBlockOwned::NG(Block::SimplePacket(packet)) => {
                        push(links.first(), packet.packet_data(), packet.origlen);
                    }
                    PcapBlockOwned::NG(_) => {}
                }
                consumed
            }
            Err(PcapError::Incomplete(_)) => {
                reader.refill().expect("bytes in memory can be read");
                continue;
            }
            Err(PcapError::Eof | PcapError::UnexpectedEof) => return frames,
            Err(e) => panic!("{e}"),
        };
        reader.consume(consumed);
    }
}

/// The upper half of the number in a pcap file's header says how long the frames' check sequences are.
fn link(number: Linktype) -> Link {
    Link::new(number.0 as u16).unwrap_or_else(|| panic!("{number} is not read"))
}
