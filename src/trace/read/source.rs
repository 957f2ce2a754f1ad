//! Bytes of a trace file through a window that grows with the largest event, within limits.

use std::cell::Cell;
use std::io::{ErrorKind, Read};
use std::rc::Rc;

use memchr::memchr_iter;

use super::super::report::Place;
use super::ReadLimits;

/// Bytes that are asked for at a time.
const STEP: usize = 256 * 1024;

/// What is too long if no event ends within the limit of one event.
pub(super) const LONG_STRETCH: &str = "one event or string, or a stretch without an event,";

/// Below this size a file may compress as well as it likes.
const SMALL: u64 = 64 << 20;

/// Why no more bytes come.
#[derive(Debug)]
pub(super) enum SourceError {
    /// Reading failed.
    Io(std::io::Error),
    /// A limit was reached: what it limits, and its value with the unit.
    Limit(&'static str, String),
}

pub(super) fn bytes_text(bytes: u64) -> String {
    format!("{bytes} bytes")
}

/// A window onto the uncompressed text.
pub(super) struct Source<R> {
    input: R,
    limits: ReadLimits,
    /// Compressed bytes read so far, if the input is compressed.
    compressed: Option<Rc<Cell<u64>>>,
    buffer: Vec<u8>,
    /// Start and end of the window in the buffer.
    start: usize,
    end: usize,
    /// Offset and line of `start` in the text.
    place: Place,
    /// Whether the input has ended.
    ended: bool,
    /// Why it ended before its time: a torn or corrupt compressed stream.
    torn: Option<String>,
}

impl<R: Read> Source<R> {
    pub(super) fn new(input: R, limits: ReadLimits, compressed: Option<Rc<Cell<u64>>>) -> Self {
        Source {
            input,
            limits,
            compressed,
            buffer: vec![0; 2 * STEP],
            start: 0,
            end: 0,
            place: Place { byte: 0, line: 1 },
            ended: false,
            torn: None,
        }
    }

    pub(super) fn window(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Whether the window reaches to the end of the text.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Why the compressed stream ended before its time, if it did.
    pub(super) fn torn(&self) -> Option<&str> {
        self.torn.as_deref()
    }

    /// Whether what begins at `offset` already fills as much as one event may.
    pub(super) fn at_limit(&self, offset: usize) -> bool {
        self.window().len().saturating_sub(offset) as u64 > self.limits.event_bytes
    }

    /// Bytes read so far.
    pub(super) fn bytes(&self) -> u64 {
        self.place.byte + (self.end - self.start) as u64
    }

    /// The place of an offset in the window.
    pub(super) fn place(&self, offset: usize) -> Place {
        let passed = &self.window()[..offset.min(self.end - self.start)];
        Place {
            byte: self.place.byte + passed.len() as u64,
            line: self.place.line + memchr_iter(b'\n', passed).count() as u64,
        }
    }

    /// Moves the window's start past `count` bytes.
    pub(super) fn consume(&mut self, count: usize) {
        self.place = self.place(count);
        self.start += count.min(self.end - self.start);
    }

    /// Adds bytes to the window; at the end of the text it adds none.
    pub(super) fn grow(&mut self) -> Result<(), SourceError> {
        if self.ended {
            return Ok(());
        }
        let held = self.end - self.start;
        if held as u64 > self.limits.event_bytes {
            return Err(SourceError::Limit(
                LONG_STRETCH,
                bytes_text(self.limits.event_bytes),
            ));
        }
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, held);
        // Doubling keeps the cost of one huge event proportional to its length.
        if self.buffer.len() < held + STEP.max(held) {
            self.buffer.resize(held + STEP.max(held), 0);
        }
        let wanted = held + STEP.max(held);
        while self.end < wanted {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => {
                    self.ended = true;
                    return Ok(());
                }
                Ok(count) => self.end += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // What a decompressor says of a file that was cut or damaged.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::UnexpectedEof | ErrorKind::InvalidData | ErrorKind::InvalidInput
                    ) =>
                {
                    self.ended = true;
                    self.torn = Some(error.to_string());
                    return Ok(());
                }
                Err(error) => return Err(SourceError::Io(error)),
            }
            self.check_limits()?;
        }
        Ok(())
    }

    fn check_limits(&self) -> Result<(), SourceError> {
        let (bytes, limits) = (self.bytes(), &self.limits);
        if bytes > limits.total_bytes {
            let what = "the uncompressed text";
            return Err(SourceError::Limit(what, bytes_text(limits.total_bytes)));
        }
        let compressed = self.compressed.as_ref().map(|count| count.get().max(1));
        match compressed {
            Some(compressed) if bytes > SMALL && bytes / compressed > limits.compression_ratio => {
                let limit = format!("{} times the compressed size", limits.compression_ratio);
                Err(SourceError::Limit("the uncompressed text", limit))
            }
            _ => Ok(()),
        }
    }
}
