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

/// Counts arrived gradients per group and calls the hook.
struct Arrivals {
    arrived: Vec<usize>,
}

impl Arrivals {
    fn run(
        &mut self,
        w: &mut Writer,
        plan: &Plan,
        hooks: &mut dyn Hooks,
        microbatch: u16,
        place: (Option<u64>, &str),
        recipe: &Recipe,
        cause: &str,
    ) {
        let (layer, unit) = place;
        w.recipe(cause, recipe, &mut |w, parameter| {
            let experts = parameter.contains(".experts.");
            let group = match layer {
                Some(layer) => plan.group_index(layer, experts),
                None => 0,
            };
            let index = plan.groups[group]
                .parameters
                .iter()
                .position(|known| known.name.ends_with(parameter))
                .unwrap_or_else(|| unreachable!("recipe and parameters agree on {parameter}"));
            self.arrived[group] += 1;
            w.unit(&plan.groups[group].unit);
            hooks.accumulate(w, plan, microbatch, group, index, self.arrived[group]);
            w.unit(unit);
        });
    }
}

fn backward(w: &mut Writer, plan: &Plan, hooks: &mut dyn Hooks, microbatch: u16) {
    let d = &plan.dims;
    let mut arrivals = Arrivals {
        arrived: vec![0; plan.groups.len()],
    };
    w.at(Phase::Backward(microbatch), "root");
    no_accumulate(w, "model.loss", &loss_mean_backward());
    hooks.pre_backward(w, plan, microbatch);
    w.unit("root");
    no_accumulate(w, "model.loss", &ops::loss_backward(d));
    hooks.pre_head_backward(w, plan, microbatch);
    let root = (None, "root");
    arrivals.run(
        w,
        plan,
        hooks,
        microbatch,
        root,
        &ops::head_backward(d),
        "model.head",
    );
    for (index, kind) in plan.layers.iter().enumerate().rev() {
        let layer = index as u64;
        let unit = format!("layers.{layer}");
        w.unit(&unit);
        hooks.pre_layer_backward(w, plan, microbatch, layer);
        w.unit(&unit);
        let place = (Some(layer), unit.as_str());
        let residual = ops::bias_dropout_add_backward("bda.mlp.backward");
        no_accumulate(w, "model.residual", &residual);
        match kind {
            LayerKind::Dense => {
                let mlp = ops::dense_mlp_backward(d);
                arrivals.run(w, plan, hooks, microbatch, place, &mlp, "model.mlp");
            }
            LayerKind::Moe => moe_backward(w, plan, hooks, microbatch, place, &mut arrivals),
        }
        let residual = ops::bias_dropout_add_backward("bda.attention.backward");
        no_accumulate(w, "model.residual", &residual);
        let attention = if d.mla {
            ops::mla_backward(d)
        } else {
            ops::gqa_backward(d)
        };
        arrivals.run(
            w,
            plan,
            hooks,
            microbatch,
            place,
            &attention,
            "model.attention",
        );
        hooks.post_layer_backward(w, plan, microbatch, layer);
    }
    w.unit("root");
    let embedding = ops::embedding_backward(d);
    arrivals.run(
        w,
        plan,
        hooks,
        microbatch,
        root,
        &embedding,
        "model.embedding",
    );
    hooks.post_backward(w, plan, microbatch);
}

fn moe_backward(
    w: &mut Writer,
    plan: &Plan,
    hooks: &mut dyn Hooks,
    microbatch: u16,
    place: (Option<u64>, &str),
    arrivals: &mut Arrivals,
) {
    let d = &plan.dims;
    let layer = place.0.unwrap_or_default();
    no_accumulate(w, "model.combine", &ops::combine_backward(d));
    hooks.pre_experts_backward(w, plan, microbatch, layer);
    w.unit(place.1);
    let experts = ops::experts_backward(d);
    arrivals.run(w, plan, hooks, microbatch, place, &experts, "model.experts");
    hooks.post_experts_backward(w, plan, microbatch, layer);
    w.unit(place.1);
    no_accumulate(w, "model.dispatch", &ops::dispatch_backward(d));
    let router = ops::router_backward(d);
    arrivals.run(w, plan, hooks, microbatch, place, &router, "model.router");
    let shared = ops::shared_expert_backward(d);
    arrivals.run(
        w,
        plan,
        hooks,
        microbatch,
        place,
        &shared,
        "model.shared_expert",
    );
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
