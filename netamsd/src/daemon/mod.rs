//! Starts the parts in an order that loses nothing, and joins them.
//!
//! ```text
//!   kernel announcements -- thread "links" --\
//!                                             >-- orders (8) --> thread "meter": source -> units -> store
//!   ngctl -- control (main thread, tokio) ---/                        |
//!                  ^                                                  |
//!                  +------------- snapshot (one a request) <----------+
//! ```
//!
//! A full order channel makes a request wait, and an announcement superfluous: the meter looks after the hooks anyway. A
//! request for flows or units reads the database by itself, after the meter has committed what was counted before it.

mod answers;
mod meter;

use std::{
    path::PathBuf,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use netams_proto::{Error, Request, Response};
use tokio::{signal::unix, sync::oneshot, task::spawn_blocking};
use tracing::{info, warn};

use self::{
    answers::{Context, answer, terms},
    meter::{Meter, Order, announce_links},
};
use crate::{
    config::{Attach, Config, DataSource, LogLevel, Mode, interface_matches},
    control::{self, ControlError, Server},
    policy::{Units, Zone},
    source::{
        kernel::{Duty, KernelError, KernelSource, Marks, Monitor, Options, Style},
        unix_ms,
    },
    store::{StoreConfig, StoreError, StoreUnit, Writer},
    sys::{self, SysError},
};

/// Orders that may wait for the meter.
const ORDERS: usize = 8;

/// Why the daemon ended, or did not start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Capabilities, locks.
    #[error(transparent)]
    Sys(#[from] SysError),
    /// The kernel source.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The control socket.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Threads, signals.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The meter thread has ended by itself.
    #[error("the meter thread has ended unexpectedly; see the messages before this one")]
    Meter,
}

/// Options of the kernel source as configured.
pub fn source_options(config: &Config, units: &Units, store: u64) -> Options {
    let patterns = config.kernel.interfaces.clone();
    Options {
        wanted: Box::new(move |name| interface_matches(&patterns, name)),
        style: match config.kernel.attach {
            Attach::Auto => None,
            Attach::Tcx => Some(Style::Tcx),
            Attach::Clsact => Some(Style::Clsact),
        },
        duty: if config.source == DataSource::Kernel { Duty::Meter } else { Duty::None },
        flows: config.kernel.flows,
        spill: config.kernel.spill,
        bpffs: config.kernel.bpffs.clone(),
        store,
        marks: Marks::default(),
        prefixes: units.prefixes(),
    }
}

/// Runs the daemon until SIGTERM, SIGINT or SIGHUP.
///
/// # Errors
/// When it cannot start, or a part fails for good.
pub fn run(config: &Config) -> Result<(), DaemonError> {
    sys::require_capabilities()?;
    let _locks = sys::lock(&config.state)?;
    let zone = config.timezone;
    let units = Arc::new(Units::new(&config.units));
    let writer = Writer::open(&config.state, store_config(config))?;
    let id = writer.node_id();
    let baseline = terms(&writer.ledger().counters, writer.ledger().missed);
    let started_ms = unix_ms();
    warn_of_absent_interfaces(config)?;
    let server = Server::bind(control_config(config, &zone))?;

    // Before programs are attached, so that no interface appears unnoticed in between.
    let monitor = Monitor::new()?;
    let options = source_options(config, &units, u64::from(id));
    let (source, notices) = KernelSource::open(options, started_ms)?;
    sys::drop_capabilities(&[&config.state, &config.control.socket, &config.kernel.bpffs])?;

    let interval = Duration::from_millis(u64::from(config.accounting.interval_ms));
    let mut meter = Meter::new(source, Arc::clone(&units), zone, writer, interval)?;
    meter.note(notices);
    let (orders, inbox) = mpsc::sync_channel(ORDERS);
    let on_exit = config.kernel.on_exit;
    let (ended, meter_ended) = oneshot::channel::<()>();
    let meter_thread = thread::Builder::new().name("meter".into()).spawn(move || {
        meter.run(&inbox, on_exit);
        drop(ended);
    })?;
    let announce = orders.clone();
    thread::Builder::new().name("links".into()).spawn(move || announce_links(&monitor, &announce))?;

    let context = Arc::new(Context {
        id,
        started_ms,
        mode: match (config.source, config.mode) {
            (DataSource::Off, _) => 0,
            (_, Mode::Tee) => 1,
            (_, Mode::Divert) => 2,
        },
        debug: match config.log.level {
            LogLevel::Debug => 1,
            LogLevel::Trace => 2,
            _ => 0,
        },
        configured: config.units.clone(),
        units,
        zone,
        state: config.state.clone(),
        baseline,
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served = runtime.block_on(serve(server, context, orders.clone(), meter_ended));
    // Fails only when the meter has ended already.
    let _ = orders.send(Order::Stop);
    meter_thread.join().map_err(|_| DaemonError::Meter)?;
    served
}

async fn serve(
    server: Server,
    context: Arc<Context>,
    orders: mpsc::SyncSender<Order>,
    meter_ended: oneshot::Receiver<()>,
) -> Result<(), DaemonError> {
    let mut terminate = unix::signal(unix::SignalKind::terminate())?;
    let mut interrupt = unix::signal(unix::SignalKind::interrupt())?;
    let mut hangup = unix::signal(unix::SignalKind::hangup())?;
    let (meter_failed, failed) = oneshot::channel();
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => info!("ending: SIGTERM"),
            _ = interrupt.recv() => info!("ending: SIGINT"),
            _ = hangup.recv() => info!("ending: SIGHUP"),
            _ = meter_ended => { let _ = meter_failed.send(()); }
        }
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    };
    let handler = move |request: Request| respond(Arc::clone(&context), orders.clone(), request);
    info!("ready");
    if let Err(e) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        warn!("cannot tell the service manager: {e}");
    }
    server.run(handler, stop).await?;
    if failed.await.is_ok() { Err(DaemonError::Meter) } else { Ok(()) }
}

async fn respond(context: Arc<Context>, orders: mpsc::SyncSender<Order>, request: Request) -> Response {
    let answered = spawn_blocking(move || {
        let (ask, answered) = oneshot::channel();
        orders.send(Order::Sync(ask)).map_err(|_| Error::Closing)?;
        let snapshot = answered.blocking_recv().map_err(|_| Error::Closing)?;
        Ok(answer(&context, snapshot, request))
    });
    match answered.await {
        Ok(Ok(response)) => response,
        Ok(Err(e)) => Response::Error(e),
        Err(_) => Response::Error(Error::Closing),
    }
}

fn store_config(config: &Config) -> StoreConfig {
    let unit =
        |u: &crate::policy::UnitConfig| StoreUnit { name: u.name.clone(), kind: u.kind.as_str().to_owned() };
    StoreConfig {
        idle_timeout_s: config.accounting.idle_timeout_s,
        active_timeout_s: config.accounting.active_timeout_s,
        keep_flows_days: config.accounting.keep_flows_days,
        units: config.units.iter().map(unit).collect(),
    }
}

fn control_config(config: &Config, zone: &Zone) -> control::ControlConfig {
    let control = &config.control;
    control::ControlConfig {
        socket: control.socket.clone(),
        group: control.group.clone(),
        others_may_read: control.others_may_read,
        max_connections: control.max_connections,
        timezone: zone.name().to_owned(),
    }
}

fn warn_of_absent_interfaces(config: &Config) -> Result<(), DaemonError> {
    for name in absent_interfaces(config)? {
        warn!("there is no interface {name} now; it is metered from the moment it appears");
    }
    Ok(())
}

/// Configured interfaces, spelled without a wildcard, that do not exist.
///
/// # Errors
/// When interfaces cannot be listed.
pub fn absent_interfaces(config: &Config) -> Result<Vec<String>, KernelError> {
    let present = crate::source::kernel::interface_names()?;
    let literal = |name: &&String| !name.contains(['*', '?']);
    let absent = |name: &&String| !present.contains(*name);
    Ok(config.kernel.interfaces.iter().filter(literal).filter(absent).cloned().collect())
}

/// Where the programs and tables of this network namespace are removed by `--cleanup`.
///
/// # Errors
/// When a daemon is running here, or something cannot be removed.
pub fn cleanup(config: &Config) -> Result<(PathBuf, u64), DaemonError> {
    sys::require_capabilities()?;
    let _locks = sys::lock(&config.state)?;
    let held = crate::source::kernel::cleanup(&config.kernel.bpffs)?;
    Ok((config.kernel.bpffs.clone(), held))
}
