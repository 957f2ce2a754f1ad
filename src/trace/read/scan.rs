//! Tokens of JSON as profilers write it: strings may hold raw control bytes, backslashes that are
//! not escaped and broken UTF-8. Works on a window of the file and says when it needs more.

use memchr::{memchr, memchr2};

/// Why a scan ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The window ends inside the value.
    Incomplete,
    /// Not JSON: what was expected instead, and where.
    Bad {
        /// Offset in the window.
        at: usize,
        /// What was expected.
        expected: &'static str,
    },
}

pub(super) type Scan<T> = Result<T, Stop>;

/// A string as it stands in the file, without its quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Text<'a> {
    pub(super) raw: &'a [u8],
    /// Whether it holds backslashes.
    pub(super) escaped: bool,
}

/// A value, looked at no more closely than needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Value<'a> {
    /// No value yet.
    #[default]
    Absent,
    /// A string.
    Text(Text<'a>),
    /// A number, `true`, `null`, `NaN`: everything without quotes or brackets.
    Bare(&'a [u8]),
    /// An object or array, brackets included.
    Nested(&'a [u8]),
}

/// A position in a window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scanner<'a> {
    bytes: &'a [u8],
    pub(super) at: usize,
    /// Whether `\"` before what looks like the end of a value ends the string: a path such as
    /// `"C:\dir\"` whose backslashes nobody escaped.
    pub(super) lenient: bool,
}

/// Words of eight bytes that are looked through one by one.
const SHORT_WORDS: usize = 4;

const ONES: u64 = 0x0101_0101_0101_0101;
const QUOTES: u64 = ONES * b'"' as u64;
const BACKSLASHES: u64 = ONES * b'\\' as u64;

/// The high bit of each zero byte; right up to and including the lowest one.
#[inline(always)]
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & (ONES << 7)
}

impl<'a> Scanner<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize, lenient: bool) -> Self {
        Scanner { bytes, at, lenient }
    }

    /// The next byte that is no blank, not consumed.
    #[inline(always)]
    pub(super) fn peek(&mut self) -> Scan<u8> {
        match self.bytes.get(self.at) {
            Some(&byte) if byte > b' ' => Ok(byte),
            _ => self.peek_past_blanks(),
        }
    }

    // Positions are kept in locals here and below: in memory, each step would wait for the last.
    fn peek_past_blanks(&mut self) -> Scan<u8> {
        let mut at = self.at;
        while let Some(&byte) = self.bytes.get(at) {
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                self.at = at;
                return Ok(byte);
            }
            at += 1;
        }
        self.at = at;
        Err(Stop::Incomplete)
    }

    pub(super) fn bad<T>(&self, expected: &'static str) -> Scan<T> {
        Err(Stop::Bad {
            at: self.at,
            expected,
        })
    }

    /// Consumes `byte` after blanks.
    #[inline(always)]
    pub(super) fn expect(&mut self, byte: u8, expected: &'static str) -> Scan<()> {
        if self.peek()? == byte {
            self.at += 1;
            Ok(())
        } else {
            self.bad(expected)
        }
    }

    /// A key, its colon consumed.
    #[inline(always)]
    pub(super) fn key(&mut self) -> Scan<&'a [u8]> {
        self.expect(b'"', "a key in quotes")?;
        let text = self.text()?;
        self.expect(b':', "a colon after the key")?;
        Ok(text.raw)
    }

    /// The rest of a string whose opening quote is consumed.
    #[inline(always)]
    pub(super) fn text(&mut self) -> Scan<Text<'a>> {
        let start = self.at;
        // Most keys and values are shorter than what a vector search costs to set up.
        let mut at = start;
        for _ in 0..SHORT_WORDS {
            let Some(word) = self
                .bytes
                .get(at..)
                .and_then(|rest| rest.first_chunk::<8>())
            else {
                break;
            };
            let word = u64::from_le_bytes(*word);
            let found = zero_bytes(word ^ QUOTES) | zero_bytes(word ^ BACKSLASHES);
            if found == 0 {
                at += 8;
                continue;
            }
            at += found.trailing_zeros() as usize / 8;
            if self.bytes[at] == b'\\' {
                break;
            }
            self.at = at + 1;
            let raw = &self.bytes[start..at];
            return Ok(Text {
                raw,
                escaped: false,
            });
        }
        self.long_text(start, at)
    }

    fn long_text(&mut self, start: usize, mut at: usize) -> Scan<Text<'a>> {
        let mut escaped = false;
        loop {
            let Some(found) = memchr2(b'"', b'\\', &self.bytes[at..]) else {
                return Err(Stop::Incomplete);
            };
            at += found;
            if self.bytes[at] == b'\\' {
                escaped = true;
                let closes = self.lenient
                    && self.bytes.get(at + 1) == Some(&b'"')
                    && self.ends_value(at + 2);
                if !closes {
                    at += 2;
                    if at > self.bytes.len() {
                        return Err(Stop::Incomplete);
                    }
                    continue;
                }
                at += 1;
            }
            self.at = at + 1;
            let raw = &self.bytes[start..at];
            return Ok(Text { raw, escaped });
        }
    }

    /// Whether what follows `at` can only follow a value: `}` or `]`, or a comma and a key.
    fn ends_value(&self, at: usize) -> bool {
        let mut ahead = Scanner::new(self.bytes, at, false);
        match ahead.peek() {
            Ok(b'}' | b']' | b':') => true,
            Ok(b',') => {
                ahead.at += 1;
                ahead.peek() == Ok(b'"') && {
                    ahead.at += 1;
                    let rest = &self.bytes[ahead.at..];
                    memchr(b'"', &rest[..rest.len().min(64)])
                        .is_some_and(|end| rest.get(end + 1) == Some(&b':') || spaced(rest, end))
                }
            }
            _ => false,
        }
    }

    /// Any value.
    #[inline(always)]
    pub(super) fn value(&mut self) -> Scan<Value<'a>> {
        match self.peek()? {
            b'"' => {
                self.at += 1;
                Ok(Value::Text(self.text()?))
            }
            b'{' | b'[' => {
                let start = self.at;
                self.skip_nested()?;
                Ok(Value::Nested(&self.bytes[start..self.at]))
            }
            b',' | b'}' | b']' | b':' => self.bad("a value"),
            _ => Ok(Value::Bare(self.bare()?)),
        }
    }

    /// A number or word: up to a comma, bracket or blank.
    #[inline(always)]
    fn bare(&mut self) -> Scan<&'a [u8]> {
        let (bytes, start) = (self.bytes, self.at);
        let mut at = start;
        while let Some(&byte) = bytes.get(at) {
            // Digits, sign, dot and letters of numbers and words lie apart from what ends them.
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'+') {
                at += 1;
                continue;
            }
            self.at = at;
            return match byte {
                b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t' if at > start => {
                    Ok(&bytes[start..at])
                }
                _ => self.bad("a value and a comma"),
            };
        }
        self.at = at;
        Err(Stop::Incomplete)
    }

    /// Skips an object or array. Depth is a counter, not the stack, so it may be anything.
    fn skip_nested(&mut self) -> Scan<()> {
        let bytes = self.bytes;
        let (mut at, mut depth) = (self.at, 0usize);
        while let Some(&byte) = bytes.get(at) {
            at += 1;
            match byte {
                b'"' => {
                    self.at = at;
                    self.text()?;
                    at = self.at;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => {
                    depth -= 1;
                    if depth == 0 {
                        self.at = at;
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        self.at = at;
        Err(Stop::Incomplete)
    }

    /// After a value inside an object: `true` if a key follows, `false` if the object ends.
    #[inline]
    pub(super) fn more_keys(&mut self) -> Scan<bool> {
        match self.peek()? {
            b',' => {
                self.at += 1;
                // A comma before the end is common in files written by hand.
                if self.peek()? == b'}' {
                    self.at += 1;
                    return Ok(false);
                }
                Ok(true)
            }
            b'}' => {
                self.at += 1;
                Ok(false)
            }
            _ => self.bad("a comma or the end of the object"),
        }
    }
}

/// Whether blanks and a colon follow the quote at `end`.
fn spaced(rest: &[u8], end: usize) -> bool {
    rest[end + 1..]
        .iter()
        .find(|byte| !byte.is_ascii_whitespace())
        == Some(&b':')
}

/// Resolves escapes into `out`. Returns whether a backslash was not escaped; it is then literal.
pub(super) fn unescape(raw: &[u8], out: &mut Vec<u8>) -> bool {
    out.clear();
    let mut bad = false;
    let mut at = 0;
    while at < raw.len() {
        let byte = raw[at];
        at += 1;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let plain = match raw.get(at) {
            Some(b'"') => b'"',
            Some(b'\\') => b'\\',
            Some(b'/') => b'/',
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'r') => b'\r',
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(b'u') => match unicode(&raw[at..]) {
                Some((c, used)) => {
                    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                    at += used;
                    continue;
                }
                None => {
                    bad = true;
                    out.push(b'\\');
                    continue;
                }
            },
            _ => {
                bad = true;
                out.push(b'\\');
                continue;
            }
        };
        out.push(plain);
        at += 1;
    }
    bad
}

/// `uXXXX`, or a pair of surrogates; the character and the bytes it took. Half a pair is `U+FFFD`.
fn unicode(raw: &[u8]) -> Option<(char, usize)> {
    let unit = |at: usize| {
        let digits = raw.get(at..at + 4)?;
        let text = std::str::from_utf8(digits).ok()?;
        u32::from_str_radix(text, 16).ok()
    };
    let high = unit(1)?;
    if (0xd800..0xdc00).contains(&high)
        && raw.get(5..7) == Some(b"\\u")
        && let Some(low) = unit(7).filter(|low| (0xdc00..0xe000).contains(low))
    {
        let code = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
        return Some((char::from_u32(code)?, 11));
    }
    Some((char::from_u32(high).unwrap_or('\u{fffd}'), 5))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str, lenient: bool) -> Scan<Value<'_>> {
        Scanner::new(text.as_bytes(), 0, lenient).value()
    }

    fn plain(raw: &str) -> (String, bool) {
        let mut out = Vec::new();
        let bad = unescape(raw.as_bytes(), &mut out);
        (String::from_utf8(out).unwrap(), bad)
    }

    #[test]
    fn values_end_where_they_end() {
        assert_eq!(value(" 12.5,", false), Ok(Value::Bare(b"12.5")));
        let nested = value(r#"{"a":[1,{"b":"}\""}]} ,"#, false);
        assert_eq!(nested, Ok(Value::Nested(br#"{"a":[1,{"b":"}\""}]}"#)));
        for open in ["12", "\"abc", "\"abc\\", "{\"a\":1", "", "  "] {
            assert_eq!(value(open, false), Err(Stop::Incomplete), "{open}");
        }
        assert!(matches!(value("}", false), Err(Stop::Bad { at: 0, .. })));
    }

    #[test]
    fn depth_does_not_use_the_stack() {
        let deep = format!("{}{}", "[".repeat(1 << 20), "]".repeat(1 << 20));
        assert_eq!(value(&deep, false), Ok(Value::Nested(deep.as_bytes())));
    }

    #[test]
    fn a_path_that_ends_in_a_backslash_is_understood_on_the_second_try() {
        let text = r#""C:\dir\", "ph": 1"#;
        let Ok(Value::Text(strict)) = value(text, false) else {
            panic!("a string")
        };
        assert_eq!(strict.raw, br#"C:\dir\", "#);
        let Ok(Value::Text(lenient)) = value(text, true) else {
            panic!("a string")
        };
        assert_eq!(lenient.raw, br#"C:\dir\"#);
        let Ok(Value::Text(call)) = value(r#""f(\"x\", \"y\")","#, true) else {
            panic!("a string")
        };
        assert_eq!(call.raw, br#"f(\"x\", \"y\")"#);
    }

    #[test]
    fn escapes_good_and_bad() {
        assert_eq!(plain(r#"a\"b\\c\n"#), ("a\"b\\c\n".into(), false));
        assert_eq!(
            plain(r"\u00e9\ud83d\ude00"),
            ("\u{e9}\u{1f600}".into(), false)
        );
        assert_eq!(plain(r"\ud83d!"), ("\u{fffd}!".into(), false));
        assert_eq!(plain(r"C:\Users\x"), (r"C:\Users\x".into(), true));
        assert_eq!(plain(r"\u12"), (r"\u12".into(), true));
    }
}
