//! The bytes of a capture, wherever they come from, and how far they are read.

use std::{
    fs::OpenOptions,
    io::{self, BufRead, BufReader, IsTerminal, Read, Write},
    os::{fd::AsFd, unix::fs::OpenOptionsExt},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use flate2::bufread::GzDecoder;
use nix::{
    fcntl::OFlag,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

/// A gzip file begins with this (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Before, and between two looks at, the progress.
const PATIENCE: Duration = Duration::from_millis(500);
/// Milliseconds between two looks at whether to end, while nothing comes.
const WAIT_MS: u16 = 100;

/// An open capture.
pub struct Input {
    stream: Box<dyn Read>,
    read: Arc<AtomicU64>,
    /// Bytes of the file; none of stdin.
    size: Option<u64>,
    trailing: Arc<AtomicBool>,
}

impl Input {
    /// Opens a file, or stdin as `-`. What is no regular file ends as well once `interrupted` is set.
    ///
    /// # Errors
    /// Those of opening it and of reading its first bytes.
    pub fn open(path: &Path, interrupted: &Arc<AtomicBool>) -> io::Result<Self> {
        let (source, size): (Box<dyn Read>, _) = if path == Path::new("-") {
            (Box::new(Pipe { end: io::stdin(), interrupted: Arc::clone(interrupted) }), None)
        } else {
            // Of a named pipe that nobody writes to yet, it would wait.
            let flags = OFlag::O_NONBLOCK.bits();
            let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
            let meta = file.metadata()?;
            if meta.is_file() {
                (Box::new(file), Some(meta.len()))
            } else {
                (Box::new(Pipe { end: file, interrupted: Arc::clone(interrupted) }), None)
            }
        };
        let read = Arc::new(AtomicU64::new(0));
        let mut source = Counted { source, read: Arc::clone(&read) };
        let mut head = Vec::new();
        source.by_ref().take(GZIP.len() as u64).read_to_end(&mut head)?;
        let zipped = head == GZIP;
        let whole = io::Cursor::new(head).chain(source);
        let trailing = Arc::new(AtomicBool::new(false));
        let stream: Box<dyn Read> = if zipped {
            let member = GzDecoder::new(BufReader::new(Box::new(whole) as Box<dyn Read>));
            Box::new(Members { current: Some(member), trailing: Arc::clone(&trailing) })
        } else {
            Box::new(whole)
        };
        Ok(Self { stream, read, size, trailing })
    }

    /// Set when, at its end, something was met behind the gzip data that is none.
    pub fn trailing(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.trailing)
    }

    /// Shows on a terminal how far it is.
    pub fn progress(&self) -> Progress {
        let now = Instant::now();
        let shown = io::stderr().is_terminal();
        Progress {
            read: Arc::clone(&self.read),
            size: self.size,
            shown,
            started: now,
            last: now,
            drawn: false,
        }
    }
}

impl Read for Input {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.read(into)
    }
}

/// The members of a gzip file, one after another. As for gzip(1), zeros behind one are padding, and what is no member ends the
/// file.
struct Members {
    current: Option<GzDecoder<BufReader<Box<dyn Read>>>>,
    trailing: Arc<AtomicBool>,
}

impl Read for Members {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        while let Some(member) = &mut self.current {
            let read = member.read(into)?;
            if read > 0 {
                return Ok(read);
            }
            let Some(mut rest) = self.current.take().map(GzDecoder::into_inner) else { break };
            match first_but_zeros(&mut rest)? {
                Some(first) if first == GZIP[0] => self.current = Some(GzDecoder::new(rest)),
                Some(_) => self.trailing.store(true, Ordering::Relaxed),
                None => {}
            }
        }
        Ok(0)
    }
}

/// The first byte that is not 0, which stays; `None` at the end.
fn first_but_zeros(rest: &mut impl BufRead) -> io::Result<Option<u8>> {
    loop {
        match rest.fill_buf() {
            Ok([]) => return Ok(None),
            Ok([0, ..]) => rest.consume(1),
            Ok([first, ..]) => return Ok(Some(*first)),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// What is piped in. A read that waits could not be ended by a signal, which another thread takes.
struct Pipe<F> {
    end: F,
    interrupted: Arc<AtomicBool>,
}

impl<F: AsFd> Read for Pipe<F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.interrupted.load(Ordering::Relaxed) {
                return Ok(0);
            }
            let mut waiting = [PollFd::new(self.end.as_fd(), PollFlags::POLLIN)];
            if poll(&mut waiting, PollTimeout::from(WAIT_MS))? > 0 {
                // Not by the buffer of `Stdin`: what is in it, poll does not see.
                return Ok(nix::unistd::read(self.end.as_fd(), into)?);
            }
        }
    }
}

struct Counted {
    source: Box<dyn Read>,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(into)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// A line on stderr while it lasts long; taken away when dropped.
pub struct Progress {
    read: Arc<AtomicU64>,
    size: Option<u64>,
    shown: bool,
    started: Instant,
    last: Instant,
    drawn: bool,
}

impl Progress {
    /// `packets` were counted so far.
    pub fn show(&mut self, packets: u64) {
        if !self.shown || self.last.elapsed() < PATIENCE {
            return;
        }
        self.last = Instant::now();
        self.drawn = true;
        let read = self.read.load(Ordering::Relaxed);
        let done = match self.size {
            Some(size) if size > 0 => format!("{:3} %", read * 100 / size),
            _ => format!("{} MB", read / 1_000_000),
        };
        let rate = packets as f64 / self.started.elapsed().as_secs_f64() / 1e6;
        // Nobody misses it when it cannot be written.
        let _ = write!(io::stderr(), "\r{done}, {packets} packets, {rate:.1} M/s\x1b[K");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
