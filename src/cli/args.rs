//! Argument groups that subcommands share, so that an option has one name and one meaning.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};

use crate::spec::{Fsdp, Spec, SpecError};

/// SPEC, `--set` and `--fsdp`.
#[derive(Debug, Clone, Args)]
pub struct SpecArgs {
    /// A TOML file, or the name of a shipped spec (see `fsdpsim models`).
    pub spec: String,
    /// Override a field of the spec; repeatable. The value is TOML, else a string; an empty one
    /// takes the field out.
    #[arg(long, value_name = "SECTION.FIELD=VALUE")]
    pub set: Vec<String>,
    /// Data-parallel implementation, instead of the one in the spec's `[ddp]`.
    #[arg(long, value_parser = fsdp_parser())]
    pub fsdp: Option<Fsdp>,
}

impl SpecArgs {
    /// Reads, overrides and validates the spec.
    ///
    /// # Errors
    /// [`SpecError`] names the place and the remedy.
    pub fn load(&self) -> Result<Spec, SpecError> {
        Spec::load(&self.spec, &self.set, self.fsdp)
    }
}

/// Parses `v1`, `v2` or `ddp`; clap lists them in errors and completions.
pub fn fsdp_parser() -> impl TypedValueParser<Value = Fsdp> {
    PossibleValuesParser::new(Fsdp::ALL.iter().map(|fsdp| fsdp.name()))
        .map(|name| Fsdp::from_name(&name).unwrap_or_default())
}

/// `--calibration`.
#[derive(Debug, Clone, Args)]
pub struct CalibrationArgs {
    /// Calibration file, or the name of a shipped one.
    #[arg(long, value_name = "FILE", env = "FSDPSIM_CALIBRATION")]
    pub calibration: Option<String>,
}

/// `--seed` and `--iterations`, which override the spec's `[run]`.
#[derive(Debug, Clone, Args)]
pub struct RepeatArgs {
    /// Seed of the host's jitter.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Steps whose times are reported.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub iterations: Option<u64>,
}

impl RepeatArgs {
    /// Puts the given values into the spec.
    pub fn apply(&self, spec: &mut Spec) {
        if let Some(seed) = self.seed {
            spec.run.seed = seed;
        }
        if let Some(iterations) = self.iterations {
            spec.run.iterations = iterations;
        }
    }
}

/// `--format` and `-o`.
#[derive(Debug, Clone, Args)]
pub struct OutputArgs {
    /// Table for people, JSON or CSV for programs.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// Write the result to a file instead of stdout (`-`).
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// How a result is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Rounded and aligned, for people.
    Table,
    /// One JSON object with `schema_version`, units in key names, full precision.
    Json,
    /// A header and rows, units in column names, full precision.
    Csv,
}

/// How a configuration is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SpecFormat {
    /// As the spec files are.
    Toml,
    /// One JSON object with `schema_version`.
    Json,
}
