//! One event of the list, as it stands in the file.

use super::scan::{Scan, Scanner, Text, Value};

macro_rules! fields {
    ($($name:ident),+ $(,)?) => {
        /// A field of an event, or an argument, that carries meaning; everything else is skipped.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub(super) enum Field { $($name),+ }
        const FIELDS: usize = [$(Field::$name),+].len();
    };
}

fields! {
    Phase, Category, Name, Pid, Tid, Ts, Dur, Id, Args,
    // Arguments.
    ExternalId, Correlation, Stream, Sequence, ForwardThread, ThreadName,
    // Arguments that only some events have.
    Bytes, Shapes, Collective, Dtype, GroupName, GroupDescription, GroupRanks, GroupSize,
    CollectiveSequence, InElements, OutElements, WaitOnStream, WaitOnRecord, Allocated, Reserved,
}

/// Bits of the fields from `Bytes` on.
const RARE: u32 = u32::MAX << Field::Bytes as u32;

/// The fields of an event. One is filled again and again: only the bits are cleared in between.
#[derive(Debug)]
pub(super) struct RawEvent<'a> {
    /// Bit of each field met.
    seen: u32,
    /// Whether a field was met twice.
    pub(super) duplicate: bool,
    values: [Value<'a>; FIELDS],
}

impl<'a> RawEvent<'a> {
    pub(super) fn new() -> Self {
        RawEvent {
            seen: 0,
            duplicate: false,
            values: [Value::Absent; FIELDS],
        }
    }

    /// The value of a field.
    #[inline]
    pub(super) fn get(&self, field: Field) -> Value<'a> {
        if self.seen & 1 << field as u32 == 0 {
            return Value::Absent;
        }
        self.values[field as usize]
    }

    /// The string of a field, blank if it is none.
    pub(super) fn text(&self, field: Field) -> Text<'a> {
        match self.get(field) {
            Value::Text(text) => text,
            _ => Text::default(),
        }
    }

    /// The first byte of the phase; `None` if the event has none.
    pub(super) fn phase(&self) -> Option<u8> {
        self.text(Field::Phase).raw.first().copied()
    }

    /// Whether it has any argument that only some events have.
    pub(super) fn has_detail(&self) -> bool {
        self.seen & RARE != 0
    }

    fn set(&mut self, field: Field, value: Value<'a>) {
        let bit = 1 << field as u32;
        self.duplicate |= self.seen & bit != 0;
        self.seen |= bit;
        self.values[field as usize] = value;
    }

    /// Reads an object whose opening brace is consumed.
    pub(super) fn read(&mut self, scanner: &mut Scanner<'a>) -> Scan<()> {
        self.seen = 0;
        self.duplicate = false;
        if scanner.peek()? == b'}' {
            scanner.at += 1;
            return Ok(());
        }
        loop {
            let field = event_field(scanner.key()?);
            if field == Some(Field::Args) && scanner.peek()? == b'{' {
                self.set(Field::Args, Value::Absent);
                scanner.at += 1;
                self.read_args(scanner)?;
            } else {
                let value = scanner.value()?;
                if let Some(field) = field {
                    self.set(field, value);
                }
            }
            if !scanner.more_keys()? {
                return Ok(());
            }
        }
    }

    /// Reads the arguments, whose opening brace is consumed.
    fn read_args(&mut self, scanner: &mut Scanner<'a>) -> Scan<()> {
        if scanner.peek()? == b'}' {
            scanner.at += 1;
            return Ok(());
        }
        loop {
            let field = argument_field(scanner.key()?);
            let value = scanner.value()?;
            if let Some(field) = field {
                self.set(field, value);
            }
            if !scanner.more_keys()? {
                return Ok(());
            }
        }
    }
}

/// The field of a key of an event.
#[inline]
fn event_field(key: &[u8]) -> Option<Field> {
    // By length first: most keys then need a single comparison.
    Some(match key.len() {
        2 => match key {
            b"ph" => Field::Phase,
            b"ts" => Field::Ts,
            b"id" => Field::Id,
            _ => return None,
        },
        3 => match key {
            b"cat" => Field::Category,
            b"pid" => Field::Pid,
            b"tid" => Field::Tid,
            b"dur" => Field::Dur,
            _ => return None,
        },
        4 => match key {
            b"name" => Field::Name,
            b"args" => Field::Args,
            _ => return None,
        },
        _ => return None,
    })
}

/// The field of an argument.
#[inline]
fn argument_field(key: &[u8]) -> Option<Field> {
    Some(match (key.len(), key) {
        (3, b"Seq") => Field::CollectiveSequence,
        (4, b"name") => Field::ThreadName,
        (5, b"bytes" | b"Bytes") => Field::Bytes,
        (5, b"dtype") => Field::Dtype,
        (6, b"stream") => Field::Stream,
        (10, b"Group size") => Field::GroupSize,
        (10, b"Input Dims" | b"Input dims") => Field::Shapes,
        (11, b"External id" | b"external id") => Field::ExternalId,
        (11, b"correlation") => Field::Correlation,
        (12, b"Input shapes") => Field::Shapes,
        (13, b"Fwd thread id") => Field::ForwardThread,
        (13, b"In msg nelems") => Field::InElements,
        (14, b"Out msg nelems") => Field::OutElements,
        (14, b"wait_on_stream") => Field::WaitOnStream,
        (14, b"Total Reserved") => Field::Reserved,
        (15, b"Sequence number") => Field::Sequence,
        (15, b"Collective name") => Field::Collective,
        (15, b"Total Allocated") => Field::Allocated,
        (18, b"Process Group Name") => Field::GroupName,
        (19, b"Process Group Ranks") => Field::GroupRanks,
        (25, b"Process Group Description") => Field::GroupDescription,
        (33, b"wait_on_cuda_event_record_corr_id") => Field::WaitOnRecord,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::scan::Stop;
    use super::*;

    fn read(text: &str) -> Scan<RawEvent<'_>> {
        let mut event = RawEvent::new();
        event.read(&mut Scanner::new(text.as_bytes(), 1, false))?;
        Ok(event)
    }

    #[test]
    fn fields_are_found_in_any_order_and_spacing() {
        let text = "{ \"args\" :{\"stream\": 7,\"x\":{\"ts\":1}},\n \"ts\":2.5, \"ph\" : \"X\"}";
        let event = read(text).unwrap();
        assert_eq!(event.get(Field::Ts), Value::Bare(b"2.5"));
        assert_eq!(event.get(Field::Stream), Value::Bare(b"7"));
        assert_eq!(event.phase(), Some(b'X'));
        assert!(!event.duplicate && !event.has_detail());
    }

    #[test]
    fn the_last_of_two_equal_keys_counts() {
        let event = read(r#"{"ts":1,"ts":2,"args":{}}"#).unwrap();
        assert!(event.duplicate);
        assert_eq!(event.get(Field::Ts), Value::Bare(b"2"));
    }

    #[test]
    fn a_second_event_does_not_inherit_from_the_first() {
        let text = br#"{"ts":1,"name":"a"}{"ts":2}"#;
        let mut scanner = Scanner::new(text, 1, false);
        let mut event = RawEvent::new();
        event.read(&mut scanner).unwrap();
        scanner.at += 1;
        event.read(&mut scanner).unwrap();
        assert_eq!(event.get(Field::Ts), Value::Bare(b"2"));
        assert_eq!(event.get(Field::Name), Value::Absent);
    }

    #[test]
    fn what_is_cut_is_incomplete_and_what_is_wrong_is_bad() {
        let text = r#"{"ph":"X","name":"a","args":{"stream":7}}"#;
        for end in 1..text.len() {
            assert_eq!(read(&text[..end]).unwrap_err(), Stop::Incomplete, "{end}");
        }
        for text in [
            r#"{"ph" "X"}"#,
            r#"{"ph":}"#,
            r#"{ph:1}"#,
            r#"{"ph":"X" "ts":1}"#,
        ] {
            assert!(matches!(read(text), Err(Stop::Bad { .. })), "{text}");
        }
    }
}
