//! Process groups of the data-parallel mesh: which ranks meet on which communicator.
//!
//! Megatron numbers ranks with expert parallelism fastest. On the hybrid mesh the dense
//! data-parallel ranks are split into `outer` instances of `inner` consecutive ranks; experts are
//! replicated over `world / expert_parallel` ranks, which split likewise:
//!
//! ```text
//! world 8, expert_parallel 2, outer 4:   rank            0 1 2 3 4 5 6 7
//!                                        dense  outer    0 0 1 1 2 2 3 3
//!                                        dense  inner    0 1 0 1 0 1 0 1
//!                                        expert outer    0 0 1 1 2 2 3 3   (inner size 1)
//!                                        expert parallel 0 1 0 1 0 1 0 1
//! ```
//!
//! Flat buffers are cut by the inner axis first: the optimizer shard of a rank is number
//! `inner * outer_size + outer`.

use crate::spec::{Fsdp, Spec};

/// A family of process groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axis {
    /// All ranks.
    World,
    /// Ranks that share the parameters of the dense part (the world, without other parallelisms).
    Data,
    /// Ranks over which dense parameters are sharded.
    Inner,
    /// Optimizer instances of the dense part.
    Outer,
    /// Ranks that hold different experts of a layer.
    ExpertParallel,
    /// Ranks that hold the same experts.
    ExpertData,
    /// Ranks over which the parameters of experts are sharded.
    ExpertInner,
    /// Optimizer instances of the experts.
    ExpertOuter,
}

impl Axis {
    /// Name for people and traces.
    pub fn name(self) -> &'static str {
        match self {
            Axis::World => "world",
            Axis::Data => "dp",
            Axis::Inner => "dp.inner",
            Axis::Outer => "dp.outer",
            Axis::ExpertParallel => "ep",
            Axis::ExpertData => "expert_dp",
            Axis::ExpertInner => "expert_dp.inner",
            Axis::ExpertOuter => "expert_dp.outer",
        }
    }
}

/// Sizes of the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mesh {
    /// All ranks.
    pub world: u64,
    /// Ranks that shard dense parameters.
    pub inner: u64,
    /// Optimizer instances of the dense part; 1 on the plain mesh.
    pub outer: u64,
    /// Ranks that hold different experts.
    pub expert_parallel: u64,
    /// Ranks that shard the parameters of experts.
    pub expert_inner: u64,
    /// Optimizer instances of the experts.
    pub expert_outer: u64,
}

/// Place of a rank on the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coordinates {
    /// Index in the inner group.
    pub inner: u64,
    /// Index in the outer group.
    pub outer: u64,
}

impl Mesh {
    /// The mesh of a validated spec. Version 2 shards experts over all ranks that hold them, also
    /// on the hybrid mesh; version 1 and DDP split them into the optimizer instances.
    pub fn new(spec: &Spec) -> Mesh {
        let copies = spec.expert_data_parallel_size();
        let expert_outer = match spec.fsdp() {
            Fsdp::V2 => 1,
            Fsdp::V1 | Fsdp::Ddp => spec.outer_size().min(copies),
        };
        Mesh {
            world: spec.parallel.world_size,
            inner: spec.inner_size(),
            outer: spec.outer_size(),
            expert_parallel: spec.parallel.expert_model_parallel_size,
            expert_inner: copies / expert_outer,
            expert_outer,
        }
    }

    /// Where `rank` is among the ranks that share its dense parameters, or its experts.
    pub fn coordinates(&self, rank: u64, experts: bool) -> Coordinates {
        let (index, inner) = if experts {
            (rank / self.expert_parallel, self.expert_inner)
        } else {
            (rank, self.inner)
        };
        Coordinates {
            inner: index % inner,
            outer: index / inner,
        }
    }

    /// Inner and outer size for dense parameters or for experts.
    pub fn sizes(&self, experts: bool) -> (u64, u64) {
        if experts {
            (self.expert_inner, self.expert_outer)
        } else {
            (self.inner, self.outer)
        }
    }

    /// Size of the groups of an axis.
    pub fn size(&self, axis: Axis) -> u64 {
        match axis {
            Axis::World | Axis::Data => self.world,
            Axis::Inner => self.inner,
            Axis::Outer => self.outer,
            Axis::ExpertParallel => self.expert_parallel,
            Axis::ExpertData => self.world / self.expert_parallel,
            Axis::ExpertInner => self.expert_inner,
            Axis::ExpertOuter => self.expert_outer,
        }
    }

    /// Distance between neighbouring ranks of a group of the axis.
    fn stride(&self, axis: Axis) -> u64 {
        match axis {
            Axis::World | Axis::Data | Axis::Inner | Axis::ExpertParallel => 1,
            Axis::Outer => self.inner,
            Axis::ExpertData | Axis::ExpertInner => self.expert_parallel,
            Axis::ExpertOuter => self.expert_parallel * self.expert_inner,
        }
    }

    /// The groups of an axis: disjoint, together the world, each in ascending order, which is also
    /// the order of their ranks in the group.
    pub fn groups(&self, axis: Axis) -> Vec<Vec<u32>> {
        let (size, stride) = (self.size(axis), self.stride(axis));
        let span = size * stride;
        let firsts = (0..self.world / span)
            .flat_map(|block| (0..stride).map(move |offset| block * span + offset));
        firsts
            .map(|first| {
                (0..size)
                    .map(|index| (first + index * stride) as u32)
                    .collect()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mesh(name: &str, fsdp: Fsdp) -> Mesh {
        Mesh::new(&Spec::load(name, &[""; 0], Some(fsdp)).expect("valid"))
    }

    #[test]
    fn the_plain_mesh_has_one_group_of_all_ranks() {
        let mesh = mesh("dsv3-proxy", Fsdp::V1);
        assert_eq!(mesh.groups(Axis::Inner), [[0, 1, 2, 3, 4, 5, 6, 7]]);
        assert_eq!(mesh.groups(Axis::Outer).len(), 8, "one-rank groups");
        assert_eq!(mesh.groups(Axis::ExpertInner), [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(
            mesh.groups(Axis::ExpertParallel),
            [[0, 1], [2, 3], [4, 5], [6, 7]]
        );
    }

    #[test]
    fn the_hybrid_mesh_leaves_one_rank_to_shard_experts_over_in_v1() {
        let mesh = mesh("dsv3-proxy-hybrid", Fsdp::V1);
        assert_eq!(mesh.groups(Axis::Inner), [[0, 1], [2, 3], [4, 5], [6, 7]]);
        assert_eq!(mesh.groups(Axis::Outer), [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(mesh.size(Axis::ExpertInner), 1);
        assert_eq!(mesh.groups(Axis::ExpertOuter), mesh.groups(Axis::Outer));
    }

    #[test]
    fn version_2_shards_experts_over_all_their_copies() {
        let mesh = mesh("dsv3-proxy-hybrid", Fsdp::V2);
        assert_eq!(mesh.groups(Axis::ExpertInner), [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(mesh.size(Axis::ExpertOuter), 1);
    }

    const AXES: [Axis; 8] = [
        Axis::World,
        Axis::Data,
        Axis::Inner,
        Axis::Outer,
        Axis::ExpertParallel,
        Axis::ExpertData,
        Axis::ExpertInner,
        Axis::ExpertOuter,
    ];

    proptest! {
        #[test]
        fn groups_are_disjoint_cover_the_world_and_agree_with_coordinates(
            expert_parallel in 1u64..5, expert_inner in 1u64..5, outer in 1u64..5,
        ) {
            let inner = expert_parallel * expert_inner;
            let world = inner * outer;
            let mesh = Mesh { world, inner, outer, expert_parallel, expert_inner, expert_outer: outer };
            for axis in AXES {
                let groups = mesh.groups(axis);
                let mut all: Vec<u32> = groups.concat();
                all.sort_unstable();
                prop_assert_eq!(all, (0..world as u32).collect::<Vec<_>>());
                prop_assert!(groups.iter().all(|group| group.len() as u64 == mesh.size(axis)));
            }
            for (axis, experts) in [(Axis::Inner, false), (Axis::ExpertInner, true)] {
                for group in mesh.groups(axis) {
                    for (index, &rank) in group.iter().enumerate() {
                        let place = mesh.coordinates(u64::from(rank), experts);
                        prop_assert_eq!(place.inner, index as u64);
                    }
                }
            }
            for (axis, experts) in [(Axis::Outer, false), (Axis::ExpertOuter, true)] {
                for group in mesh.groups(axis) {
                    for (index, &rank) in group.iter().enumerate() {
                        let place = mesh.coordinates(u64::from(rank), experts);
                        prop_assert_eq!(place.outer, index as u64);
                    }
                }
            }
        }
    }
}
