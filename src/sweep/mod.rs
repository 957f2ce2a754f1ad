//! The same question over a grid of configurations.
//!
//! A grid is the product of its axes, the last varying fastest; its points are numbered from 0. A
//! shard `I/N` is every `N`-th point, so that parts of one grid can run on different machines and be
//! joined again. A point depends on nothing but its number and the grid, so neither the number of
//! threads nor a stop in between shows in the result.

mod axis;
mod evaluate;
mod merge;

use thiserror::Error;

pub use axis::{Axis, HOST_SPEED, IMPLEMENTATION};
pub use evaluate::Sweep;
pub use merge::{MergeError, merge};

/// Figures of a point, in the order of the columns; durations in nanoseconds.
pub const FIGURES: [&str; 10] = [
    "step_ns",
    "host_ns",
    "launch_ns",
    "exposed_communication_ns",
    "hidden_communication_ns",
    "device_wait_ns",
    "device_busy_ns",
    "device_idle_ns",
    "kernels",
    "collectives",
];

/// Most points of a grid: a slip of the pen should not fill a disk.
pub const MAX_POINTS: u64 = 10_000_000;

/// One point of a grid with its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Number of the point.
    pub point: u64,
    /// Value of each axis.
    pub values: Vec<String>,
    /// Figures, or why this configuration cannot be.
    pub result: Result<[u64; FIGURES.len()], String>,
}

/// Rows of one grid: all of them, or a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweepFile {
    /// Fingerprint of the grid.
    pub grid: String,
    /// Points of the grid.
    pub points: u64,
    /// Keys of its axes.
    pub keys: Vec<String>,
    /// Rows, in the order of the grid where nothing else is said.
    pub rows: Vec<Row>,
}

/// A grid that is none.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SweepError {
    /// An axis that cannot be read.
    #[error("`--vary {given}`: {reason}")]
    Axis {
        /// What was given.
        given: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A key that is given twice.
    #[error("`{0}` is varied twice")]
    Twice(String),
    /// No axis at all.
    #[error("there is nothing to vary; give `--vary KEY=VALUES`")]
    Nothing,
    /// Too many points.
    #[error("the grid has more than {MAX_POINTS} points")]
    TooLarge,
    /// A shard that cannot be.
    #[error("`{0}` is no shard: expected I/N with I from 1 to N")]
    Shard(String),
}

/// A part of a grid: every `of`-th point from `index` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// From 0.
    pub index: u64,
    /// How many parts there are.
    pub of: u64,
}

impl Shard {
    /// The whole grid.
    pub const ALL: Shard = Shard { index: 0, of: 1 };

    /// Reads `I/N`, counted from 1.
    ///
    /// # Errors
    /// [`SweepError::Shard`].
    pub fn parse(text: &str) -> Result<Self, SweepError> {
        let bad = || SweepError::Shard(text.to_owned());
        let (index, of) = text.split_once('/').ok_or_else(bad)?;
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| bad());
        let (index, of) = (number(index)?, number(of)?);
        if index == 0 || index > of {
            return Err(bad());
        }
        Ok(Shard {
            index: index - 1,
            of,
        })
    }
}

/// The product of axes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    /// Axes, the last varying fastest.
    pub axes: Vec<Axis>,
    points: u64,
}

impl Grid {
    /// The product of `axes`.
    ///
    /// # Errors
    /// [`SweepError`]: no axis, one key twice, too many points.
    pub fn new(axes: Vec<Axis>) -> Result<Self, SweepError> {
        if axes.is_empty() {
            return Err(SweepError::Nothing);
        }
        for (index, axis) in axes.iter().enumerate() {
            if axes[..index].iter().any(|other| other.key == axis.key) {
                return Err(SweepError::Twice(axis.key.clone()));
            }
        }
        let points = axes
            .iter()
            .try_fold(1u64, |all, axis| all.checked_mul(axis.values.len() as u64))
            .filter(|&points| points <= MAX_POINTS)
            .ok_or(SweepError::TooLarge)?;
        Ok(Grid { axes, points })
    }

    /// How many points there are.
    pub fn points(&self) -> u64 {
        self.points
    }

    /// Numbers of the points of a shard, ascending.
    pub fn shard(&self, shard: Shard) -> impl Iterator<Item = u64> {
        (shard.index..self.points).step_by(usize::try_from(shard.of).unwrap_or(usize::MAX))
    }

    /// The value of each axis at a point.
    pub fn values(&self, point: u64) -> Vec<&str> {
        let mut rest = point;
        let mut values: Vec<&str> = self
            .axes
            .iter()
            .rev()
            .map(|axis| {
                let len = axis.values.len() as u64;
                let value = &axis.values[(rest % len) as usize];
                rest /= len;
                value.as_str()
            })
            .collect();
        values.reverse();
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let axes = ["a.x=1,2", "b.y=7..9"].map(|text| Axis::parse(text).expect("axis"));
        Grid::new(axes.to_vec()).expect("grid")
    }

    #[test]
    fn the_last_axis_varies_fastest() {
        let grid = grid();
        let all: Vec<Vec<&str>> = (0..grid.points()).map(|point| grid.values(point)).collect();
        assert_eq!(
            all,
            [
                ["1", "7"],
                ["1", "8"],
                ["1", "9"],
                ["2", "7"],
                ["2", "8"],
                ["2", "9"]
            ]
        );
    }

    #[test]
    fn shards_part_the_grid() {
        let grid = grid();
        let part =
            |text: &str| -> Vec<u64> { grid.shard(Shard::parse(text).expect("shard")).collect() };
        assert_eq!(part("1/4"), [0, 4]);
        assert_eq!(part("4/4"), [3]);
        let mut all: Vec<u64> = (1..=4).flat_map(|i| part(&format!("{i}/4"))).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4, 5]);
        for bad in ["0/4", "5/4", "1", "a/b", "1/0"] {
            assert!(Shard::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn grids_that_cannot_be_are_refused() {
        let axis = |text: &str| Axis::parse(text).expect("axis");
        assert_eq!(Grid::new(vec![]), Err(SweepError::Nothing));
        let twice = Grid::new(vec![axis("a.x=1"), axis("a.x=2")]);
        assert_eq!(twice, Err(SweepError::Twice("a.x".to_owned())));
        let large = ["a.a", "a.b"].map(|key| axis(&format!("{key}=1..4000")));
        assert_eq!(Grid::new(large.to_vec()), Err(SweepError::TooLarge));
    }
}
