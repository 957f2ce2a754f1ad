//! Reads profiler traces: JSON as Kineto writes it, plain or gzip, whole or broken.
//!
//! One pass over a window of the file: an event that the window cuts is read again from its start
//! once the window has grown. What is no event is skipped up to the next one and counted.
//!
//! ```text
//! source    bytes through a window, within limits
//! scan      strings, numbers, brackets, tolerant of what profilers write
//! event     the fields of one event
//! document  the file around the events; finds the next event after broken text
//! collect   fields to records: times, ids, names; drops and counts what makes no sense
//! ```

mod collect;
mod document;
mod event;
mod header;
mod number;
mod scan;
mod source;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::io::{BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use super::error::TraceError;
use super::record::TraceFile;
use source::Source;

/// Bounds of a file, each named in the message when it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLimits {
    /// Uncompressed bytes of the file.
    pub total_bytes: u64,
    /// Bytes of one event or string.
    pub event_bytes: u64,
    /// Uncompressed over compressed bytes, once the file is beyond 64 MiB.
    pub compression_ratio: u64,
}

impl Default for ReadLimits {
    fn default() -> Self {
        ReadLimits {
            total_bytes: 64 << 30,
            event_bytes: 16 << 20,
            compression_ratio: 400,
        }
    }
}

/// How to read a file.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// Bounds.
    pub limits: ReadLimits,
    /// Rank of the process, instead of the file's.
    pub rank: Option<u32>,
}

/// Reads a trace file, plain or gzip.
///
/// # Errors
/// [`TraceError`]: the file cannot be read, is no trace, or holds no event that makes sense. A file
/// that is broken in places is read; see [`TraceFile::report`].
pub fn read(path: &Path) -> Result<TraceFile, TraceError> {
    read_with(path, &ReadOptions::default())
}

/// As [`read`], with options.
///
/// # Errors
/// As [`read`].
pub fn read_with(path: &Path, options: &ReadOptions) -> Result<TraceFile, TraceError> {
    let name = path.display().to_string();
    let unreadable = |source| TraceError::Unreadable {
        path: name.clone(),
        source,
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    read_from(file, &name, options)
}

/// Reads a trace from any input, plain or gzip; `name` is for messages and for the rank if neither
/// the options nor the text say it.
///
/// # Errors
/// As [`read`].
pub fn read_from(
    mut input: impl Read,
    name: &str,
    options: &ReadOptions,
) -> Result<TraceFile, TraceError> {
    let mut magic = [0; 4];
    let mut held = 0;
    while held < magic.len() {
        match input.read(&mut magic[held..]) {
            Ok(0) => break,
            Ok(count) => held += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(source) => {
                let path = name.to_owned();
                return Err(TraceError::Unreadable { path, source });
            }
        }
    }
    let whole = magic[..held].chain(input);
    if magic.starts_with(&[0x1f, 0x8b]) {
        let compressed = Rc::new(Cell::new(0));
        let counted = Counted {
            input: whole,
            count: Rc::clone(&compressed),
        };
        let plain =
            flate2::bufread::MultiGzDecoder::new(BufReader::with_capacity(1 << 16, counted));
        document::read(
            Source::new(plain, options.limits, Some(compressed)),
            name,
            options,
        )
    } else {
        if let Some(reason) = unsupported(&magic[..held]) {
            return Err(TraceError::NotATrace {
                path: name.to_owned(),
                place: Default::default(),
                reason: reason.to_owned(),
            });
        }
        document::read(Source::new(whole, options.limits, None), name, options)
    }
}

/// What a file is if its first bytes say that it is neither JSON nor gzip.
fn unsupported(magic: &[u8]) -> Option<&'static str> {
    match magic {
        [] => Some("the file is empty"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("it is zstd; decompress it first with `zstd -d`"),
        [b'P', b'K', 3 | 5 | 7, ..] => Some("it is a zip archive; unpack it first"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, _, 0, _] | [_, 0, _, 0] => {
            Some("it is UTF-16 or UTF-32; convert it to UTF-8 first")
        }
        _ => None,
    }
}

/// Counts the compressed bytes.
struct Counted<R> {
    input: R,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.count.set(self.count.get() + count as u64);
        Ok(count)
    }
}
