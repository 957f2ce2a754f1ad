//! `moe_layer_freq`: which layers hold experts, in the three ways that Megatron's argument takes.

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Longest pattern that an expression may spell out.
const MAX_LAYERS: usize = 100_000;

/// `moe_layer_freq`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum MoeLayerFreq {
    /// Layers 0, N, 2N, ... hold experts.
    Every(u64),
    /// One flag a layer: 1 holds experts, 0 is dense. May be written as Megatron's expression,
    /// `"([0]*3+[1]*58)"`.
    Pattern(Vec<u8>),
}

impl<'de> Deserialize<'de> for MoeLayerFreq {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FreqVisitor)
    }
}

struct FreqVisitor;

impl<'de> Visitor<'de> for FreqVisitor {
    type Value = MoeLayerFreq;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "every how many layers one holds experts (an integer), a list of 0 and 1, one a layer, \
             or an expression such as \"([0]*3+[1]*58)\"",
        )
    }

    fn visit_i64<E: Error>(self, every: i64) -> Result<MoeLayerFreq, E> {
        match u64::try_from(every) {
            Ok(every) => Ok(MoeLayerFreq::Every(every)),
            Err(_) => Err(E::invalid_value(
                serde::de::Unexpected::Signed(every),
                &self,
            )),
        }
    }

    fn visit_u64<E: Error>(self, every: u64) -> Result<MoeLayerFreq, E> {
        Ok(MoeLayerFreq::Every(every))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<MoeLayerFreq, A::Error> {
        let mut flags = Vec::new();
        while let Some(flag) = seq.next_element::<u8>()? {
            flags.push(flag);
        }
        Ok(MoeLayerFreq::Pattern(flags))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<MoeLayerFreq, E> {
        match pattern(text) {
            Some(flags) => Ok(MoeLayerFreq::Pattern(flags)),
            None => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
        }
    }
}

/// Evaluates sums of repeated lists, `[0]*3+[1,0]*2`, brackets around the whole allowed.
fn pattern(text: &str) -> Option<Vec<u8>> {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let text = match text.strip_prefix('(') {
        Some(inner) => inner.strip_suffix(')')?,
        None => text.as_str(),
    };
    let mut flags = Vec::new();
    for term in text.split('+') {
        let (list, times) = match term.split_once('*') {
            Some((list, times)) => (list, times.parse::<usize>().ok()?),
            None => (term, 1),
        };
        let list = list.strip_prefix('[')?.strip_suffix(']')?;
        let list: Vec<u8> = list
            .split(',')
            .map(|flag| flag.parse().ok())
            .collect::<Option<_>>()?;
        if list.len().checked_mul(times)? > MAX_LAYERS - flags.len().min(MAX_LAYERS) {
            return None;
        }
        flags.extend(list.repeat(times));
    }
    Some(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_what_python_makes_of_them() {
        assert_eq!(pattern("([0]*1+[1]*3)"), Some(vec![0, 1, 1, 1]));
        assert_eq!(pattern("[0,1] * 2 + [1]"), Some(vec![0, 1, 0, 1, 1]));
        assert_eq!(pattern("[1]*0"), Some(vec![]));
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "3",
            "[0]*",
            "([0]",
            "[0]*-1",
            "[a]",
            "[1]*99999999999",
            "[1]*100001",
        ] {
            assert_eq!(pattern(text), None, "{text}");
        }
    }
}
