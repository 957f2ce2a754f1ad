//! From a spec and a cost model to step times.

use thiserror::Error;

use crate::cost::calibrated::CalibratedModel;
use crate::cost::price;
use crate::engine::{EngineError, EngineOptions, JitterOptions, Timeline, simulate};
use crate::program::Program;
use crate::schedule::{ScheduleError, build};
use crate::spec::{Fsdp, Spec};
use crate::units::Ns;

use super::summary::{Summary, summarise};

/// A step that could not be predicted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PredictError {
    /// The Program could not be built.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The Program does not run to its end.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A predicted step.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// Implementation.
    pub fsdp: Fsdp,
    /// The Program that ran.
    pub program: Program,
    /// The timeline; its last iteration has spans.
    pub timeline: Timeline,
    /// Step times of the iterations after warm-up.
    pub step_ns: Vec<Ns>,
    /// Step time without jitter.
    pub centre_ns: Ns,
    /// Where the time of the step without jitter goes.
    pub summary: Summary,
}

impl Prediction {
    /// Median of the step times.
    pub fn median_ns(&self) -> Ns {
        quantile(&self.step_ns, 0.5)
    }
}

/// The `q` quantile of the values, between neighbours by the lower one.
pub fn quantile(values: &[Ns], q: f64) -> Ns {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    if sorted.is_empty() {
        return 0;
    }
    let (low, high) = ((sorted.len() - 1) / 2, sorted.len() / 2);
    if q == 0.5 {
        return u64::midpoint(sorted[low], sorted[high]);
    }
    sorted[((sorted.len() - 1) as f64 * q).round() as usize]
}

/// Simulates `spec` under `fsdp`: once without jitter, once with it for the spec's iterations.
///
/// # Errors
/// [`PredictError`].
pub fn predict(
    spec: &Spec,
    fsdp: Fsdp,
    model: &CalibratedModel,
) -> Result<Prediction, PredictError> {
    let program = build(spec, fsdp)?;
    let prices = price(&program, model);
    let depth = spec.run.launch_queue_depth.clamp(1, u64::from(u32::MAX)) as u32;
    // Two iterations without jitter: the second starts in the steady state.
    let still = EngineOptions {
        iterations: 2,
        launch_queue_depth: depth,
        ..Default::default()
    };
    let timeline = simulate(&program, &prices, &still)?;
    let last = timeline.iterations.last();
    let (centre_ns, summary) = last.map_or((0, Summary::default()), |last| {
        (last.step_ns(), summarise(&program, last))
    });
    let jitter = JitterOptions {
        step_log_sigma: model.calibration().host.jitter.step_log_sigma,
        actions: true,
    };
    let iterations = (spec.run.iterations + 1).min(u64::from(u32::MAX)) as u32;
    let noisy = EngineOptions {
        iterations,
        seed: spec.run.seed,
        launch_queue_depth: depth,
        jitter: Some(jitter),
        record_all: false,
    };
    let step_ns = simulate(&program, &prices, &noisy)?.step_ns().split_off(1);
    Ok(Prediction {
        fsdp,
        program,
        timeline,
        step_ns,
        centre_ns,
        summary,
    })
}
