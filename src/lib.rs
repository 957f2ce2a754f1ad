//! fsdpsim: a calibrated discrete-event simulator of FSDP training-step timing.
//!
//! ```text
//! models/*.toml --> spec --> model (layers, parameters, operators)
//!                              |
//! v1 | v2 | ddp schedules -----+--> Program <-- trace (PyTorch profiler)
//!                                    |  what happens, in which order, on which thread or stream
//! calibration/*.toml --> cost -------+  how long each action takes
//!                                    v
//!                                  engine --> Timeline --> analysis --> report / trace out
//! ```
//!
//! A [`program`] knows no time, a [`cost`] model knows no order, the [`engine`] knows no FSDP.

pub mod analysis;
pub mod calibrate;
pub mod cli;
pub mod cost;
pub mod engine;
pub mod model;
pub mod program;
pub mod report;
pub mod schedule;
pub mod spec;
pub mod sweep;
pub mod trace;
pub mod units;
