//! Runs the configured program when the state of a quota changes, beside everything else.

use std::{
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver, SyncSender, TrySendError},
    thread,
    time::{Duration, Instant},
};

use netams_proto::text::human_bytes;
use tracing::warn;

/// Messages that may wait while the program runs.
const WAITING: usize = 1000;
/// How often it is looked whether the program has ended.
const LOOK: Duration = Duration::from_millis(20);

/// What has changed.
#[derive(Debug, Clone)]
pub struct Told {
    /// Name of the unit.
    pub unit: String,
    /// Which of its quotas.
    pub quota: String,
    /// `under`, `warned` or `over`.
    pub state: &'static str,
    /// Bytes used in the period.
    pub used: u64,
    /// Bytes that may be used.
    pub limit: u64,
    /// Whether the unit is blocked when it is over.
    pub hard: bool,
    /// When the period ends, local time.
    pub end: String,
}

impl Told {
    /// For people.
    pub fn sentence(&self) -> String {
        let Self { unit, quota, used, limit, end, .. } = self;
        let used = format!("{} of {} used", human_bytes(*used), human_bytes(*limit));
        match (self.state, self.hard) {
            ("over", true) => {
                format!("unit {unit} is over its quota {quota} and blocked until {end}: {used}")
            }
            ("over", false) => {
                format!("unit {unit} is over its quota {quota}: {used}; the period ends {end}")
            }
            ("warned", _) => {
                format!("unit {unit} comes near its quota {quota}: {used}; the period ends {end}")
            }
            _ => format!("unit {unit} is under its quota {quota} again: {used}"),
        }
    }
}

/// Where to tell it.
pub struct Notify(Option<SyncSender<Told>>);

impl Notify {
    /// Starts a thread that runs `command`, a program and its arguments, for each message, for `limit` at most. Without a
    /// command nobody is told.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn new(command: &[String], limit: Duration) -> std::io::Result<Self> {
        let Some((program, arguments)) = command.split_first() else { return Ok(Self(None)) };
        let (program, arguments) = (program.clone(), arguments.to_vec());
        let (sender, inbox) = mpsc::sync_channel(WAITING);
        thread::Builder::new()
            .name("notify".into())
            .spawn(move || run(&inbox, &program, &arguments, limit))?;
        Ok(Self(Some(sender)))
    }

    /// Tells it. Never waits: when too many messages wait, this one is only in the log and among the events.
    pub fn tell(&self, told: Told) {
        if let Some(sender) = &self.0
            && let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = sender.try_send(told)
        {
            warn!("quota.notify does not keep up; it is not told of this change");
        }
    }
}

fn run(inbox: &Receiver<Told>, program: &str, arguments: &[String], limit: Duration) {
    for told in inbox {
        let child = Command::new(program)
            .args(arguments)
            .env("NETAMS_UNIT", &told.unit)
            .env("NETAMS_QUOTA", &told.quota)
            .env("NETAMS_STATE", told.state)
            .env("NETAMS_USED", told.used.to_string())
            .env("NETAMS_LIMIT", told.limit.to_string())
            .env("NETAMS_PERIOD_END", &told.end)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // What it starts itself ends with it.
            .process_group(0)
            .spawn();
        match child.and_then(|child| wait(child, limit)) {
            Ok(Some(status)) if status.success() => {}
            Ok(Some(status)) => warn!("quota.notify: {program} ended with {status}"),
            Ok(None) => warn!("quota.notify: {program} took longer than {limit:?} and was ended"),
            Err(e) => warn!("quota.notify: cannot run {program}: {e}"),
        }
    }
}

/// How it ended; `None` if it had to be ended.
fn wait(mut child: Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            let group = nix::unistd::Pid::from_raw(child.id() as i32);
            nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL)?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(state: &'static str) -> Told {
        Told {
            unit: "students".into(),
            quota: "month sum".into(),
            state,
            used: 1 << 30,
            limit: 1 << 30,
            hard: true,
            end: "2026-12-01 00:00:00".into(),
        }
    }

    #[test]
    fn the_program_is_told_what_has_changed_and_ended_when_it_hangs() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("told");
        let script = format!(
            "echo \"$1 $NETAMS_UNIT $NETAMS_STATE $NETAMS_USED $NETAMS_LIMIT\" >> {}; [ $NETAMS_STATE = over ] || sleep 60",
            file.display()
        );
        let command = ["sh", "-c", &script, "sh", "argument"].map(str::to_owned);
        let notify = Notify::new(&command, Duration::from_millis(300)).unwrap();
        let started = Instant::now();
        notify.tell(told("warned"));
        notify.tell(told("over"));
        let expected =
            "argument students warned 1073741824 1073741824\nargument students over 1073741824 1073741824\n";
        while std::fs::read_to_string(&file).unwrap_or_default() != expected {
            assert!(started.elapsed() < Duration::from_secs(30), "{:?}", std::fs::read_to_string(&file));
            thread::sleep(LOOK);
        }
        assert!(started.elapsed() >= Duration::from_millis(300), "the first one was waited for");
    }

    #[test]
    fn sentences() {
        assert_eq!(
            told("over").sentence(),
            "unit students is over its quota month sum and blocked until 2026-12-01 00:00:00: 1.0 GiB of 1.0 GiB used"
        );
        assert!(told("warned").sentence().contains("comes near"));
        assert!(told("under").sentence().contains("under its quota month sum again"));
    }
}
