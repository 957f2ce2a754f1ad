//! Strings, each stored once in one buffer.

use rustc_hash::FxHashMap;

/// Names longer than this are cut: a megabyte of symbol name tells nobody more than its start.
pub const NAME_LIMIT: usize = 4096;

/// Interned strings.
#[derive(Debug, Clone, Default)]
pub struct Names {
    text: String,
    ends: Vec<usize>,
    /// From the hash of a string to the newest id with it, and from an id to the one before.
    newest: FxHashMap<u64, u32>,
    older: Vec<u32>,
}

impl PartialEq for Names {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.ends == other.ends
    }
}

impl Names {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string of an id; blank for an id that was never given.
    pub fn get(&self, id: u32) -> &str {
        let index = id as usize;
        let Some(&end) = self.ends.get(index) else {
            return "";
        };
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start..end]
    }

    /// The id of a string, if it is known.
    pub fn find(&self, text: &str) -> Option<u32> {
        let mut id = *self.newest.get(&hash(text.as_bytes()))?;
        while id != u32::MAX {
            if self.get(id) == text {
                return Some(id);
            }
            id = self.older[id as usize];
        }
        None
    }

    /// The id of a string, new if it is unknown. Bytes that are not UTF-8 become `U+FFFD`; what goes
    /// beyond [`NAME_LIMIT`] is cut and told apart by a hash. Returns whether the string is new.
    pub fn intern(&mut self, bytes: &[u8]) -> (u32, bool) {
        let hash = hash(bytes);
        let mut id = self.newest.get(&hash).copied().unwrap_or(u32::MAX);
        while id != u32::MAX {
            // Cut or repaired strings differ from their bytes: the hash alone must tell them apart.
            let known = self.get(id);
            if known.as_bytes() == bytes || is_changed(bytes) {
                return (id, false);
            }
            id = self.older[id as usize];
        }
        let id = self.ends.len() as u32;
        match std::str::from_utf8(bytes) {
            Ok(text) if bytes.len() <= NAME_LIMIT => self.text.push_str(text),
            _ => {
                let kept = &bytes[..bytes.len().min(NAME_LIMIT)];
                self.text.push_str(&String::from_utf8_lossy(kept));
                if bytes.len() > NAME_LIMIT {
                    self.text.push_str(&format!("...#{hash:016x}"));
                }
            }
        }
        self.ends.push(self.text.len());
        self.older
            .push(self.newest.insert(hash, id).unwrap_or(u32::MAX));
        (id, true)
    }

    /// Forgets how to find strings, to free memory once a file is read.
    pub(super) fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
    }
}

fn is_changed(bytes: &[u8]) -> bool {
    bytes.len() > NAME_LIMIT || std::str::from_utf8(bytes).is_err()
}

/// A hash that is the same in every run.
fn hash(bytes: &[u8]) -> u64 {
    use std::hash::Hasher as _;
    let mut hasher = rustc_hash::FxHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_keeps_its_id() {
        let mut names = Names::default();
        let (a, new) = names.intern(b"aten::add");
        let (b, _) = names.intern(b"aten::mul");
        assert!(new && a != b);
        assert_eq!(names.intern(b"aten::add"), (a, false));
        assert_eq!(names.find("aten::mul"), Some(b));
        assert_eq!((names.find("aten::div"), names.get(a)), (None, "aten::add"));
    }

    #[test]
    fn broken_and_endless_strings_are_kept_in_part() {
        let mut names = Names::default();
        let (broken, _) = names.intern(b"caf\xe9");
        assert_eq!(names.get(broken), "caf\u{fffd}");
        assert_eq!(names.intern(b"caf\xe9").0, broken);
        let long = vec![b'x'; 1 << 20];
        let mut other = long.clone();
        other.push(b'y');
        let (a, b) = (names.intern(&long).0, names.intern(&other).0);
        assert_ne!(a, b);
        assert_ne!(names.get(a), names.get(b));
        assert!(names.get(a).len() < NAME_LIMIT + 32);
    }
}
