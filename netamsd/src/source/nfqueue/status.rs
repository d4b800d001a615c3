//! The kernel's list of netfilter queues in /proc, and who holds one.

use std::{fs, io};

/// The list of this thread's network namespace (seq_show of net/netfilter/nfnetlink_queue.c). Root may read it.
pub const PATH: &str = "/proc/thread-self/net/netfilter/nfnetlink_queue";
/// `NFQNL_COPY_PACKET`: the queue copies the packets' first bytes.
pub const COPY_PACKET: u8 = 2;

/// One queue. The counters are 32 bits wide and wrap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueStatus {
    /// Its number.
    pub number: u16,
    /// Port id of the socket that it is bound to.
    pub port_id: u32,
    /// Packets that wait for a verdict, received or not.
    pub waiting: u32,
    /// `NFQNL_COPY_*`.
    pub copy_mode: u8,
    /// Bytes copied of each packet.
    pub copy_range: u32,
    /// Packets dropped because the queue was full; they have no id. Not counted with fail-open.
    pub queue_dropped: u32,
    /// Packets dropped because the socket's buffer was full; each has an id. Not counted with fail-open.
    pub user_dropped: u32,
    /// The last id that was given to a packet.
    pub last_id: u32,
}

impl QueueStatus {
    /// Reads a line of the list.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        Some(Self {
            number: words.next()?.parse().ok()?,
            port_id: words.next()?.parse().ok()?,
            waiting: words.next()?.parse().ok()?,
            copy_mode: words.next()?.parse().ok()?,
            copy_range: words.next()?.parse().ok()?,
            queue_dropped: words.next()?.parse().ok()?,
            user_dropped: words.next()?.parse().ok()?,
            last_id: words.next()?.parse().ok()?,
        })
    }
}

/// All queues of this thread's network namespace.
///
/// # Errors
/// When the list cannot be read; `NotFound` when the kernel has no netfilter queues.
pub fn read() -> io::Result<Vec<QueueStatus>> {
    Ok(fs::read_to_string(PATH)?.lines().filter_map(QueueStatus::parse).collect())
}

/// The queue of this number, if somebody is bound to it.
///
/// # Errors
/// As [`read`].
pub fn find(number: u16) -> io::Result<Option<QueueStatus>> {
    Ok(read()?.into_iter().find(|status| status.number == number))
}

/// Who has the socket with this port id in this thread's network namespace, in words.
pub fn owner(port_id: u32) -> String {
    match socket_inode(port_id).and_then(holder) {
        Some((pid, name)) => format!("{name} with pid {pid}"),
        None => format!("the netlink socket with port id {port_id}"),
    }
}

/// Inode of a netfilter socket by its port id, from the list of netlink sockets (netlink_native_seq_show).
fn socket_inode(port_id: u32) -> Option<u64> {
    let text = fs::read_to_string("/proc/thread-self/net/netlink").ok()?;
    let mut rows = text.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let protocol = libc::NETLINK_NETFILTER.to_string();
    let port_id = port_id.to_string();
    // sk, protocol, port id, groups, rmem, wmem, dump, locks, drops, inode.
    let row = rows.find(|row| row.get(1..3) == Some(&[protocol.as_str(), port_id.as_str()]))?;
    row.get(9)?.parse().ok()
}

/// A process that holds the socket with this inode: pid and name.
fn holder(inode: u64) -> Option<(u32, String)> {
    let socket = format!("socket:[{inode}]");
    let holds = |pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|to| to.as_os_str() == socket.as_str())
    };
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let pid = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(holds)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some((pid, name.trim().chars().filter(|c| !c.is_control()).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_list_are_read() {
        // The last column is a constant 1, and columns grow where numbers need it.
        let line = " 2050  12345    17 2   128     3 4294967295       99  1";
        let expected = QueueStatus {
            number: 2050,
            port_id: 12345,
            waiting: 17,
            copy_mode: 2,
            copy_range: 128,
            queue_dropped: 3,
            user_dropped: u32::MAX,
            last_id: 99,
        };
        assert_eq!(QueueStatus::parse(line), Some(expected));
        for broken in ["", "2050", "2050 1 2 3 4 5 6", "70000 1 2 3 4 5 6 7", "a b c d e f g h"] {
            assert_eq!(QueueStatus::parse(broken), None, "{broken:?}");
        }
    }
}
