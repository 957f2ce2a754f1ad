//! "Did you mean": the known name closest to a misspelt one.

/// The candidate with the smallest edit distance to `word`, if it is close enough to be meant: at
/// most a third of the longer one's length, or one a prefix of the other.
///
/// ```
/// use fsdpsim::spec::closest;
/// assert_eq!(closest("num_layer", ["num_layers", "hidden_size"]), Some("num_layers"));
/// assert_eq!(closest("colour", ["num_layers", "hidden_size"]), None);
/// ```
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| {
            let longer = word.chars().count().max(candidate.chars().count());
            let prefix = word.len() >= 3
                && (candidate.to_lowercase().starts_with(&word) || word.starts_with(candidate));
            *distance * 3 <= longer || prefix
        })
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance, with a swap of neighbours counted as one edit.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before_last[j - 2] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_single_edits() {
        assert_eq!(distance("bucket", "bucket"), 0);
        assert_eq!(distance("bucet", "bucket"), 1);
        assert_eq!(distance("buckte", "bucket"), 1);
        assert_eq!(distance("", "abc"), 3);
    }

    #[test]
    fn a_misspelt_key_finds_its_neighbour_and_a_foreign_one_finds_none() {
        let keys = ["bucket_size", "overlap_grad_reduce", "nccl_ub"];
        assert_eq!(closest("bucketsize", keys), Some("bucket_size"));
        assert_eq!(closest("overlap", keys), Some("overlap_grad_reduce"));
        assert_eq!(closest("wavelength", keys), None);
    }
}
