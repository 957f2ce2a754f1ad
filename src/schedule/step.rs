//! The step that all data-parallel implementations share: data, forward, loss, backward, finalize,
//! optimizer, reading the loss.

use crate::model::operators as ops;
use crate::model::recipe::Recipe;
use crate::program::{KernelClass, Phase};

use super::hooks::Hooks;
use super::plan::{LayerKind, Plan};
use super::writer::{Call, Writer, bytes_kernel};
use crate::program::Collective;

/// Writes one step.
pub fn write_step(w: &mut Writer, plan: &Plan, hooks: &mut dyn Hooks) {
    w.at(Phase::ZeroGrad, "root");
    hooks.zero_grad(w, plan);
    w.at(Phase::Forward(0), "root");
    no_accumulate(w, "model.loss", &step_begin());
    for microbatch in 0..plan.microbatches {
        forward(w, plan, hooks, microbatch);
        w.at(Phase::Backward(microbatch), "root");
        no_accumulate(w, "model.loss", &backward_begin());
        w.on_autograd(|w| backward(w, plan, hooks, microbatch));
    }
    w.at(Phase::Finalize, "root");
    hooks.finalize(w, plan);
    if plan.expert_bias && plan.layers.contains(&LayerKind::Moe) {
        expert_bias_update(w, plan);
    }
    w.at(Phase::Optimizer, "root");
    hooks.optimizer(w, plan);
    w.at(Phase::Outside, "root");
    no_accumulate(w, "step.loss_item", &loss_sum(plan.microbatches));
    w.item("step.loss_item", "step.loss_item/aten::item", 4);
    w.synchronize("step.synchronize", "step.loss_item/cudaDeviceSynchronize");
}

fn no_accumulate(w: &mut Writer, cause: &str, recipe: &Recipe) {
    w.recipe(cause, recipe, &mut |_, _| {});
}

fn step_begin() -> Recipe {
    let mut r = Recipe::new("step.begin");
    r.op("aten::zeros", 3).tiny();
    r
}

fn batch() -> Recipe {
    let mut r = Recipe::new("data.forward");
    r.op("aten::randint", 4).tiny();
    r.ops("aten::slice", 1, 2);
    r
}

fn backward_begin() -> Recipe {
    let mut r = Recipe::new("step.backward_begin");
    r.op("aten::ones_like", 3).tiny();
    r
}

/// The masked mean of the loss and its scaling, outside the model.
fn loss_mean() -> Recipe {
    let mut r = Recipe::new("step.loss_mean");
    r.op("aten::empty", 0)
        .op("aten::to", 0)
        .op("aten::lift_fresh", 0)
        .op("aten::detach_", 1);
    r.op("aten::to", 0).op("aten::view", 0);
    r.op("aten::mul", 0).tiny();
    r.op("aten::sum", 2).tiny();
    r.op("aten::sum", 2).tiny();
    r.op("aten::div", 0).tiny();
    r.op("aten::detach", 1);
    r.op("aten::mul_", 0).tiny();
    r.op("aten::div_", 0).tiny();
    r.op("aten::ones", 2).tiny();
    r.op("aten::mul", 0).tiny();
    r.op("aten::to", 0);
    r.op("aten::mul", 0).tiny();
    r.op("aten::div", 0).tiny();
    r.op("aten::copy_", 0)
        .kernel("copy", KernelClass::Tiny, 0.0, 0.0);
    r.op("aten::add_", 0).tiny();
    r.op("aten::mul", 0).tiny();
    r
}

fn loss_mean_backward() -> Recipe {
    let mut r = Recipe::new("step.loss_mean.backward");
    r.op("MulBackward0", 2).tiny();
    r.op("aten::sum", 2).tiny();
    r.op("DivBackward0", 2).tiny();
    r.op("MulBackward0", 2).tiny();
    r.op("DivBackward0", 2).tiny();
    r.op("SumBackward0", 3);
    r.op("MulBackward0", 2).tiny();
    r.op("ViewBackward0", 3);
    r
}

fn loss_sum(microbatches: u16) -> Recipe {
    let mut r = Recipe::new("step.loss_item");
    for _ in 0..microbatches {
        r.op("aten::add", 0).tiny();
    }
    r.op("aten::div", 0).tiny();
    r
}

fn forward(w: &mut Writer, plan: &Plan, hooks: &mut dyn Hooks, microbatch: u16) {
    let d = &plan.dims;
    w.at(Phase::Forward(microbatch), "root");
    no_accumulate(w, "model.data", &batch());
    hooks.pre_model(w, plan, microbatch);
    w.at(Phase::Forward(microbatch), "root");
    no_accumulate(w, "model.embedding", &ops::embedding_forward(d));
    hooks.post_embedding(w, plan, microbatch);
    for (index, kind) in plan.layers.iter().enumerate() {
        let layer = index as u64;
        let unit = format!("layers.{layer}");
        w.unit(&unit);
        hooks.pre_layer(w, plan, microbatch, layer);
        w.unit(&unit);
        let attention = if d.mla {
            ops::mla_forward(d)
        } else {
            ops::gqa_forward(d)
        };
        no_accumulate(w, "model.attention", &attention);
        no_accumulate(
            w,
            "model.residual",
            &ops::bias_dropout_add(d, "bda.attention.forward"),
        );
        match kind {
            LayerKind::Dense => no_accumulate(w, "model.mlp", &ops::dense_mlp_forward(d)),
            LayerKind::Moe => moe_forward(w, plan, hooks, microbatch, layer),
        }
        no_accumulate(
            w,
            "model.residual",
            &ops::bias_dropout_add(d, "bda.mlp.forward"),
        );
        hooks.post_layer(w, plan, microbatch, layer);
    }
    w.unit("root");
    let mut head = ops::head_forward(d);
    let transpose = head.steps.pop();
    no_accumulate(w, "model.head", &head);
    hooks.post_head(w, plan, microbatch);
    head.steps.clear();
    head.steps.extend(transpose);
    no_accumulate(w, "model.head", &head);
    no_accumulate(w, "model.loss", &ops::loss_forward(d));
    hooks.post_model(w, plan, microbatch);
    w.unit("root");
    no_accumulate(w, "model.loss", &loss_mean());
}

fn moe_forward(w: &mut Writer, plan: &Plan, hooks: &mut dyn Hooks, microbatch: u16, layer: u64) {
    let d = &plan.dims;
    no_accumulate(w, "model.shared_expert", &ops::shared_expert_forward(d));
    no_accumulate(w, "model.router", &ops::router_forward(d));
    no_accumulate(
        w,
        "model.dispatch",
        &ops::dispatch_forward(d, plan.host_counts),
    );
    hooks.pre_experts(w, plan, microbatch, layer);
    no_accumulate(w, "model.experts", &ops::experts_forward(d));
    hooks.post_experts(w, plan, microbatch, layer);
    w.unit(&format!("layers.{layer}"));
    no_accumulate(w, "model.combine", &ops::combine_forward(d));
}

/// The backward of one microbatch being written.
struct Backward<'a> {
    plan: &'a Plan,
    hooks: &'a mut dyn Hooks,
    microbatch: u16,
    /// Gradients that have arrived, per group.
    arrived: Vec<usize>,
}

impl Backward<'_> {
    /// Writes a recipe of `layer` (`None`: outside layers); every gradient it hands over goes to
    /// the hooks.
    fn run(&mut self, w: &mut Writer, layer: Option<u64>, recipe: &Recipe, cause: &str) {
        let unit = w.current_unit();
        w.recipe(cause, recipe, &mut |w, parameter| {
            // A dense-only configuration of a mixture model may lack a parameter; then no gradient
            // arrives for it.
            let Some((group, index)) = self.plan.find(layer, parameter) else {
                return;
            };
            self.arrived[group] += 1;
            w.unit(&self.plan.groups[group].unit);
            let arrived = self.arrived[group];
            self.hooks
                .accumulate(w, self.plan, self.microbatch, group, index, arrived);
            w.unit(&unit);
        });
    }

    fn moe(&mut self, w: &mut Writer, layer: u64) {
        let (plan, microbatch) = (self.plan, self.microbatch);
        let d = &plan.dims;
        let unit = w.current_unit();
        no_accumulate(w, "model.combine", &ops::combine_backward(d));
        self.hooks.pre_experts_backward(w, plan, microbatch, layer);
        w.unit(&unit);
        self.run(w, Some(layer), &ops::experts_backward(d), "model.experts");
        self.hooks.post_experts_backward(w, plan, microbatch, layer);
        w.unit(&unit);
        no_accumulate(w, "model.dispatch", &ops::dispatch_backward(d));
        self.run(w, Some(layer), &ops::router_backward(d), "model.router");
        self.run(
            w,
            Some(layer),
            &ops::shared_expert_backward(d),
            "model.shared_expert",
        );
    }

    fn layer(&mut self, w: &mut Writer, layer: u64, kind: LayerKind) {
        let (plan, microbatch) = (self.plan, self.microbatch);
        let d = &plan.dims;
        let unit = format!("layers.{layer}");
        w.unit(&unit);
        self.hooks.pre_layer_backward(w, plan, microbatch, layer);
        w.unit(&unit);
        let residual = ops::bias_dropout_add_backward("bda.mlp.backward");
        no_accumulate(w, "model.residual", &residual);
        match kind {
            LayerKind::Dense => self.run(w, Some(layer), &ops::dense_mlp_backward(d), "model.mlp"),
            LayerKind::Moe => self.moe(w, layer),
        }
        let residual = ops::bias_dropout_add_backward("bda.attention.backward");
        no_accumulate(w, "model.residual", &residual);
        let attention = if d.mla {
            ops::mla_backward(d)
        } else {
            ops::gqa_backward(d)
        };
        self.run(w, Some(layer), &attention, "model.attention");
        self.hooks.post_layer_backward(w, plan, microbatch, layer);
    }
}

fn backward(w: &mut Writer, plan: &Plan, hooks: &mut dyn Hooks, microbatch: u16) {
    let d = &plan.dims;
    w.at(Phase::Backward(microbatch), "root");
    no_accumulate(w, "model.loss", &loss_mean_backward());
    hooks.pre_backward(w, plan, microbatch);
    w.unit("root");
    no_accumulate(w, "model.loss", &ops::loss_backward(d));
    hooks.pre_head_backward(w, plan, microbatch);
    let arrived = vec![0; plan.groups.len()];
    let mut backward = Backward {
        plan,
        hooks,
        microbatch,
        arrived,
    };
    backward.run(w, None, &ops::head_backward(d), "model.head");
    for (layer, kind) in plan.layers.iter().enumerate().rev() {
        backward.layer(w, layer as u64, *kind);
    }
    w.unit("root");
    backward.run(w, None, &ops::embedding_backward(d), "model.embedding");
    backward.hooks.post_backward(w, plan, microbatch);
}

/// Expert-bias update of DeepSeek-V3 routing: tokens per expert over all ranks, sign, new bias.
fn expert_bias_update(w: &mut Writer, plan: &Plan) {
    let cause = "step.expert_bias";
    let layers = plan
        .layers
        .iter()
        .filter(|kind| **kind == LayerKind::Moe)
        .count() as u64;
    let mut stack = Recipe::new("step.expert_bias");
    stack.op("aten::stack", 2).tiny();
    stack.op("aten::stack", 2).tiny();
    no_accumulate(w, cause, &stack);
    let call = Call {
        class: "step.expert_bias/c10d::allreduce_",
        op: Collective::AllReduce,
        comm: w.comms.world,
        ranks: 0,
        stream: w.streams.compute,
        bytes: 4 * plan.dims.experts * layers,
    };
    w.collective(cause, call);
    let mut update = Recipe::new("step.expert_bias.update");
    for name in [
        "aten::sum",
        "aten::div",
        "aten::sub",
        "aten::sign",
        "aten::mul",
        "aten::add",
    ] {
        update.op(name, 0).tiny();
    }
    update.op("aten::unbind", 6);
    no_accumulate(w, cause, &update);
    let tiny = |name: &str| bytes_kernel(name, KernelClass::Tiny, 0);
    let compute = w.streams.compute;
    for _ in 0..layers {
        w.kernel_operator(
            cause,
            "step.expert_bias.layer/aten::copy_",
            1,
            compute,
            tiny("copy"),
        );
    }
    for _ in 0..layers {
        w.kernel_operator(
            cause,
            "step.expert_bias.layer/aten::zero_",
            2,
            compute,
            tiny("fill"),
        );
    }
}
