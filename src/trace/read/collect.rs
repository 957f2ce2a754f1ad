//! Fields of events to records: times, ids and names; what makes no sense is dropped and counted.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::super::names::NAME_LIMIT;
use super::super::record::{
    Category, Detail, Event, Flow, FlowKind, Label, MemoryEvent, NO_ID, TraceFile, Track,
};
use super::super::report::{Flaw, Place};
use super::event::{Field, RawEvent};
use super::number::{integer, ns_from_us};
use super::scan::{Text, Value, unescape};

/// A week: no step lasts longer, and no event of a trace is further from the others.
const LONGEST_NS: i64 = 7 * 24 * 3600 * 1_000_000_000;

/// Flaws of a name.
const CONTROL: u8 = 1;
const NOT_UTF8: u8 = 2;
const LONG: u8 = 4;

/// Collects events into a trace.
pub(super) struct Collector {
    pub(super) trace: TraceFile,
    /// Flaws of each name.
    name_flaws: Vec<u8>,
    track_ids: FxHashMap<(Label, Label), u32>,
    last_track: Option<((Label, Label), u32)>,
    /// Begins that await their end, by track.
    open: BTreeMap<u32, Vec<Event>>,
    scratch: Vec<u8>,
    category: (Vec<u8>, Category),
    place: Place,
}

impl Collector {
    pub(super) fn new(source: &str) -> Self {
        Collector {
            trace: TraceFile {
                source: source.to_owned(),
                ..Default::default()
            },
            name_flaws: Vec::new(),
            track_ids: FxHashMap::default(),
            last_track: None,
            open: BTreeMap::new(),
            scratch: Vec::new(),
            category: (Vec::new(), Category::Other),
            place: Place::default(),
        }
    }

    pub(super) fn flaw(&mut self, flaw: Flaw, place: Place, detail: &str) {
        self.trace.report.add(flaw, place, detail);
    }

    fn here(&mut self, flaw: Flaw) {
        self.trace.report.add(flaw, self.place, "");
    }

    /// Takes an event in. `false` if it is none: it has no phase.
    pub(super) fn add(&mut self, raw: &RawEvent<'_>, place: impl FnOnce() -> Place) -> bool {
        let Some(phase) = raw.phase() else {
            return false;
        };
        self.trace.report.events += 1;
        // Counting lines up to here is only worth it if something turns out to be wrong.
        let flaws = self.total_flaws();
        self.place = Place::default();
        if raw.duplicate {
            self.here(Flaw::DuplicateKey);
        }
        match phase {
            b'X' => self.complete(raw),
            b'B' => self.begin(raw),
            b'E' => self.end(raw),
            b's' | b't' | b'f' => self.flow(raw, phase == b's'),
            b'M' => self.metadata(raw),
            b'i' | b'I' | b'C' => self.instant(raw),
            _ => {}
        }
        if self.total_flaws() != flaws {
            self.trace.report.locate(place());
        }
        true
    }

    fn total_flaws(&self) -> u64 {
        self.trace.report.total()
    }

    fn complete(&mut self, raw: &RawEvent<'_>) {
        if raw.get(Field::Ts) == Value::Absent || raw.get(Field::Dur) == Value::Absent {
            return self.here(Flaw::MissingTime);
        }
        let (start, dur) = (
            self.time(raw.get(Field::Ts)),
            self.time(raw.get(Field::Dur)),
        );
        let (Some(start_ns), Some(dur_ns)) = (start, dur) else {
            return self.here(Flaw::AbsurdTime);
        };
        if !(0..=LONGEST_NS).contains(&dur_ns) {
            return self.here(Flaw::AbsurdTime);
        }
        let event = self.record(raw, start_ns, dur_ns as u64);
        self.push(event);
    }

    fn push(&mut self, event: Event) {
        if event.category.is_device() && event.start_ns == 0 && event.dur_ns == 0 {
            return self.here(Flaw::EmptyDeviceEvent);
        }
        self.trace.events.push(event);
    }

    fn begin(&mut self, raw: &RawEvent<'_>) {
        if raw.get(Field::Ts) == Value::Absent {
            return self.here(Flaw::MissingTime);
        }
        let Some(start_ns) = self.time(raw.get(Field::Ts)) else {
            return self.here(Flaw::AbsurdTime);
        };
        let event = self.record(raw, start_ns, 0);
        self.open.entry(event.track).or_default().push(event);
    }

    fn end(&mut self, raw: &RawEvent<'_>) {
        let track = self.track(raw);
        let Some(end_ns) = self.time(raw.get(Field::Ts)) else {
            return self.here(Flaw::MissingTime);
        };
        let Some(mut event) = self.open.get_mut(&track).and_then(Vec::pop) else {
            return self.here(Flaw::Unpaired);
        };
        match end_ns.checked_sub(event.start_ns) {
            Some(dur_ns) if (0..=LONGEST_NS).contains(&dur_ns) => {
                event.dur_ns = dur_ns as u64;
                self.push(event);
            }
            _ => self.here(Flaw::AbsurdTime),
        }
    }

    /// The record of an event without its times.
    fn record(&mut self, raw: &RawEvent<'_>, start_ns: i64, dur_ns: u64) -> Event {
        let category = self.category(raw.text(Field::Category).raw);
        let name = self.string(raw.get(Field::Name));
        self.count_name_flaws(name);
        let track = self.track(raw);
        let lane = if category.is_device() {
            Field::Stream
        } else {
            Field::ForwardThread
        };
        Event {
            start_ns,
            dur_ns,
            name,
            track,
            correlation: self.correlation(raw.get(Field::Correlation)),
            external_id: self.id(raw.get(Field::ExternalId)),
            sequence: self.id(raw.get(Field::Sequence)),
            lane: self.id(raw.get(lane)),
            detail: self.detail(raw),
            category,
        }
    }

    fn category(&mut self, raw: &[u8]) -> Category {
        if self.category.0 != raw {
            self.category = (raw.to_vec(), Category::from_name(raw));
        }
        self.category.1
    }

    fn track(&mut self, raw: &RawEvent<'_>) -> u32 {
        let key = (
            self.label(raw.get(Field::Pid)),
            self.label(raw.get(Field::Tid)),
        );
        if let Some((last, id)) = self.last_track
            && last == key
        {
            return id;
        }
        let next = self.trace.tracks.len() as u32;
        let id = *self.track_ids.entry(key).or_insert(next);
        if id == next {
            self.trace.tracks.push(Track {
                pid: key.0,
                tid: key.1,
                name: String::new(),
                events: 0..0,
            });
        }
        self.last_track = Some((key, id));
        id
    }

    /// A process or thread: a number, also in quotes, or a word.
    fn label(&mut self, value: Value<'_>) -> Label {
        let text = match value {
            Value::Bare(text) => text,
            Value::Text(text) => text.raw,
            Value::Nested(_) => {
                self.here(Flaw::WrongType);
                b""
            }
            Value::Absent => b"",
        };
        match integer(text) {
            Some(number) => Label::Number(number),
            None => Label::Word(self.string(value)),
        }
    }

    /// The name of a value: strings as they are, anything else as it is written.
    fn string(&mut self, value: Value<'_>) -> u32 {
        match value {
            Value::Text(Text {
                raw,
                escaped: false,
            }) => self.intern(raw),
            Value::Text(Text { raw, .. }) => {
                let mut scratch = std::mem::take(&mut self.scratch);
                if unescape(raw, &mut scratch) {
                    self.here(Flaw::BadEscape);
                }
                let id = self.intern(&scratch);
                self.scratch = scratch;
                id
            }
            Value::Bare(raw) | Value::Nested(raw) => self.intern(raw),
            Value::Absent => self.intern(b""),
        }
    }

    fn intern(&mut self, bytes: &[u8]) -> u32 {
        let (id, new) = self.trace.names.intern(bytes);
        if new {
            let mut flaws = 0;
            if bytes.iter().any(|&byte| byte < b' ') {
                flaws |= CONTROL;
            }
            if std::str::from_utf8(bytes).is_err() {
                flaws |= NOT_UTF8;
            }
            if bytes.len() > NAME_LIMIT {
                flaws |= LONG;
            }
            self.name_flaws.push(flaws);
        }
        id
    }

    fn count_name_flaws(&mut self, name: u32) {
        let flaws = self.name_flaws[name as usize];
        if flaws == 0 {
            return;
        }
        for (bit, flaw) in [
            (CONTROL, Flaw::ControlByte),
            (NOT_UTF8, Flaw::NotUtf8),
            (LONG, Flaw::LongString),
        ] {
            if flaws & bit != 0 {
                self.here(flaw);
            }
        }
    }

    /// The text of a number, also in quotes.
    fn number<'a>(&mut self, value: Value<'a>) -> Option<&'a [u8]> {
        match value {
            Value::Bare(text) => Some(text),
            Value::Text(text) => {
                self.here(Flaw::WrongType);
                Some(text.raw.trim_ascii())
            }
            Value::Nested(_) => {
                self.here(Flaw::WrongType);
                None
            }
            Value::Absent => None,
        }
    }

    fn time(&mut self, value: Value<'_>) -> Option<i64> {
        self.number(value).and_then(ns_from_us)
    }

    /// An id of 32 bits; anything else is none.
    fn id(&mut self, value: Value<'_>) -> u32 {
        if value == Value::Absent {
            return NO_ID;
        }
        self.number(value)
            .and_then(integer)
            .and_then(|id| u32::try_from(id).ok())
            .unwrap_or(NO_ID)
    }

    /// Correlations count from 1; 0 stands for none in some profilers, and so does nothing at all.
    fn correlation(&mut self, value: Value<'_>) -> u32 {
        if value == Value::Absent {
            return NO_ID;
        }
        match self.number(value).and_then(integer) {
            Some(0) => NO_ID,
            Some(id) if (1..i64::from(NO_ID)).contains(&id) => id as u32,
            _ => {
                self.here(Flaw::BadCorrelation);
                NO_ID
            }
        }
    }

    fn detail(&mut self, raw: &RawEvent<'_>) -> u32 {
        if !raw.has_detail() {
            return NO_ID;
        }
        let mut optional = |field| match raw.get(field) {
            Value::Absent => NO_ID,
            value => self.string(value),
        };
        let detail = Detail {
            shapes: optional(Field::Shapes),
            collective: optional(Field::Collective),
            dtype: optional(Field::Dtype),
            group_name: optional(Field::GroupName),
            group_description: optional(Field::GroupDescription),
            group_ranks: optional(Field::GroupRanks),
            bytes: self.count(raw.get(Field::Bytes)),
            group_size: self.id(raw.get(Field::GroupSize)),
            collective_sequence: self.id(raw.get(Field::CollectiveSequence)),
            in_elements: self.count(raw.get(Field::InElements)).unwrap_or(0),
            out_elements: self.count(raw.get(Field::OutElements)).unwrap_or(0),
            wait_on_stream: self.id(raw.get(Field::WaitOnStream)),
            wait_on_record: self.id(raw.get(Field::WaitOnRecord)),
        };
        // Thousands of operators have the same shapes and nothing else.
        if self.trace.details.last() == Some(&detail) {
            return self.trace.details.len() as u32 - 1;
        }
        self.trace.details.push(detail);
        self.trace.details.len() as u32 - 1
    }

    fn count(&mut self, value: Value<'_>) -> Option<u64> {
        self.number(value)
            .and_then(integer)
            .and_then(|count| u64::try_from(count).ok())
    }

    fn flow(&mut self, raw: &RawEvent<'_>, begins: bool) {
        let kind = match raw.text(Field::Category).raw {
            b"ac2g" => FlowKind::Launch,
            b"fwdbwd" => FlowKind::ForwardBackward,
            _ => FlowKind::Other,
        };
        let Some(at_ns) = self.time(raw.get(Field::Ts)) else {
            return self.here(Flaw::MissingTime);
        };
        let id = match raw.get(Field::Id) {
            Value::Bare(text) => integer(text).map(|id| id as u64),
            _ => None,
        };
        let id = id.unwrap_or_else(|| u64::from(self.string(raw.get(Field::Id))));
        let track = self.track(raw);
        self.trace.flows.push(Flow {
            kind,
            id,
            begins,
            track,
            at_ns,
        });
    }

    fn metadata(&mut self, raw: &RawEvent<'_>) {
        if raw.text(Field::Name).raw != b"thread_name" {
            return;
        }
        let track = self.track(raw) as usize;
        let name = self.string(raw.get(Field::ThreadName));
        // The profiler names a thread twice: first after the process, then as the thread calls itself.
        self.trace.tracks[track].name = self.trace.names.get(name).trim().to_owned();
    }

    fn instant(&mut self, raw: &RawEvent<'_>) {
        if raw.text(Field::Name).raw != b"[memory]" {
            return;
        }
        let Some(at_ns) = self.time(raw.get(Field::Ts)) else {
            return self.here(Flaw::MissingTime);
        };
        let bytes = self
            .number(raw.get(Field::Bytes))
            .and_then(integer)
            .unwrap_or(0);
        let event = MemoryEvent {
            at_ns,
            bytes,
            allocated: self.count(raw.get(Field::Allocated)).unwrap_or(0),
            reserved: self.count(raw.get(Field::Reserved)).unwrap_or(0),
        };
        self.trace.memory.push(event);
    }

    /// Sorts, drops what is out of this world, and gives each track its range.
    pub(super) fn finish(mut self) -> TraceFile {
        self.place = Place::default();
        let unpaired: usize = self.open.values().map(Vec::len).sum();
        for _ in 0..unpaired {
            self.here(Flaw::Unpaired);
        }
        self.drop_outliers();
        let trace = &mut self.trace;
        trace.names.shrink();
        trace.memory.sort_by_key(|event| event.at_ns);
        trace.events.sort_unstable_by_key(|event| {
            let longer_first = std::cmp::Reverse(event.dur_ns);
            (
                event.track,
                event.start_ns,
                longer_first,
                event.external_id,
                event.name,
            )
        });
        let mut start = 0;
        for (index, track) in trace.tracks.iter_mut().enumerate() {
            let length = trace.events[start..].partition_point(|event| event.track <= index as u32);
            track.events = start..start + length;
            start += length;
        }
        self.trace
    }

    /// Drops events more than a week from the median start.
    fn drop_outliers(&mut self) {
        let events = &self.trace.events;
        let starts = || events.iter().map(|event| event.start_ns);
        let (Some(first), Some(last)) = (starts().min(), starts().max()) else {
            return;
        };
        if last.saturating_sub(first) <= LONGEST_NS {
            return;
        }
        let mut sample: Vec<i64> = starts().step_by(events.len().div_ceil(1024)).collect();
        sample.sort_unstable();
        let median = sample[sample.len() / 2];
        let before = events.len();
        let near = |event: &Event| event.start_ns.abs_diff(median) <= LONGEST_NS as u64;
        self.trace.events.retain(near);
        for _ in self.trace.events.len()..before {
            self.here(Flaw::Outlier);
        }
    }
}
