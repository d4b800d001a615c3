//! The reader: what is a frame, in each format, and what damage does.

use netamsd::packet::Link;
use netamsd::source::replay::capture::{Capture, CaptureError, MAX_FRAME, Stop};
use proptest::prelude::*;

use crate::made::{Order, Shot, ethernet, udp};

/// Link, captured bytes, original length and time of each frame, and why reading has stopped.
type Read = (Vec<(Link, Vec<u8>, u32, i64)>, Option<Stop>);

fn read(file: &[u8]) -> Result<Read, CaptureError> {
    let mut capture = Capture::open(file)?;
    let mut frames = Vec::new();
    while let Some(frame) = capture.next_frame()? {
        frames.push((frame.link, frame.data.to_vec(), frame.len, frame.time_ms));
    }
    Ok((frames, capture.stop()))
}

fn shots() -> Vec<Shot> {
    let times = [1_700_000_000_123, 1_700_000_000_124, 0, 4_294_967_295_999];
    let frame = |n: usize| ethernet(&[], &udp([10, 0, 0, n as u8], [192, 0, 2, 1], [1000, 53], n * 7));
    times.iter().enumerate().map(|(n, time_ms)| Shot { time_ms: *time_ms, frame: frame(n) }).collect()
}

fn expected(shots: &[Shot]) -> Read {
    let frame = |shot: &Shot| (Link::Ethernet, shot.frame.clone(), shot.frame.len() as u32, shot.time_ms);
    (shots.iter().map(frame).collect(), None)
}

#[test]
fn pcap_in_both_byte_orders_and_resolutions() {
    let shots = shots();
    for order in Order::BOTH {
        for nanoseconds in [false, true] {
            let file = order.pcap_of(nanoseconds, 1, &shots);
            assert_eq!(read(&file).unwrap(), expected(&shots), "{order:?}, nanoseconds {nanoseconds}");
        }
        // The upper bits: frames end in a check sequence of 4 bytes.
        let file = order.pcap_of(false, 0x2400_0001, &shots);
        assert_eq!(read(&file).unwrap(), expected(&shots), "{order:?}");
    }
}

#[test]
fn pcapng_in_both_byte_orders_and_all_resolutions() {
    let shots = shots();
    for order in Order::BOTH {
        // Resolution, ticks a second, offset in seconds.
        let clocks: [(Option<u8>, u64, i64); 6] = [
            (None, 1_000_000, 0),
            (Some(3), 1000, 0),
            (Some(9), 1_000_000_000, 0),
            (Some(6), 1_000_000, -1000),
            (Some(12), 1_000_000_000_000, 1_690_000_000),
            (Some(0x80 | 20), 1 << 20, 0),
        ];
        for (resolution, ticks_a_second, offset_s) in clocks {
            // Up, so that cutting to milliseconds gives the same again; none where 64 bits cannot say it.
            let ticks = |shot: &Shot| {
                let since_ms = u128::try_from(shot.time_ms - offset_s * 1000).ok()?;
                u64::try_from((since_ms * u128::from(ticks_a_second)).div_ceil(1000)).ok()
            };
            let shots: Vec<_> = shots.iter().filter(|shot| ticks(shot).is_some()).cloned().collect();
            assert!(shots.len() > 1);
            let offset = order.u64(offset_s as u64);
            let mut options: Vec<(u16, &[u8])> = vec![(2, b"eth0")];
            options.extend(resolution.as_ref().map(|r| (9, std::slice::from_ref(r))));
            options.push((14, &offset));
            let mut file = order.section();
            file.extend(order.interface(1, 0, &options));
            // A statistics block in between says nothing about frames.
            file.extend(order.block(5, &[0; 20]));
            for (n, shot) in shots.iter().enumerate() {
                let ticks = ticks(shot).unwrap();
                let len = shot.frame.len() as u32;
                file.extend(match n % 2 {
                    0 => order.enhanced(0, ticks, len, &shot.frame),
                    _ => order.obsolete(0, ticks, len, &shot.frame),
                });
            }
            assert_eq!(read(&file).unwrap(), expected(&shots), "{order:?}, {ticks_a_second}, {offset_s}");
        }
    }
}

#[test]
fn sections_have_their_own_byte_order_and_interfaces() {
    let packet = udp([10, 0, 0, 1], [192, 0, 2, 1], [1, 2], 10);
    let frame = ethernet(&[], &packet);
    let mut file = Vec::new();
    let mut wanted = Vec::new();
    for (n, order) in Order::BOTH.into_iter().chain(Order::BOTH).enumerate() {
        let time_ms = 1000 * n as i64;
        file.extend(order.section());
        // In every other section the numbers of the interfaces are swapped.
        let links = if n % 2 == 0 { [1, 228] } else { [228, 1] };
        links.iter().for_each(|link| file.extend(order.interface(*link, 0, &[])));
        for (interface, link) in links.into_iter().enumerate() {
            let (link, data) = if link == 1 { (Link::Ethernet, &frame) } else { (Link::Ipv4, &packet) };
            file.extend(order.enhanced(interface as u32, time_ms as u64 * 1000, data.len() as u32, data));
            wanted.push((link, data.clone(), data.len() as u32, time_ms));
        }
    }
    assert_eq!(read(&file).unwrap(), (wanted, None));
}

#[test]
fn simple_packets_are_cut_to_the_snapshot_length_and_have_the_time_of_the_one_before() {
    let frame = ethernet(&[], &udp([10, 0, 0, 1], [192, 0, 2, 1], [1, 2], 100));
    let len = frame.len() as u32;
    for order in Order::BOTH {
        let mut file = order.section();
        // Before any interface is described nobody knows what it is.
        file.extend(order.simple(len, &frame));
        file.extend(order.interface(1, 60, &[]));
        file.extend(order.simple(len, &frame[..60]));
        file.extend(order.enhanced(0, 5_000_000, len, &frame));
        file.extend(order.simple(40, &frame[..40]));
        let wanted = vec![
            (Link::Ethernet, frame[..60].to_vec(), len, 0),
            (Link::Ethernet, frame.clone(), len, 5000),
            (Link::Ethernet, frame[..40].to_vec(), 40, 5000),
        ];
        assert_eq!(read(&file).unwrap(), (wanted, None));
    }
}

#[test]
fn an_original_length_below_the_captured_one_is_that() {
    let order = Order::BOTH[0];
    let frame = ethernet(&[], &udp([10, 0, 0, 1], [192, 0, 2, 1], [1, 2], 10));
    let mut file = order.pcap(false, 1);
    for claimed in [0, 1, frame.len() as u32, 1500] {
        file.extend(order.record([1, 0], frame.len() as u32, claimed, &frame));
    }
    let lens: Vec<_> = read(&file).unwrap().0.iter().map(|frame| frame.2).collect();
    assert_eq!(lens, [frame.len() as u32, frame.len() as u32, frame.len() as u32, 1500]);
}

/// Cuts `file` at each byte; its frames end at `ends`, the first part being the header.
fn cut_everywhere(file: &[u8], ends: &[usize], from: usize) {
    for at in from..=file.len() {
        let (frames, stop) = read(&file[..at]).unwrap();
        assert_eq!(frames.len(), ends[1..].iter().filter(|end| **end <= at).count(), "cut at {at}");
        let wanted = if ends.contains(&at) { None } else { Some(Stop::Cut) };
        assert_eq!(stop, wanted, "cut at {at}");
    }
}

#[test]
fn a_record_cut_short_is_no_frame() {
    let shots = shots();
    for order in Order::BOTH {
        let mut file = order.pcap(false, 1);
        let mut ends = vec![file.len()];
        for shot in &shots {
            let len = shot.frame.len() as u32;
            file.extend(order.record([1, 0], len, len, &shot.frame));
            ends.push(file.len());
        }
        cut_everywhere(&file, &ends, 24);

        let mut file = order.section();
        let section = file.len();
        file.extend(order.interface(1, 0, &[]));
        let mut ends = vec![file.len()];
        for shot in &shots {
            file.extend(order.enhanced(0, 1, shot.frame.len() as u32, &shot.frame));
            ends.push(file.len());
        }
        cut_everywhere(&file, &ends, section + 1);
    }
}

#[test]
fn what_is_no_capture_is_refused() {
    let order = Order::BOTH[0];
    let pcap = order.pcap(false, 1);
    let mut wrong_magic = order.section();
    wrong_magic[8] ^= 1;
    for file in
        [&b""[..], b"\x0a\x0d\x0d\x0a", b"GIF89a, a picture and not a capture", &pcap[..23], &wrong_magic]
    {
        assert!(matches!(read(file), Err(CaptureError::NotACapture)), "{file:?}");
    }
    assert!(matches!(read(&order.pcap(false, 127)), Err(CaptureError::Link(127))));
    // An interface that has no frames does not matter.
    let mut file = order.section();
    file.extend(order.interface(127, 0, &[]));
    file.extend(order.interface(1, 0, &[]));
    file.extend(order.enhanced(1, 0, 1, &[0]));
    assert_eq!(read(&file).unwrap().0.len(), 1);
    file.extend(order.enhanced(0, 0, 1, &[0]));
    assert!(matches!(read(&file), Err(CaptureError::Link(127))));
}

#[test]
fn reading_stops_at_a_record_that_claims_too_much() {
    let most = vec![0; MAX_FRAME as usize];
    for order in Order::BOTH {
        let mut start = order.pcap(false, 1);
        start.extend(order.record([0, 0], MAX_FRAME, MAX_FRAME, &most));
        for claimed in [MAX_FRAME + 1, 1 << 31, u32::MAX] {
            let mut file = start.clone();
            file.extend(order.record([0, 0], claimed, claimed, &most));
            let (frames, stop) = read(&file).unwrap();
            assert_eq!((frames.len(), stop), (1, Some(Stop::Damaged)), "{claimed}");
        }

        let mut start = order.section();
        start.extend(order.interface(1, 0, &[]));
        start.extend(order.enhanced(0, 0, MAX_FRAME, &most));
        let size_of = |mut block: Vec<u8>, size: u32| {
            block[4..8].copy_from_slice(&order.u32(size));
            block
        };
        let captured_of = |mut block: Vec<u8>, captured: u32| {
            block[20..24].copy_from_slice(&order.u32(captured));
            block
        };
        let enhanced = || order.enhanced(0, 0, 4, &[0; 4]);
        let cases = [
            (size_of(enhanced(), 0), Stop::Damaged, "no size"),
            (size_of(enhanced(), 8), Stop::Damaged, "less than a block"),
            (size_of(enhanced(), 12), Stop::Damaged, "no room for a packet"),
            (size_of(enhanced(), 37), Stop::Damaged, "an odd size"),
            (size_of(enhanced(), !3), Stop::Damaged, "more than any packet"),
            (size_of(enhanced(), 1 << 20), Stop::Cut, "more than there is"),
            (size_of(order.block(5, &[]), !3), Stop::Cut, "of a block that is passed"),
            (captured_of(enhanced(), 5), Stop::Damaged, "more than the block has"),
            (captured_of(enhanced(), u32::MAX), Stop::Damaged, "more than a frame has"),
            (order.enhanced(1, 0, 4, &[0; 4]), Stop::Damaged, "of an interface that is not described"),
            (order.obsolete(7, 0, 4, &[0; 4]), Stop::Damaged, "of such a one, obsolete"),
            (order.block(1, &[1, 0, 0, 0]), Stop::Damaged, "half an interface"),
            (order.block(0x0a0d_0d0a, &[0; 16]), Stop::Damaged, "a section of no byte order"),
        ];
        for (block, wanted, why) in cases {
            let mut file = start.clone();
            file.extend(block);
            let (frames, stop) = read(&file).unwrap();
            assert_eq!((frames.len(), stop), (1, Some(wanted)), "{why}, {order:?}");
        }
    }
}

#[test]
fn interfaces_without_end_are_damage() {
    let order = Order::BOTH[0];
    let mut file = order.section();
    for _ in 0..=1 << 16 {
        file.extend(order.interface(1, 0, &[]));
    }
    file.extend(order.enhanced(0, 0, 1, &[0]));
    assert_eq!(read(&file).unwrap(), (Vec::new(), Some(Stop::Damaged)));
}

#[test]
fn times_beyond_the_calendar_are_at_its_ends() {
    let order = Order::BOTH[0];
    let (first, last) = (-62_167_219_200_000, 253_402_300_799_999);
    for (resolution, offset_s, ticks, wanted) in [
        (0, 0, u64::MAX, last),
        (0, i64::MAX, u64::MAX, last),
        (0, i64::MIN, 0, first),
        (127, i64::MIN, u64::MAX, first),
        (0xff, 0, u64::MAX, 1000),
        (6, 253_402_300_799, 999_999, last),
    ] {
        let offset = order.u64(offset_s as u64);
        let mut file = order.section();
        file.extend(order.interface(1, 0, &[(9, &[resolution]), (14, &offset)]));
        file.extend(order.enhanced(0, ticks, 1, &[0]));
        assert_eq!(read(&file).unwrap().0[0].3, wanted, "{resolution}, {offset_s}, {ticks}");
    }
}

proptest! {
    #[test]
    fn any_bytes_have_an_end(noise in prop::collection::vec(any::<u8>(), 0..300), start in 0..5_usize) {
        let order = Order::BOTH[start % 2];
        let mut file = match start {
            0 | 1 => order.pcap(start == 1, 1),
            2 | 3 => [order.section(), order.interface(1, 0, &[])].concat(),
            _ => Vec::new(),
        };
        file.extend(&noise);
        if let Ok((frames, _)) = read(&file) {
            let bytes: usize = frames.iter().map(|frame| frame.1.len()).sum();
            prop_assert!(bytes <= file.len());
        }
    }
}
