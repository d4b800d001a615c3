//! Network interfaces and tc filters, asked of the kernel by rtnetlink.

use std::io;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable,
};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{InfoKind, LinkAttribute, LinkInfo, LinkLayerType, LinkMessage},
    tc::{TcAttribute, TcFilterBpfOption, TcHandle, TcMessage, TcOption},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// `RTNLGRP_LINK` of include/uapi/linux/rtnetlink.h.
const LINK_GROUP: u32 = 1;

/// An interface as far as the hooks care.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Frames start with an Ethernet header.
    pub ethernet: bool,
    /// Neither Ethernet nor a device that starts at layer 3: the programs cannot read it.
    pub unsupported: bool,
    /// Its packets come up through another interface, or are sent by this host to itself.
    pub upper: bool,
    /// Received and sent packets by the interface's own counters (super-packets count as one).
    pub packets: [u64; 2],
}

/// All interfaces of this network namespace.
///
/// # Errors
/// Those of the netlink socket.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let messages = dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    Ok(messages
        .into_iter()
        .filter_map(|m| match m {
            RouteNetlinkMessage::NewLink(link) => Some(interface(link)),
            _ => None,
        })
        .collect())
}

fn interface(link: LinkMessage) -> Interface {
    let kind = link.header.link_layer_type;
    let mut i = Interface {
        index: link.header.index,
        name: String::new(),
        ethernet: matches!(kind, LinkLayerType::Ether | LinkLayerType::Loopback),
        unsupported: matches!(kind, LinkLayerType::Infiniband | LinkLayerType::Can | LinkLayerType::Netlink),
        upper: kind == LinkLayerType::Loopback,
        packets: [0; 2],
    };
    let (mut pair, mut elsewhere) = (false, false);
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => i.name = name,
            LinkAttribute::Stats64(s) => i.packets = [s.rx_packets, s.tx_packets],
            LinkAttribute::LinkInfo(infos) => {
                i.upper |= infos.iter().any(|info| matches!(info, LinkInfo::Kind(kind) if is_upper(kind)));
                pair = infos.iter().any(|i| matches!(i, LinkInfo::Kind(InfoKind::Veth | InfoKind::Netkit)));
            }
            LinkAttribute::LinkNetNsId(_) => elsewhere = true,
            _ => {}
        }
    }
    // What comes out of one end was sent into the other: by this namespace when both are in it.
    i.upper |= pair && !elsewhere;
    i
}

/// Devices whose packets have come through another device of the same namespace.
fn is_upper(kind: &InfoKind) -> bool {
    use InfoKind::*;
    matches!(
        kind,
        Vlan | Bridge
            | Bond
            | Team
            | MacVlan
            | MacVtap
            | IpVlan
            | IpVtap
            | Vrf
            | Hsr
            | MacSec
            | Vxlan
            | Geneve
            | GreTap
            | GreTap6
            | GreTun
            | GreTun6
            | IpIp
            | Ip6Tnl
            | SitTun
            | Vti
            | Vti6
            | Ifb
    )
}

/// A bpf filter of a clsact qdisc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// Name of the program as given when it was attached.
    pub name: String,
    /// Kernel id of the program.
    pub program_id: u32,
    /// Priority.
    pub priority: u16,
    /// Handle.
    pub handle: u32,
}

/// The bpf filters of one direction of an interface's clsact qdisc, in the order in which they run; none when it has no
/// such qdisc.
///
/// # Errors
/// Those of the netlink socket.
pub fn clsact_filters(ifindex: u32, ingress: bool) -> io::Result<Vec<Filter>> {
    let mut request = TcMessage::default();
    request.header.index = ifindex as i32;
    // TC_H_CLSACT with TC_H_MIN_INGRESS or TC_H_MIN_EGRESS of include/uapi/linux/pkt_sched.h.
    request.header.parent = TcHandle { major: 0xffff, minor: if ingress { 0xfff2 } else { 0xfff3 } };
    let messages = match dump(RouteNetlinkMessage::GetTrafficFilter(request)) {
        Ok(messages) => messages,
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    Ok(messages
        .into_iter()
        .filter_map(|m| match m {
            RouteNetlinkMessage::NewTrafficFilter(tc) => filter(&tc),
            _ => None,
        })
        .collect())
}

fn filter(tc: &TcMessage) -> Option<Filter> {
    let options = tc.attributes.iter().find_map(|a| match a {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    })?;
    let (mut name, mut program_id) = (None, None);
    for option in options {
        match option {
            TcOption::Bpf(TcFilterBpfOption::ProgName(n)) => name = Some(n.clone()),
            TcOption::Bpf(TcFilterBpfOption::ProgId(id)) => program_id = Some(*id),
            _ => {}
        }
    }
    let handle = u32::from(tc.header.handle.major) << 16 | u32::from(tc.header.handle.minor);
    // The first message of a priority announces it and has no program.
    Some(Filter { name: name?, program_id: program_id?, priority: (tc.header.info >> 16) as u16, handle })
}

fn dump(request: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let mut answer = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        if !read_messages(&datagram, &mut answer)? {
            return Ok(answer);
        }
    }
}

/// Appends the messages of a datagram; `false` when it ends the dump.
fn read_messages<T: NetlinkDeserializable + NetlinkSerializable>(
    mut rest: &[u8],
    into: &mut Vec<T>,
) -> io::Result<bool> {
    while !rest.is_empty() {
        let invalid = |e| io::Error::new(io::ErrorKind::InvalidData, format!("netlink message: {e:?}"));
        let message = NetlinkMessage::<T>::deserialize(rest).map_err(invalid)?;
        match message.payload {
            NetlinkPayload::InnerMessage(inner) => into.push(inner),
            NetlinkPayload::Error(e) if e.code.is_some() => return Err(e.to_io()),
            NetlinkPayload::Done(_) => return Ok(false),
            _ => {}
        }
        let len = (message.header.length as usize).next_multiple_of(4);
        if len == 0 || len >= rest.len() {
            break;
        }
        rest = &rest[len..];
    }
    Ok(true)
}

/// Tells when interfaces appear, vanish or change.
pub struct Monitor(Socket);

impl Monitor {
    /// Subscribes to the kernel's announcements.
    ///
    /// # Errors
    /// Those of the netlink socket.
    pub fn new() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.add_membership(LINK_GROUP)?;
        Ok(Self(socket))
    }

    /// Waits for the next change. What changed is not told; announcements may have been lost or merged.
    ///
    /// # Errors
    /// Those of the netlink socket, except a full one.
    pub fn wait(&self) -> io::Result<()> {
        match self.0.recv_from_full() {
            Err(e) if e.raw_os_error() != Some(libc::ENOBUFS) => Err(e),
            _ => Ok(()),
        }
    }
}
