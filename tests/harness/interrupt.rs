//! Programs that clean up after themselves: a signal or a panic unwinds the work, and what it made is removed on the way.

use std::any::Any;
use std::panic::{self, UnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Set by a signal; looked at by [`go_on`].
static STOP: AtomicBool = AtomicBool::new(false);

/// What unwinds the work when a signal has come.
struct Interrupted;

/// Why the work did not come to its end.
#[derive(Debug)]
pub enum Ended {
    /// By SIGINT, SIGTERM or SIGHUP.
    Interrupted,
    /// By a panic, with its text.
    Failed(String),
}

/// Runs `work`, which has to call [`go_on`] now and then. Panics in it are not printed.
///
/// # Errors
/// When a signal or a panic has ended it.
pub fn run<T>(work: impl FnOnce() -> T + UnwindSafe) -> Result<T, Ended> {
    heed_signals();
    panic::set_hook(Box::new(|_| {}));
    panic::catch_unwind(work).map_err(|payload| match STOP.load(Ordering::Relaxed) {
        true => Ended::Interrupted,
        false => Ended::Failed(message(&*payload)),
    })
}

/// Ends the work when a signal has come.
pub fn go_on() {
    if STOP.load(Ordering::Relaxed) {
        panic::resume_unwind(Box::new(Interrupted));
    }
}

/// The text of a panic.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("ended for a reason unknown").to_owned()
}

fn heed_signals() {
    extern "C" fn stop(_: libc::c_int) {
        STOP.store(true, Ordering::Relaxed);
    }
    let action = SigAction::new(SigHandler::Handler(stop), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { sigaction(signal, &action) }.expect("a handler for signals");
    }
}
