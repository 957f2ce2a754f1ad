//! `fsdpsim calibrate`: measurements in, calibration file out.

use std::path::PathBuf;

use super::failure::{CliResult, Failure, Outcome};
use super::output::{write_file, write_result};
use crate::calibrate::{Calibrated, calibrate};

/// Arguments of `calibrate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fsdpsim calibrate calibration/data -o calibration/h200-1gpu.toml
  fsdpsim calibrate my-data -o my.toml && fsdpsim run dsv3-proxy --calibration my.toml")]
pub struct Args {
    /// Folder with a manifest.toml and the files that it names.
    #[arg(value_name = "DATA_DIR")]
    data: PathBuf,
    /// Calibration file to write (`-` for stdout).
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Runs `calibrate`.
pub fn run(args: &Args) -> CliResult {
    let made = calibrate(&args.data).map_err(|error| {
        Failure::data(error).help("see calibration/README.md for the files and their layout")
    })?;
    let text = made.calibration.to_toml();
    if args.output.as_os_str() == "-" {
        write_result(None, text.as_bytes())?;
    } else {
        write_file(&args.output, text.as_bytes())?;
        write_result(None, report(&made).as_bytes())?;
    }
    Ok(Outcome::Done)
}

fn report(made: &Calibrated) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    let _ = writeln!(
        text,
        "recorded steps (host time that found its place in the Program)"
    );
    for step in &made.steps {
        let phases: Vec<String> = step
            .phase_coverage_percent
            .iter()
            .map(|(phase, percent)| format!("{phase} {percent:.1}"))
            .collect();
        let _ = writeln!(
            text,
            "  {:<44} {:>6.1} ms  {:>6.2} %  ({})",
            step.file,
            step.recorded_ms,
            step.coverage_percent,
            phases.join(", ")
        );
    }
    let host = &made.calibration.host;
    let _ = writeln!(
        text,
        "a recorded operator costs {:.1} us, a recorded runtime call {:.1} us",
        host.recorded_operator_ns / 1e3,
        host.recorded_runtime_ns / 1e3
    );
    let _ = writeln!(text, "phases without a profiler: measured and fitted, ms");
    for phase in &made.phases {
        let _ = writeln!(
            text,
            "  {:<4} {:<10} {:>7.2} {:>7.2}",
            phase.version, phase.phase, phase.plain_ms, phase.fitted_ms
        );
    }
    let _ = writeln!(
        text,
        "{} host classes, mean phase error {:.1} %",
        host.classes.len(),
        made.calibration.provenance.phase_error_percent
    );
    text
}
