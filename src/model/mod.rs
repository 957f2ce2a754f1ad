//! Layers, parameters and operators of the model, with flops and bytes.

mod dims;
pub mod operators;
pub mod recipe;

pub use dims::Dims;
