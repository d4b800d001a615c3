//! Frames of capture files: pcap and pcapng, in either byte order.
//!
//! Formats: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng. A frame is a complete record: reading stops where the file
//! cuts one short, and at one that claims more than [`MAX_FRAME`] bytes, for then the file is damaged. Any bytes can be read:
//! they give frames, an end, or an error, in memory that is bounded. A stream that says itself that it ends too early, as an
//! unpacker does, is a file cut short.

use std::io::{self, Read};

use super::buffer::Buffer;
use crate::packet::Link;

/// More captured bytes than this no frame has (the largest snapshot length that libpcap knows).
pub const MAX_FRAME: u32 = 262_144;
/// A longer block that is no plain skip is damage.
const MAX_BLOCK: u32 = 16 << 20;
/// So are more interfaces of a section: their descriptions are kept.
const MAX_INTERFACES: usize = 1 << 16;
/// Times are in the years that a calendar of four digits has, 0000 to 9999; what is said to be before or after is at their end.
const TIMES_MS: std::ops::RangeInclusive<i64> = -62_167_219_200_000..=253_402_300_799_999;

const PCAP_MICROSECONDS: u32 = 0xa1b2_c3d4;
const PCAP_NANOSECONDS: u32 = 0xa1b2_3c4d;
const PCAP_HEADER: usize = 24;
const PCAP_RECORD: usize = 16;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const SECTION_MAGIC: u32 = 0x1a2b_3c4d;
const INTERFACE_DESCRIPTION: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
/// Type and length of a block; the length comes again at its end.
const BLOCK_HEADER: usize = 8;
const BLOCK_LEAST: u32 = 12;
const OPTION_END: u16 = 0;
const OPTION_TIME_RESOLUTION: u16 = 9;
const OPTION_TIME_OFFSET: u16 = 14;

/// Why a file cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// Neither of the formats.
    #[error("it is not a pcap or pcapng file")]
    NotACapture,
    /// Frames of a kind that is not understood.
    #[error(
        "its link type {0} is not one that can be replayed; those of Ethernet, Linux cooked, raw IP, BSD loopback and PPP can"
    )]
    Link(u16),
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// Why reading has stopped before the end of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The last record is not whole.
    Cut,
    /// A record that cannot be right.
    Damaged,
}

/// One frame.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// What it begins with.
    pub link: Link,
    /// Captured bytes.
    pub data: &'a [u8],
    /// Original length, bytes; at least that of `data`.
    pub len: u32,
    /// Milliseconds UTC since 1970, in the years 0000 to 9999.
    pub time_ms: i64,
}

/// Where a frame is in the buffer.
struct Place {
    link: u16,
    /// Length of the whole record.
    size: usize,
    start: usize,
    captured: u32,
    len: u32,
    time_ms: i64,
}

/// An open capture.
pub struct Capture<R> {
    input: Buffer<R>,
    format: Format,
    /// Bytes of the last frame's record, which are taken when the next one is asked for.
    pending: usize,
    stop: Option<Stop>,
}

enum Format {
    Pcap { big: bool, nanoseconds: bool, link: u16 },
    Pcapng { big: bool, interfaces: Vec<Interface>, last_ms: i64 },
}

#[derive(Clone, Copy)]
struct Interface {
    link: u16,
    snapshot_len: u32,
    /// Ticks a second.
    resolution: u64,
    offset_s: i64,
}

impl<R: Read> Capture<R> {
    /// Reads as far as it takes to know the format.
    ///
    /// # Errors
    /// When it is neither format, or cannot be read; of pcap also when its link type is not understood.
    pub fn open(input: R) -> Result<Self, CaptureError> {
        let mut input = Buffer::new(input);
        let head = input.peek(PCAP_HEADER)?;
        let format = match head.first_chunk() {
            Some(magic) if u32::from_le_bytes(*magic) == SECTION_HEADER && section_order(head).is_some() => {
                Format::Pcapng { big: false, interfaces: Vec::new(), last_ms: 0 }
            }
            Some(magic) if head.len() == PCAP_HEADER => {
                let order = [false, true].into_iter().find_map(|big| match word(magic, 0, big) {
                    PCAP_MICROSECONDS => Some((big, false)),
                    PCAP_NANOSECONDS => Some((big, true)),
                    _ => None,
                });
                let (big, nanoseconds) = order.ok_or(CaptureError::NotACapture)?;
                // The upper bits say how long frame check sequences are.
                let link = word(head, 20, big) as u16;
                known(link)?;
                input.take(PCAP_HEADER);
                Format::Pcap { big, nanoseconds, link }
            }
            _ => return Err(CaptureError::NotACapture),
        };
        Ok(Self { input, format, pending: 0, stop: None })
    }

    /// The next frame; `None` at the end.
    ///
    /// # Errors
    /// When the file cannot be read, or the frame's link type is not understood.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, CaptureError> {
        self.input.take(std::mem::take(&mut self.pending));
        if self.stop.is_some() {
            return Ok(None);
        }
        let found = match &mut self.format {
            Format::Pcap { big, nanoseconds, link } => pcap(&mut self.input, *big, *nanoseconds, *link)?,
            Format::Pcapng { big, interfaces, last_ms } => pcapng(&mut self.input, big, interfaces, last_ms)?,
        };
        let place = match found {
            Next::Frame(place) => place,
            Next::End => {
                self.stop = self.input.is_cut().then_some(Stop::Cut);
                return Ok(None);
            }
            Next::Stop(stop) => {
                self.stop = Some(stop);
                return Ok(None);
            }
        };
        let link = known(place.link)?;
        self.pending = place.size;
        let end = place.start + place.captured as usize;
        let data = &self.input.peek(end)?[place.start..];
        Ok(Some(Frame { link, data, len: place.len.max(place.captured), time_ms: place.time_ms }))
    }

    /// Why reading has stopped before the end of the file, if it has.
    pub fn stop(&self) -> Option<Stop> {
        self.stop
    }
}

enum Next {
    Frame(Place),
    End,
    Stop(Stop),
}

fn known(link: u16) -> Result<Link, CaptureError> {
    Link::new(link).ok_or(CaptureError::Link(link))
}

/// A 32-bit number; the bytes are there.
fn word(bytes: &[u8], at: usize, big: bool) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    if big { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) }
}

/// A 16-bit number; the bytes are there.
fn half(bytes: &[u8], at: usize, big: bool) -> u16 {
    let half = [bytes[at], bytes[at + 1]];
    if big { u16::from_be_bytes(half) } else { u16::from_le_bytes(half) }
}

fn pcap<R: Read>(input: &mut Buffer<R>, big: bool, nanoseconds: bool, link: u16) -> io::Result<Next> {
    let head = input.peek(PCAP_RECORD)?;
    if head.len() < PCAP_RECORD {
        return Ok(if head.is_empty() { Next::End } else { Next::Stop(Stop::Cut) });
    }
    let [seconds, fraction, captured, len] = [0, 4, 8, 12].map(|at| word(head, at, big));
    if captured > MAX_FRAME {
        return Ok(Next::Stop(Stop::Damaged));
    }
    let end = PCAP_RECORD + captured as usize;
    if input.peek(end)?.len() < end {
        return Ok(Next::Stop(Stop::Cut));
    }
    let fraction_ms = fraction / if nanoseconds { 1_000_000 } else { 1000 };
    let time_ms = i64::from(seconds) * 1000 + i64::from(fraction_ms);
    Ok(Next::Frame(Place { link, size: end, start: PCAP_RECORD, captured, len, time_ms }))
}

/// Whether the numbers of a section are big-endian, by the beginning of its header; `None` if that is none.
fn section_order(head: &[u8]) -> Option<bool> {
    let magic = head.get(BLOCK_HEADER..BLOCK_LEAST as usize)?;
    [false, true].into_iter().find(|big| word(magic, 0, *big) == SECTION_MAGIC)
}

/// Passes blocks until one that is a frame, which it leaves in the buffer.
fn pcapng<R: Read>(
    input: &mut Buffer<R>,
    big: &mut bool,
    interfaces: &mut Vec<Interface>,
    last_ms: &mut i64,
) -> io::Result<Next> {
    loop {
        let head = input.peek(BLOCK_LEAST as usize)?;
        if head.len() < BLOCK_LEAST as usize {
            return Ok(if head.is_empty() { Next::End } else { Next::Stop(Stop::Cut) });
        }
        // The same in both byte orders: the section's own order is in the word behind its length.
        if word(head, 0, false) == SECTION_HEADER {
            let Some(order) = section_order(head) else { return Ok(Next::Stop(Stop::Damaged)) };
            *big = order;
            interfaces.clear();
        }
        let (kind, size) = (word(head, 0, *big), word(head, 4, *big));
        if size < BLOCK_LEAST || size % 4 != 0 {
            return Ok(Next::Stop(Stop::Damaged));
        }
        if ![INTERFACE_DESCRIPTION, OBSOLETE_PACKET, SIMPLE_PACKET, ENHANCED_PACKET].contains(&kind) {
            if !input.skip(size.into())? {
                return Ok(Next::Stop(Stop::Cut));
            }
            continue;
        }
        if size > MAX_BLOCK {
            return Ok(Next::Stop(Stop::Damaged));
        }
        let size = size as usize;
        let block = input.peek(size)?;
        if block.len() < size {
            return Ok(Next::Stop(Stop::Cut));
        }
        let body = &block[BLOCK_HEADER..size - 4];
        let place = match kind {
            INTERFACE_DESCRIPTION => {
                let described = interface(body, *big).filter(|_| interfaces.len() < MAX_INTERFACES);
                let Some(interface) = described else { return Ok(Next::Stop(Stop::Damaged)) };
                interfaces.push(interface);
                None
            }
            SIMPLE_PACKET if interfaces.is_empty() => None,
            _ => match packet(kind, body, *big, interfaces, *last_ms) {
                None => return Ok(Next::Stop(Stop::Damaged)),
                place => place,
            },
        };
        let Some(mut place) = place else {
            input.take(size);
            continue;
        };
        *last_ms = place.time_ms;
        place.start += BLOCK_HEADER;
        place.size = size;
        return Ok(Next::Frame(place));
    }
}

/// An interface description; `None` when it is too short to be one.
fn interface(body: &[u8], big: bool) -> Option<Interface> {
    let mut options = body.get(8..)?;
    let mut interface = Interface {
        link: half(body, 0, big),
        snapshot_len: word(body, 4, big),
        resolution: 1_000_000,
        offset_s: 0,
    };
    while options.len() >= 4 {
        let (code, len) = (half(options, 0, big), usize::from(half(options, 2, big)));
        let Some(value) = options.get(4..4 + len) else { break };
        match (code, value) {
            (OPTION_END, _) => break,
            (OPTION_TIME_RESOLUTION, [exponent]) => {
                let base: u64 = if exponent & 0x80 == 0 { 10 } else { 2 };
                interface.resolution = base.checked_pow((exponent & 0x7f).into()).unwrap_or(u64::MAX);
            }
            (OPTION_TIME_OFFSET, value) if len == 8 => {
                let (a, b) = (word(value, 0, big), word(value, 4, big));
                let (high, low) = if big { (a, b) } else { (b, a) };
                interface.offset_s = (u64::from(high) << 32 | u64::from(low)) as i64;
            }
            _ => {}
        }
        options = options.get(4 + len.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(interface)
}

/// Where the frame of a packet block is in its body; `None` when there cannot be one.
fn packet(kind: u32, body: &[u8], big: bool, interfaces: &[Interface], last_ms: i64) -> Option<Place> {
    if kind == SIMPLE_PACKET {
        let interface = interfaces.first()?;
        let len = word(body.get(..4)?, 0, big);
        let limit = if interface.snapshot_len == 0 { len } else { interface.snapshot_len };
        return place(body, interface, 4, len.min(limit), len, last_ms);
    }
    let head = body.get(..20)?;
    let index = if kind == ENHANCED_PACKET { word(head, 0, big) } else { half(head, 0, big).into() };
    let interface = interfaces.get(index as usize)?;
    let ticks = u64::from(word(head, 4, big)) << 32 | u64::from(word(head, 8, big));
    let since_ms = i128::from(ticks) * 1000 / i128::from(interface.resolution);
    let time_ms = (since_ms + i128::from(interface.offset_s) * 1000)
        .clamp((*TIMES_MS.start()).into(), (*TIMES_MS.end()).into()) as i64;
    place(body, interface, 20, word(head, 12, big), word(head, 16, big), time_ms)
}

fn place(
    body: &[u8],
    interface: &Interface,
    start: usize,
    captured: u32,
    len: u32,
    time_ms: i64,
) -> Option<Place> {
    let fits = captured <= MAX_FRAME && start + captured as usize <= body.len();
    fits.then_some(Place { link: interface.link, size: 0, start, captured, len, time_ms })
}
