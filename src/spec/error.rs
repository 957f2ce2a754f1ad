//! Why a spec was refused. Every message names the place and the remedy.

use thiserror::Error;

/// A spec that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SpecError {
    /// Neither a file nor a shipped spec.
    #[error("there is no file `{name}` and no shipped spec of that name")]
    NotFound {
        /// What was asked for.
        name: String,
        /// Shipped specs, and which of them was perhaps meant.
        help: String,
    },
    /// The file exists but cannot be read.
    #[error("cannot read `{path}`: {reason}")]
    Unreadable {
        /// The file.
        path: String,
        /// What the operating system says.
        reason: String,
    },
    /// The file is not TOML, or holds an unknown key or a value of the wrong type.
    #[error("{place}: {message}\n{excerpt}")]
    File {
        /// `file:line:column`, or the file alone where the parser knows no position.
        place: String,
        /// What is wrong.
        message: String,
        /// The line with a marker under the place; empty without a position.
        excerpt: String,
        /// What to do.
        help: String,
    },
    /// A `--set` that names no key or gives a value of the wrong type.
    #[error("--set {set}: {message}")]
    Set {
        /// The argument.
        set: String,
        /// What is wrong.
        message: String,
        /// What to do.
        help: String,
    },
    /// A combination that cannot run.
    #[error("{origin}: {}", join(.violations))]
    Impossible {
        /// The file.
        origin: String,
        /// Everything that is wrong with it.
        violations: Vec<Violation>,
    },
}

/// One reason why a combination cannot run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// `section.field`.
    pub key: &'static str,
    /// Why it cannot be.
    pub reason: String,
    /// What to do.
    pub help: String,
    /// The `--set` that gave the value, if one did.
    pub set: Option<String>,
}

impl SpecError {
    /// What to do about it, one remedy a line.
    pub fn help(&self) -> String {
        match self {
            SpecError::NotFound { help, .. }
            | SpecError::File { help, .. }
            | SpecError::Set { help, .. } => help.clone(),
            SpecError::Unreadable { .. } => "check the path and its permissions".to_owned(),
            SpecError::Impossible { violations, .. } => {
                let lines: Vec<&str> = violations.iter().map(|v| v.help.as_str()).collect();
                lines.join("\n")
            }
        }
    }

    /// Whether the fault lies in what could be read (exit code 3) rather than in what was asked for
    /// (exit code 2).
    pub fn is_unreadable(&self) -> bool {
        matches!(self, SpecError::Unreadable { .. })
    }
}

/// One violation on the line itself, several as a list below it.
fn join(violations: &[Violation]) -> String {
    match violations {
        [one] => one.to_string(),
        many => {
            let lines: Vec<String> = many.iter().map(|v| format!("\n  - {v}")).collect();
            format!(
                "{} settings cannot be combined{}",
                many.len(),
                lines.concat()
            )
        }
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}`: {}", self.key, self.reason)?;
        match &self.set {
            Some(set) => write!(f, " (from --set {set})"),
            None => Ok(()),
        }
    }
}
