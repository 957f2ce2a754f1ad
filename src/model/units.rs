//! FSDP units, buckets and groups: which parameters are gathered and reduced together, and which
//! parts of them a rank owns.
//!
//! On the proxy both versions have the same eight, in this order: the root (embedding, final norm,
//! output layer), then each layer and, where it has them, its experts.

use super::layout::{FlatLayout, Rules, Tensor, lcm};
use super::mesh::Mesh;
use super::parameters::Parameter;
use crate::spec::{Fsdp, Spec};

/// Parameters that share one flat buffer: a bucket of version 1 or of DDP, a parameter group of
/// version 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterGroup {
    /// `root`, `layers.0`, `layers.1.experts`, ...; further buckets of the same owner are numbered
    /// from 1: `root.1`.
    pub name: String,
    /// Layer that owns it; `None` for the root.
    pub layer: Option<u64>,
    /// Whether it lies on the experts' mesh.
    pub experts: bool,
    /// Indices into the rank's parameters, in buffer order.
    pub members: Vec<usize>,
    /// Where they lie.
    pub layout: FlatLayout,
}

impl ParameterGroup {
    /// Elements of the parameters, without padding.
    pub fn numel(&self) -> u64 {
        self.layout.numels.iter().sum()
    }

    /// Elements that `rank` optimizes of each member, in the order of `members`; 0 where its flat
    /// shard misses the parameter.
    pub fn optimizer_shard(&self, mesh: &Mesh, rank: u64) -> Vec<u64> {
        let (inner, outer) = mesh.sizes(self.experts);
        let place = mesh.coordinates(rank, self.experts);
        let index = place.inner * outer + place.outer;
        self.layout
            .elements_in(&self.layout.shard(index, inner * outer))
    }

    /// Elements that `rank` keeps of each member between gathers: its shard of the inner group.
    pub fn parameter_shard(&self, mesh: &Mesh, rank: u64) -> Vec<u64> {
        let (inner, _) = mesh.sizes(self.experts);
        let place = mesh.coordinates(rank, self.experts);
        self.layout
            .elements_in(&self.layout.shard(place.inner, inner))
    }
}

/// The groups of the spec's schedule, in creation order: buckets of version 1 and of DDP, groups of
/// version 2.
pub fn parameter_groups(spec: &Spec, parameters: &[Parameter]) -> Vec<ParameterGroup> {
    let mesh = Mesh::new(spec);
    match spec.fsdp() {
        Fsdp::V1 => v1_buckets(spec, parameters, &mesh),
        Fsdp::V2 => v2_groups(spec, parameters, &mesh),
        Fsdp::Ddp => ddp_buckets(spec, parameters, &mesh),
    }
}

/// Owner of a parameter: layer and whether it is on the experts' mesh.
type Owner = (Option<u64>, bool);

/// Members of each owner, owners in the order of their first parameter.
fn by_owner(
    parameters: &[Parameter],
    owner: impl Fn(&Parameter) -> Owner,
) -> Vec<(Owner, Vec<usize>)> {
    let mut groups: Vec<(Owner, Vec<usize>)> = Vec::new();
    for (index, parameter) in parameters.iter().enumerate() {
        let owner = owner(parameter);
        // An owner's parameters come in few runs, so the search from the end is short.
        match groups.iter_mut().rev().find(|(known, _)| *known == owner) {
            Some((_, members)) => members.push(index),
            None => groups.push((owner, vec![index])),
        }
    }
    groups
}

fn name((layer, experts): Owner, part: usize) -> String {
    let owner = match (layer, experts) {
        (None, _) => "root".to_owned(),
        (Some(layer), false) => format!("layers.{layer}"),
        (Some(layer), true) => format!("layers.{layer}.experts"),
    };
    if part == 0 {
        owner
    } else {
        format!("{owner}.{part}")
    }
}

/// Cuts a list of members after the parameter that fills a bucket; a shared embedding is alone.
fn split(members: &[usize], parameters: &[Parameter], bucket: Option<u64>) -> Vec<Vec<usize>> {
    let mut parts = Vec::new();
    let mut part: Vec<usize> = Vec::new();
    let mut elements = 0;
    for &member in members {
        if parameters[member].shared_embedding {
            if !part.is_empty() {
                parts.push(std::mem::take(&mut part));
            }
            elements = 0;
            parts.push(vec![member]);
            continue;
        }
        part.push(member);
        elements += parameters[member].numel();
        if bucket.is_some_and(|bucket| elements >= bucket) {
            parts.push(std::mem::take(&mut part));
            elements = 0;
        }
    }
    if !part.is_empty() {
        parts.push(part);
    }
    parts
}

/// Elements of a bucket: what the spec says, else Megatron's default where communication overlaps
/// (`resolve_ddp_bucket_size`), else no limit.
fn bucket_size(spec: &Spec) -> Option<u64> {
    let default = 40_000_000.max(1_000_000 * spec.data_parallel_size());
    let default = Some(default).filter(|_| spec.ddp.overlap_grad_reduce);
    spec.ddp.bucket_size.or(default)
}

/// Version 1: by FSDP unit (a layer) and expert flag; what no unit owns is the root, which alone is
/// split by `bucket_size`. Within a bucket, tensors lie by descending row size.
fn v1_buckets(spec: &Spec, parameters: &[Parameter], mesh: &Mesh) -> Vec<ParameterGroup> {
    let mut buckets = Vec::new();
    for (owner, members) in by_owner(parameters, |p| (p.layer, p.expert)) {
        let bucket_size = bucket_size(spec).filter(|_| owner.0.is_none());
        for (part, mut members) in split(&members, parameters, bucket_size)
            .into_iter()
            .enumerate()
        {
            members.sort_by_key(|&member| std::cmp::Reverse(parameters[member].row()));
            let tensors = tensors(parameters, &members);
            let (inner, outer) = mesh.sizes(owner.1);
            let chunk = v1_chunk(&tensors);
            buckets.push(ParameterGroup {
                name: name(owner, part),
                layer: owner.0,
                experts: owner.1,
                layout: FlatLayout::build(&tensors, inner * outer, chunk, Rules::V1),
                members,
            });
        }
    }
    buckets
}

/// Version 1's chunk: the first row size, widened by those tensors that neither divide it nor are
/// smaller than it.
fn v1_chunk(tensors: &[Tensor]) -> u64 {
    let first = tensors.first().map_or(1, |tensor| tensor.row);
    tensors.iter().fold(first, |chunk, tensor| {
        let divides = chunk.is_multiple_of(tensor.row) && tensor.numel.is_multiple_of(chunk);
        if tensor.row == chunk || divides || tensor.numel < chunk {
            chunk
        } else {
            lcm(chunk, tensor.row)
        }
    })
}

/// Version 2: one group a module. Experts are a module of their own if they have a mesh of their
/// own, i.e. with expert parallelism; otherwise they belong to their layer.
fn v2_groups(spec: &Spec, parameters: &[Parameter], mesh: &Mesh) -> Vec<ParameterGroup> {
    let expert_mesh = spec.parallel.expert_model_parallel_size > 1;
    let groups = by_owner(parameters, |p| (p.layer, p.expert && expert_mesh));
    let group = |(owner, members): (Owner, Vec<usize>)| {
        let tensors = tensors(parameters, &members);
        let chunk = tensors
            .iter()
            .fold(1, |chunk, tensor| lcm(chunk, tensor.row));
        let (inner, outer) = mesh.sizes(owner.1);
        ParameterGroup {
            name: name(owner, 0),
            layer: owner.0,
            experts: owner.1,
            layout: FlatLayout::build(&tensors, inner * outer, chunk, Rules::V2),
            members,
        }
    };
    groups.into_iter().map(group).collect()
}

/// DDP: one buffer for dense parameters and one for experts, each in reverse order and, if gradients
/// are reduced during backward, cut into buckets.
fn ddp_buckets(spec: &Spec, parameters: &[Parameter], mesh: &Mesh) -> Vec<ParameterGroup> {
    let bucket_size = bucket_size(spec).filter(|_| spec.ddp.overlap_grad_reduce);
    let mut buckets = Vec::new();
    for experts in [false, true] {
        let members: Vec<usize> = (0..parameters.len())
            .rev()
            .filter(|&member| parameters[member].expert == experts)
            .collect();
        let parts = split(&members, parameters, bucket_size);
        for (part, members) in parts.into_iter().enumerate() {
            let numels: Vec<u64> = members.iter().map(|&m| parameters[m].numel()).collect();
            let kind = if experts { "experts" } else { "dense" };
            buckets.push(ParameterGroup {
                name: format!("{kind}.{part}"),
                layer: None,
                experts,
                layout: FlatLayout::contiguous(&numels, mesh.sizes(experts).0),
                members,
            });
        }
    }
    buckets
}

fn tensors(parameters: &[Parameter], members: &[usize]) -> Vec<Tensor> {
    let tensor = |&member: &usize| Tensor {
        numel: parameters[member].numel(),
        row: parameters[member].row(),
    };
    members.iter().map(tensor).collect()
}

/// The order in which version 2 expects its modules in backward: each parent before its children,
/// children reversed. `groups` are in forward order.
pub fn v2_backward_order(groups: &[ParameterGroup]) -> Vec<usize> {
    let mut order: Vec<usize> = Vec::with_capacity(groups.len());
    let roots = (0..groups.len()).filter(|&index| groups[index].layer.is_none());
    order.extend(roots);
    let mut layers: Vec<u64> = groups.iter().filter_map(|group| group.layer).collect();
    layers.dedup();
    for layer in layers.into_iter().rev() {
        // The layer comes before its experts in forward order too.
        let of_layer = (0..groups.len()).filter(|&index| groups[index].layer == Some(layer));
        order.extend(of_layer);
    }
    order
}

#[cfg(test)]
#[path = "units_tests.rs"]
mod tests;
