//! `fsdpsim check`: validate a spec and print the effective configuration.

use std::path::PathBuf;

use serde::Serialize;

use super::args::{SpecArgs, SpecFormat};
use super::failure::{CliResult, Outcome};
use super::output::{json_document, write_result};
use super::shared::print_notes;
use crate::model::{Mesh, Parameter, model_elements, parameter_groups, parameters};
use crate::spec::Spec;

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fsdpsim check dsv3-proxy
  fsdpsim check my.toml --fsdp v2 --set train.num_microbatches=4
  fsdpsim check dsv3-proxy --format json | jq .derived")]
pub struct Args {
    #[command(flatten)]
    spec: SpecArgs,
    /// TOML that reads back as the same spec, or JSON.
    #[arg(long, value_enum, default_value_t = SpecFormat::Toml)]
    format: SpecFormat,
    /// Write the result to a file instead of stdout (`-`).
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// What follows from the configuration, so that a reader can compare it with a log.
#[derive(Debug, Serialize)]
struct Derived {
    fsdp: &'static str,
    model_parameters: u64,
    rank_parameters: u64,
    rank_parameter_tensors: usize,
    rank_expert_parameters: u64,
    parameter_groups: usize,
    inner_size: u64,
    outer_size: u64,
    expert_inner_size: u64,
    expert_outer_size: u64,
    num_microbatches: u64,
    global_batch_size: u64,
    tokens_per_step: u64,
}

impl Derived {
    fn new(spec: &Spec) -> Derived {
        let parameters = parameters(spec);
        let mesh = Mesh::new(spec);
        let experts = parameters.iter().filter(|parameter| parameter.expert);
        Derived {
            fsdp: spec.fsdp().name(),
            model_parameters: model_elements(spec),
            rank_parameters: parameters.iter().map(Parameter::numel).sum(),
            rank_parameter_tensors: parameters.len(),
            rank_expert_parameters: experts.map(Parameter::numel).sum(),
            parameter_groups: parameter_groups(spec, &parameters).len(),
            inner_size: mesh.inner,
            outer_size: mesh.outer,
            expert_inner_size: mesh.expert_inner,
            expert_outer_size: mesh.expert_outer,
            num_microbatches: spec.num_microbatches(),
            global_batch_size: spec.global_batch_size(),
            tokens_per_step: spec.global_batch_size() * spec.train.seq_length,
        }
    }
}

/// Runs `check`.
pub fn run(args: &Args) -> CliResult {
    let spec = args.spec.load()?;
    let derived = Derived::new(&spec);
    let text = match args.format {
        SpecFormat::Toml => {
            let facts = toml::to_string(&derived).unwrap_or_default();
            let facts: String = facts.lines().map(|line| format!("#   {line}\n")).collect();
            format!(
                "# Effective configuration of {}; it follows that\n{facts}\n{}",
                args.spec.spec,
                spec.to_toml()
            )
        }
        SpecFormat::Json => json_document(serde_json::json!({ "spec": spec, "derived": derived })),
    };
    print_notes([&spec]);
    write_result(args.output.as_deref(), text.as_bytes())?;
    Ok(Outcome::Done)
}
