//! Properties of the non-negative least squares: feasible, optimal, and right where the answer is
//! known.

use proptest::prelude::*;

use super::nnls::{Row, solve};

const UNKNOWNS: usize = 4;

/// Rows of small whole coefficients with each unknown also alone in one row, so that the system is
/// well conditioned.
fn rows() -> impl Strategy<Value = Vec<Row>> {
    let term = (0..UNKNOWNS, 1u32..5).prop_map(|(unknown, c)| (unknown, f64::from(c)));
    let row = (
        proptest::collection::btree_map(0..UNKNOWNS, 1u32..5, 1..3),
        -50i32..200,
        1u32..4,
    )
        .prop_map(|(terms, value, weight)| Row {
            terms: terms.into_iter().map(|(u, c)| (u, f64::from(c))).collect(),
            value: f64::from(value),
            weight: f64::from(weight),
        });
    let single = (term, -50i32..200).prop_map(|(term, value)| Row {
        terms: vec![term],
        value: f64::from(value),
        weight: 1.0,
    });
    (
        proptest::collection::vec(row, 0..8),
        proptest::collection::vec(single, 0..3),
    )
        .prop_map(|(mut rows, singles)| {
            rows.extend(singles);
            rows.extend((0..UNKNOWNS).map(|unknown| Row {
                terms: vec![(unknown, 2.0)],
                value: 20.0,
                weight: 1.0,
            }));
            rows
        })
}

/// Half of the objective's gradient.
fn gradient(rows: &[Row], x: &[f64]) -> Vec<f64> {
    let mut gradient = vec![0.0; x.len()];
    for row in rows {
        let residual = row.terms.iter().map(|&(u, c)| c * x[u]).sum::<f64>() - row.value;
        for &(unknown, c) in &row.terms {
            gradient[unknown] += row.weight * c * residual;
        }
    }
    gradient
}

proptest! {
    #[test]
    fn the_solution_is_feasible_and_no_direction_improves_it(rows in rows()) {
        let x = solve(&rows, UNKNOWNS, 0.0);
        for (value, slope) in x.iter().zip(gradient(&rows, &x)) {
            prop_assert!(*value >= 0.0);
            // Steps below 1e-3 end the descent; curvatures are below a thousand.
            prop_assert!(slope > -1.0, "going up would help: {slope}");
            prop_assert!(*value == 0.0 || slope < 1.0, "going down would help: {slope}");
        }
    }

    #[test]
    fn exact_equations_give_their_solution(
        rows in rows(),
        planted in proptest::collection::vec(0u32..100, UNKNOWNS),
    ) {
        let exact: Vec<Row> = rows
            .into_iter()
            .map(|mut row| {
                row.value = row.terms.iter().map(|&(u, c)| c * f64::from(planted[u])).sum();
                row
            })
            .collect();
        for (found, planted) in solve(&exact, UNKNOWNS, 0.0).iter().zip(&planted) {
            prop_assert!((found - f64::from(*planted)).abs() < 0.1, "{found} {planted}");
        }
    }

    #[test]
    fn the_order_of_the_equations_does_not_matter(rows in rows()) {
        let reversed: Vec<Row> = rows.iter().rev().cloned().collect();
        let (a, b) = (solve(&rows, UNKNOWNS, 0.0), solve(&reversed, UNKNOWNS, 0.0));
        for (a, b) in a.iter().zip(b) {
            prop_assert!((a - b).abs() < 0.1, "{a} {b}");
        }
    }
}

#[test]
fn an_unknown_without_an_equation_is_zero() {
    let row = Row {
        terms: vec![(1, 1.0)],
        value: 3.0,
        weight: 1.0,
    };
    assert_eq!(solve(&[row], 3, 0.0), [0.0, 3.0, 0.0]);
}

#[test]
fn a_ridge_shrinks_and_a_weight_decides() {
    let row = |value: f64, weight: f64| Row {
        terms: vec![(0, 1.0)],
        value,
        weight,
    };
    let ridge = solve(&[row(10.0, 1.0)], 1, 0.25);
    assert!((ridge[0] - 8.0).abs() < 1e-2, "10 / (1 + 0.25): {ridge:?}");
    let mean = solve(&[row(0.0, 1.0), row(12.0, 3.0)], 1, 0.0);
    assert!((mean[0] - 9.0).abs() < 1e-2, "the weighted mean: {mean:?}");
}
