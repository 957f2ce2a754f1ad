//! Flat buffers: where the tensors of a bucket or group lie, and what part of each a rank owns.
//!
//! A buffer is cut into equal shards, one a rank, at multiples of a chunk: the least common multiple
//! of the tensors' row sizes, so that no row is split. Tensors that are not a multiple of the chunk
//! leave a gap, which a second such tensor or a small one fills:
//!
//! ```text
//! chunk 12, shapes (2,6) (4,4) (4,4) (1,2) (1,6), 5 ranks
//! | 0 0 0 0 0 0 0 0 0 0 0 0 | 1 1 1 1 1 1 1 1 1 1 1 1 | 1 1 1 1 3 3 . . 2 2 2 2 | 2 ... 2 | 4 4 4 4 4 4 pad |
//! ```
//!
//! Versions 1 and 2 lay tensors out almost alike; the differences (order of tensors, order and
//! alignment of small ones) are stated where they are made.

use std::ops::Range;

/// Where tensors lie in a flat buffer, in elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatLayout {
    /// Start of each tensor, in the order of the shapes given.
    pub offsets: Vec<u64>,
    /// Elements of each tensor.
    pub numels: Vec<u64>,
    /// Elements of the buffer, padding included: a multiple of `chunk` times the number of shards.
    pub size: u64,
    /// Granularity of the cut.
    pub chunk: u64,
}

/// A tensor to place: elements, and elements of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tensor {
    /// Elements.
    pub numel: u64,
    /// Elements that follow the first dimension.
    pub row: u64,
}

/// Which implementation lays out the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// `build_data_parallel_buffer_index`: small tensors in the order given, not aligned.
    V1,
    /// `GlobalLayout.build`: small tensors by size, aligned to their rows.
    V2,
}

impl FlatLayout {
    /// Lays out `tensors` for `shards` equal shards with the given chunk.
    pub fn build(tensors: &[Tensor], shards: u64, chunk: u64, rules: Rules) -> FlatLayout {
        let mut offsets = vec![0; tensors.len()];
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..tensors.len()).partition(|&index| tensors[index].numel < chunk);
        if rules == Rules::V2 {
            small.sort_by_key(|&index| std::cmp::Reverse(tensors[index].numel));
        }
        let align = |offset: u64, index: usize| match rules {
            Rules::V1 => offset,
            Rules::V2 => offset.next_multiple_of(tensors[index].row),
        };
        let mut next = 0;
        while !large.is_empty() {
            let index = large.remove(0);
            let numel = tensors[index].numel;
            offsets[index] = next;
            let rest = numel % chunk;
            if rest == 0 {
                next += numel;
                continue;
            }
            let mut gap = next + numel;
            next += numel.next_multiple_of(chunk);
            let mut gap_end = next;
            // A second tensor whose own rest fits starts in the gap and goes on in whole chunks.
            let fits = |&other: &usize| {
                let other_rest = tensors[other].numel % chunk;
                other_rest != 0 && rest + other_rest <= chunk
            };
            if let Some(at) = large.iter().position(fits) {
                let other = large.remove(at);
                gap_end = next - tensors[other].numel % chunk;
                offsets[other] = gap_end;
                next += tensors[other].numel / chunk * chunk;
            }
            small.retain(|&fragment| {
                let start = align(gap, fragment);
                let end = start + tensors[fragment].numel;
                if end > gap_end {
                    return true;
                }
                offsets[fragment] = start;
                gap = end;
                false
            });
        }
        for index in small {
            offsets[index] = align(next, index);
            next = offsets[index] + tensors[index].numel;
        }
        FlatLayout {
            offsets,
            numels: tensors.iter().map(|tensor| tensor.numel).collect(),
            size: next.next_multiple_of(chunk * shards),
            chunk,
        }
    }

    /// DDP's layout with the distributed optimizer: tensors one after the other, each start aligned
    /// to 64 elements, the end to the least common multiple of 128 and the number of shards.
    pub fn contiguous(numels: &[u64], shards: u64) -> FlatLayout {
        let mut next: u64 = 0;
        let mut offsets = Vec::with_capacity(numels.len());
        for &numel in numels {
            let start = next.next_multiple_of(64);
            offsets.push(start);
            next = start + numel;
        }
        let chunk = lcm(shards, 128);
        FlatLayout {
            offsets,
            numels: numels.to_vec(),
            size: next.next_multiple_of(chunk),
            chunk,
        }
    }

    /// The range of shard `index` of `shards`.
    pub fn shard(&self, index: u64, shards: u64) -> Range<u64> {
        let size = self.size / shards;
        index * size..(index + 1) * size
    }

    /// Elements of each tensor that lie in `range`, in the order of the tensors.
    pub fn elements_in(&self, range: &Range<u64>) -> Vec<u64> {
        let overlap = |(&start, &numel): (&u64, &u64)| {
            let end = (start + numel).min(range.end);
            end.saturating_sub(start.max(range.start))
        };
        self.offsets.iter().zip(&self.numels).map(overlap).collect()
    }
}

/// Least common multiple.
pub fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tensors(shapes: &[(u64, u64)]) -> Vec<Tensor> {
        let tensor = |&(rows, row): &(u64, u64)| Tensor {
            numel: rows * row,
            row,
        };
        shapes.iter().map(tensor).collect()
    }

    #[test]
    fn the_documented_example_of_version_2() {
        // The worked example in the docstring of Megatron's GlobalLayout.build.
        let shapes = tensors(&[(2, 6), (4, 4), (4, 4), (1, 2), (1, 6)]);
        let layout = FlatLayout::build(&shapes, 5, 12, Rules::V2);
        assert_eq!(layout.offsets, [0, 12, 32, 28, 48]);
        assert_eq!(layout.size, 60);
        assert_eq!(layout.elements_in(&layout.shard(2, 5)), [0, 4, 4, 2, 0]);
        assert_eq!(layout.elements_in(&layout.shard(4, 5)), [0, 0, 0, 0, 6]);
    }

    #[test]
    fn ddp_aligns_starts_to_64_and_the_end_to_128() {
        let layout = FlatLayout::contiguous(&[10, 100, 1], 8);
        assert_eq!(layout.offsets, [0, 64, 192]);
        assert_eq!(layout.size, 256);
        assert_eq!(FlatLayout::contiguous(&[10], 3).size, 384);
    }

    #[test]
    fn lcm_of_row_sizes() {
        assert_eq!(lcm(2816, 1024), 11264);
        assert_eq!(lcm(1, 7), 7);
    }

    proptest! {
        #[test]
        fn tensors_neither_overlap_nor_leave_the_buffer_and_shards_share_them_out(
            shapes in proptest::collection::vec((1u64..9, 1u64..9), 1..12),
            shards in 1u64..7,
            version in 1..=2,
        ) {
            let tensors = tensors(&shapes);
            let chunk = tensors.iter().fold(1, |chunk, tensor| lcm(chunk, tensor.row));
            let rules = if version == 1 { Rules::V1 } else { Rules::V2 };
            let layout = FlatLayout::build(&tensors, shards, chunk, rules);
            let mut spans: Vec<(u64, u64)> = layout.offsets.iter().zip(&layout.numels)
                .map(|(&start, &numel)| (start, start + numel)).collect();
            spans.sort_unstable();
            prop_assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{spans:?}");
            prop_assert!(spans.iter().all(|span| span.1 <= layout.size));
            prop_assert_eq!(layout.size % (chunk * shards), 0);
            let mut total = vec![0; tensors.len()];
            for index in 0..shards {
                for (sum, part) in total.iter_mut().zip(layout.elements_in(&layout.shard(index, shards))) {
                    *sum += part;
                }
            }
            prop_assert_eq!(total, layout.numels.clone());
            if rules == Rules::V2 {
                for (offset, tensor) in layout.offsets.iter().zip(&tensors) {
                    prop_assert_eq!(offset % tensor.row, 0);
                }
            }
        }
    }
}
