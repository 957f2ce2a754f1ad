//! What the schedules need to know, in numbers: layers, parameter groups, mesh sizes, dtypes.

use crate::model::Dims;

/// Kind of a transformer layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerKind {
    /// Dense feed-forward.
    Dense,
    /// Mixture of experts.
    Moe,
}

/// A parameter of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupParameter {
    /// Full name, e.g. `decoder.layers.1.mlp.router.weight`.
    pub name: String,
    /// Elements on this rank before any sharding.
    pub numel: u64,
    /// Whether its part of this rank's shard is not empty.
    pub local: bool,
    /// Whether weight decay applies: to matrices, not to norms (Megatron's default condition).
    pub decays: bool,
}

/// Parameters that are gathered and reduced together: a v1 bucket or a v2 parameter group. Both
/// versions have the same eight on the proxy.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// `root`, `layers.0`, `layers.1.experts`, ...
    pub unit: String,
    /// Layer it belongs to; `None` for the root.
    pub layer: Option<u64>,
    /// Whether it holds experts (their own mesh).
    pub experts: bool,
    /// Parameters in registration order.
    pub parameters: Vec<GroupParameter>,
    /// Elements of the whole buffer, padding included.
    pub padded_numel: u64,
}

impl Group {
    /// How many of its parameters have a non-empty local shard.
    pub fn local_parameters(&self) -> u64 {
        self.parameters
            .iter()
            .filter(|parameter| parameter.local)
            .count() as u64
    }
}

/// A flat buffer of plain DDP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DdpBuffer {
    /// Whether it holds experts.
    pub experts: bool,
    /// Elements, padding included.
    pub numel: u64,
    /// Ranks over which the distributed optimizer shards it.
    pub shards: u64,
    /// Parameters that overlap this rank's shard.
    pub local: u64,
}

/// Sizes of the process groups of one rank.
#[derive(Debug, Clone, PartialEq)]
pub struct MeshSizes {
    /// World size.
    pub world: u64,
    /// Inner (parameter-sharding) group of dense parameters.
    pub inner: u64,
    /// Outer group (optimizer instances); 1 on the plain mesh.
    pub outer: u64,
    /// Inner group of experts: v1 shards them over this many ranks.
    pub expert_inner: u64,
    /// Outer group of experts in v1.
    pub expert_outer: u64,
    /// Expert-parallel group.
    pub expert_parallel: u64,
}

/// The step to schedule, on one rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Sizes of a microbatch.
    pub dims: Dims,
    /// Kind of every layer.
    pub layers: Vec<LayerKind>,
    /// Microbatches of a step.
    pub microbatches: u16,
    /// Parameter groups: root first, then each layer followed by its experts.
    pub groups: Vec<Group>,
    /// Flat buffers of plain DDP.
    pub ddp_buffers: Vec<DdpBuffer>,
    /// Mesh sizes.
    pub mesh: MeshSizes,
    /// Bytes of a main-gradient element.
    pub main_grad_bytes: u64,
    /// v1: elements that all-gather prefetch may hold.
    pub v1_prefetch_elements: u64,
    /// v1: whether the weight-gradient product writes the main gradient itself.
    pub wgrad_fusion: bool,
    /// v1: at most this many units hold gathered weights (double buffering); `None` for no limit.
    pub v1_buffers: Option<u64>,
    /// v2: modules gathered ahead in forward; 1 by default.
    pub v2_forward_prefetch: u64,
    /// v2: modules gathered ahead in backward; 1 by default.
    pub v2_backward_prefetch: u64,
    /// v2: one stream for all-gather and reduce-scatter.
    pub v2_one_communication_stream: bool,
    /// v2: outer reduction in every microbatch (before PR 7186).
    pub v2_outer_every_microbatch: bool,
    /// v2: the later build of the public report (persistent buffers, cached layouts, own grad norm).
    pub v2_sep: bool,
    /// Average inside the collective (no scaling kernel) in v1.
    pub average_in_collective: bool,
    /// Whether gradients are clipped.
    pub clip: bool,
    /// Whether expert bias is updated at the end of the step.
    pub expert_bias: bool,
    /// Whether tokens go through the alltoall dispatcher, which reads counts on the host.
    pub host_counts: bool,
    /// Separate communicator for all-gathers (v1 `create_all_gather_group`).
    pub separate_gather_group: bool,
}

impl Plan {
    /// The group of a layer, experts or not; `None` where experts belong to their layer's group.
    pub fn group_index(&self, layer: u64, experts: bool) -> Option<usize> {
        self.groups
            .iter()
            .position(|group| group.layer == Some(layer) && group.experts == experts)
    }

    /// Group and position of the parameter of `layer` (`None`: outside layers) whose name ends with
    /// `suffix`.
    pub fn find(&self, layer: Option<u64>, suffix: &str) -> Option<(usize, usize)> {
        let groups = self
            .groups
            .iter()
            .enumerate()
            .filter(|(_, group)| group.layer == layer);
        groups
            .filter_map(|(index, group)| {
                let mut names = group.parameters.iter();
                Some((index, names.position(|known| known.name.ends_with(suffix))?))
            })
            .next()
    }

    /// Elements of a group's shard over its inner mesh.
    pub fn inner_shard(&self, group: &Group) -> u64 {
        group.padded_numel / self.inner_size(group)
    }

    /// Ranks of the inner mesh of a group.
    pub fn inner_size(&self, group: &Group) -> u64 {
        if group.experts {
            self.mesh.expert_inner
        } else {
            self.mesh.inner
        }
    }

    /// Ranks of the outer mesh of a group.
    pub fn outer_size(&self, group: &Group) -> u64 {
        if group.experts {
            self.mesh.expert_outer
        } else {
            self.mesh.outer
        }
    }

    /// Parameters on this rank with a non-empty optimizer shard.
    pub fn local_parameters(&self) -> u64 {
        self.groups.iter().map(Group::local_parameters).sum()
    }

    /// Parameter groups of the optimizer, with weight decay first: parameters with a non-empty shard
    /// and elements of it. Norms lie whole in a shard, but for rare cuts, so their sizes are those of
    /// the parameters.
    pub fn decay_groups(&self) -> [(u64, u64); 2] {
        let parameters = self.groups.iter().flat_map(|group| &group.parameters);
        let without: Vec<u64> = parameters
            .filter(|parameter| parameter.local && !parameter.decays)
            .map(|parameter| parameter.numel)
            .collect();
        let (count, elements) = (without.len() as u64, without.iter().sum::<u64>());
        let with = self.optimizer_elements().saturating_sub(elements);
        [(self.local_parameters() - count, with), (count, elements)]
    }

    /// Elements of this rank's optimizer shard.
    pub fn optimizer_elements(&self) -> u64 {
        self.groups
            .iter()
            .map(|group| self.inner_shard(group) / self.outer_size(group))
            .sum()
    }

    /// All parameters of the rank.
    pub fn parameter_count(&self) -> u64 {
        self.groups
            .iter()
            .map(|group| group.parameters.len() as u64)
            .sum()
    }
}
