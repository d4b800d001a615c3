//! Running netfilter's tools: where they are, what they are told, what they say when they fail.

use std::{
    env,
    io::{self, Write},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::RulesError;

/// Where the tools are on Debian and its relatives; not in everybody's PATH.
const FOLDERS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Finds a program in the absolute folders of PATH, and in those of the system.
///
/// # Errors
/// Names its package when it is not there.
pub fn find(tool: &str, package: &'static str) -> Result<PathBuf, RulesError> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(FOLDERS.map(PathBuf::from))
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(tool))
        .find(|file| is_program(file))
        .ok_or_else(|| RulesError::Missing { tool: tool.to_owned(), package })
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Runs a program to its end with `input` as its standard input; yields its standard output. It ends with the daemon: what
/// a killed one has not finished is not done behind the back of the next one.
///
/// # Errors
/// When it cannot be run, or ends otherwise than with 0: then with what it said.
pub fn run(program: &Path, args: &[&str], input: &str) -> Result<String, RulesError> {
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let failed = |e| RulesError::Run(name.clone(), e);
    let mut command = Command::new(program);
    command.args(args).env("LC_ALL", "C");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
    unsafe { command.pre_exec(end_with_parent) };
    let mut child = command.spawn().map_err(failed)?;
    // A program that fails before it has read everything says why, which is worth more than the broken pipe.
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(refusal(name, &said, &output.status.to_string()));
    }
    written.map_err(failed)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Has the calling process killed when the thread that has made it ends (prctl(2)).
fn end_with_parent() -> io::Result<()> {
    // SAFETY: no pointers.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The error that a failed program's standard error tells of; `status` where it tells nothing.
fn refusal(tool: String, said: &str, status: &str) -> RulesError {
    const CLOSED: [&str; 3] = ["Permission denied", "Operation not permitted", "you must be root"];
    if CLOSED.iter().any(|text| said.contains(text)) {
        return RulesError::NotPermitted(tool);
    }
    // Lines that begin with # are remarks on tables of others.
    let line = said.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    RulesError::Refused { tool, line: line.unwrap_or(status).to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_names_its_package() {
        let error = find("netams-no-such-tool", "nftables").unwrap_err();
        assert_eq!(
            error.to_string(),
            "netams-no-such-tool is not there; install the package nftables, or choose the other nfqueue.backend"
        );
        assert!(find("sh", "dash").unwrap().is_absolute());
    }

    #[test]
    fn input_goes_in_and_output_comes_out() {
        let cat = find("cat", "coreutils").unwrap();
        assert_eq!(run(&cat, &[], "a\nb\n").unwrap(), "a\nb\n");
    }

    #[test]
    fn a_failure_is_told_in_the_tools_words() {
        let sh = find("sh", "dash").unwrap();
        let failed = |script| run(&sh, &["-c", script], &"x".repeat(1 << 20)).unwrap_err().to_string();
        assert_eq!(failed("echo '# remark' >&2; echo line 3 failed >&2; exit 1"), "sh failed: line 3 failed");
        assert_eq!(failed("exit 4"), "sh failed: exit status: 4");
        assert_eq!(
            failed("echo 'Fatal: Permission denied (you must be root)' >&2; exit 4"),
            "sh is not permitted to use netfilter; run netamsd as root, or give it CAP_NET_ADMIN, and CAP_NET_RAW for iptables-legacy"
        );
    }

    #[test]
    fn absence_is_told_from_other_failures() {
        let absent = |said| refusal("nft".to_owned(), said, "exit status: 1").is_absence();
        assert!(absent("Error: No such file or directory\nlist table inet netams\n"));
        assert!(absent("netlink: Error: cache initialization failed: Protocol not supported"));
        assert!(!absent("Error: Could not process rule: Device or resource busy"));
        assert!(!absent("Operation not permitted (you must be root)"));
    }
}
