//! The control socket: who may ask, how a question arrives, and that an answer goes back.
//!
//! Owns the Unix socket and its connections. Knows nothing of flows, maps or SQL: [`Server::run`] hands each
//! [`Request`] to the handler it is given and writes what that returns.
//!
//! ```text
//! accept loop --- refused: denied, busy
//!     |
//!     +-- one task a connection (at most `max_connections`): hello, then request -> handler -> response, in turn
//! ```
//!
//! Promises: a client that is slow, silent, sends garbage or makes its handler panic harms its own connection only;
//! every wait for a client is bounded, and so is what is read from it. Who the peer is comes from the kernel, never
//! from the peer.

mod connection;
mod error;
mod peer;
mod socket;

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use netams_proto::{Error, Greeting, Request, Response, frame};
use nix::unistd::{Group, geteuid};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use error::ControlError;
use peer::{Access, Peer, Rules};

/// How long connections may take to finish their current answer once the server stops.
const DRAIN: Duration = Duration::from_secs(5);
/// Pause after a failed accept, so that a process out of file descriptors does not spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What the `[control]` section says.
#[derive(Debug, Clone)]
pub struct ControlConfig {
    /// Where to listen; missing parent folders are made.
    pub socket: PathBuf,
    /// Members may do everything. It need not exist; then only root and the daemon's own user may.
    pub group: String,
    /// Everyone else may send requests that change nothing.
    pub others_may_read: bool,
    /// Connections served at once; a quarter of them is kept for those who may do everything.
    pub max_connections: u32,
    /// IANA name of the zone told to clients.
    pub timezone: String,
}

/// A bound socket. Dropping it removes the socket file.
#[derive(Debug)]
pub struct Server {
    socket: socket::Bound,
    rules: Rules,
    group: String,
    max_connections: u32,
    timezone: String,
}

impl Server {
    /// Binds the socket, taking the place of one that nobody answers on any more. Clients can connect from here on and
    /// are answered once [`Server::run`] is polled. Needs no runtime.
    ///
    /// # Errors
    /// When somebody answers on the socket, its path is something else, or the system refuses.
    pub fn bind(config: ControlConfig) -> Result<Self, ControlError> {
        let group = Group::from_name(&config.group)
            .map_err(|source| ControlError::Group { group: config.group.clone(), source })?
            .map(|group| group.gid.as_raw());
        let socket = socket::bind(&config.socket, group, config.others_may_read)?;
        let rules = Rules { own_uid: geteuid().as_raw(), group, others_may_read: config.others_may_read };
        Ok(Self {
            socket,
            rules,
            group: config.group,
            max_connections: config.max_connections,
            timezone: config.timezone,
        })
    }

    /// Serves until `shutdown` completes; then takes no more connections or requests and lets running answers finish.
    ///
    /// `handler` is called once a request, concurrently for different connections.
    ///
    /// # Errors
    /// When the runtime cannot watch the socket; never because of a client.
    pub async fn run<H, F>(self, handler: H, shutdown: impl Future<Output = ()>) -> Result<(), ControlError>
    where
        H: Fn(Request) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response> + Send + 'static,
    {
        let listener = self.listener()?;
        let (stop, stopping) = watch::channel(false);
        let mut connections = JoinSet::new();
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                Some(ended) = connections.join_next() => report(ended),
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => match self.admit(&stream, connections.len()) {
                        Ok(access) => {
                            let (zone, handler) = (self.timezone.clone(), handler.clone());
                            connections.spawn(connection::serve(stream, access, zone, handler, stopping.clone()));
                        }
                        Err(error) => refuse(stream, error),
                    },
                    Err(error) => {
                        tracing::warn!(%error, "control socket: cannot accept a connection");
                        tokio::time::sleep(ACCEPT_RETRY).await;
                    }
                },
            }
        }
        drop(listener);
        stop.send_replace(true);
        let drained = async {
            while let Some(ended) = connections.join_next().await {
                report(ended);
            }
        };
        if tokio::time::timeout(DRAIN, drained).await.is_err() {
            tracing::debug!("control socket: connections cut at shutdown");
        }
        Ok(())
    }

    fn listener(&self) -> Result<UnixListener, ControlError> {
        self.socket
            .listener()
            .map_err(|source| ControlError::Bind { path: self.socket.path().into(), source })
    }

    /// Whether a new connection is served, and with which rights.
    fn admit(&self, stream: &UnixStream, serving: usize) -> Result<Access, Error> {
        let peer =
            Peer::of(stream).map_err(|error| Error::Denied(format!("cannot tell who you are: {error}")))?;
        let Some(access) = self.rules.access(&peer) else {
            tracing::warn!(
                uid = peer.uid,
                "control socket: peer refused, it is neither root nor in the group"
            );
            return Err(Error::Denied(format!(
                "uid {} is neither root nor in the group `{}`; use sudo, or join that group",
                peer.uid, self.group
            )));
        };
        let limit = limit(self.max_connections, access);
        if serving >= limit as usize { Err(Error::Busy(limit)) } else { Ok(access) }
    }
}

/// How many connections there may be for one more of this kind to be served.
fn limit(max_connections: u32, access: Access) -> u32 {
    match access {
        Access::Full => max_connections,
        Access::Read => max_connections - max_connections / 4,
    }
}

/// Tells a peer why it is not served. Never waits: the socket is non-blocking, and its send buffer is empty.
fn refuse(stream: UnixStream, error: Error) {
    let sent =
        frame::encode(&Greeting::Refused(error)).and_then(|bytes| stream.into_std()?.write_all(&bytes));
    if let Err(error) = sent {
        tracing::debug!(%error, "control socket: refused peer did not wait for the reason");
    }
}

fn report(ended: Result<io::Result<()>, tokio::task::JoinError>) {
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "control socket: connection ended"),
        Err(error) => {
            tracing::error!(%error, "control socket: a request ended in a panic, its connection is closed")
        }
    }
}

#[cfg(test)]
mod tests;
