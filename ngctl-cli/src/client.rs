//! The daemon as seen from here: connect, be welcomed, ask, get the answer of the right kind.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono_tz::Tz;
use netams_proto as proto;
use netams_proto::{
    COOKIE, FlowQuery, Greeting, Hello, Request, Response, SourceKind, VERSION, Verdict, frame,
};

/// The daemon drains, commits and reads before it answers; one that takes longer hangs.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens.
    #[error(
        "cannot reach netamsd at {path}: {why}; is it running? start it with `./run`, or name its socket with --socket"
    )]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// The socket's mode keeps this user out.
    #[error("permission denied on {path}; use sudo, or join the group of the socket")]
    Forbidden {
        /// The socket.
        path: PathBuf,
    },
    /// The daemon, or whatever listens there, does not speak this protocol version.
    #[error("{0}")]
    Protocol(String),
    /// The connection broke.
    #[error("the connection to netamsd failed: {0}; look into its log and try again")]
    Connection(io::Error),
    /// The daemon is there but says nothing.
    #[error("netamsd does not answer; look into its log and try again")]
    Silent,
    /// The answer does not fit the question.
    #[error("netamsd answered `{question}` with something else; please report this")]
    Unexpected {
        /// Name of the request.
        question: &'static str,
    },
    /// The daemon refused.
    #[error("{0}")]
    Refused(#[from] proto::Error),
}

impl Error {
    /// The exit code, see [`crate::failure::EXIT_CODES`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Unreachable { .. } => 69,
            Self::Forbidden { .. } => 77,
            Self::Protocol(_) => 76,
            Self::Connection(_) => 74,
            Self::Silent => 75,
            Self::Unexpected { .. } => 70,
            Self::Refused(error) => match error {
                proto::Error::NotNetams | proto::Error::Version { .. } => 76,
                proto::Error::Busy(_) | proto::Error::Store(_) | proto::Error::Closing => 75,
                proto::Error::Denied(_) => 77,
                proto::Error::Invalid(_) => 65,
                proto::Error::Failed(_) | proto::Error::Broken(_) => 71,
            },
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Silent,
            io::ErrorKind::InvalidData => Self::Protocol(format!(
                "not an answer of protocol {VERSION}: {error}; install the same release of both"
            )),
            _ => Self::Connection(error),
        }
    }
}

/// A connection on which the daemon said welcome.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    zone: Tz,
}

/// A method that sends one request and takes the response that belongs to it.
macro_rules! question {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty)?) -> $answer:ty, $request:ident => $response:ident) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// When the daemon refuses or the connection fails.
        pub fn $name(&mut self $(, $arg: $type)?) -> Result<$answer, Error> {
            match self.ask(&Request::$request $(($arg))?)? {
                Response::$response(answer) => Ok(answer),
                Response::Error(error) => Err(error.into()),
                _ => Err(Error::Unexpected { question: stringify!($name) }),
            }
        }
    };
}

impl Client {
    /// Connects and exchanges greetings.
    ///
    /// # Errors
    /// When nobody listens, this user may not, or the other side is not netamsd of this protocol version.
    pub fn connect(path: &Path) -> Result<Self, Error> {
        let mut stream = UnixStream::connect(path).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => Error::Forbidden { path: path.into() },
            io::ErrorKind::NotFound => Error::Unreachable { path: path.into(), why: "no such file".into() },
            io::ErrorKind::ConnectionRefused => {
                Error::Unreachable { path: path.into(), why: "nobody listens".into() }
            }
            _ => Error::Unreachable { path: path.into(), why: error.to_string() },
        })?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let hello = Hello { cookie: COOKIE, version: VERSION };
        let welcome = match exchange(&mut stream, &hello)? {
            Greeting::Refused(error) => return Err(error.into()),
            Greeting::Welcome(welcome) if welcome.cookie != COOKIE => {
                return Err(proto::Error::NotNetams.into());
            }
            Greeting::Welcome(welcome) if welcome.version != VERSION => {
                return Err(proto::Error::Version { daemon: welcome.version, client: VERSION }.into());
            }
            Greeting::Welcome(welcome) => welcome,
        };
        let zone = welcome.timezone.parse().map_err(|_| {
            let name = welcome.timezone;
            Error::Protocol(format!(
                "ngctl does not know the daemon's time zone `{name}`; install a newer ngctl"
            ))
        })?;
        Ok(Self { stream, zone })
    }

    /// The zone in which the daemon cuts days.
    pub fn zone(&self) -> Tz {
        self.zone
    }

    fn ask(&mut self, request: &Request) -> Result<Response, Error> {
        exchange(&mut self.stream, request)
    }

    question!(
        /// The daemon and its hooks.
        node() -> proto::Node, Node => Node
    );
    question!(
        /// The historical counters.
        info() -> proto::Info, Info => Info
    );
    question!(
        /// Every term of the accounting identity.
        ledger() -> proto::Ledgers, Ledger => Ledger
    );
    question!(
        /// Flow records.
        flows(query: FlowQuery) -> proto::Flows, Flows => Flows
    );
    question!(
        /// Totals by unit.
        units() -> proto::Units, Units => Units
    );
    question!(
        /// Events, newest first.
        events(top: u32) -> Vec<proto::Event>, Events => Events
    );
    question!(
        /// The source of packets.
        source() -> proto::SourceStatus, Source => Source
    );
    question!(
        /// Switches the source of packets.
        set_source(kind: SourceKind) -> proto::SourceStatus, SetSource => Source
    );
    question!(
        /// Sets what happens to packets that no policy decides.
        set_default_policy(verdict: Verdict) -> proto::SourceStatus, SetDefaultPolicy => Source
    );
    question!(
        /// The netfilter rules that the daemon has installed.
        rules() -> proto::Rules, Rules => Rules
    );
    question!(
        /// One unit in full.
        unit(name: String) -> proto::UnitReport, Unit => Unit
    );
    question!(
        /// What policies counted.
        policies() -> proto::Policies, Policies => Policies
    );
    question!(
        /// Use of the quotas, of one unit or of all.
        quotas(unit: Option<String>) -> proto::Quotas, Quotas => Quotas
    );
    question!(
        /// How a packet is counted and judged.
        explain(query: proto::ExplainQuery) -> proto::Explained, Explain => Explain
    );

    /// Blocks a unit, or no longer.
    ///
    /// # Errors
    /// When the daemon refuses or the connection fails.
    pub fn set_blocked(&mut self, unit: String, blocked: bool) -> Result<proto::UnitReport, Error> {
        match self.ask(&Request::SetBlocked { unit, blocked })? {
            Response::Unit(answer) => Ok(answer),
            Response::Error(error) => Err(error.into()),
            _ => Err(Error::Unexpected { question: "set_blocked" }),
        }
    }
}

/// Sends a message and reads the answer. A daemon that refuses does so before it reads, and closes: then sending fails
/// although an answer is there, and the answer says more than the failure.
fn exchange<T: serde::de::DeserializeOwned>(
    stream: &mut UnixStream,
    message: &impl serde::Serialize,
) -> Result<T, Error> {
    let sent = frame::write(stream, message);
    if let Err(error) = &sent
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        sent?;
    }
    Ok(frame::read(stream, frame::MAX_RESPONSE)?)
}
