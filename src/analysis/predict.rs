//! From a spec and a cost model to step times.

use thiserror::Error;

use crate::cost::calibrated::CalibratedModel;
use crate::engine::{EngineError, Timeline};
use crate::program::Program;
use crate::schedule::ScheduleError;
use crate::spec::{Fsdp, Spec};
use crate::units::Ns;

use super::scenario::Scenario;
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
    /// The step without jitter, in the steady state, with its spans.
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

    /// Median of the step-by-step ratios to another prediction of the same seed, as measured rounds
    /// are evaluated: the steps of a pair share the machine's draw, which a ratio of medians would
    /// not cancel.
    pub fn ratio_to(&self, other: &Prediction) -> f64 {
        let pairs = self.step_ns.iter().zip(&other.step_ns);
        let mut ratios: Vec<f64> = pairs.map(|(&a, &b)| a as f64 / b.max(1) as f64).collect();
        ratios.sort_by(f64::total_cmp);
        match ratios.len() {
            0 => 1.0,
            count => f64::midpoint(ratios[(count - 1) / 2], ratios[count / 2]),
        }
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
    let scenario = Scenario::from_spec(spec, fsdp, model)?;
    let still = scenario.still()?;
    let (centre_ns, summary) = (still.step_ns(), summarise(&scenario.program, &still));
    Ok(Prediction {
        fsdp,
        step_ns: scenario.noisy_ns()?,
        program: scenario.program,
        timeline: Timeline {
            iterations: vec![still],
        },
        centre_ns,
        summary,
    })
}
