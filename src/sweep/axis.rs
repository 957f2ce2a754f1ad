//! One varied key: `KEY=1,2,4`, `KEY=1..8`, `KEY=0..100+25`, `KEY=1..64*2`.

use super::SweepError;

/// Key of the host's speed against the calibration's, which is no field of the spec.
pub const HOST_SPEED: &str = "host_speed";
/// Key of the data-parallel implementation: `v1`, `v2`, `ddp`.
pub const IMPLEMENTATION: &str = "fsdp";

/// Most values of one axis.
const MAX_VALUES: usize = 100_000;

/// A key with its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// `section.field`, [`HOST_SPEED`] or [`IMPLEMENTATION`].
    pub key: String,
    /// Values as they would be given to `--set`.
    pub values: Vec<String>,
}

impl Axis {
    /// Reads an axis.
    ///
    /// # Errors
    /// [`SweepError::Axis`] says what is wrong.
    pub fn parse(text: &str) -> Result<Self, SweepError> {
        let bad = |reason: &str| SweepError::Axis {
            given: text.to_owned(),
            reason: reason.to_owned(),
        };
        let (key, values) = text
            .split_once('=')
            .ok_or_else(|| bad("expected KEY=VALUES, such as `model.num_layers=2,4,8`"))?;
        let key = key.trim();
        if key.is_empty() {
            return Err(bad("the key is missing"));
        }
        if !key.contains('.') && key != HOST_SPEED && key != IMPLEMENTATION {
            return Err(bad(
                "expected a key `section.field`, or one of `host_speed` and `fsdp`",
            ));
        }
        let values = match range(values) {
            Some(range) => range.map_err(|reason| bad(&reason))?,
            None => list(values),
        };
        if values.iter().any(String::is_empty) {
            return Err(bad("a value is empty"));
        }
        for (index, value) in values.iter().enumerate().take(1000) {
            if values[..index].contains(value) {
                return Err(bad(&format!("the value {value} is given twice")));
            }
        }
        Ok(Axis {
            key: key.to_owned(),
            values,
        })
    }
}

/// Values between commas; commas in brackets or quotes belong to a value.
fn list(text: &str) -> Vec<String> {
    let (mut depth, mut quoted) = (0i32, false);
    let mut values = vec![String::new()];
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            '[' | '{' if !quoted => depth += 1,
            ']' | '}' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                values.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(value) = values.last_mut() {
            value.push(c);
        }
    }
    values.iter().map(|value| plain(value.trim())).collect()
}

/// A whole number in exponential form as TOML writes whole numbers: `1e6` is 1000000.
fn plain(value: &str) -> String {
    match value.parse::<f64>() {
        Ok(number)
            if value.contains(['e', 'E']) && number.fract() == 0.0 && number.abs() < 1e15 =>
        {
            format!("{number:.0}")
        }
        _ => value.to_owned(),
    }
}

/// `LOW..HIGH`, `LOW..HIGH+STEP` or `LOW..HIGH*FACTOR`, both ends included where they are met;
/// `None` if it is not of that form.
fn range(text: &str) -> Option<Result<Vec<String>, String>> {
    let (low, rest) = text.trim().split_once("..")?;
    let (high, step, factor) = match (rest.split_once('*'), rest.split_once('+')) {
        (Some((high, factor)), _) => (high, "1", factor),
        (None, Some((high, step))) => (high, step, "1"),
        (None, None) => (rest, "1", "1"),
    };
    let whole = [low, high, step, factor].map(|part| part.trim().replace('_', "").parse::<u64>());
    if let [Ok(low), Ok(high), Ok(step), Ok(factor)] = whole {
        return Some(whole_range(low, high, step, factor));
    }
    let real = [low, high, step, factor].map(|part| part.trim().parse::<f64>());
    match real {
        [Ok(low), Ok(high), Ok(step), Ok(factor)] => Some(real_range(low, high, step, factor)),
        _ => None,
    }
}

fn whole_range(low: u64, high: u64, step: u64, factor: u64) -> Result<Vec<String>, String> {
    check(
        low <= high,
        factor != 0 && (factor > 1 || step > 0),
        factor > 1 && low == 0,
    )?;
    let next = |&at: &u64| match factor {
        1 => at.checked_add(step),
        _ => at.checked_mul(factor),
    };
    let values = std::iter::successors(Some(low), next).take_while(|&at| at <= high);
    limited(
        values
            .take(MAX_VALUES + 1)
            .map(|at| at.to_string())
            .collect(),
    )
}

fn real_range(low: f64, high: f64, step: f64, factor: f64) -> Result<Vec<String>, String> {
    let moves = if factor == 1.0 {
        step > 0.0
    } else {
        factor > 1.0
    };
    check(low <= high, moves, factor > 1.0 && low <= 0.0)?;
    let at = |k: i32| match factor {
        1.0 => low + step * f64::from(k),
        _ => low * factor.powi(k),
    };
    // The end is met although fractions add up to a little more or less.
    let end = high * (1.0 + 1e-9);
    let short = |value: f64| {
        let text = format!("{value:.9}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let values = (0..=MAX_VALUES as i32)
        .map(at)
        .take_while(|&value| value <= end);
    limited(values.map(short).collect())
}

fn check(ordered: bool, moves: bool, stuck: bool) -> Result<(), String> {
    match (ordered, moves, stuck) {
        (false, ..) => Err("the range ends before it begins".to_owned()),
        (_, false, _) => {
            Err("the range never moves: a step above 0 or a factor above 1".to_owned())
        }
        (_, _, true) => Err("a range with a factor cannot begin at 0".to_owned()),
        _ => Ok(()),
    }
}

fn limited(values: Vec<String>) -> Result<Vec<String>, String> {
    match values.len() > MAX_VALUES {
        true => Err(format!("more than {MAX_VALUES} values")),
        false => Ok(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<String> {
        Axis::parse(text).expect("axis").values
    }

    #[test]
    fn lists_ranges_and_factors() {
        assert_eq!(values("a.b=1,2,4"), ["1", "2", "4"]);
        assert_eq!(values("a.b=3..6"), ["3", "4", "5", "6"]);
        assert_eq!(values("a.b=0..100+25"), ["0", "25", "50", "75", "100"]);
        assert_eq!(
            values("a.b=1..64*2"),
            ["1", "2", "4", "8", "16", "32", "64"]
        );
        assert_eq!(values("a.b=1..50*10"), ["1", "10"]);
        assert_eq!(
            values("host_speed=0.8..1.1+0.1"),
            ["0.8", "0.9", "1", "1.1"]
        );
        assert_eq!(values("fsdp=v1, v2"), ["v1", "v2"]);
        assert_eq!(
            values("a.b=1e6,2.5e3,1e-3,hence"),
            ["1000000", "2500", "1e-3", "hence"]
        );
        assert_eq!(
            values("a.b=1e6..1e8*10"),
            ["1000000", "10000000", "100000000"]
        );
        assert_eq!(values("a.b=[1, 2],[3]"), ["[1, 2]", "[3]"]);
    }

    #[test]
    fn what_is_no_axis_is_refused_with_the_reason() {
        for (text, reason) in [
            ("num_layers", "expected KEY=VALUES"),
            ("layers=2", "section.field"),
            ("=2", "missing"),
            ("a.b=", "empty"),
            ("a.b=1,,2", "empty"),
            ("a.b=1,1", "twice"),
            ("a.b=4..1", "ends before"),
            ("a.b=1..4+0", "never moves"),
            ("a.b=1..4*1", "value"),
            ("a.b=0..4*2", "begin at 0"),
            ("a.b=1..1000000", "more than"),
        ] {
            match Axis::parse(text) {
                Err(error) => assert!(error.to_string().contains(reason), "{text}: {error}"),
                // A factor of 1 with the default step is a plain range.
                Ok(axis) => assert_eq!((text, axis.values.len()), ("a.b=1..4*1", 4)),
            }
        }
    }
}
