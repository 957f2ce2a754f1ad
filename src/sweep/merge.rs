//! Joins the parts of a grid and checks that they are all of it.

use std::collections::BTreeMap;

use thiserror::Error;

use super::{Row, SweepFile};

/// Parts that do not make a whole.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MergeError {
    /// A part of another grid.
    #[error(
        "{file} is a part of another sweep than {first}: spec, calibration, keys, values or version \
         differ"
    )]
    Foreign {
        /// The part.
        file: String,
        /// The first part.
        first: String,
    },
    /// A point in two places.
    #[error("point {point} is in {first} and again in {second}")]
    Doubled {
        /// The point.
        point: u64,
        /// Where it was first.
        first: String,
        /// Where it is again.
        second: String,
    },
    /// Points in no part.
    #[error("{missing} of {points} points are missing, the first of them {first}")]
    Missing {
        /// How many.
        missing: u64,
        /// Points of the grid.
        points: u64,
        /// First of them.
        first: u64,
    },
    /// No part at all.
    #[error("there is no part to merge")]
    Nothing,
}

/// Joins named parts; the rows come in the order of the grid.
///
/// # Errors
/// [`MergeError`] for foreign, doubled or missing parts.
pub fn merge(parts: Vec<(String, SweepFile)>) -> Result<SweepFile, MergeError> {
    let mut rows: BTreeMap<u64, (Row, usize)> = BTreeMap::new();
    let names: Vec<String> = parts.iter().map(|(name, _)| name.clone()).collect();
    let mut whole: Option<SweepFile> = None;
    for (index, (name, part)) in parts.into_iter().enumerate() {
        let SweepFile {
            grid,
            points,
            keys,
            rows: own,
        } = part;
        let first = whole.get_or_insert_with(|| SweepFile {
            grid: grid.clone(),
            points,
            keys: keys.clone(),
            rows: Vec::new(),
        });
        if (&first.grid, first.points, &first.keys) != (&grid, points, &keys) {
            return Err(MergeError::Foreign {
                file: name,
                first: names[0].clone(),
            });
        }
        for row in own {
            let point = row.point;
            if let Some((_, earlier)) = rows.insert(point, (row, index)) {
                return Err(MergeError::Doubled {
                    point,
                    first: names[earlier].clone(),
                    second: name,
                });
            }
        }
    }
    let mut whole = whole.ok_or(MergeError::Nothing)?;
    let missing = whole.points.saturating_sub(rows.len() as u64);
    if missing > 0 {
        let first = (0..whole.points).find(|point| !rows.contains_key(point));
        return Err(MergeError::Missing {
            missing,
            points: whole.points,
            first: first.unwrap_or(0),
        });
    }
    whole.rows = rows.into_values().map(|(row, _)| row).collect();
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(grid: &str, points: &[u64]) -> SweepFile {
        let row = |&point: &u64| Row {
            point,
            values: vec![point.to_string()],
            result: Err("none".to_owned()),
        };
        SweepFile {
            grid: grid.to_owned(),
            points: 4,
            keys: vec!["a.x".to_owned()],
            rows: points.iter().map(row).collect(),
        }
    }

    fn merged(parts: &[SweepFile]) -> Result<Vec<u64>, MergeError> {
        let named = parts.iter().cloned().zip(["a.csv", "b.csv", "c.csv"]);
        let named = named.map(|(part, name)| (name.to_owned(), part)).collect();
        merge(named).map(|file| file.rows.iter().map(|row| row.point).collect())
    }

    #[test]
    fn parts_come_together_in_the_order_of_the_grid() {
        assert_eq!(
            merged(&[part("g", &[1, 3]), part("g", &[0, 2])]),
            Ok(vec![0, 1, 2, 3])
        );
    }

    #[test]
    fn missing_doubled_and_foreign_parts_are_refused() {
        let missing = merged(&[part("g", &[0, 2]), part("g", &[1])]);
        assert_eq!(
            missing,
            Err(MergeError::Missing {
                missing: 1,
                points: 4,
                first: 3
            })
        );
        let doubled = merged(&[part("g", &[0, 1]), part("g", &[2, 3]), part("g", &[1])]);
        let names = ("a.csv".to_owned(), "c.csv".to_owned());
        assert_eq!(
            doubled,
            Err(MergeError::Doubled {
                point: 1,
                first: names.0,
                second: names.1
            })
        );
        let foreign = merged(&[part("g", &[0, 1]), part("h", &[2, 3])]);
        assert!(matches!(foreign, Err(MergeError::Foreign { file, .. }) if file == "b.csv"));
        assert_eq!(merged(&[]), Err(MergeError::Nothing));
    }
}
