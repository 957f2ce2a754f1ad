//! What a step would take if something were different: edit, run again, subtract step by step.
//!
//! Both runs draw the same jitter for the same action, so the difference of a step is the edit's;
//! its mean over the steps comes with a 90 % interval.

use thiserror::Error;

use crate::cost::calibrated::CalibratedModel;
use crate::engine::EngineError;
use crate::spec::{Fsdp, Spec, SpecError};
use crate::units::Ns;

use super::edit::{Edit, EditError};
use super::interval::{Interval, mean_interval};
use super::predict::PredictError;
use super::scenario::Scenario;

/// A change that is asked about.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// An edit of the Program or its prices.
    Edit(Edit),
    /// `section.field=value`: the Program is built anew.
    Set(String),
}

/// A question that has no answer.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum WhatIfError {
    /// The changed spec is impossible.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The changed spec cannot be built or run.
    #[error(transparent)]
    Predict(#[from] PredictError),
    /// The edit cannot be made.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// The simulation cannot express it.
    #[error("`{what}` is not expressible here: {reason}")]
    NotExpressible {
        /// What was asked for.
        what: String,
        /// Why not.
        reason: String,
    },
}

impl From<EngineError> for WhatIfError {
    fn from(error: EngineError) -> Self {
        WhatIfError::Predict(error.into())
    }
}

/// A configuration to ask about, with its run as it is.
#[derive(Debug)]
pub struct Question<'a> {
    /// Name or path of the spec, to build it anew.
    pub name: &'a str,
    /// `--set` of the base.
    pub sets: &'a [String],
    /// The base.
    pub spec: &'a Spec,
    /// Implementation.
    pub fsdp: Fsdp,
    /// Prices.
    pub model: &'a CalibratedModel,
    /// The base, built.
    pub base: Scenario,
    base_ns: Vec<Ns>,
    base_still_ns: Ns,
}

/// What a change gains.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gain {
    /// Step without jitter as it is.
    pub base_ns: Ns,
    /// Step without jitter after the change.
    pub changed_ns: Ns,
    /// Mean step with jitter as it is.
    pub base_mean_ns: f64,
    /// Mean gain of a step with jitter in nanoseconds, positive if faster, with its interval.
    pub gain_ns: Interval,
}

impl Gain {
    /// Gain in percent of the base.
    pub fn percent(&self) -> Interval {
        let percent = |ns: f64| 100.0 * ns / self.base_mean_ns.max(1.0);
        Interval {
            mean: percent(self.gain_ns.mean),
            low: percent(self.gain_ns.low),
            high: percent(self.gain_ns.high),
        }
    }
}

/// The gain of `changed` over `base`, which both have the same seed and number of iterations.
///
/// # Errors
/// [`EngineError`] if a Program does not run to its end.
pub fn gain(base: &Scenario, changed: &Scenario) -> Result<Gain, EngineError> {
    paired(&base.noisy_ns()?, base.still_ns()?, base.seed, changed)
}

fn paired(
    base_ns: &[Ns],
    base_still_ns: Ns,
    seed: u64,
    changed: &Scenario,
) -> Result<Gain, EngineError> {
    let changed_ns = changed.noisy_ns()?;
    let gains: Vec<f64> = base_ns
        .iter()
        .zip(&changed_ns)
        .map(|(&base, &changed)| base as f64 - changed as f64)
        .collect();
    Ok(Gain {
        base_ns: base_still_ns,
        changed_ns: changed.still_ns()?,
        base_mean_ns: base_ns.iter().map(|&ns| ns as f64).sum::<f64>()
            / base_ns.len().max(1) as f64,
        gain_ns: mean_interval(&gains, seed),
    })
}

impl<'a> Question<'a> {
    /// Builds and runs the base.
    ///
    /// # Errors
    /// [`PredictError`].
    pub fn new(
        name: &'a str,
        sets: &'a [String],
        spec: &'a Spec,
        model: &'a CalibratedModel,
    ) -> Result<Self, PredictError> {
        let fsdp = spec.fsdp();
        let base = Scenario::from_spec(spec, fsdp, model)?;
        let (base_ns, base_still_ns) = (base.noisy_ns()?, base.still_ns()?);
        Ok(Question {
            name,
            sets,
            spec,
            fsdp,
            model,
            base,
            base_ns,
            base_still_ns,
        })
    }

    /// The base step without jitter.
    pub fn base_still_ns(&self) -> Ns {
        self.base_still_ns
    }

    /// The base with the changes, settings first.
    ///
    /// # Errors
    /// [`WhatIfError`]: a change that cannot be made or that the simulation would not follow.
    pub fn changed(&self, changes: &[Change]) -> Result<Scenario, WhatIfError> {
        let sets: Vec<&String> = changes
            .iter()
            .filter_map(|change| match change {
                Change::Set(set) => Some(set),
                Change::Edit(_) => None,
            })
            .collect();
        let mut scenario = if sets.is_empty() {
            self.base.clone()
        } else {
            self.rebuilt(&sets)?
        };
        for change in changes {
            if let Change::Edit(edit) = change {
                edit.apply(&mut scenario)?;
            }
        }
        Ok(scenario)
    }

    fn rebuilt(&self, sets: &[&String]) -> Result<Scenario, WhatIfError> {
        let all: Vec<&String> = self.sets.iter().chain(sets.iter().copied()).collect();
        let mut spec = Spec::load(self.name, &all, Some(self.fsdp))?;
        spec.run.seed = self.spec.run.seed;
        spec.run.iterations = self.spec.run.iterations;
        let known = self.spec.notes();
        for note in spec.notes() {
            let asked = sets.iter().find(|set| set.starts_with(note.key));
            if let Some(set) = asked.filter(|_| !known.contains(&note)) {
                return Err(WhatIfError::NotExpressible {
                    what: (*set).clone(),
                    reason: note.instead.to_owned(),
                });
            }
        }
        Ok(Scenario::from_spec(&spec, spec.fsdp(), self.model)?)
    }

    /// The gain of the changes, all together.
    ///
    /// # Errors
    /// As [`Question::changed`].
    pub fn gain(&self, changes: &[Change]) -> Result<Gain, WhatIfError> {
        let changed = self.changed(changes)?;
        Ok(paired(
            &self.base_ns,
            self.base_still_ns,
            self.base.seed,
            &changed,
        )?)
    }
}
