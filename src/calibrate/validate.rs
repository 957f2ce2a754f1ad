//! Predictions against measured rows.

use std::collections::BTreeMap;
use std::path::Path;

use crate::analysis::{PredictError, predict};
use crate::cost::calibrated::CalibratedModel;
use crate::spec::{Fsdp, Spec, SpecError};

use super::bootstrap::median_interval;
use super::manifest::{DataError, Manifest};
use super::rows::{Row, median, read_rows};
use super::targets::VERSIONS;

/// Level of the measurement's intervals.
const LEVEL: f64 = 0.9;

/// One measured step time and its prediction.
#[derive(Debug, Clone, PartialEq)]
pub struct StepCheck {
    /// Row.
    pub row: String,
    /// File of the row.
    pub file: String,
    /// Whether the calibration used it.
    pub fitted: bool,
    /// Implementation.
    pub variant: String,
    /// Measured median.
    pub measured_ms: f64,
    /// Prediction on the calibration's host.
    pub predicted_ms: f64,
    /// Factor that carries the prediction to the row's host, from its v1 (else DDP) time.
    pub host_factor: f64,
    /// Whether this very time sets the factor, so that its error is zero by construction.
    pub sets_factor: bool,
}

impl StepCheck {
    /// Error after the host factor, percent.
    pub fn error_percent(&self) -> f64 {
        100.0 * (self.predicted_ms * self.host_factor / self.measured_ms - 1.0)
    }

    /// Error without a host factor, percent.
    pub fn absolute_error_percent(&self) -> f64 {
        100.0 * (self.predicted_ms / self.measured_ms - 1.0)
    }
}

/// A measured ratio of two implementations and its prediction.
#[derive(Debug, Clone, PartialEq)]
pub struct RatioCheck {
    /// Row.
    pub row: String,
    /// Whether the calibration used it.
    pub fitted: bool,
    /// `v2/v1`, ...
    pub ratio: String,
    /// Median of the step-by-step ratios.
    pub measured: f64,
    /// Bootstrapped 90 % interval of that median.
    pub interval: Option<(f64, f64)>,
    /// Prediction.
    pub predicted: f64,
    /// Rounds measured.
    pub rounds: usize,
}

impl RatioCheck {
    /// Prediction minus measurement, points (hundredths).
    pub fn error_points(&self) -> f64 {
        100.0 * (self.predicted - self.measured)
    }

    /// Whether the prediction is within `points` or inside the measurement's own interval.
    pub fn within(&self, points: f64) -> bool {
        let inside = self
            .interval
            .is_some_and(|(low, high)| low <= self.predicted && self.predicted <= high);
        inside || self.error_points().abs() <= points
    }
}

/// All checks.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Validation {
    /// Step times.
    pub steps: Vec<StepCheck>,
    /// Ratios.
    pub ratios: Vec<RatioCheck>,
}

/// A validation that could not run.
#[derive(Debug, thiserror::Error)]
pub enum ValidateError {
    /// Measured data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A row's configuration.
    #[error("row {row}: {source}")]
    Spec {
        /// Row.
        row: String,
        /// What is wrong.
        source: Box<SpecError>,
    },
    /// A prediction.
    #[error("row {row}: {source}")]
    Predict {
        /// Row.
        row: String,
        /// What is wrong.
        source: PredictError,
    },
}

/// Predicts every row of the folder's manifest.
///
/// # Errors
/// [`ValidateError`].
pub fn validate(folder: &Path, model: &CalibratedModel) -> Result<Validation, ValidateError> {
    let manifest = Manifest::load(folder)?;
    let rows = read_rows(folder, &manifest)?;
    let mut validation = Validation::default();
    for row in &rows {
        let predicted_ms = predict_row(row, &manifest, model)?;
        check_steps(row, &predicted_ms, &mut validation.steps);
        check_ratios(row, &predicted_ms, &mut validation.ratios);
    }
    Ok(validation)
}

fn predict_row(
    row: &Row,
    manifest: &Manifest,
    model: &CalibratedModel,
) -> Result<BTreeMap<&'static str, f64>, ValidateError> {
    let mut predicted = BTreeMap::new();
    for fsdp in [Fsdp::Ddp, Fsdp::V1, Fsdp::V2] {
        if !row.variants.contains_key(fsdp.name()) {
            continue;
        }
        let sets = row.sets(fsdp);
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        let mut spec = Spec::load(&manifest.spec, &sets, Some(fsdp)).map_err(|source| {
            ValidateError::Spec {
                row: row.name(),
                source: Box::new(source),
            }
        })?;
        // The step without jitter is what is compared with the measured median.
        spec.run.iterations = 1;
        let prediction = predict(&spec, fsdp, model).map_err(|source| ValidateError::Predict {
            row: row.name(),
            source,
        })?;
        predicted.insert(fsdp.name(), prediction.centre_ns as f64 / 1e6);
    }
    Ok(predicted)
}

fn check_steps(row: &Row, predicted_ms: &BTreeMap<&'static str, f64>, checks: &mut Vec<StepCheck>) {
    let measured = |version: &str| row.variants.get(version).map(|variant| variant.median);
    let anchor = ["v1", "ddp"]
        .into_iter()
        .find(|version| predicted_ms.contains_key(version));
    let host_factor = anchor
        .and_then(|version| Some(measured(version)? / predicted_ms.get(version)?))
        .unwrap_or(1.0);
    for version in VERSIONS {
        let (Some(measured_ms), Some(&predicted_ms)) =
            (measured(version), predicted_ms.get(version))
        else {
            continue;
        };
        checks.push(StepCheck {
            row: row.name(),
            file: row.file.display().to_string(),
            fitted: row.fitted,
            variant: version.to_owned(),
            measured_ms,
            predicted_ms,
            host_factor,
            sets_factor: anchor == Some(version),
        });
    }
}

fn check_ratios(
    row: &Row,
    predicted_ms: &BTreeMap<&'static str, f64>,
    checks: &mut Vec<RatioCheck>,
) {
    for (above, below) in [("v2", "v1"), ("v1", "ddp"), ("v2", "ddp")] {
        let (Some(a), Some(b)) = (predicted_ms.get(above), predicted_ms.get(below)) else {
            continue;
        };
        let Some(ratios) = row.ratios(above, below).filter(|ratios| !ratios.is_empty()) else {
            continue;
        };
        checks.push(RatioCheck {
            row: row.name(),
            fitted: row.fitted,
            ratio: format!("{above}/{below}"),
            measured: median(&ratios),
            interval: median_interval(&ratios, LEVEL),
            predicted: a / b,
            rounds: ratios.len(),
        });
    }
}
