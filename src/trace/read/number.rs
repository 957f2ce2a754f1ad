//! Numbers of a trace. Times go from decimal text to integer nanoseconds: a double cannot hold
//! microseconds since 1970 to the nanosecond.

/// Powers of ten that a time may be scaled by.
const POWERS: [i128; 22] = {
    let mut powers = [1; 22];
    let mut index = 1;
    while index < powers.len() {
        powers[index] = powers[index - 1] * 10;
        index += 1;
    }
    powers
};

/// A decimal number of microseconds as nanoseconds, rounded to the nearest. `None` if it is no
/// finite number or does not fit.
pub(super) fn ns_from_us(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    // Up to 15 whole digits of microseconds and three decimals: all that real files hold.
    let mut whole: i64 = 0;
    let mut at = 0;
    while let Some(digit @ b'0'..=b'9') = digits.get(at) {
        if at == 15 {
            return slow(negative, digits);
        }
        whole = whole * 10 + i64::from(digit - b'0');
        at += 1;
    }
    let mut ns = whole * 1000;
    match digits.get(at) {
        None if at > 0 => {}
        Some(b'.') if at > 0 => {
            let fraction = &digits[at + 1..];
            if fraction.is_empty() || fraction.len() > 3 {
                return slow(negative, digits);
            }
            let mut scale = 100;
            for digit in fraction {
                if !digit.is_ascii_digit() {
                    return slow(negative, digits);
                }
                ns += i64::from(digit - b'0') * scale;
                scale /= 10;
            }
        }
        _ => return slow(negative, digits),
    }
    Some(if negative { -ns } else { ns })
}

/// Any decimal number: more digits, an exponent.
fn slow(negative: bool, digits: &[u8]) -> Option<i64> {
    let split = digits
        .iter()
        .position(|byte| matches!(byte, b'e' | b'E'))
        .unwrap_or(digits.len());
    let exponent: i32 = match digits.get(split + 1..) {
        None | Some([]) if split < digits.len() => return None,
        None => 0,
        Some(text) => std::str::from_utf8(text).ok()?.parse().ok()?,
    };
    let (mut value, mut decimals, mut seen_dot, mut any) = (0i128, 0i32, false, false);
    for &byte in &digits[..split] {
        match byte {
            b'0'..=b'9' => {
                any = true;
                // Digits beyond 30 cannot matter: the value would not fit, or they are far decimals.
                if value < POWERS[21] * 1_000_000_000 {
                    value = value * 10 + i128::from(byte - b'0');
                    decimals = decimals.saturating_add(i32::from(seen_dot));
                } else if !seen_dot {
                    return None;
                }
            }
            b'.' if !seen_dot => seen_dot = true,
            _ => return None,
        }
    }
    if !any {
        return None;
    }
    let shift = 3i32.saturating_add(exponent).saturating_sub(decimals);
    let ns = if value == 0 {
        0
    } else if shift >= 0 {
        value.checked_mul(*POWERS.get(shift as usize)?)?
    } else {
        match POWERS.get(shift.unsigned_abs() as usize) {
            Some(&divisor) => (value + divisor / 2) / divisor,
            None if shift > -40 => {
                let divisor = POWERS[21] * POWERS[(shift.unsigned_abs() as usize - 21).min(16)];
                (value + divisor / 2) / divisor
            }
            None => 0,
        }
    };
    i64::try_from(if negative { -ns } else { ns }).ok()
}

/// A whole number; a fraction of zeros is allowed.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut value: i64 = 0;
    for (index, &byte) in digits.iter().enumerate() {
        match byte {
            b'0'..=b'9' => {
                value = value.checked_mul(10)?.checked_add(i64::from(byte - b'0'))?;
            }
            b'.' if index > 0 && digits[index + 1..].iter().all(|&byte| byte == b'0') => break,
            _ => return None,
        }
    }
    (!digits.is_empty()).then_some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact_to_the_nanosecond() {
        let cases: [(&str, i64); 14] = [
            ("0", 0),
            ("0.001", 1),
            ("1.5", 1_500),
            ("-2.25", -2_250),
            ("5247983967192.735", 5_247_983_967_192_735),
            // Microseconds since 1970 with a fraction: a double would be off by up to 128 ns.
            ("1790857026000000.001", 1_790_857_026_000_000_001),
            ("1790857026123456.7891", 1_790_857_026_123_456_789),
            ("0.0004", 0),
            ("0.0005", 1),
            ("1e3", 1_000_000),
            ("1.25E-2", 13),
            ("9223372036854775.807", i64::MAX),
            ("00012.000000000000000000000000000000000001", 12_000),
            ("0e999999", 0),
        ];
        for (text, ns) in cases {
            assert_eq!(ns_from_us(text.as_bytes()), Some(ns), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "-",
            ".",
            "NaN",
            "Infinity",
            "1e",
            "1e400",
            "12x",
            "1.2.3",
            "null",
            "true",
            "--1",
            "9223372036854775.808",
            "99999999999999999999999999999999999999999999",
        ] {
            assert_eq!(ns_from_us(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn integers() {
        assert_eq!(integer(b"-1"), Some(-1));
        assert_eq!(integer(b"7.0"), Some(7));
        for text in ["", "-", "7.5", "1e3", "x", "99999999999999999999"] {
            assert_eq!(integer(text.as_bytes()), None, "{text}");
        }
    }
}
