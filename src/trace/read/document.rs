//! The file around the events, and the way back to the next event after broken text.

use std::io::Read;

use memchr::{memchr, memmem};

use super::super::error::TraceError;
use super::super::record::TraceFile;
use super::super::report::Flaw;
use super::collect::Collector;
use super::event::RawEvent;
use super::scan::{Scan, Scanner, Stop};
use super::source::{LONG_STRETCH, Source, SourceError, bytes_text};
use super::{ReadLimits, ReadOptions, header};

/// What an event may begin with: an object whose first key is one of these.
const FIRST_KEYS: [&[u8]; 9] = [
    b"ph", b"name", b"cat", b"pid", b"tid", b"ts", b"dur", b"id", b"args",
];

/// How far a candidate for the next event may reach beyond the window before it is given up.
const REACH: usize = 1 << 20;

/// Times the size of the text that may be spent on looking for the next event.
const PATIENCE: u64 = 16;

/// Reads a whole file.
pub(super) fn read<R: Read>(
    source: Source<R>,
    name: &str,
    options: &ReadOptions,
) -> Result<TraceFile, TraceError> {
    let mut reader = Reader {
        source,
        collector: Collector::new(name),
        name,
        limits: options.limits,
        searched: 0,
    };
    reader.document()?;
    let Reader {
        source, collector, ..
    } = reader;
    let mut trace = collector.finish();
    trace.report.bytes = source.bytes();
    let stated = trace.distributed.rank;
    (trace.rank, trace.rank_source) = header::rank(options.rank, stated, name);
    if trace.events.is_empty() {
        let report = &trace.report;
        let flaws = report.warnings().join("; ");
        return Err(TraceError::NoEvents {
            path: name.to_owned(),
            read: format!(
                "{} bytes, {} events of other kinds",
                report.bytes, report.events
            ),
            flaws: match flaws.as_str() {
                "" => flaws,
                _ => format!(": {flaws}"),
            },
        });
    }
    Ok(trace)
}

/// How the list of events ended.
#[derive(PartialEq)]
enum End {
    /// With its bracket.
    Closed,
    /// With the file.
    Cut,
}

struct Reader<'n, R> {
    source: Source<R>,
    collector: Collector,
    name: &'n str,
    limits: ReadLimits,
    /// Bytes looked at in search of the next event.
    searched: u64,
}

impl<R: Read> Reader<'_, R> {
    fn document(&mut self) -> Result<(), TraceError> {
        self.grow()?;
        if self.source.window().starts_with(b"\xef\xbb\xbf") {
            self.source.consume(3);
        }
        let first = self.advance(|scanner| {
            let byte = scanner.peek()?;
            scanner.at += usize::from(matches!(byte, b'[' | b'{'));
            Ok(byte)
        })?;
        match first {
            Ok(b'[') => self.events().map(|_| ()),
            Ok(b'{') => self.object(),
            Ok(byte) => {
                Err(self.not_a_trace(0, format!("expected `{{` or `[`, found {}", shown(byte))))
            }
            Err(_) => Err(self.not_a_trace(0, "there is nothing but blanks".to_owned())),
        }
    }

    /// The keys of the file's object.
    fn object(&mut self) -> Result<(), TraceError> {
        let mut found = false;
        loop {
            let key = self.advance(|scanner| {
                if scanner.peek()? == b'}' {
                    return Ok(None);
                }
                scanner.key().map(|key| Some(key.to_vec()))
            })?;
            let outcome = match key {
                Ok(None) => break,
                Ok(Some(key)) if key == b"traceEvents" => {
                    found = true;
                    match self.advance(|scanner| scanner.expect(b'[', "the list of events"))? {
                        Ok(()) if self.events()? == End::Cut => return Ok(()),
                        Ok(()) => self.after_value()?,
                        Err(stop) => Err(stop),
                    }
                }
                Ok(Some(key)) => self.entry(&key)?,
                Err(stop) => Err(stop),
            };
            match outcome {
                Ok(true) => {}
                Ok(false) => break,
                Err(stop) if found => {
                    // The events are in; whatever is wrong after them can be told but not helped.
                    self.broken_tail(stop);
                    return Ok(());
                }
                Err(stop) => self.find_events(stop)?,
            }
        }
        if found {
            Ok(())
        } else {
            Err(self.not_a_trace(0, "it has no `traceEvents`".to_owned()))
        }
    }

    /// Reads the value of a key; whether more keys follow.
    fn entry(&mut self, key: &[u8]) -> Result<Scan<bool>, TraceError> {
        let value = self.value_of(|scanner| {
            scanner.peek()?;
            let start = scanner.at;
            scanner.value()?;
            Ok((start, scanner.at))
        })?;
        let (start, end) = match value {
            Ok(range) => range,
            Err(stop) => return Ok(Err(stop)),
        };
        let place = self.source.place(start);
        let value = &self.source.window()[start..end];
        if let Err(reason) = header::take(&mut self.collector.trace, key, value) {
            let detail = format!("`{}`: {reason}", String::from_utf8_lossy(key));
            self.collector.flaw(Flaw::Malformed, place, &detail);
        }
        self.source.consume(end);
        self.after_value()
    }

    fn after_value(&mut self) -> Result<Scan<bool>, TraceError> {
        self.advance(|scanner| scanner.more_keys())
    }

    /// After broken text before the events: goes to `traceEvents`.
    fn find_events(&mut self, stop: Stop) -> Result<(), TraceError> {
        const KEY: &[u8] = b"\"traceEvents\"";
        let (at, expected) = reason(stop, self.source.window().len());
        let place = self.source.place(at);
        loop {
            if let Some(found) = memmem::find(self.source.window(), KEY) {
                self.collector.flaw(Flaw::Malformed, place, expected);
                self.source.consume(found);
                return Ok(());
            }
            if self.source.ended() {
                let reason = format!("expected {expected}, and no `traceEvents` follows");
                return Err(self.not_a_trace(at, reason));
            }
            let passed = self.source.window().len().saturating_sub(KEY.len());
            self.source.consume(passed);
            self.grow()?;
        }
    }

    fn broken_tail(&mut self, stop: Stop) {
        let (at, expected) = reason(stop, self.source.window().len());
        let place = self.source.place(at);
        self.collector.flaw(Flaw::Malformed, place, expected);
    }

    /// The list of events, whose opening bracket is consumed.
    fn events(&mut self) -> Result<End, TraceError> {
        loop {
            let (at, outcome) = self.run_of_events();
            match outcome {
                Ok(()) => {
                    self.source.consume(at);
                    return Ok(End::Closed);
                }
                Err(Stop::Incomplete) if !self.source.ended() && !self.source.at_limit(at) => {
                    self.source.consume(at);
                    self.grow()?;
                }
                Err(stop) => {
                    self.source.consume(at);
                    if !self.next_event(stop)? {
                        return Ok(End::Cut);
                    }
                }
            }
        }
    }

    /// Takes in all events of the window. Returns the offset of what could not be read, and why;
    /// `Ok` past the closing bracket.
    fn run_of_events(&mut self) -> (usize, Scan<()>) {
        let window = self.source.window();
        let mut scanner = Scanner::new(window, 0, false);
        let mut raw = RawEvent::new();
        loop {
            let start = scanner.at;
            match scanner.peek() {
                Ok(b'{') => {}
                Ok(b',') => {
                    scanner.at += 1;
                    continue;
                }
                Ok(b']') => return (scanner.at + 1, Ok(())),
                Ok(_) => return (scanner.at, scanner.bad("an event")),
                Err(stop) => return (start, Err(stop)),
            }
            let start = scanner.at;
            scanner.at += 1;
            let place = |source: &Source<R>| source.place(start);
            match raw.read(&mut scanner) {
                Ok(()) => {
                    if !self.collector.add(&raw, || place(&self.source)) {
                        return (start, Err(no_phase(start)));
                    }
                }
                Err(Stop::Incomplete) => return (start, Err(Stop::Incomplete)),
                Err(stop) => {
                    let mut second = Scanner::new(window, start + 1, true);
                    match raw.read(&mut second) {
                        Ok(()) if self.collector.add(&raw, || place(&self.source)) => {
                            let place = place(&self.source);
                            self.collector.flaw(Flaw::BadEscape, place, "");
                            scanner.at = second.at;
                        }
                        _ => return (start, Err(stop)),
                    }
                }
            }
        }
    }

    /// Goes to the next event after the one at the window's start that `stop` stopped. `false` if
    /// there is none.
    fn next_event(&mut self, stop: Stop) -> Result<bool, TraceError> {
        let (at, expected) = reason(stop, self.source.window().len());
        let broken = self.source.place(0);
        let place = self.source.place(at);
        let mut from = 1;
        loop {
            if self.source.bytes() - broken.byte > 2 * self.limits.event_bytes {
                return Err(self.limit(LONG_STRETCH, bytes_text(self.limits.event_bytes)));
            }
            let window = self.source.window();
            let Some(found) = memchr(b'{', window.get(from..).unwrap_or_default()) else {
                if self.source.ended() {
                    break;
                }
                self.searched += window.len() as u64;
                self.source.consume(window.len());
                self.grow()?;
                from = 0;
                continue;
            };
            let start = from + found;
            let verdict = candidate(window, start);
            self.searched += match verdict {
                Ok(_) | Err(Stop::Incomplete) => (window.len() - start).min(REACH) as u64,
                Err(Stop::Bad { at, .. }) => (at - start) as u64,
            };
            match verdict {
                Ok(()) => {
                    self.source.consume(start);
                    self.collector.flaw(Flaw::Malformed, place, expected);
                    return Ok(true);
                }
                Err(Stop::Incomplete) if window.len() - start < REACH && !self.source.ended() => {
                    self.source.consume(start);
                    self.grow()?;
                    from = 0;
                }
                Err(_) => from = start + 1,
            }
            if self.searched > PATIENCE * self.source.bytes() {
                return Err(self.too_damaged(start));
            }
        }
        let detail = match (self.source.torn(), stop) {
            (Some(torn), _) => format!("the compressed stream is torn: {torn}"),
            (None, Stop::Incomplete) => "the last event is incomplete".to_owned(),
            (None, Stop::Bad { .. }) => format!("expected {expected}, and no event follows"),
        };
        self.collector.flaw(Flaw::Truncated, broken, &detail);
        Ok(false)
    }

    /// Scans at the window's start, with more of the file as needed. `Incomplete` means that the
    /// file ends.
    fn value_of<T>(
        &mut self,
        mut scan: impl FnMut(&mut Scanner<'_>) -> Scan<T>,
    ) -> Result<Scan<T>, TraceError> {
        loop {
            let mut scanner = Scanner::new(self.source.window(), 0, false);
            match scan(&mut scanner) {
                Err(Stop::Incomplete) if !self.source.ended() => self.grow()?,
                other => return Ok(other),
            }
        }
    }

    /// As `value_of`, and moves past what was scanned.
    fn advance<T>(
        &mut self,
        mut scan: impl FnMut(&mut Scanner<'_>) -> Scan<T>,
    ) -> Result<Scan<T>, TraceError> {
        let mut end = 0;
        let outcome = self.value_of(|scanner| {
            let value = scan(scanner);
            end = scanner.at;
            value
        })?;
        if outcome.is_ok() {
            self.source.consume(end);
        }
        Ok(outcome)
    }

    fn grow(&mut self) -> Result<(), TraceError> {
        self.source.grow().map_err(|error| match error {
            SourceError::Io(source) => TraceError::Unreadable {
                path: self.name.to_owned(),
                source,
            },
            SourceError::Limit(what, limit) => self.limit(what, limit),
        })
    }

    fn limit(&self, what: &str, limit: String) -> TraceError {
        TraceError::Limit {
            path: self.name.to_owned(),
            what: what.to_owned(),
            limit,
            place: self.source.place(0),
        }
    }

    fn not_a_trace(&self, at: usize, reason: String) -> TraceError {
        TraceError::NotATrace {
            path: self.name.to_owned(),
            place: self.source.place(at),
            reason,
        }
    }

    fn too_damaged(&self, at: usize) -> TraceError {
        let report = &self.collector.trace.report;
        TraceError::TooDamaged {
            path: self.name.to_owned(),
            events: report.events,
            skipped: report.count(Flaw::Malformed),
            place: self.source.place(at),
        }
    }
}

/// Whether the object at `start` is an event.
fn candidate(window: &[u8], start: usize) -> Scan<()> {
    let mut scanner = Scanner::new(window, start + 1, false);
    let key = scanner.key()?;
    if !FIRST_KEYS.contains(&key) {
        return scanner.bad("an event");
    }
    let reach = window.len().min(start + REACH);
    for lenient in [false, true] {
        let mut scanner = Scanner::new(&window[..reach], start + 1, lenient);
        let mut raw = RawEvent::new();
        match raw.read(&mut scanner) {
            Ok(()) if raw.phase().is_some() => return Ok(()),
            Ok(()) => return scanner.bad("an event"),
            Err(Stop::Incomplete) => return Err(Stop::Incomplete),
            Err(_) => {}
        }
    }
    scanner.bad("an event")
}

fn no_phase(at: usize) -> Stop {
    Stop::Bad {
        at,
        expected: "an event with a phase (`ph`)",
    }
}

/// Where and what of a stop; an incomplete value is at the end of the window.
fn reason(stop: Stop, end: usize) -> (usize, &'static str) {
    match stop {
        Stop::Incomplete => (end, "the rest of a value"),
        Stop::Bad { at, expected } => (at, expected),
    }
}

fn shown(byte: u8) -> String {
    match byte {
        b' '..=b'~' => format!("`{}`", char::from(byte)),
        _ => format!("byte 0x{byte:02x}"),
    }
}
