//! Meshes and batches that do not divide.

use super::super::Spec;
use super::{Checks, MAX_COUNT};

impl Spec {
    pub(super) fn check_mesh(&self, checks: &mut Checks) {
        let parallel = &self.parallel;
        for (key, value, what) in [
            (
                "parallel.tensor_model_parallel_size",
                parallel.tensor_model_parallel_size,
                "tensor",
            ),
            (
                "parallel.pipeline_model_parallel_size",
                parallel.pipeline_model_parallel_size,
                "pipeline",
            ),
            (
                "parallel.context_parallel_size",
                parallel.context_parallel_size,
                "context",
            ),
        ] {
            checks.unless(
                value == 1,
                key,
                format!("{what} parallelism is not modelled"),
                "set it to 1: data and expert parallelism are modelled",
            );
        }
        let (world, ep) = (parallel.world_size, parallel.expert_model_parallel_size);
        let experts = self.model.num_moe_experts;
        if let Some(experts) = experts {
            checks.unless(
                experts.is_multiple_of(ep),
                "parallel.expert_model_parallel_size",
                format!("{experts} experts cannot be spread evenly over {ep} ranks"),
                "choose a divisor of `model.num_moe_experts`",
            );
        }
        checks.unless(
            world.is_multiple_of(ep),
            "parallel.expert_model_parallel_size",
            format!("a world of {world} ranks is not divisible by it ({ep})"),
            "choose a divisor of `parallel.world_size`",
        );
        let node = parallel.gpus_per_node;
        checks.unless(
            world <= node || world.is_multiple_of(node),
            "parallel.world_size",
            format!("{world} ranks do not fill nodes of {node} GPUs"),
            "choose a multiple of `parallel.gpus_per_node`, or change that",
        );
        let instances = self.ddp.num_distributed_optimizer_instances;
        checks.unless(
            world.is_multiple_of(instances),
            "ddp.num_distributed_optimizer_instances",
            format!("a data-parallel size of {world} is not divisible by it ({instances})"),
            "choose a divisor of the data-parallel size",
        );
        let expert_copies = world / ep.max(1);
        checks.unless(
            experts.is_none() || expert_copies.is_multiple_of(instances),
            "ddp.num_distributed_optimizer_instances",
            format!("an expert data-parallel size of {expert_copies} is not divisible by it ({instances})"),
            "choose a divisor of world size / expert_model_parallel_size",
        );
        self.check_batch(checks);
    }

    fn check_batch(&self, checks: &mut Checks) {
        let train = &self.train;
        let sequences = train
            .micro_batch_size
            .saturating_mul(self.data_parallel_size());
        match (train.num_microbatches, train.global_batch_size) {
            (None, None) => checks.refuse(
                "train.num_microbatches",
                "the step has no size",
                "give `num_microbatches` or `global_batch_size` in [train]",
            ),
            (_, Some(batch)) if !batch.is_multiple_of(sequences) => {
                checks.refuse(
                    "train.global_batch_size",
                    format!(
                        "{batch} sequences cannot be split into microbatches of {} on {} ranks",
                        train.micro_batch_size,
                        self.data_parallel_size()
                    ),
                    format!("choose a multiple of {sequences}"),
                );
            }
            (Some(microbatches), Some(batch)) if batch / sequences != microbatches => {
                checks.refuse(
                    "train.global_batch_size",
                    format!(
                        "{batch} sequences are {} microbatches, but `num_microbatches` is {microbatches}",
                        batch / sequences
                    ),
                    "remove one of the two",
                );
            }
            _ => {}
        }
        checks.within(
            "train.num_microbatches",
            self.num_microbatches(),
            1,
            MAX_COUNT,
        );
    }
}
