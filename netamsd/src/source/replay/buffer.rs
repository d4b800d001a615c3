//! Bytes of a stream, looked at before they are taken.

use std::io::{self, Read};

/// How much is asked of the stream at a time.
const CHUNK: usize = 256 << 10;

/// A window on a stream. Its memory grows with what is really there, not with what somebody asks for.
pub struct Buffer<R> {
    input: R,
    data: Vec<u8>,
    start: usize,
    end: usize,
    cut: bool,
}

impl<R: Read> Buffer<R> {
    /// A window on `input`.
    pub fn new(input: R) -> Self {
        Self { input, data: vec![0; CHUNK], start: 0, end: 0, cut: false }
    }

    /// The next `len` bytes, or fewer at the end of the stream.
    ///
    /// # Errors
    /// Those of reading.
    pub fn peek(&mut self, len: usize) -> io::Result<&[u8]> {
        while self.end - self.start < len {
            self.data.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.end == self.data.len() {
                self.data.resize(self.data.len() * 2, 0);
            }
            match self.input.read(&mut self.data[self.end..]) {
                Ok(0) => break,
                Ok(read) => self.end += read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    self.cut = true;
                    break;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(&self.data[self.start..self.end.min(self.start + len)])
    }

    /// Whether the stream itself has said that it ends too early.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Takes bytes that have been looked at.
    pub fn take(&mut self, len: usize) {
        self.start = (self.start + len).min(self.end);
    }

    /// Takes bytes unseen; whether there were so many.
    ///
    /// # Errors
    /// Those of reading.
    pub fn skip(&mut self, mut len: u64) -> io::Result<bool> {
        while len > 0 {
            let there = self.peek(len.min(CHUNK as u64) as usize)?.len();
            if there == 0 {
                return Ok(false);
            }
            self.take(there);
            len -= there as u64;
        }
        Ok(true)
    }
}
