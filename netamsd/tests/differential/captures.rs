//! The captures of `tests/traces`, frame by frame; see the README there.

use std::{fs, path::PathBuf};

use netamsd::packet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use pcap_parser::{Block, PcapBlockOwned, PcapError, create_reader, traits::PcapNGPacketBlock};

/// Link type of Ethernet (tcpdump.org, LINKTYPE_ETHERNET).
pub const ETHERNET: i32 = 1;
/// LINKTYPE_RAW, and the number that some systems write for it.
const RAW: [i32; 3] = [101, 12, 14];
/// LINKTYPE_IPV4.
const RAW_IPV4: i32 = 228;
/// LINKTYPE_IPV6.
const RAW_IPV6: i32 = 229;

/// One record of a capture.
pub struct Frame {
    /// Link type.
    pub link: i32,
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
            RAW_IPV4 => Some(ETHERTYPE_IPV4),
            RAW_IPV6 => Some(ETHERTYPE_IPV6),
            // Of neither version is malformed, and is so whichever is announced.
            link if RAW.contains(&link) => {
                Some(if version == Some(6) { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 })
            }
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
    let mut push = |link: Option<&i32>, data: &[u8], len: u32| {
        let link = *link.expect("an interface that was described");
        frames.push(Frame { link, data: data.to_vec(), len: len.max(data.len() as u32) });
    };
    loop {
        let consumed = match reader.next() {
            Ok((consumed, block)) => {
                match block {
                    PcapBlockOwned::LegacyHeader(header) => links.push(header.network.0),
                    PcapBlockOwned::Legacy(record) => push(links.first(), record.data, record.origlen),
                    PcapBlockOwned::NG(Block::SectionHeader(_)) => links.clear(),
                    PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
                        links.push(interface.linktype.0);
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
