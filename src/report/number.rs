//! Numbers for people: three significant digits, the unit said once in the header.

use crate::units::{NS_PER_MS, Ns};

/// Three significant digits, never in exponential form and never more than three decimals: `252`,
/// `13.3`, `0.463`, `0.002`, `0`.
pub fn three_digits(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let mut decimals = 0;
    if value != 0.0 {
        // The exponent of the value rounded to three digits: 99.96 has three digits before the dot.
        let text = format!("{:.2e}", value.abs());
        let exponent: i32 = text
            .split_once('e')
            .and_then(|(_, exponent)| exponent.parse().ok())
            .unwrap_or(0);
        decimals = (2 - exponent).clamp(0, 3) as usize;
    }
    let text = format!("{value:.decimals$}");
    // A negative value that rounds to nothing.
    if text.trim_matches(['-', '0', '.']).is_empty() {
        return "0".to_owned();
    }
    text
}

/// A duration in milliseconds to three digits.
pub fn ms(ns: Ns) -> String {
    three_digits(ns as f64 / NS_PER_MS)
}

/// A difference in milliseconds to three digits, with its sign.
pub fn signed_ms(ns: f64) -> String {
    let text = three_digits(ns / NS_PER_MS);
    match text.starts_with('-') || text == "0" {
        true => text,
        false => format!("+{text}"),
    }
}

/// A percentage with one decimal.
pub fn percent(value: f64) -> String {
    let text = format!("{value:.1}");
    if text == "-0.0" {
        "0.0".to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_whatever_the_size() {
        let told = [
            252.34, 99.96, 13.26, 9.999, 0.4634, 0.000_12, 0.0, -5.556, 12_345.0,
        ];
        let said = told.map(three_digits);
        assert_eq!(
            said,
            [
                "252", "100", "13.3", "10.0", "0.463", "0", "0", "-5.56", "12345"
            ]
        );
        assert_eq!(three_digits(f64::NAN), "-");
        assert_eq!(three_digits(-1e-9), "0");
    }

    #[test]
    fn differences_carry_their_sign() {
        assert_eq!(signed_ms(1.5e6), "+1.50");
        assert_eq!(signed_ms(-2_500.0), "-0.003");
        assert_eq!(signed_ms(0.0), "0");
        assert_eq!(
            (percent(-0.01), percent(18.44)),
            ("0.0".into(), "18.4".into())
        );
    }
}
