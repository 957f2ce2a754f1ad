//! What a subcommand returns, and how errors are printed.

use std::error::Error;
use std::process::ExitCode;

use crate::spec::SpecError;

/// How a subcommand ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Exit code 0.
    Done,
    /// A check that was asked for (`--tolerance`, `--fail-above`) failed: exit code 1.
    CheckFailed,
}

/// The result of a subcommand.
pub type CliResult = Result<Outcome, Failure>;

/// An error on its way to stderr.
#[derive(Debug)]
pub struct Failure {
    kind: Kind,
    error: anyhow::Error,
    help: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The reader of stdout has gone: end quietly.
    ClosedPipe,
    /// Command line or configuration: exit code 2.
    Usage,
    /// Data that cannot be read or written: exit code 3.
    Data,
}

impl Failure {
    /// The command line or the configuration is wrong: exit code 2.
    pub fn usage(error: impl Into<anyhow::Error>) -> Self {
        Failure::new(Kind::Usage, error)
    }

    /// Data cannot be read or written: exit code 3.
    pub fn data(error: impl Into<anyhow::Error>) -> Self {
        Failure::new(Kind::Data, error)
    }

    /// Writing to stdout failed: quiet if its reader has gone, else exit code 3.
    pub fn stdout(error: std::io::Error) -> Self {
        let kind = match error.kind() {
            std::io::ErrorKind::BrokenPipe => Kind::ClosedPipe,
            _ => Kind::Data,
        };
        Failure::new(
            kind,
            anyhow::Error::new(error).context("cannot write to stdout"),
        )
    }

    fn new(kind: Kind, error: impl Into<anyhow::Error>) -> Self {
        Failure {
            kind,
            error: error.into(),
            help: Vec::new(),
        }
    }

    /// Adds a `help:` line for each line of `help`.
    #[must_use]
    pub fn help(mut self, help: impl AsRef<str>) -> Self {
        for line in help.as_ref().lines().map(str::to_owned) {
            if !self.help.contains(&line) {
                self.help.push(line);
            }
        }
        self
    }

    /// Prints `error:`, `caused by:` and `help:` lines to stderr.
    #[allow(clippy::print_stderr, reason = "this is where errors are printed")]
    pub fn report(&self) -> ExitCode {
        let code = match self.kind {
            Kind::ClosedPipe => return ExitCode::SUCCESS,
            Kind::Usage => 2,
            Kind::Data => 3,
        };
        eprintln!("error: {}", self.error);
        let mut cause: Option<&dyn Error> = self.error.source();
        while let Some(error) = cause {
            eprintln!("caused by: {error}");
            cause = error.source();
        }
        for help in &self.help {
            eprintln!("help: {help}");
        }
        ExitCode::from(code)
    }
}

impl From<SpecError> for Failure {
    fn from(error: SpecError) -> Self {
        let help = error.help();
        let kind = if error.is_unreadable() {
            Kind::Data
        } else {
            Kind::Usage
        };
        Failure::new(kind, error).help(help)
    }
}
