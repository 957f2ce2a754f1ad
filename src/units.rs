//! Units: integer nanoseconds inside, milliseconds and gigabytes only at the edge.

/// Simulated time or a duration, in integer nanoseconds. All simulated time has this type, so that
/// the same inputs give the same bytes on every machine and no epsilon is ever needed.
pub type Ns = u64;

/// Nanoseconds in a microsecond.
pub const NS_PER_US: f64 = 1e3;
/// Nanoseconds in a millisecond.
pub const NS_PER_MS: f64 = 1e6;

/// Rounds microseconds to integer nanoseconds; negative and non-finite values become 0.
pub fn ns_from_us(us: f64) -> Ns {
    if us.is_finite() && us > 0.0 {
        (us * NS_PER_US).round() as Ns
    } else {
        0
    }
}

/// Milliseconds of a duration, for people.
pub fn ms(ns: Ns) -> f64 {
    ns as f64 / NS_PER_MS
}
