//! Non-negative least squares for small, sparse systems.

/// An equation: weighted terms (unknown, coefficient) that sum to a value.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Unknown and coefficient.
    pub terms: Vec<(usize, f64)>,
    /// Right-hand side.
    pub value: f64,
    /// Weight of the squared residual.
    pub weight: f64,
}

/// Sweeps of coordinate descent at most.
const SWEEPS: usize = 5_000;
/// Change of an unknown, relative to the largest, at which the solution has settled.
const SETTLED: f64 = 1e-7;

/// Solves `min sum w (terms·x - value)² + ridge · sum c·x²` with `x >= 0` by cyclic coordinate descent,
/// where `c` is an unknown's curvature, the weighted sum of its squared coefficients.
///
/// The objective is convex, so the limit does not depend on the order; the ridge picks one solution
/// where the equations leave a choice.
pub fn solve(rows: &[Row], unknowns: usize, ridge: f64) -> Vec<f64> {
    let mut columns: Vec<Vec<(usize, f64)>> = vec![Vec::new(); unknowns];
    for (index, row) in rows.iter().enumerate() {
        for &(unknown, coefficient) in &row.terms {
            columns[unknown].push((index, coefficient));
        }
    }
    let curvature: Vec<f64> = columns
        .iter()
        .map(|column| {
            column
                .iter()
                .map(|&(row, c)| rows[row].weight * c * c)
                .sum::<f64>()
        })
        .collect();
    let mut x = vec![0.0; unknowns];
    let mut residual: Vec<f64> = rows.iter().map(|row| row.value).collect();
    for _ in 0..SWEEPS {
        let mut moved: f64 = 0.0;
        for unknown in 0..unknowns {
            if curvature[unknown] <= 0.0 {
                continue;
            }
            let gradient: f64 = columns[unknown]
                .iter()
                .map(|&(row, c)| rows[row].weight * c * residual[row])
                .sum();
            let scale = curvature[unknown] * (1.0 + ridge);
            let target = (x[unknown] * curvature[unknown] + gradient) / scale;
            let step = target.max(0.0) - x[unknown];
            if step != 0.0 {
                x[unknown] += step;
                for &(row, c) in &columns[unknown] {
                    residual[row] -= c * step;
                }
                moved = moved.max(step.abs());
            }
        }
        let largest = x.iter().copied().fold(0.0, f64::max);
        if moved <= SETTLED * largest {
            break;
        }
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(terms: &[(usize, f64)], value: f64) -> Row {
        Row {
            terms: terms.to_vec(),
            value,
            weight: 1.0,
        }
    }

    #[test]
    fn base_and_slope_are_recovered() {
        let rows: Vec<Row> = [3.0, 11.0, 12.0, 32.0]
            .iter()
            .map(|&n| row(&[(0, 1.0), (1, n)], 40.0 + 7.0 * n))
            .collect();
        let x = solve(&rows, 2, 0.0);
        assert!(
            (x[0] - 40.0).abs() < 0.1 && (x[1] - 7.0).abs() < 0.01,
            "{x:?}"
        );
    }

    #[test]
    fn a_negative_solution_becomes_zero() {
        let x = solve(&[row(&[(0, 1.0)], -5.0), row(&[(1, 1.0)], 2.0)], 2, 0.0);
        assert_eq!(x[0], 0.0);
        assert!((x[1] - 2.0).abs() < 1e-6);
    }
}
