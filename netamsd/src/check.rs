//! `netamsd --check`: what this machine and this configuration lack, one sentence each.

use std::{fs, sync::Arc};

use crate::{
    config::{Config, DataSource},
    daemon::{DaemonError, absent_interfaces, engine, needs_kernel, nfqueue_options, source_options},
    policy::Engine,
    source::{
        kernel::{self, KernelError},
        nfqueue,
    },
    sys,
};

/// One thing that was looked at.
pub struct Finding {
    /// What.
    pub what: &'static str,
    /// How it stands, in a sentence.
    pub text: String,
    /// Set when the daemon cannot run, or not as configured, because of it.
    pub error: Option<DaemonError>,
}

impl Finding {
    fn fine(what: &'static str, text: impl Into<String>) -> Self {
        Self { what, text: text.into(), error: None }
    }

    fn from(what: &'static str, result: Result<String, DaemonError>) -> Self {
        match result {
            Ok(text) => Self::fine(what, text),
            Err(error) => Self { what, text: error.to_string(), error: Some(error) },
        }
    }
}

/// Looks at everything that the daemon needs to start with `config`, and changes nothing.
pub fn check(config: &Config) -> Vec<Finding> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let engine = match engine(config) {
        Ok(engine) => Arc::new(engine),
        Err(e) => return vec![Finding::from("policies", Err(e.into()))],
    };
    let options = source_options(config, &engine, 0);
    vec![
        Finding::fine(
            "configuration",
            format!(
                "valid, {} units, {} policies, state in {}",
                config.units.len(),
                config.policies.len(),
                config.state.display()
            ),
        ),
        programs(
            config,
            "kernel",
            kernel::can_run().map(|()| format!("Linux {}", read("/proc/sys/kernel/osrelease"))),
        ),
        Finding::fine(
            "BTF",
            if fs::exists("/sys/kernel/btf/vmlinux").unwrap_or(false) {
                "present"
            } else {
                "absent; not needed, but tools such as bpftool show less without it"
            },
        ),
        Finding::fine(
            "JIT",
            match read("/proc/sys/net/core/bpf_jit_enable").as_str() {
                "0" => {
                    "off, which makes each packet several times as expensive; `sysctl net.core.bpf_jit_enable=1`"
                }
                "" => "not shown in this network namespace",
                _ => "on",
            },
        ),
        Finding::from(
            "capabilities",
            sys::require_capabilities(needs_kernel(config))
                .map(|()| "sufficient".to_owned())
                .map_err(Into::into),
        ),
        Finding::fine(
            "attach",
            match kernel::has_tcx() {
                Ok(true) => "tcx and clsact",
                Ok(false) => "clsact; tcx needs Linux 6.6",
                Err(_) => "cannot be told without capabilities",
            },
        ),
        Finding::fine(
            "BPF filesystem",
            if kernel::is_bpffs(&config.kernel.bpffs) {
                format!("mounted on {}", config.kernel.bpffs.display())
            } else if kernel::in_private_mounts() {
                kernel::PRIVATE_MOUNT.to_owned()
            } else {
                format!("not mounted on {}; the daemon mounts it", config.kernel.bpffs.display())
            },
        ),
        programs(config, "memory", options.geometry().and_then(kernel::fits)),
        Finding::from("interfaces", interfaces(config)),
        Finding::from("nfqueue", queues(config, &engine)),
    ]
}

/// What only programs need: an obstacle where nothing goes without them.
fn programs(config: &Config, what: &'static str, found: Result<String, KernelError>) -> Finding {
    match found {
        Err(e) if !needs_kernel(config) => Finding::fine(what, format!("not enough for programs: {e}")),
        found => Finding::from(what, found.map_err(Into::into)),
    }
}

/// What queues would be set up with; only an obstacle where they are the source.
fn queues(config: &Config, engine: &Arc<Engine>) -> Result<String, DaemonError> {
    let found = nfqueue::can_run(&nfqueue_options(config, engine, 0));
    match found {
        Err(e) if config.source != DataSource::Nfqueue => Ok(format!("not to be had: {e}")),
        found => Ok(found?),
    }
}

fn interfaces(config: &Config) -> Result<String, DaemonError> {
    let absent = absent_interfaces(config)?;
    if !absent.is_empty() {
        let why = KernelError::NoInterface(absent.join(", "));
        return Err(why.into());
    }
    let names = kernel::interface_names()?;
    let matching: Vec<String> = names
        .into_iter()
        .filter(|name| crate::config::interface_matches(&config.kernel.interfaces, name))
        .collect();
    Ok(if matching.is_empty() { "none matches now".to_owned() } else { matching.join(", ") })
}
