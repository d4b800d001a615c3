//! `netamsd replay`: a capture goes through the engine and into a store as live packets do; then what came of it is shown.
//!
//! Without `--store` the store is a temporary folder that is removed at the end, however the replay ends short of `kill -9`.

mod input;
mod output;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use netams_proto::text::clean;
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

use self::{input::Input, output::Summary};
use crate::{
    config::{Charge, Config, ConfigError, Tunnels},
    daemon,
    flow::Counters,
    source::{
        self,
        replay::{
            Replay,
            capture::{CaptureError, Stop},
        },
    },
    store::{Durability, Reader, StoreConfig, StoreError, Writer},
    sys::{self, SysError},
};

const HELP: &str = "\
The clock is that of the capture: first and last packets, timeouts and the hours of units. Packets are those of the file, \
one a record, and bytes are layer-3 bytes; a capture of super-packets counts these. A record that the end of the file cuts \
short is left out, with a word about it on standard error.

In a named store a replay adds to what is there, also when it is the same file again; what was added before a \
replay was interrupted or failed stays. A running daemon's is refused.

Examples:
  netamsd replay capture.pcap
  netamsd replay --json --inner capture.pcapng.gz > flows.json
  tcpdump -w - -i eth0 -c 1000 | netamsd replay -
  netamsd replay --config /etc/netams/netams.toml --store ./replayed capture.pcap";

/// Arguments of `netamsd replay`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    /// A pcap or pcapng file, gzipped or not; - is stdin
    capture: PathBuf,
    /// Print all flows, as one JSON document: sums over VLANs and tunnels of the same addresses, protocol and ports
    #[arg(long)]
    json: bool,
    /// Account the innermost packets of tunnels too, as a layer of their own
    #[arg(long)]
    inner: bool,
    /// Units, time zone, timeouts, `tunnels` and `charge` from this configuration
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Keep what was counted in this state folder, which is made if it is not there
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Show at most N flows
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: u32,
}

/// Why a replay has failed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The file cannot be opened.
    #[error("cannot open {path}: {1}", path = name_of(.0))]
    Open(PathBuf, io::Error),
    /// What is in it.
    #[error("cannot replay {path}: {1}", path = name_of(.0))]
    Capture(PathBuf, CaptureError),
    /// The named folder cannot be made.
    #[error("cannot create {path}: {1}; choose another folder by --store", path = .0.display())]
    Folder(PathBuf, io::Error),
    /// The named folder cannot be had.
    #[error(transparent)]
    Sys(SysError),
    /// The temporary folder.
    #[error("cannot make a temporary folder for the store in {path}: {1}", path = .0.display())]
    Temporary(PathBuf, io::Error),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Nobody to show it to.
    #[error("cannot print: {0}")]
    Print(#[from] io::Error),
    /// Signals could not be asked for.
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
    /// Asked to end.
    #[error("interrupted")]
    Interrupted,
    /// The same with a named store, to which so many packets had been added: they would be there twice after another replay.
    #[error("{why}; the {packets} packets before that are in {folder} and stay there", folder = .folder.display())]
    Kept {
        /// What has happened.
        why: Box<ReplayError>,
        /// The store.
        folder: PathBuf,
        /// Of the outer layer.
        packets: u64,
    },
}

/// Replays a capture and prints what came of it.
///
/// # Errors
/// Any [`ReplayError`]; what a named store was given before stays there.
pub fn run(arguments: &Arguments) -> Result<(), ReplayError> {
    let config = match &arguments.config {
        Some(path) => Config::load(path)?,
        None => Config::default(),
    };
    let interrupted = on_signals().map_err(ReplayError::Signals)?;
    let input = Input::open(&arguments.capture, &interrupted)
        .map_err(|e| ReplayError::Open(arguments.capture.clone(), e))?;
    let mut place = Place::new(arguments.store.as_deref())?;
    let mut counters = Counters::default();
    let result = into_store(arguments, &config, input, &place, &interrupted, &mut counters);
    place.remove();
    result.map_err(|e| {
        // What a reader then says of a pipe that ends, or SQLite of a question, is not what has happened.
        let why = if interrupted.load(Ordering::Relaxed) { ReplayError::Interrupted } else { e };
        match (&arguments.store, counters.packets_in) {
            (None, _) | (_, 0) => why,
            (Some(folder), packets) => {
                ReplayError::Kept { why: Box::new(why), folder: folder.clone(), packets }
            }
        }
    })
}

/// Adds to `counters` what the store has been given.
fn into_store(
    arguments: &Arguments,
    config: &Config,
    input: Input,
    place: &Place,
    interrupted: &Arc<AtomicBool>,
    counters: &mut Counters,
) -> Result<(), ReplayError> {
    let folder = place.folder();
    let engine = daemon::engine(config)?;
    // Old captures are not to be deleted because they are old.
    let settings = StoreConfig { keep_flows_days: 0, ..daemon::store_config(config) };
    let mut writer = Writer::open_with(folder, settings, place.durability())?;
    writer.begin_anew();
    let before = writer.total_flows();
    let unreadable = |e| ReplayError::Capture(arguments.capture.clone(), e);
    let (mut progress, trailing) = (input.progress(), input.trailing());
    let mut replay = Replay::new(input, tunnels(arguments, config)).map_err(unreadable)?;
    while let Some(batch) = replay.next_batch().map_err(unreadable)? {
        let now = batch.flows.iter().map(|flow| flow.last_ms).max().unwrap_or_default();
        writer.commit(&batch, &engine.charge(&batch, now), now)?;
        counters.add(&batch.counters);
        progress.show(counters.packets_in);
        if interrupted.load(Ordering::Relaxed) {
            break;
        }
    }
    drop(progress);
    if interrupted.load(Ordering::Relaxed) {
        return Err(ReplayError::Interrupted);
    }
    if let Some(stop) = replay.stop() {
        let why = match stop {
            Stop::Cut => "the file ends inside a record, which is left out",
            Stop::Damaged => "a record cannot be right, and reading stopped there",
        };
        eprintln!("netamsd: {}: {why}", name_of(&arguments.capture));
    }
    if trailing.load(Ordering::Relaxed) {
        eprintln!(
            "netamsd: {}: what follows the gzip data is none, and is left out",
            name_of(&arguments.capture)
        );
    }
    let summary = Summary {
        file: &arguments.capture,
        counters: *counters,
        span_ms: replay.span_ms(),
        inner: tunnels(arguments, config) != source::Tunnels::Outer,
        zone: &config.timezone,
        units: engine.units().names(),
        after: before,
        top: arguments.top,
    };
    drop(writer);
    let reader = Reader::open(folder)?;
    let asked = Arc::clone(interrupted);
    reader.interrupt_when(move || asked.load(Ordering::Relaxed))?;
    if arguments.json { output::json(&summary, &reader) } else { output::text(&summary, &reader) }
}

/// The capture as messages name it.
fn name_of(capture: &Path) -> String {
    if capture == Path::new("-") { "standard input".to_owned() } else { clean(&capture.to_string_lossy()) }
}

fn tunnels(arguments: &Arguments, config: &Config) -> source::Tunnels {
    match (config.kernel.tunnels, config.accounting.charge) {
        (Tunnels::Inner, Charge::Inner) => source::Tunnels::Charged,
        (Tunnels::Inner, Charge::Outer) => source::Tunnels::Inner,
        (Tunnels::Outer, _) if arguments.inner => source::Tunnels::Inner,
        (Tunnels::Outer, _) => source::Tunnels::Outer,
    }
}

/// Where the store is.
enum Place {
    Named(PathBuf, #[expect(dead_code, reason = "held")] nix::fcntl::Flock<std::fs::File>),
    Temporary(TempDir),
    Removed,
}

impl Place {
    fn new(named: Option<&Path>) -> Result<Self, ReplayError> {
        match named {
            Some(folder) => match sys::lock_state(folder) {
                Ok(lock) => Ok(Self::Named(folder.to_owned(), lock)),
                Err(SysError::State(path, e)) => Err(ReplayError::Folder(path, e)),
                Err(e) => Err(ReplayError::Sys(e)),
            },
            None => {
                let parent = on_disk();
                let made = tempfile::Builder::new().prefix("netams-replay-").tempdir_in(&parent);
                Ok(Self::Temporary(made.map_err(|e| ReplayError::Temporary(parent, e))?))
            }
        }
    }

    fn folder(&self) -> &Path {
        match self {
            Self::Named(folder, _) => folder,
            Self::Temporary(folder) => folder.path(),
            Self::Removed => Path::new(""),
        }
    }

    /// A capture can be replayed again after a power failure; what was in a named store before cannot.
    fn durability(&self) -> Durability {
        match self {
            Self::Named(..) => Durability::OlderCommits,
            Self::Temporary(_) | Self::Removed => Durability::None,
        }
    }

    /// Of a temporary folder, what cannot be removed is named.
    fn remove(&mut self) {
        if let Self::Temporary(folder) = std::mem::replace(self, Self::Removed) {
            let path = folder.path().to_owned();
            if let Err(e) = folder.close() {
                eprintln!("netamsd: cannot remove {}: {e}", path.display());
            }
        }
    }
}

/// Where large temporary files go: `/tmp` may be memory.
fn on_disk() -> PathBuf {
    let usual = PathBuf::from("/var/tmp");
    if std::env::var_os("TMPDIR").is_none() && usual.is_dir() { usual } else { std::env::temp_dir() }
}

/// Set once SIGINT, SIGTERM or SIGHUP has come.
fn on_signals() -> Result<Arc<AtomicBool>, io::Error> {
    let come = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let guard = runtime.enter();
    let mut signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()]
        .map(signal)
        .into_iter()
        .collect::<io::Result<Vec<_>>>()?;
    drop(guard);
    let told = Arc::clone(&come);
    thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            let [interrupt, terminate, hangup] = &mut signals[..] else { return };
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
        });
        told.store(true, Ordering::Relaxed);
    })?;
    Ok(come)
}
