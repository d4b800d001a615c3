//! Netfilter queues beside the daemon's own code: the kernel's list, a queue taken by somebody else, one taken away.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, send, socket,
};

use crate::ns::Namespace;

/// A line of the kernel's list of queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// Number of the queue.
    pub number: u16,
    /// Port id of the socket that has it.
    pub port_id: u32,
    /// Packets without a verdict.
    pub waiting: u32,
    /// Dropped because the queue was full.
    pub queue_dropped: u32,
    /// Dropped because the socket's buffer was full.
    pub user_dropped: u32,
    /// Last id that was given.
    pub last_id: u32,
}

/// The tools that can make rules with queues here, as `nfqueue.backend` names them: the nft statement is not in every kernel.
pub fn backends(namespace: &Namespace) -> &'static [&'static str] {
    let statement = "add table ip t; add chain ip t c; add rule ip t c queue num 0";
    let tried = namespace.command("nft").args(["-c", statement]).output().expect("run nft");
    if tried.status.success() { &["iptables", "nft"] } else { &["iptables"] }
}

/// The queues of a namespace, as the kernel lists them.
pub fn list(namespace: &Namespace) -> Vec<Line> {
    let path = "/proc/thread-self/net/netfilter/nfnetlink_queue";
    let text = namespace.enter(|| fs::read_to_string(path)).expect("the list of queues");
    text.lines().map(line).collect()
}

fn line(text: &str) -> Line {
    let words: Vec<u32> = text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    // Copy mode and range are not looked at.
    let [number, port_id, waiting, _, _, queue_dropped, user_dropped, last_id, ..] = words[..] else {
        panic!("a line of the list of queues: {text}");
    };
    let number = number.try_into().expect("the number of a queue");
    Line { number, port_id, waiting, queue_dropped, user_dropped, last_id }
}

/// Netlink socket to netfilter; a queue that is bound to it is given back when it is dropped.
pub struct Socket(OwnedFd);

impl Socket {
    /// A socket of this process, in a namespace.
    pub fn open(namespace: &Namespace) -> Self {
        let fd = namespace.enter(|| {
            let protocol = SockProtocol::NetlinkNetFilter;
            let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
            bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0)).map(|()| fd)
        });
        Self(fd.expect("a netlink socket"))
    }

    /// A duplicate of the socket by which process `pid` has queue `number`: what is done by it, that process does.
    pub fn of_queue(pid: u32, namespace: &Namespace, number: u16) -> Self {
        let queue = list(namespace).into_iter().find(|line| line.number == number);
        let port_id = queue.unwrap_or_else(|| panic!("nobody has queue {number}")).port_id;
        // Port ids are unique among the sockets of one netlink protocol only.
        let sockets = namespace.enter(|| fs::read_to_string("/proc/thread-self/net/netlink"));
        let sockets = sockets.expect("the list of netlink sockets");
        let mut rows = sockets.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
        let protocol = libc::NETLINK_NETFILTER.to_string();
        // sk, protocol, port id, groups, rmem, wmem, dump, locks, drops, inode.
        let row = rows.find(|row| row[1] == protocol && row[2] == port_id.to_string());
        let inode = row.expect("the socket of a queue")[9];
        let folder = fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors of a process");
        let mut files = folder.map(|entry| entry.expect("a descriptor").path());
        let file = files.find(|file| {
            fs::read_link(file).is_ok_and(|to| to.as_os_str() == format!("socket:[{inode}]").as_str())
        });
        let file = file.unwrap_or_else(|| panic!("process {pid} does not have queue {number}"));
        let fd = file.file_name().and_then(|name| name.to_str()?.parse().ok()).expect("a number");
        let process = descriptor(libc::SYS_pidfd_open, pid as i32, 0).expect("a descriptor of a process");
        Self(descriptor(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd).expect("a duplicate of a descriptor"))
    }

    /// Binds queue `number` to it.
    pub fn take(&self, number: u16) {
        self.command(libc::NFQNL_CFG_CMD_BIND, number);
    }

    /// Takes queue `number` away from it.
    pub fn give_back(&self, number: u16) {
        self.command(libc::NFQNL_CFG_CMD_UNBIND, number);
    }

    /// Sends a `struct nfqnl_msg_config_cmd` (linux/netfilter/nfnetlink_queue.h), which the kernel carries out before this
    /// returns. No acknowledgement is asked for: it might be read by another owner of the socket.
    fn command(&self, command: libc::c_int, number: u16) {
        let kind = (libc::NFNL_SUBSYS_QUEUE as u16) << 8 | libc::NFQNL_MSG_CONFIG as u16;
        let mut message = Vec::new();
        message.extend(28u32.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
        // Sequence number and port id.
        message.extend([0; 8]);
        message.extend([libc::AF_UNSPEC as u8, libc::NFNETLINK_V0 as u8]);
        message.extend(number.to_be_bytes());
        message.extend(8u16.to_ne_bytes());
        message.extend((libc::NFQA_CFG_CMD as u16).to_ne_bytes());
        message.extend([command as u8, 0, 0, 0]);
        send(self.0.as_raw_fd(), &message, MsgFlags::empty()).expect("send to netfilter");
    }
}

/// A system call that answers with a new descriptor; both have no flags.
fn descriptor(call: libc::c_long, first: i32, second: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open(2) and pidfd_getfd(2) take numbers alone; a non-negative result is a descriptor that nobody else
    // owns.
    unsafe {
        match libc::syscall(call, first, second, 0) {
            fd if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd as i32)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
