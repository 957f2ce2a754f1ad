//! The manifest of a data folder: which files there are, and what each is for.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

use crate::spec::Fsdp;

/// Name of the manifest in a data folder.
pub const MANIFEST: &str = "manifest.toml";

/// What a data folder holds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Layout version; this build reads 1.
    pub schema_version: u32,
    /// Spec of all data, unless an entry overrides fields.
    pub spec: String,
    /// What the preset describes.
    pub preset: PresetEntry,
    /// Plain phase times.
    #[serde(default)]
    pub phases: Vec<PhasesEntry>,
    /// Profiler traces.
    #[serde(default)]
    pub trace: Vec<TraceEntry>,
    /// Measured steps.
    #[serde(default)]
    pub rows: Vec<RowsEntry>,
}

/// What the preset describes.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PresetEntry {
    /// Name of the preset.
    pub name: String,
    /// Device.
    pub device: String,
    /// Host.
    pub host: String,
    /// Software versions.
    pub software: String,
    /// The row whose v1 median sets the speed.
    pub reference: RowName,
    /// Host microbenchmarks.
    pub host_ops: PathBuf,
    /// Kernel microbenchmarks.
    pub kernels: Vec<PathBuf>,
    /// Streaming multiprocessors of the device.
    pub multiprocessors: u32,
}

/// Names a row.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowName {
    /// File, where the context does not give it.
    pub file: Option<PathBuf>,
    /// Machine, if it matters.
    pub machine: Option<String>,
    /// Tag.
    pub tag: String,
    /// Microbatches, if it matters.
    pub mb: Option<u64>,
}

/// Plain phase times of one configuration.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhasesEntry {
    /// File.
    pub file: PathBuf,
    /// Tag of the rows.
    pub tag: String,
    /// Microbatches of the rows.
    pub microbatches: u64,
    /// Whether this is the configuration that the traces recorded.
    #[serde(default)]
    pub recorded: bool,
}

/// A profiler trace.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceEntry {
    /// File.
    pub file: PathBuf,
    /// Implementation that ran: `v1`, `v2` or `ddp`.
    pub fsdp: Fsdp,
    /// Overrides of the spec.
    #[serde(default)]
    pub set: Vec<String>,
    /// Median plain step of the recording process, if it stepped without the profiler too.
    pub plain_ms: Option<f64>,
}

/// Measured steps.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowsEntry {
    /// File.
    pub file: PathBuf,
    /// Rows that the calibration uses; all others are for validation.
    #[serde(default)]
    pub fit: Vec<RowName>,
}

/// Data that could not be read.
#[derive(Debug, Error)]
pub enum DataError {
    /// A file that is absent or unreadable.
    #[error("{path}: cannot be read")]
    Unreadable {
        /// Path.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file that does not hold what it should.
    #[error("{path}: {detail}")]
    Malformed {
        /// Path.
        path: String,
        /// What was expected and where.
        detail: String,
    },
}

impl DataError {
    /// Shorthand for a malformed file.
    pub fn malformed(path: &Path, detail: impl Into<String>) -> Self {
        DataError::Malformed {
            path: path.display().to_string(),
            detail: detail.into(),
        }
    }
}

/// Reads a text file.
pub fn read_text(path: &Path) -> Result<String, DataError> {
    std::fs::read_to_string(path).map_err(|source| DataError::Unreadable {
        path: path.display().to_string(),
        source,
    })
}

impl Manifest {
    /// Reads the manifest of `folder`.
    ///
    /// # Errors
    /// No manifest there, or not one of this layout.
    pub fn load(folder: &Path) -> Result<Self, DataError> {
        let path = folder.join(MANIFEST);
        let text = read_text(&path)?;
        let manifest: Manifest = toml::from_str(&text)
            .map_err(|error| DataError::malformed(&path, error.to_string()))?;
        if manifest.schema_version != 1 {
            let found = manifest.schema_version;
            let detail = format!("manifest schema {found}, but this build reads schema 1");
            return Err(DataError::malformed(&path, detail));
        }
        Ok(manifest)
    }
}
