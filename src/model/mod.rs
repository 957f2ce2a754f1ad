//! Layers, parameters and operators of the model, with flops and bytes.
