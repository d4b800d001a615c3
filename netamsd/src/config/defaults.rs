//! The value of every key that the file leaves out.

use super::*;

impl Default for Config {
    fn default() -> Self {
        Self {
            state: "/var/lib/netams".into(),
            timezone: Zone::local(),
            source: DataSource::Kernel,
            mode: Mode::Tee,
            default_policy: DefaultPolicy::Pass,
            local_policy: None,
            kernel: KernelConfig::default(),
            nfqueue: NfqueueConfig::default(),
            accounting: AccountingConfig::default(),
            control: ControlConfig::default(),
            log: LogConfig::default(),
            quota: QuotasConfig::default(),
            units: Vec::new(),
            policies: Vec::new(),
            as_file: None,
            files: Files::default(),
        }
    }
}

impl Default for KernelConfig {
    fn default() -> Self {
        Self {
            // Not a default of the file, which has to say it.
            interfaces: Vec::new(),
            attach: Attach::Auto,
            flows: 65_536,
            spill: 16_384,
            tunnels: Tunnels::Outer,
            on_exit: OnExit::Detach,
            bpffs: "/sys/fs/bpf".into(),
        }
    }
}

impl Default for NfqueueConfig {
    fn default() -> Self {
        Self {
            chains: vec![Chain::Forward, Chain::Input, Chain::Output],
            first_queue: 2050,
            queues: 1,
            pin: true,
            gso: Gso::Auto,
            fail: Fail::Open,
            offload: false,
            backend: Backend::Auto,
            copy_bytes: 128,
            max_packets: 65_535,
            stamp_mask: 0xffff_0000,
            handover_mark: 0x800,
            connmark_mask: 0xff00_0000,
            tables: "/run/netams/tables".into(),
        }
    }
}

impl Default for AccountingConfig {
    fn default() -> Self {
        Self {
            interval_ms: 5_000,
            idle_timeout_s: 60,
            active_timeout_s: 1_800,
            keep_flows_days: 30,
            charge: Charge::Outer,
        }
    }
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self {
            socket: netams_proto::DEFAULT_SOCKET.into(),
            group: "netams".to_owned(),
            others_may_read: false,
            max_connections: 64,
        }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { level: LogLevel::Info }
    }
}

impl Default for QuotasConfig {
    fn default() -> Self {
        Self { notify: Vec::new(), notify_timeout_s: 10 }
    }
}
