//! Aligns two sequences of names with the fewest insertions and deletions (Myers 1986).

/// Pairs of equal elements, in order: indices into `expected` and `recorded`.
///
/// Time and memory grow with the length times the number of differences, of which at most
/// `max_differences` are tried; beyond that the pairs found so far on the best path are returned.
pub fn align<T: PartialEq>(
    expected: &[T],
    recorded: &[T],
    max_differences: usize,
) -> Vec<(usize, usize)> {
    let (n, m) = (expected.len() as isize, recorded.len() as isize);
    let max = (max_differences as isize).min(n + m);
    let offset = max + 1;
    let mut furthest = vec![0isize; 2 * offset as usize + 1];
    let mut history: Vec<Vec<isize>> = Vec::new();
    for differences in 0..=max {
        history.push(furthest.clone());
        let mut diagonal = -differences;
        while diagonal <= differences {
            let at = (diagonal + offset) as usize;
            let down = diagonal == -differences
                || (diagonal != differences && furthest[at - 1] < furthest[at + 1]);
            let mut x = if down {
                furthest[at + 1]
            } else {
                furthest[at - 1] + 1
            };
            let mut y = x - diagonal;
            while x < n && y < m && expected[x as usize] == recorded[y as usize] {
                x += 1;
                y += 1;
            }
            furthest[at] = x;
            if x >= n && y >= m {
                return backtrack(&history, offset, n, m);
            }
            diagonal += 2;
        }
    }
    // Too different: keep the path that got furthest.
    let best = (-max..=max)
        .step_by(1)
        .map(|k| (furthest[(k + offset) as usize], k))
        .filter(|&(x, k)| x <= n && x - k <= m && x >= 0 && x - k >= 0)
        .max_by_key(|&(x, k)| 2 * x - k);
    match best {
        Some((x, k)) if (max + k) % 2 == 0 => backtrack(&history, offset, x, x - k),
        _ => Vec::new(),
    }
}

/// Walks the path back from `(x, y)`, collecting the diagonal steps.
fn backtrack(
    history: &[Vec<isize>],
    offset: isize,
    mut x: isize,
    mut y: isize,
) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    for (differences, furthest) in history.iter().enumerate().rev() {
        let differences = differences as isize;
        let diagonal = x - y;
        let at = (diagonal + offset) as usize;
        let down = diagonal == -differences
            || (diagonal != differences && furthest[at - 1] < furthest[at + 1]);
        let previous = if down { diagonal + 1 } else { diagonal - 1 };
        let previous_x = furthest[(previous + offset) as usize];
        let previous_y = previous_x - previous;
        while x > previous_x && y > previous_y && x > 0 && y > 0 {
            x -= 1;
            y -= 1;
            pairs.push((x as usize, y as usize));
        }
        if differences == 0 {
            break;
        }
        (x, y) = (previous_x, previous_y);
    }
    pairs.reverse();
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn align_text(a: &str, b: &str) -> String {
        let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
        align(&a, &b, 100).into_iter().map(|(i, _)| a[i]).collect()
    }

    #[test]
    fn equal_sequences_pair_fully() {
        assert_eq!(
            align(&[1, 2, 3], &[1, 2, 3], 10),
            vec![(0, 0), (1, 1), (2, 2)]
        );
    }

    #[test]
    fn an_insertion_and_a_deletion_are_skipped() {
        assert_eq!(align_text("abcdef", "abxcdf"), "abcdf");
        assert_eq!(align_text("abc", ""), "");
        assert_eq!(align_text("", "abc"), "");
    }

    #[test]
    fn the_classic_example_has_a_common_subsequence_of_four() {
        assert_eq!(align_text("abcabba", "cbabac").len(), 4);
    }
}
