//! `fsdpsim man`: manual pages in roff.

use std::path::PathBuf;

use clap_mangen::Man;

use super::failure::{CliResult, Failure, Outcome};
use super::output::{write_file, write_result};

/// Arguments of `man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fsdpsim man | man -l -
  fsdpsim man --dir ~/.local/share/man/man1   one page per subcommand")]
pub struct Args {
    /// Write the page of the program and of each subcommand into a folder.
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

/// Runs `man`.
pub fn run(args: &Args) -> CliResult {
    let mut command = super::command();
    // Gives subcommands their full names, `fsdpsim-check` and so on.
    command.build();
    let Some(dir) = &args.dir else {
        write_result(None, &page(command)?)?;
        return Ok(Outcome::Done);
    };
    for subcommand in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let name = subcommand
            .get_display_name()
            .unwrap_or(subcommand.get_name());
        write_file(&dir.join(format!("{name}.1")), &page(subcommand.clone())?)?;
    }
    write_file(&dir.join("fsdpsim.1"), &page(command)?)?;
    Ok(Outcome::Done)
}

fn page(command: clap::Command) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page).map_err(Failure::data)?;
    Ok(page)
}
