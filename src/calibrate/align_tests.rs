//! Properties of the alignment, against the textbook's longest common subsequence.

use proptest::prelude::*;

use super::align;

/// Length of the longest common subsequence, by dynamic programming.
fn longest(a: &[u8], b: &[u8]) -> usize {
    let mut best = vec![0; b.len() + 1];
    for x in a {
        let mut diagonal = 0;
        for (j, y) in b.iter().enumerate() {
            let above = best[j + 1];
            best[j + 1] = if x == y {
                diagonal + 1
            } else {
                above.max(best[j])
            };
            diagonal = above;
        }
    }
    best[b.len()]
}

fn words() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(0u8..4, 0..30)
}

proptest! {
    #[test]
    fn pairs_are_equal_elements_in_order(a in words(), b in words(), limit in 0usize..80) {
        let pairs = align(&a, &b, limit);
        for &(i, j) in &pairs {
            prop_assert_eq!(a[i], b[j]);
        }
        prop_assert!(pairs.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 < w[1].1));
    }

    #[test]
    fn as_many_pair_as_can(a in words(), b in words()) {
        prop_assert_eq!(align(&a, &b, a.len() + b.len()).len(), longest(&a, &b));
    }

    #[test]
    fn enough_differences_are_those_that_there_are(a in words(), b in words()) {
        let differences = a.len() + b.len() - 2 * longest(&a, &b);
        prop_assert_eq!(align(&a, &b, differences).len(), longest(&a, &b));
    }

    #[test]
    fn a_lost_element_costs_one_pair(a in words(), at in any::<prop::sample::Index>()) {
        prop_assume!(!a.is_empty());
        let mut shorter = a.clone();
        shorter.remove(at.index(a.len()));
        prop_assert_eq!(align(&a, &shorter, 1).len(), shorter.len());
    }
}

#[test]
fn beyond_the_limit_what_was_found_is_kept() {
    // The same beginning, then nothing in common.
    let (a, b) = ([1, 2, 3, 4, 5, 6], [1, 2, 3, 7, 8, 9]);
    let pairs = align(&a, &b, 2);
    assert_eq!(pairs, [(0, 0), (1, 1), (2, 2)]);
}
