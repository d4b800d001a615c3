//! Starts the parts in an order that loses nothing, and joins them.
//!
//! ```text
//!   kernel announcements -- thread "links" --\
//!                                             >-- orders (8) --> thread "meter": sources -> units -> store
//!   ngctl -- control (main thread, tokio) ---/                        |
//!                  ^                                                  |
//!                  +------------- snapshot (one a request) <----------+
//! ```
//!
//! The source in user space has a thread for each of its queues; they share nothing with the meter but the flow tables.
//!
//! A full order channel makes a request wait, and an announcement superfluous: the meter looks after the hooks anyway. A
//! request for flows or units reads the database by itself, after the meter has committed what was counted before it.

mod answers;
mod drain;
mod gap;
mod meter;
mod notify;
mod quotas;
mod rates;
mod setup;
mod snapshot;
mod sources;
mod switch;
mod units;
mod verdicts;

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use netams_proto::{Error, Request, Response, SourceKind, Verdict};
use tokio::{signal::unix, sync::oneshot, task::spawn_blocking};
use tracing::{info, warn};

use self::{
    answers::{Context, answer},
    meter::{Answer, Meter, Order, Setup, announce_links},
    notify::Notify,
    quotas::Quotas,
    setup::{control_config, warn_of_absent_interfaces},
};
pub use self::{
    drain::DrainError,
    setup::{
        absent_interfaces, cleanup, engine, kernel_policies, nfqueue_options, source_options, store_config,
    },
    switch::SwitchError,
};
use crate::{
    config::{Config, ConfigError, DataSource, DefaultPolicy, LogLevel, Mode},
    control::{ControlError, Server},
    flow::Source,
    policy::{Engine, UnitConfig, UnitId},
    source::{
        Notice,
        kernel::{self, KernelError, KernelSource, Limit, Monitor},
        nfqueue::{NfqueueError, NfqueueSource},
        tables::TablesError,
        unix_ms,
    },
    store::{StoreError, Writer},
    sys::{self, SysError},
};

/// Orders that may wait for the meter.
const ORDERS: usize = 8;

/// Why the daemon ended, or did not start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The policies.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Capabilities, locks.
    #[error(transparent)]
    Sys(#[from] SysError),
    /// The kernel source.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The source in user space.
    #[error(transparent)]
    Nfqueue(#[from] NfqueueError),
    /// Flow tables that were left.
    #[error(transparent)]
    Tables(#[from] TablesError),
    /// The configured source cannot be had.
    #[error(transparent)]
    Begin(#[from] SwitchError),
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

/// Runs the daemon until SIGTERM, SIGINT or SIGHUP.
///
/// # Errors
/// When it cannot start, or a part fails for good.
pub fn run(config: &Config) -> Result<(), DaemonError> {
    sys::require_capabilities(needs_kernel(config))?;
    let _locks = sys::lock(&config.state)?;
    let zone = config.timezone;
    let engine = Arc::new(engine(config)?);
    let writer = Writer::open(&config.state, store_config(config))?;
    for ((id, unit), blocked) in (0..).map(UnitId).zip(&config.units).zip(writer.blocked()?) {
        if unit.deny && blocked == Some(false) {
            warn!("unit {} has deny = true, but `ngctl allow` has said otherwise", unit.name);
        }
        engine.set_blocked(id, blocked.unwrap_or(unit.deny));
    }
    engine.tick(unix_ms());
    let quotas = Quotas::open(&engine, &writer, unix_ms())?;
    engine.set_over_quota(&quotas.over(&engine));
    warn_of_tee(config);
    let id = writer.node_id();
    let started_ms = unix_ms();
    warn_of_absent_interfaces(config)?;
    let server = Server::bind(control_config(config, &zone))?;

    // Before programs are attached, so that no interface appears unnoticed in between.
    let monitor = Monitor::new()?;
    let (nfqueue, queue_notices) = NfqueueSource::open(nfqueue_options(config, &engine, u64::from(id)))?;
    let (kernel, notices) = open_kernel(config, &engine, quotas.limits(&engine), u64::from(id))?;
    sys::drop_capabilities(&[&config.state, &config.control.socket, &config.kernel.bpffs])?;

    let mut meter = Meter::new(Setup {
        kernel,
        nfqueue,
        engine: Arc::clone(&engine),
        writer,
        interval: Duration::from_millis(u64::from(config.accounting.interval_ms)),
        on_exit: config.kernel.on_exit,
        mode: config.mode,
        default_policy: config.default_policy,
        local_policy: config.local_policy,
        quotas,
        notify: Notify::new(&config.quota.notify, Duration::from_secs(config.quota.notify_timeout_s.into()))?,
    })?;
    meter.note(Source::Kernel, notices);
    meter.note(Source::Nfqueue, queue_notices);
    meter.begin(config.source)?;
    let (orders, inbox) = mpsc::sync_channel(ORDERS);
    let (ended, meter_ended) = oneshot::channel::<()>();
    let meter_thread = thread::Builder::new().name("meter".into()).spawn(move || {
        meter.run(&inbox);
        drop(ended);
    })?;
    let announce = orders.clone();
    thread::Builder::new().name("links".into()).spawn(move || announce_links(&monitor, &announce))?;

    let context = Arc::new(Context {
        id,
        started_ms,
        mode: config.mode,
        nfqueue: config.nfqueue.clone(),
        debug: match config.log.level {
            LogLevel::Debug => 1,
            LogLevel::Trace => 2,
            _ => 0,
        },
        configured: config.units.clone(),
        engine,
        state: config.state.clone(),
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
        let order = order(&context, &request, ask)?;
        orders.send(order).map_err(|_| Error::Closing)?;
        let snapshot = answered.blocking_recv().map_err(|_| Error::Closing)?.map_err(refusal)?;
        Ok(answer(&context, snapshot, request))
    });
    match answered.await {
        Ok(Ok(response)) => response,
        Ok(Err(e)) => Response::Error(e),
        Err(_) => Response::Error(Error::Closing),
    }
}

/// What a request means for the meter.
fn order(context: &Context, request: &Request, answer: Answer) -> Result<Order, Error> {
    Ok(match request {
        Request::SetBlocked { unit, blocked } => {
            let place = context.configured.iter().position(|known| known.name == *unit);
            let place = place.ok_or_else(|| units::unknown(&context.engine, unit))?;
            Order::SetBlocked(UnitId(place as u32), *blocked, answer)
        }
        Request::SetSource(SourceKind::Kernel) => Order::SetSource(DataSource::Kernel, answer),
        Request::SetSource(SourceKind::Nfqueue) => Order::SetSource(DataSource::Nfqueue, answer),
        Request::SetSource(SourceKind::Off) => Order::SetSource(DataSource::Off, answer),
        Request::SetDefaultPolicy(Verdict::Pass) => Order::SetDefaultPolicy(DefaultPolicy::Pass, answer),
        Request::SetDefaultPolicy(Verdict::Drop) => Order::SetDefaultPolicy(DefaultPolicy::Drop, answer),
        _ => Order::Sync(answer),
    })
}

/// What a client is told about an order that was not carried out.
fn refusal(error: SwitchError) -> Error {
    match error {
        SwitchError::Stranded { .. } | SwitchError::Undecided { .. } => Error::Broken(error.to_string()),
        SwitchError::Store(_) => Error::Store(format!("{error}; nothing has changed")),
        _ => Error::Failed(error.to_string()),
    }
}

/// What is configured to be dropped is not, in mode tee.
fn warn_of_tee(config: &Config) {
    let dropping = |unit: &UnitConfig| {
        unit.deny || unit.fw_policy.is_some() || unit.quotas.iter().any(|quota| quota.hard)
    };
    let by_default =
        config.default_policy == DefaultPolicy::Drop || config.local_policy == Some(DefaultPolicy::Drop);
    if config.mode == Mode::Tee && (by_default || config.units.iter().any(dropping)) {
        warn!(
            "mode is \"tee\": what lists, hard quotas and default policies would drop passes; set mode = \"divert\""
        );
    }
}

/// Whether nothing goes without the kernel source.
pub fn needs_kernel(config: &Config) -> bool {
    match config.source {
        DataSource::Kernel => true,
        DataSource::Nfqueue => config.nfqueue.offload,
        DataSource::Off => false,
    }
}

/// The kernel source; queues alone can do without it, and then let the kernel cut super-packets. So can no source at all.
fn open_kernel(
    config: &Config,
    engine: &Engine,
    limits: Vec<Limit>,
    store: u64,
) -> Result<(Option<KernelSource>, Vec<Notice>), DaemonError> {
    let options = kernel::Options { limits, ..source_options(config, engine, store) };
    match KernelSource::open(options, unix_ms()) {
        Ok((kernel, notices)) => Ok((Some(kernel), notices)),
        Err(e) if !needs_kernel(config) => {
            warn!("super-packets are cut before they are queued, and the source kernel cannot be had: {e}");
            Ok((None, Vec::new()))
        }
        Err(e) => Err(e.into()),
    }
}
