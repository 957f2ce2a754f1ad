//! `fsdpsim merge`: joins the parts of a sweep.

use std::path::PathBuf;

use super::failure::{CliResult, Failure, Outcome};
use super::output::write_result;
use crate::report::sweep_file::RowFormat;
use crate::sweep::SweepFile;

/// Arguments of `merge`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fsdpsim merge part.*.csv -o all.csv
  fsdpsim merge part.1.jsonl part.2.jsonl | head

Parts of one grid come from `fsdpsim sweep --shard I/N`. Missing, doubled and foreign parts are
errors (exit code 3).")]
pub struct Args {
    /// Files that `fsdpsim sweep --shard` wrote, in any order.
    #[arg(required = true, value_name = "PART")]
    parts: Vec<PathBuf>,
    /// Write Parquet instead of what the parts are.
    #[cfg(feature = "parquet")]
    #[arg(long)]
    parquet: bool,
    /// Write to a file instead of stdout (`-`).
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs `merge`.
pub fn run(args: &Args) -> CliResult {
    let mut parts = Vec::new();
    let mut format = RowFormat::Csv;
    for path in &args.parts {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::data(anyhow::Error::new(error).context(format!("cannot read `{name}`")))
        })?;
        let (file, own) = SweepFile::parse(&text).map_err(|error| {
            Failure::data(anyhow::Error::new(error).context(format!("cannot read `{name}`")))
                .help("expected a file that `fsdpsim sweep` wrote")
        })?;
        format = own;
        parts.push((format!("`{name}`"), file));
    }
    let whole = crate::sweep::merge(parts).map_err(|error| {
        Failure::data(error)
            .help("run the missing or differing shards again: --shard I/N, --resume")
    })?;
    #[cfg(feature = "parquet")]
    if args.parquet {
        let bytes = crate::report::sweep_parquet::to_parquet(&whole).map_err(Failure::data)?;
        write_result(args.output.as_deref(), &bytes)?;
        return Ok(Outcome::Done);
    }
    write_result(args.output.as_deref(), whole.to_text(format).as_bytes())?;
    Ok(Outcome::Done)
}
