//! What a reader read, repaired and dropped, with the first place of each kind.

/// A place in the uncompressed text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// Offset of the byte, from 0.
    pub byte: u64,
    /// Line, from 1.
    pub line: u64,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "byte {}, line {}", self.byte, self.line)
    }
}

/// Something that is wrong with a file but does not stop the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Flaw {
    /// Text that is no event; skipped up to the next event.
    Malformed,
    /// The file ends inside the list of events.
    Truncated,
    /// A string with raw control bytes; kept.
    ControlByte,
    /// A backslash that is not escaped; taken literally.
    BadEscape,
    /// Bytes that are not UTF-8; replaced.
    NotUtf8,
    /// A string beyond the limit; cut.
    LongString,
    /// A key that an event gives twice; the last one counts.
    DuplicateKey,
    /// A value of another type than expected (a number in quotes, say); read if it makes sense.
    WrongType,
    /// An event without start or duration; dropped.
    MissingTime,
    /// A start or duration that is negative, not a number, or beyond any clock; dropped.
    AbsurdTime,
    /// A start far from all others; dropped.
    Outlier,
    /// A kernel, copy or fill with start 0 and duration 0; dropped.
    EmptyDeviceEvent,
    /// A correlation that is negative or beyond 32 bits; the event is kept without.
    BadCorrelation,
    /// A begin without an end, or an end without a begin; dropped.
    Unpaired,
}

impl Flaw {
    /// Every flaw.
    pub const ALL: [Flaw; 14] = [
        Flaw::Malformed,
        Flaw::Truncated,
        Flaw::ControlByte,
        Flaw::BadEscape,
        Flaw::NotUtf8,
        Flaw::LongString,
        Flaw::DuplicateKey,
        Flaw::WrongType,
        Flaw::MissingTime,
        Flaw::AbsurdTime,
        Flaw::Outlier,
        Flaw::EmptyDeviceEvent,
        Flaw::BadCorrelation,
        Flaw::Unpaired,
    ];

    /// Key in files.
    pub fn key(self) -> &'static str {
        match self {
            Flaw::Malformed => "malformed",
            Flaw::Truncated => "truncated",
            Flaw::ControlByte => "control_byte",
            Flaw::BadEscape => "bad_escape",
            Flaw::NotUtf8 => "not_utf8",
            Flaw::LongString => "long_string",
            Flaw::DuplicateKey => "duplicate_key",
            Flaw::WrongType => "wrong_type",
            Flaw::MissingTime => "missing_time",
            Flaw::AbsurdTime => "absurd_time",
            Flaw::Outlier => "outlier",
            Flaw::EmptyDeviceEvent => "empty_device_event",
            Flaw::BadCorrelation => "bad_correlation",
            Flaw::Unpaired => "unpaired",
        }
    }

    /// What it is and what was done about it.
    pub fn what(self) -> &'static str {
        match self {
            Flaw::Malformed => "stretches of text that are no event, skipped",
            Flaw::Truncated => "end of file inside the list of events",
            Flaw::ControlByte => "events with raw control bytes in their name, kept",
            Flaw::BadEscape => "events with backslashes that are not escaped, taken literally",
            Flaw::NotUtf8 => "events with names that are not UTF-8, bytes replaced",
            Flaw::LongString => "events with names beyond 4096 bytes, cut",
            Flaw::DuplicateKey => "events that give a key twice, the last one taken",
            Flaw::WrongType => "events with a value of an unexpected type",
            Flaw::MissingTime => "events without start or duration, dropped",
            Flaw::AbsurdTime => "events with impossible times, dropped",
            Flaw::Outlier => "events more than a week from the others, dropped",
            Flaw::EmptyDeviceEvent => "kernels and copies with start 0 and duration 0, dropped",
            Flaw::BadCorrelation => "events with an impossible correlation, kept without it",
            Flaw::Unpaired => "begins without end or ends without begin, dropped",
        }
    }
}

/// How often a flaw was met, and where first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FlawCount {
    /// Occurrences.
    pub count: u64,
    /// The first one.
    pub first: Place,
    /// What was expected there, if that is known.
    pub detail: String,
}

/// The outcome of reading a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReadReport {
    /// Bytes of uncompressed text.
    pub bytes: u64,
    /// Events of any phase that were understood.
    pub events: u64,
    flaws: [FlawCount; Flaw::ALL.len()],
}

impl ReadReport {
    /// Counts a flaw.
    pub(super) fn add(&mut self, flaw: Flaw, place: Place, detail: &str) {
        let entry = &mut self.flaws[flaw as usize];
        if entry.count == 0 {
            entry.first = place;
            entry.detail = detail.to_owned();
        }
        entry.count += 1;
    }

    /// Sets the place of the flaws whose first place is not known yet.
    pub(super) fn locate(&mut self, place: Place) {
        for entry in &mut self.flaws {
            if entry.count > 0 && entry.first.line == 0 {
                entry.first = place;
            }
        }
    }

    /// How many flaws were met.
    pub fn total(&self) -> u64 {
        self.flaws.iter().map(|entry| entry.count).sum()
    }

    /// How often a flaw was met.
    pub fn count(&self, flaw: Flaw) -> u64 {
        self.flaws[flaw as usize].count
    }

    /// The flaws that were met, in a fixed order.
    pub fn flaws(&self) -> impl Iterator<Item = (Flaw, &FlawCount)> {
        Flaw::ALL
            .into_iter()
            .map(|flaw| (flaw, &self.flaws[flaw as usize]))
            .filter(|(_, entry)| entry.count > 0)
    }

    /// One line for each flaw that was met.
    pub fn warnings(&self) -> Vec<String> {
        let line = |(flaw, entry): (Flaw, &FlawCount)| {
            let detail = match entry.detail.as_str() {
                "" => String::new(),
                detail => format!(": {detail}"),
            };
            let read = match flaw {
                Flaw::Truncated => format!("; {} events were read up to there", self.events),
                _ => String::new(),
            };
            // Flaws that only the whole file shows have no place.
            let first = match entry.first.line {
                0 => String::new(),
                _ => format!(" (first at {}{detail})", entry.first),
            };
            format!("{} {}{first}{read}", entry.count, flaw.what())
        };
        self.flaws().map(line).collect()
    }
}
