//! What a data-parallel implementation adds to the common step: one method per place in the step.

use super::plan::Plan;
use super::writer::Writer;

/// Hooks of one data-parallel implementation. Every method writes the actions that run there.
pub trait Hooks {
    /// Before the first microbatch: clearing gradients.
    fn zero_grad(&mut self, w: &mut Writer, plan: &Plan);
    /// Before the model's forward.
    fn pre_model(&mut self, w: &mut Writer, plan: &Plan, microbatch: u16);
    /// After the word embedding, before the first layer.
    fn post_embedding(&mut self, _: &mut Writer, _: &Plan, _: u16) {}
    /// Before a layer's forward.
    fn pre_layer(&mut self, w: &mut Writer, plan: &Plan, microbatch: u16, layer: u64);
    /// After a layer's forward.
    fn post_layer(&mut self, w: &mut Writer, plan: &Plan, microbatch: u16, layer: u64);
    /// Before the experts' forward.
    fn pre_experts(&mut self, _: &mut Writer, _: &Plan, _: u16, _: u64) {}
    /// After the experts' forward.
    fn post_experts(&mut self, _: &mut Writer, _: &Plan, _: u16, _: u64) {}
    /// After the output projection.
    fn post_head(&mut self, _: &mut Writer, _: &Plan, _: u16) {}
    /// After the loss inside the model.
    fn post_model(&mut self, w: &mut Writer, plan: &Plan, microbatch: u16);
    /// First in the backward of the model.
    fn pre_backward(&mut self, w: &mut Writer, plan: &Plan, microbatch: u16);
    /// Between the backward of the loss and that of the output projection.
    fn pre_head_backward(&mut self, _: &mut Writer, _: &Plan, _: u16) {}
    /// Before a layer's backward.
    fn pre_layer_backward(&mut self, w: &mut Writer, plan: &Plan, microbatch: u16, layer: u64);
    /// Before the experts' backward.
    fn pre_experts_backward(&mut self, _: &mut Writer, _: &Plan, _: u16, _: u64) {}
    /// After the experts' backward.
    fn post_experts_backward(&mut self, _: &mut Writer, _: &Plan, _: u16, _: u64) {}
    /// After a layer's backward.
    fn post_layer_backward(&mut self, _: &mut Writer, _: &Plan, _: u16, _: u64) {}
    /// Autograd hands over the gradient of parameter `index` of `group`; `arrived` of the group's
    /// gradients have arrived, this one included.
    fn accumulate(
        &mut self,
        w: &mut Writer,
        plan: &Plan,
        microbatch: u16,
        group: usize,
        index: usize,
        arrived: usize,
    );
    /// Callbacks at the end of a backward, on the autograd thread.
    fn post_backward(&mut self, w: &mut Writer, plan: &Plan, microbatch: u16);
    /// `finalize_model_grads`, before the common work there.
    fn finalize(&mut self, w: &mut Writer, plan: &Plan);
    /// The optimizer step.
    fn optimizer(&mut self, w: &mut Writer, plan: &Plan);
}
