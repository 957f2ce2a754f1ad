//! The command line: one file per subcommand. Only this module prints, reads the environment or
//! decides exit codes.
//!
//! Conventions, the same for every subcommand:
//! - The result goes to stdout (or to `-o FILE`, written to a temporary name and renamed); everything
//!   else goes to stderr. A closed pipe ends the program quietly.
//! - Exit codes: 0 done, 1 a check that was asked for failed, 2 the command line or the configuration
//!   is wrong, 3 data could not be read or written.
//! - Errors read `error: ...`, `caused by: ...`, `help: ...`.
//!
//! To add a subcommand, write `NAME.rs` with `Args` and `run`, and add a line to `Command` and one
//! to `dispatch`.

mod args;
mod calibrate;
mod check;
mod compare;
mod completions;
mod explain;
mod failure;
mod man;
mod merge;
mod models;
mod output;
mod report_args;
mod run;
mod shared;
mod sweep;
mod validate;

mod what_if;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

pub use args::{
    CalibrationArgs, Format, OutputArgs, RepeatArgs, SpecArgs, SpecFormat, fsdp_parser,
};
pub use failure::{CliResult, Failure, Outcome};
pub use output::{csv_line, json_document, write_file, write_result};

/// Simulate the timing of an FSDP training step: where the milliseconds go, and what removing an
/// overhead would buy.
#[derive(Debug, Parser)]
#[command(
    name = "fsdpsim",
    version,
    propagate_version = true,
    max_term_width = 100
)]
#[command(after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  fsdpsim run dsv3-proxy --fsdp v2     predict a step and where its time goes
  fsdpsim compare dsv3-proxy           put version 1 and version 2 side by side
  fsdpsim explain dsv3-proxy --fsdp v2 --against v1   split the gap over causes
  fsdpsim models                       list the shipped specs
  fsdpsim check dsv3-proxy --fsdp v2   validate a spec and print what it amounts to
  fsdpsim help check                   all options of a subcommand";

/// The subcommands.
#[derive(Debug, Subcommand)]
enum Command {
    /// Predict how long a step takes and where its time goes.
    Run(run::Args),
    /// Set predictions against measured rows.
    Validate(validate::Args),
    /// Put several implementations side by side.
    Compare(compare::Args),
    /// Explain where the time of a step goes, and why it differs from another.
    Explain(explain::Args),
    /// Ask what a step would take if something were different.
    WhatIf(what_if::Args),
    /// Simulate a grid of configurations.
    Sweep(sweep::Args),
    /// Join the parts of a sweep.
    Merge(merge::Args),
    /// Make a calibration from measurements.
    Calibrate(calibrate::Args),
    /// Validate a spec and print the effective configuration.
    Check(check::Args),
    /// List the shipped specs, or print one.
    Models(models::Args),
    /// Print a completion script for a shell.
    #[command(hide = true)]
    Completions(completions::Args),
    /// Print a manual page.
    #[command(hide = true)]
    Man(man::Args),
}

fn dispatch(command: Command) -> CliResult {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::WhatIf(args) => what_if::run(&args),
        Command::Sweep(args) => sweep::run(&args),
        Command::Merge(args) => merge::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Models(args) => models::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}

/// The whole command line, for completions, manual pages and tests.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Parses the arguments, runs the subcommand, prints the error if there is one.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to stdout with exit code 0, everything else to stderr with 2. If
            // that cannot be printed, there is nowhere left to say so.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    match dispatch(cli.command) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::CheckFailed) => ExitCode::from(1),
        Err(failure) => failure.report(),
    }
}
