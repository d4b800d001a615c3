//! Who is at the other end, as the kernel recorded it at connect time, and what that user may do.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use netams_proto::Request;
use tokio::net::UnixStream;

/// Credentials of a connected process, from `SO_PEERCRED` and `SO_PEERGROUPS` (unix(7), Linux 4.13). Unlike a look into
/// `/proc` they cannot belong to another process that got the same pid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Supplementary groups.
    pub(super) groups: Vec<u32>,
}

impl Peer {
    pub(super) fn of(stream: &UnixStream) -> io::Result<Self> {
        use std::os::fd::AsFd;
        let credentials = stream.peer_cred()?;
        Ok(Self { uid: credentials.uid(), gid: credentials.gid(), groups: peer_groups(stream.as_fd())? })
    }
}

/// The peer's supplementary groups.
fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut bytes = (groups.len() * size_of::<libc::gid_t>()) as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes, the length of `groups`, and sets `bytes` to the length of
        // the whole list; both outlive the call.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let found = bytes as usize / size_of::<libc::gid_t>();
        if result == 0 {
            groups.truncate(found);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // ERANGE: the list is longer than the buffer, and `bytes` says how long.
        if error.raw_os_error() != Some(libc::ERANGE) || found <= groups.len() {
            return Err(error);
        }
        groups.resize(found, 0);
    }
}

/// What a peer may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Every request.
    Full,
    /// Requests that change nothing.
    Read,
}

impl Access {
    /// Whether this access is enough for `request`.
    pub(super) fn permits(self, request: &Request) -> bool {
        self == Self::Full || !changes(request)
    }
}

/// Spelled out so that a new request does not compile before somebody says which kind it is.
fn changes(request: &Request) -> bool {
    match request {
        Request::Node
        | Request::Info
        | Request::Ledger
        | Request::Flows(_)
        | Request::Units
        | Request::Events(_)
        | Request::Source
        | Request::Rules
        | Request::Unit(_)
        | Request::Policies
        | Request::Quotas(_)
        | Request::Explain(_) => false,
        Request::SetSource(_) | Request::SetDefaultPolicy(_) | Request::SetBlocked { .. } => true,
    }
}

/// Who gets which access.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// The daemon's user.
    pub(super) own_uid: u32,
    /// The administrators' group, when it exists.
    pub(super) group: Option<u32>,
    /// Whether strangers may read.
    pub(super) others_may_read: bool,
}

impl Rules {
    /// The access of `peer`; `None` when it may not even ask.
    pub(super) fn access(&self, peer: &Peer) -> Option<Access> {
        let member = self.group.is_some_and(|group| peer.gid == group || peer.groups.contains(&group));
        if peer.uid == 0 || peer.uid == self.own_uid || member {
            Some(Access::Full)
        } else if self.others_may_read {
            Some(Access::Read)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use netams_proto::{SourceKind, Verdict};

    use super::*;

    #[test]
    fn access_by_user_group_and_setting() {
        let rules = |others_may_read| Rules { own_uid: 900, group: Some(50), others_may_read };
        let cases = [
            ("root", 0, 0, &[][..], false, Some(Access::Full)),
            ("the daemon's user", 900, 900, &[], false, Some(Access::Full)),
            ("member by primary group", 1000, 50, &[], false, Some(Access::Full)),
            ("member by supplementary group", 1000, 1000, &[4, 50], false, Some(Access::Full)),
            ("member where others read", 1000, 1000, &[50], true, Some(Access::Full)),
            ("stranger", 1000, 1000, &[4, 24], false, None),
            ("stranger in root's group", 1000, 0, &[], false, None),
            ("stranger where others read", 1000, 1000, &[4], true, Some(Access::Read)),
        ];
        for (who, uid, gid, groups, others_may_read, expected) in cases {
            let peer = Peer { uid, gid, groups: groups.to_vec() };
            assert_eq!(rules(others_may_read).access(&peer), expected, "{who}");
        }
    }

    #[test]
    fn readers_ask_and_do_not_switch() {
        for request in [Request::Source, Request::Rules, Request::Ledger] {
            assert!(Access::Read.permits(&request), "{request:?}");
        }
        for request in [Request::SetSource(SourceKind::Off), Request::SetDefaultPolicy(Verdict::Drop)] {
            assert!(!Access::Read.permits(&request), "{request:?}");
            assert!(Access::Full.permits(&request), "{request:?}");
        }
    }

    #[test]
    fn a_missing_group_has_no_members() {
        let rules = Rules { own_uid: 900, group: None, others_may_read: false };
        assert_eq!(rules.access(&Peer { uid: 1000, gid: 0, groups: vec![0] }), None);
    }

    #[tokio::test]
    async fn the_kernel_names_our_own_process() {
        let (left, _right) = UnixStream::pair().unwrap();
        let peer = Peer::of(&left).unwrap();
        let mut groups: Vec<u32> = nix::unistd::getgroups().unwrap().iter().map(|gid| gid.as_raw()).collect();
        let mut found = peer.groups.clone();
        groups.sort_unstable();
        found.sort_unstable();
        assert_eq!((peer.uid, found), (nix::unistd::geteuid().as_raw(), groups));
    }
}
