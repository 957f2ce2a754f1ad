//! `fsdpsim models`: the shipped specs.

use clap::Subcommand;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::args::{Format, OutputArgs};
use super::failure::{CliResult, Outcome};
use super::output::{csv_line, json_document, write_result};
use crate::model::model_elements;
use crate::spec::{SHIPPED, ShippedSpec, Spec, SpecError, closest};

/// Arguments of `models`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  fsdpsim models
  fsdpsim models --format json
  fsdpsim models show dsv3-proxy > my.toml   a start for a spec of one's own")]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print a shipped spec with its comments.
    #[command(after_help = "Examples:\n  fsdpsim models show llama3-8b")]
    Show {
        /// Name of a shipped spec.
        name: String,
    },
}

#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    parameters: u64,
    layers: u64,
    world_size: u64,
    summary: &'static str,
}

/// Runs `models`.
pub fn run(args: &Args) -> CliResult {
    match &args.action {
        Some(Action::Show { name }) => show(name),
        None => list(&args.output),
    }
}

fn show(name: &str) -> CliResult {
    let Some(shipped) = ShippedSpec::find(name) else {
        let names: Vec<&str> = SHIPPED.iter().map(|shipped| shipped.name).collect();
        let meant = closest(name, names.iter().copied());
        let meant = meant.map(|meant| format!("did you mean `{meant}`? "));
        let failure = super::Failure::usage(anyhow::anyhow!("no shipped spec is named `{name}`"));
        return Err(failure.help(format!(
            "{}shipped are: {}",
            meant.unwrap_or_default(),
            names.join(", ")
        )));
    };
    write_result(None, shipped.toml.as_bytes())?;
    Ok(Outcome::Done)
}

fn list(output: &OutputArgs) -> CliResult {
    let rows: Vec<Row> = SHIPPED.iter().map(row).collect::<Result<_, _>>()?;
    let text = match output.format {
        Format::Table => table(&rows),
        Format::Json => json_document(serde_json::json!({ "models": rows })),
        Format::Csv => csv(&rows),
    };
    write_result(output.output.as_deref(), text.as_bytes())?;
    Ok(Outcome::Done)
}

fn row(shipped: &ShippedSpec) -> Result<Row, SpecError> {
    let spec = Spec::parse(shipped.name, shipped.toml, &[""; 0], None)?;
    Ok(Row {
        name: shipped.name,
        parameters: model_elements(&spec),
        layers: spec.model.num_layers,
        world_size: spec.parallel.world_size,
        summary: shipped.summary,
    })
}

/// Parameters as people say them: `246M`, `8.03B`, `671B`.
fn in_words(parameters: u64) -> String {
    let (value, unit) = if parameters >= 1_000_000_000 {
        (parameters as f64 / 1e9, "B")
    } else {
        (parameters as f64 / 1e6, "M")
    };
    let decimals = if value < 10.0 { 2 } else { 0 };
    format!("{value:.decimals$}{unit}")
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["name", "parameters", "layers", "GPUs", "what it is"]);
    for row in rows {
        table.add_row([
            row.name.to_owned(),
            in_words(row.parameters),
            row.layers.to_string(),
            row.world_size.to_string(),
            row.summary.to_owned(),
        ]);
    }
    for column in 1..4 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
        .lines()
        .fold(String::new(), |text, line| text + line.trim_end() + "\n")
}

fn csv(rows: &[Row]) -> String {
    let header = ["name", "parameters", "layers", "world_size", "summary"].map(str::to_owned);
    let mut text = csv_line(&header);
    for row in rows {
        text += &csv_line(&[
            row.name.to_owned(),
            row.parameters.to_string(),
            row.layers.to_string(),
            row.world_size.to_string(),
            row.summary.to_owned(),
        ]);
    }
    text
}
