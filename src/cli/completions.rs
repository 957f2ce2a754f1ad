//! `fsdpsim completions`: a completion script for a shell.

use clap_complete::Shell;

use super::failure::{CliResult, Outcome};
use super::output::write_result;

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fsdpsim completions bash > ~/.local/share/bash-completion/completions/fsdpsim
  fsdpsim completions zsh > ~/.zfunc/_fsdpsim
  fsdpsim completions fish > ~/.config/fish/completions/fsdpsim.fish")]
pub struct Args {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs `completions`.
pub fn run(args: &Args) -> CliResult {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::command(), "fsdpsim", &mut script);
    write_result(None, &script)?;
    Ok(Outcome::Done)
}
