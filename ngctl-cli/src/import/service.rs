//! What is said of services, and of commands of `main` and `processor`, that have no counterpart.

use super::statement::{Command, Section};

/// All services of NeTAMS, each with what is said when it is not kept; nothing for those that are.
const SERVICES: &[(&str, &str)] = &[
    ("main", ""),
    ("processor", ""),
    ("data-source", ""),
    ("quota", ""),
    ("server", "`ngctl` asks over the Unix socket `control.socket`"),
    ("storage", "counts are kept in SQLite in the folder `state`, and begin at nothing"),
    ("scheduler", "use cron or systemd timers"),
    ("alerter", "no mail is sent; `ngctl units --csv` makes reports"),
    ("html", "no pages are written; `ngctl units --json` gives what pages need"),
    ("monitor", "`ngctl flows --unit` shows what a unit did"),
    ("login", "nobody logs in"),
    ("weblogin", "nobody logs in"),
    ("billing", "no money is counted"),
    ("quotactl", "write `[[unit.quota]]`"),
    ("acl-server", "routers are not configured"),
    ("aclserver", "routers are not configured"),
];

/// Whether NeTAMS has such a service.
pub fn is_known(service: &str) -> bool {
    SERVICES.iter().any(|(name, _)| *name == service)
}

/// What is said of a service; `None` when it is kept.
pub fn say(section: &Section) -> Option<String> {
    let name = &section.service;
    match SERVICES.iter().find(|(known, _)| known == name) {
        Some((_, "")) => None,
        Some((_, instead)) => Some(format!("service {name} is not kept: {instead}")),
        None => Some(format!("service {name} is not understood")),
    }
}

/// What is said of a command of `main` or `processor` that is not one of the policies and units; `None` when nothing is
/// lost. Values are shown of those only that hold no secret.
pub fn command(command: &Command, has_storage: bool) -> Option<String> {
    let value = command.words.get(1).map_or("", String::as_str);
    let text = match command.words[0].as_str() {
        "exit" | "end" | "save" => return None,
        "debug" if value == "none" => return None,
        "debug" => "`debug` is not kept; `log.level` says how much is logged".into(),
        "user" => "an administrator is not kept; members of the group `control.group` may use `ngctl`".into(),
        "schedule" => "`schedule` is not kept; use cron or systemd timers".into(),
        "radius" => "`radius` is not kept; nobody logs in".into(),
        "mac" => "`mac` is not kept; addresses are not compared with the ARP table".into(),
        "lookup-delay" => format!(
            "`lookup-delay {value}` is not kept; `accounting.interval_ms` says how often counts are committed"
        ),
        "flow-lifetime" => format!(
            "`flow-lifetime {value}` is not kept; write `accounting.active_timeout_s = {value}` to cut flow records alike"
        ),
        "auto-assign" => "`auto-assign` is not kept; write the addresses of units".into(),
        "access-script" => "`access-script` is not kept; netamsd drops packets itself".into(),
        "storage" if has_storage => return None,
        "storage" => "`storage` is not kept; counts are kept in SQLite in the folder `state`".into(),
        word => format!("`{word}` is not understood"),
    };
    Some(text)
}
