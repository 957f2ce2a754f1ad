//! Layers, parameters and operators of the model, with flops and bytes.

mod dims;
mod layout;
mod mesh;
pub mod operators;
mod parameters;
pub mod recipe;
mod units;

pub use dims::Dims;
pub use layout::FlatLayout;
pub use mesh::{Axis, Coordinates, Mesh};
pub use parameters::{Parameter, model_elements, parameters};
pub use units::{ParameterGroup, parameter_groups, v2_backward_order};
