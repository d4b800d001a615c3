//! Running netfilter's tools: where they are, what they are told, what they say when they fail.
//!
//! A tool never outlives the thread that runs it, and never keeps it longer than [`LIMIT`].

use std::{
    env,
    fs::File,
    io::{self, Read, Seek, Write},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{self, Child, Command, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::RulesError;

/// Where the tools are on Debian and its relatives; not in everybody's PATH.
const FOLDERS: [&str; 2] = ["/usr/sbin", "/sbin"];
/// How long a tool may take. Most take milliseconds; iptables waits for others that change rules.
const LIMIT: Duration = Duration::from_secs(10);
/// Between two looks whether a tool has ended.
const LOOK: Duration = Duration::from_micros(200);

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
/// When it cannot be run, takes too long, or ends otherwise than with 0: then with what it said.
pub fn run(program: &Path, args: &[&str], input: &str) -> Result<String, RulesError> {
    run_within(LIMIT, program, args, input)
}

fn run_within(limit: Duration, program: &Path, args: &[&str], input: &str) -> Result<String, RulesError> {
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let failed = |e| RulesError::Run(name.clone(), e);
    let mut tool = Running::start(program, args, input).map_err(failed)?;
    let Some(status) = tool.wait(limit).map_err(failed)? else {
        return Err(RulesError::Late(name, limit.as_secs()));
    };
    if !status.success() {
        let said = text(tool.stderr).map_err(failed)?;
        return Err(refusal(name, &said, &status.to_string()));
    }
    text(tool.stdout).map_err(failed)
}

/// A program that runs. Its streams are files in memory: neither side ever waits for the other one to read or write.
struct Running {
    child: Child,
    stdout: File,
    stderr: File,
}

impl Running {
    fn start(program: &Path, args: &[&str], input: &str) -> io::Result<Self> {
        let (mut stdin, stdout, stderr) = (memory_file()?, memory_file()?, memory_file()?);
        stdin.write_all(input.as_bytes())?;
        stdin.rewind()?;
        let parent = process::id();
        let mut command = Command::new(program);
        command.args(args).env("LC_ALL", "C");
        command.stdin(stdin).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
        // SAFETY: between fork and exec only prctl and getppid are called, which are async-signal-safe.
        unsafe { command.pre_exec(move || end_with_parent(parent)) };
        Ok(Self { child: command.spawn()?, stdout, stderr })
    }

    /// How it has ended; `None` when it has not within `limit`, and was killed.
    fn wait(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                self.child.kill()?;
                self.child.wait()?;
                return Ok(None);
            }
            thread::sleep(LOOK);
        }
    }
}

fn memory_file() -> io::Result<File> {
    Ok(memfd_create(c"netams-tool", MFdFlags::MFD_CLOEXEC)?.into())
}

fn text(mut file: File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Has the calling process killed when the thread that has made it ends (prctl(2)). A process that gains capabilities by
/// its exec, as root's would, is spared (commit_creds of kernel/cred.c): so it gains none.
fn end_with_parent(parent: u32) -> io::Result<()> {
    // SAFETY: no pointers; the numbers are what these options ask for.
    let told = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0
    };
    if !told {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: no pointers.
    let orphaned = unsafe { libc::getppid() }.cast_unsigned() != parent;
    if orphaned { Err(io::Error::from_raw_os_error(libc::ECANCELED)) } else { Ok(()) }
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
    use std::os::unix::process::ExitStatusExt;

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
    fn a_program_that_hangs_is_killed() {
        let sh = find("sh", "dash").unwrap();
        let hang = ["-c", "exec sleep 60"];
        let late = run_within(Duration::from_millis(100), &sh, &hang, "").unwrap_err();
        assert!(matches!(late, RulesError::Late(name, 0) if name == "sh"));
    }

    /// As root, an exec brings back capabilities that the thread had given up.
    #[test]
    fn a_program_ends_with_the_thread_that_runs_it() {
        let sleep = find("sleep", "coreutils").unwrap();
        let given_up = move || {
            caps::clear(None, caps::CapSet::Effective).unwrap();
            caps::clear(None, caps::CapSet::Permitted).unwrap();
            Running::start(&sleep, &["60"], "").unwrap()
        };
        let mut orphan = thread::spawn(given_up).join().unwrap();
        let status = orphan.wait(Duration::from_secs(30)).unwrap().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL));
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
