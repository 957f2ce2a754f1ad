//! A priced Program with the way it is run: what every question of this module is asked of.

use crate::cost::calibrated::CalibratedModel;
use crate::cost::{Prices, price};
use crate::engine::{EngineError, EngineOptions, Iteration, JitterOptions, simulate};
use crate::program::Program;
use crate::schedule::build;
use crate::spec::{Fsdp, Spec};
use crate::units::Ns;

use super::predict::PredictError;

/// Steps simulated before the one that is looked at, so that it starts in the steady state.
const WARM_UP: u32 = 1;

/// A Program, its prices, and how it is run. What-ifs edit a copy and run it again.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// What happens.
    pub program: Program,
    /// How long each action takes.
    pub prices: Prices,
    /// Launch queue depth of the host.
    pub launch_queue_depth: u32,
    /// Spread of host time.
    pub jitter: JitterOptions,
    /// Seed of all draws. Two scenarios with one seed draw the same for the same action.
    pub seed: u64,
    /// Steps of a run with jitter, warm-up not counted.
    pub iterations: u32,
}

impl Scenario {
    /// A scenario without jitter, for Programs that no spec stands behind.
    pub fn new(program: Program, prices: Prices) -> Self {
        Scenario {
            program,
            prices,
            launch_queue_depth: EngineOptions::default().launch_queue_depth,
            jitter: JitterOptions::default(),
            seed: 0,
            iterations: 1,
        }
    }

    /// Builds and prices `spec` under `fsdp`.
    ///
    /// # Errors
    /// [`PredictError::Schedule`] if the schedule cannot be built.
    pub fn from_spec(
        spec: &Spec,
        fsdp: Fsdp,
        model: &CalibratedModel,
    ) -> Result<Self, PredictError> {
        let program = build(spec, fsdp)?;
        let prices = price(&program, model);
        Ok(Scenario {
            launch_queue_depth: spec.run.launch_queue_depth.clamp(1, u64::from(u32::MAX)) as u32,
            jitter: JitterOptions {
                step_log_sigma: model.calibration().host.jitter.step_log_sigma,
                actions: true,
            },
            seed: spec.run.seed,
            iterations: spec.run.iterations.clamp(1, u64::from(u32::MAX - WARM_UP)) as u32,
            ..Scenario::new(program, prices)
        })
    }

    fn options(&self) -> EngineOptions {
        EngineOptions {
            iterations: 1 + WARM_UP,
            seed: self.seed,
            launch_queue_depth: self.launch_queue_depth,
            ..Default::default()
        }
    }

    /// One step without jitter, in the steady state, with its spans.
    ///
    /// # Errors
    /// [`EngineError`] if the Program does not run to its end.
    pub fn still(&self) -> Result<Iteration, EngineError> {
        let mut timeline = simulate(&self.program, &self.prices, &self.options())?;
        Ok(timeline.iterations.pop().unwrap_or_default())
    }

    /// Its step time.
    ///
    /// # Errors
    /// As [`Scenario::still`].
    pub fn still_ns(&self) -> Result<Ns, EngineError> {
        self.still().map(|iteration| iteration.step_ns())
    }

    /// Step times with jitter, warm-up left out.
    ///
    /// # Errors
    /// As [`Scenario::still`].
    pub fn noisy_ns(&self) -> Result<Vec<Ns>, EngineError> {
        let options = EngineOptions {
            iterations: self.iterations + WARM_UP,
            jitter: Some(self.jitter),
            ..self.options()
        };
        let steps = simulate(&self.program, &self.prices, &options)?.step_ns();
        Ok(steps[(WARM_UP as usize).min(steps.len())..].to_vec())
    }
}
