//! Options of the subcommands that report: format, file, plot.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::failure::Failure;
use super::output::write_file;
use crate::report::plot::{Figure, ImageFormat, PlotError, render};

/// `--format` and `-o`, with Markdown.
#[derive(Debug, Clone, Args)]
pub struct ReportArgs {
    /// Table for people, Markdown for a pull request, JSON or CSV for programs.
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    pub format: ReportFormat,
    /// Write the result to a file instead of stdout (`-`).
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// How a report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// Rounded and aligned, for people.
    Table,
    /// Rounded, for a pull request.
    Markdown,
    /// One JSON object with `schema_version`, units in key names, full precision.
    Json,
    /// A header and rows, units in column names, full precision.
    Csv,
}

/// Checks a `--plot` before any work is done.
///
/// # Errors
/// Exit code 2 for a name that is no image.
pub fn check_plot(path: Option<&Path>) -> Result<(), Failure> {
    match path.map(ImageFormat::of) {
        Some(Err(error)) => Err(Failure::usage(error)),
        _ => Ok(()),
    }
}

/// Draws a figure to `path`, if there is one.
///
/// # Errors
/// Exit code 2 for a name that is no image or nothing to plot, 3 if the file cannot be written.
pub fn write_plot(path: Option<&Path>, figure: &impl Figure) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    let bytes = ImageFormat::of(path)
        .and_then(|format| render(figure, format))
        .map_err(|error: PlotError| Failure::usage(error))?;
    write_file(path, &bytes)
}
