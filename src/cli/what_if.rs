//! `fsdpsim what-if`: what a step would take if something were different.

use anyhow::anyhow;
use rayon::prelude::*;
use serde::Serialize;

use super::args::{CalibrationArgs, RepeatArgs, fsdp_parser};
use super::failure::{CliResult, Failure, Outcome};
use super::output::{json_document, write_result};
use super::report_args::{ReportArgs, ReportFormat};
use super::shared::{load_model, print_notes};
use crate::analysis::{
    Change, Edit, EditError, PROPOSALS, Proposal, Question, Selector, WhatIfError, removable_causes,
};
use crate::report::gains::{Answer, AnswerDocument, full_table, notes, rank, table};
use crate::report::number;
use crate::spec::{Fsdp, Spec, closest};

/// Arguments of `what-if`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fsdpsim what-if dsv3-proxy --fsdp v2 --remove v2.dtensor_rebind
  fsdpsim what-if dsv3-proxy --fsdp v2 --batch v2.pack_copy_per_param --scale 'v2.*=0.5'
  fsdpsim what-if dsv3-proxy --fsdp v2 --each
  fsdpsim what-if dsv3-proxy --fsdp v2 --proposals
  fsdpsim what-if dsv3-proxy --fsdp v2 --all-of cached-local-views,cached-grad-dtensors

Each change is answered alone, and all of them together: gains do not add.")]
pub struct Args {
    /// A TOML file, or the name of a shipped spec (see `fsdpsim models`).
    spec: String,
    /// Data-parallel implementation, instead of the one in the spec's `[ddp]`.
    #[arg(long, value_parser = fsdp_parser())]
    fsdp: Option<Fsdp>,
    /// Override a field of the spec before and after the change; repeatable.
    #[arg(long, value_name = "SECTION.FIELD=VALUE")]
    base_set: Vec<String>,
    #[command(flatten)]
    changes: ChangeArgs,
    /// Remove every cause alone and rank the gains.
    #[arg(long, help_heading = "Lists", conflicts_with = "proposals")]
    each: bool,
    /// Answer for every proposal alone and rank the gains.
    #[arg(long, help_heading = "Lists")]
    proposals: bool,
    /// Do not say what each proposal changes.
    #[arg(long)]
    brief: bool,
    #[command(flatten)]
    calibration: CalibrationArgs,
    /// Speed of the host against the calibration's.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    host_speed: f64,
    #[command(flatten)]
    repeat: RepeatArgs,
    #[command(flatten)]
    report: ReportArgs,
}

/// The changes; each repeatable.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Changes")]
struct ChangeArgs {
    /// A field of the spec; the schedule is built anew.
    #[arg(long, value_name = "SECTION.FIELD=VALUE")]
    set: Vec<String>,
    /// What a cause does is not done, on host and device. `v2.*` means all of version 2.
    #[arg(long, value_name = "CAUSE")]
    remove: Vec<String>,
    /// Host and device work of a cause takes FACTOR times as long.
    #[arg(long, value_name = "CAUSE=FACTOR")]
    scale: Vec<String>,
    /// In each phase and unit, a cause's loop becomes one call.
    #[arg(long, value_name = "CAUSE")]
    batch: Vec<String>,
    /// The host is FACTOR times as fast.
    #[arg(long, value_name = "FACTOR")]
    faster_host: Option<f64>,
    /// A proposal made upstream, by name (`--proposals` lists them).
    #[arg(long, value_name = "NAME")]
    proposal: Vec<String>,
    /// A list of proposals, and of causes to remove.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    all_of: Vec<String>,
}

/// A change that is asked about.
struct Ask {
    name: String,
    proposal: Option<&'static Proposal>,
    changes: Vec<Change>,
}

/// Runs `what-if`.
pub fn run(args: &Args) -> CliResult {
    let mut spec = Spec::load(&args.spec, &args.base_set, args.fsdp)?;
    print_notes([&spec]);
    args.repeat.apply(&mut spec);
    let model = load_model(args.calibration.calibration.as_deref(), args.host_speed)?;
    let question =
        Question::new(&args.spec, &args.base_set, &spec, &model).map_err(Failure::usage)?;
    let asked = asked(&args.changes, &question)?;
    if asked.is_empty() && !args.each && !args.proposals {
        return Err(Failure::usage(anyhow!("no change is asked about")).help(
            "give --remove, --scale, --batch, --set, --faster-host or --proposal; \
             --each tries every cause, --proposals every proposal",
        ));
    }
    let mut answers = listed(args, &question);
    rank(&mut answers);
    for ask in &asked {
        let gain = question.gain(&ask.changes).map_err(failure)?;
        answers.push(Answer {
            name: ask.name.clone(),
            proposal: ask.proposal,
            gain: Ok(gain),
        });
    }
    if asked.len() > 1 {
        let all: Vec<Change> = asked.iter().flat_map(|ask| ask.changes.clone()).collect();
        answers.push(Answer {
            name: "all of these together".to_owned(),
            proposal: None,
            gain: Ok(question.gain(&all).map_err(failure)?),
        });
    }
    let calibration = &model.calibration().provenance.name;
    let text = match args.report.format {
        ReportFormat::Table => {
            let told: String = notes(&answers, args.brief)
                .iter()
                .map(|note| format!("\n{note}\n"))
                .collect();
            format!(
                "{}\n\n{}{told}",
                headline(&question),
                table(&answers).to_text()
            )
        }
        ReportFormat::Markdown => {
            let told: String = notes(&answers, args.brief)
                .iter()
                .map(|note| format!("- {note}\n"))
                .collect();
            format!(
                "{}.\n\n{}\n{told}",
                headline(&question),
                table(&answers).to_markdown()
            )
        }
        ReportFormat::Csv => full_table(&answers).to_csv(),
        ReportFormat::Json => json_document(Json {
            seed: spec.run.seed,
            iterations: spec.run.iterations,
            calibration,
            spec: &spec,
            fsdp: question.fsdp.name(),
            answers: answers.iter().map(AnswerDocument::new).collect(),
        }),
    };
    write_result(args.report.output.as_deref(), text.as_bytes())?;
    Ok(Outcome::Done)
}

#[derive(Serialize)]
struct Json<'a> {
    seed: u64,
    iterations: u64,
    calibration: &'a str,
    spec: &'a Spec,
    fsdp: &'a str,
    answers: Vec<AnswerDocument>,
}

fn headline(question: &Question<'_>) -> String {
    format!(
        "{} as it is: {} ms without jitter; gains are means over {} steps, each against the same \
         step without the change",
        question.fsdp.name(),
        number::ms(question.base_still_ns()),
        question.base.iterations,
    )
}

/// The answers of `--each` or `--proposals`; what cannot be expressed says why.
fn listed(args: &Args, question: &Question<'_>) -> Vec<Answer> {
    let answer = |name: &str, proposal, changes: Result<Vec<Change>, WhatIfError>| Answer {
        name: name.to_owned(),
        proposal,
        gain: changes
            .and_then(|changes| question.gain(&changes))
            .map_err(|error| match error {
                WhatIfError::NotExpressible { reason, .. } => reason,
                other => other.to_string(),
            }),
    };
    if args.each {
        let causes = removable_causes(question);
        return causes
            .par_iter()
            .map(|cause| answer(cause, None, Ok(vec![remove(cause)])))
            .collect();
    }
    if args.proposals {
        return PROPOSALS
            .par_iter()
            .map(|proposal| answer(proposal.name, Some(proposal), proposal.express(question)))
            .collect();
    }
    Vec::new()
}

fn remove(cause: &str) -> Change {
    Change::Edit(Edit::Remove(Selector::cause(cause)))
}

/// What the options ask about, in the order of the help.
fn asked(args: &ChangeArgs, question: &Question<'_>) -> Result<Vec<Ask>, Failure> {
    let mut asked = Vec::new();
    let mut ask = |name: String, proposal, changes| {
        asked.push(Ask {
            name,
            proposal,
            changes,
        });
    };
    for set in &args.set {
        ask(format!("set {set}"), None, vec![Change::Set(set.clone())]);
    }
    for cause in &args.remove {
        ask(format!("remove {cause}"), None, vec![remove(cause)]);
    }
    for given in &args.scale {
        let (cause, factor) = factor(given)?;
        let edit = Edit::Scale(Selector::cause(cause), factor);
        ask(
            format!("scale {cause} by {factor}"),
            None,
            vec![Change::Edit(edit)],
        );
    }
    for cause in &args.batch {
        let edit = Edit::Batch(Selector::cause(cause));
        ask(format!("batch {cause}"), None, vec![Change::Edit(edit)]);
    }
    if let Some(factor) = args.faster_host {
        let edit = Edit::HostSpeed(factor);
        ask(
            format!("host {factor} times as fast"),
            None,
            vec![Change::Edit(edit)],
        );
    }
    for name in &args.proposal {
        let proposal = Proposal::find(name).ok_or_else(|| unknown_proposal(name))?;
        let changes = proposal.express(question).map_err(failure)?;
        ask(name.clone(), Some(proposal), changes);
    }
    for name in &args.all_of {
        match Proposal::find(name) {
            Some(proposal) => {
                let changes = proposal.express(question).map_err(failure)?;
                ask(name.clone(), Some(proposal), changes);
            }
            None if name.contains('.') => ask(format!("remove {name}"), None, vec![remove(name)]),
            None => return Err(unknown_proposal(name)),
        }
    }
    Ok(asked)
}

/// `CAUSE=FACTOR`.
fn factor(given: &str) -> Result<(&str, f64), Failure> {
    let parts = given.rsplit_once('=');
    let parsed = parts.and_then(|(cause, factor)| Some((cause, factor.parse().ok()?)));
    parsed.ok_or_else(|| {
        Failure::usage(anyhow!("`--scale {given}`: expected CAUSE=FACTOR"))
            .help("for example `--scale v2.local_view_math=0.5`")
    })
}

fn unknown_proposal(name: &str) -> Failure {
    let names: Vec<&str> = PROPOSALS.iter().map(|proposal| proposal.name).collect();
    let failure = Failure::usage(anyhow!("there is no proposal `{name}`"));
    match closest(name, names.iter().copied()) {
        Some(close) => failure.help(format!("did you mean `{close}`?")),
        None => failure.help(format!("the proposals are {}", names.join(", "))),
    }
}

/// Exit code 2, with the causes that there are.
fn failure(error: WhatIfError) -> Failure {
    match error {
        WhatIfError::Spec(error) => error.into(),
        WhatIfError::Edit(EditError::Nothing {
            ref cause,
            ref known,
            ..
        }) => {
            let close = closest(cause, known.iter().map(String::as_str));
            let help = match close {
                Some(close) => format!("did you mean `{close}`?"),
                None => format!("the causes are {}", known.join(", ")),
            };
            Failure::usage(error).help(help)
        }
        other => Failure::usage(other),
    }
}
