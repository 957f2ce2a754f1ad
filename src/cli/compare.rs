//! `fsdpsim compare`: several implementations side by side.

use std::path::PathBuf;

use anyhow::anyhow;
use serde::Serialize;

use super::args::{CalibrationArgs, RepeatArgs, fsdp_parser};
use super::failure::{CliResult, Failure, Outcome};
use super::output::{json_document, write_result};
use super::report_args::{ReportArgs, ReportFormat, check_plot, write_plot};
use super::run::StepResult;
use super::shared::{load_model, print_notes};
use crate::analysis::{Prediction, Scenario, compare, predict};
use crate::report::plot::{Distribution, Sample, Waterfall};
use crate::report::side_by_side::{figures, lines, text};
use crate::report::{Cell, Table, column};
use crate::spec::{Fsdp, Spec};
use crate::units::ms;

/// Arguments of `compare`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fsdpsim compare dsv3-proxy --fsdp v1,v2
  fsdpsim compare dsv3-proxy --fsdp ddp,v1,v2 --iterations 200 --plot steps.svg
  fsdpsim compare dsv3-proxy --fsdp v1,v2 --plot waterfall.png
  fsdpsim compare my.toml --fsdp v1,v2 --fail-above 20 && echo within 20 %")]
pub struct Args {
    /// A TOML file, or the name of a shipped spec (see `fsdpsim models`).
    spec: String,
    /// Override a field of the spec; repeatable.
    #[arg(long, value_name = "SECTION.FIELD=VALUE")]
    set: Vec<String>,
    /// Implementations; ratios are to the first, the headline's from pairs of steps that share a draw.
    #[arg(long, value_name = "FSDP,...", value_delimiter = ',', default_value = "v1,v2",
          value_parser = fsdp_parser())]
    fsdp: Vec<Fsdp>,
    /// Causes shown.
    #[arg(long, value_name = "N", default_value_t = 16)]
    top: usize,
    /// End with exit code 1 if one is more than PERCENT above the first, step by step.
    #[arg(long, value_name = "PERCENT")]
    fail_above: Option<f64>,
    /// Draw the gap by cause (of two implementations) or the step times (of more) to an .svg or .png
    /// file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
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

#[derive(Serialize)]
struct Json<'a> {
    seed: u64,
    calibration: &'a str,
    spec: &'a Spec,
    results: Vec<StepResult>,
    ratios: Vec<f64>,
}

/// Runs `compare`.
pub fn run(args: &Args) -> CliResult {
    check_plot(args.plot.as_deref())?;
    let model = load_model(args.calibration.calibration.as_deref(), args.host_speed)?;
    let mut specs = Vec::new();
    for &fsdp in &args.fsdp {
        let mut spec = Spec::load(&args.spec, &args.set, Some(fsdp))?;
        args.repeat.apply(&mut spec);
        specs.push(spec);
    }
    print_notes(&specs);
    let predictions: Vec<Prediction> = specs
        .iter()
        .map(|spec| predict(spec, spec.fsdp(), &model).map_err(Failure::usage))
        .collect::<Result<_, _>>()?;
    let names: Vec<&str> = args.fsdp.iter().map(|fsdp| fsdp.name()).collect();
    let calibration = &model.calibration().provenance.name;
    let ratios: Vec<f64> = predictions
        .iter()
        .map(|prediction| prediction.ratio_to(&predictions[0]))
        .collect();
    let text = match args.report.format {
        ReportFormat::Table | ReportFormat::Markdown => {
            let markdown = args.report.format == ReportFormat::Markdown;
            let head = headline(&predictions, &ratios, calibration);
            format!(
                "{head}\n\n{}",
                text(&names, &lines(&predictions, args.top), markdown)
            )
        }
        ReportFormat::Csv => csv(&predictions),
        ReportFormat::Json => json_document(Json {
            seed: specs[0].run.seed,
            calibration,
            spec: &specs[0],
            results: predictions.iter().map(StepResult::new).collect(),
            ratios: ratios.clone(),
        }),
    };
    if args.plot.is_some() {
        plot(args, &specs, &predictions, &model)?;
    }
    write_result(args.report.output.as_deref(), text.as_bytes())?;
    check(args, &names, &ratios)
}

fn headline(predictions: &[Prediction], ratios: &[f64], calibration: &str) -> String {
    let step = |p: &Prediction| format!("{} {:.1} ms", p.fsdp.name(), ms(p.median_ns()));
    let steps: Vec<String> = predictions.iter().map(step).collect();
    let ratio = |(p, ratio): (&Prediction, &f64)| {
        format!(
            "{} takes {:.3} of {}",
            p.fsdp.name(),
            ratio,
            predictions[0].fsdp.name()
        )
    };
    let ratios: Vec<String> = predictions.iter().zip(ratios).skip(1).map(ratio).collect();
    let mut told = steps.join(", ");
    if !ratios.is_empty() {
        told = format!("{told}; step by step, {}", ratios.join(", "));
    }
    format!("{told}; calibration {calibration}")
}

fn csv(predictions: &[Prediction]) -> String {
    let mut table = Table::new(&[
        column("fsdp", "fsdp"),
        column("kind", "kind"),
        column("name", "name"),
        column("ns", "ns"),
    ]);
    for prediction in predictions {
        let mut row = |kind: &str, name: &str, ns| {
            let fsdp = Cell::text(prediction.fsdp.name());
            table.row([fsdp, Cell::text(kind), Cell::text(name), Cell::Ns(ns)]);
        };
        figures(prediction)
            .iter()
            .for_each(|(_, key, ns)| row("step", key, *ns));
        let summary = &prediction.summary;
        summary
            .phases_ns
            .iter()
            .for_each(|(name, ns)| row("phase", name, *ns));
        summary
            .causes_ns
            .iter()
            .for_each(|(name, ns)| row("cause", name, *ns));
    }
    table.to_csv()
}

fn plot(
    args: &Args,
    specs: &[Spec],
    predictions: &[Prediction],
    model: &crate::cost::calibrated::CalibratedModel,
) -> Result<(), Failure> {
    if let [left, right] = specs {
        let scenario =
            |spec: &Spec| Scenario::from_spec(spec, spec.fsdp(), model).map_err(Failure::usage);
        let gap = compare(&scenario(left)?, &scenario(right)?, left.run.seed);
        let gap = gap.map_err(Failure::usage)?;
        let figure = Waterfall::of(&gap, left.fsdp().name(), right.fsdp().name());
        return write_plot(args.plot.as_deref(), &figure);
    }
    let sample = |p: &Prediction| Sample {
        name: p.fsdp.name().to_owned(),
        step_ns: p.step_ns.clone(),
    };
    let figure = Distribution {
        title: format!("Simulated step times of {}", args.spec),
        samples: predictions.iter().map(sample).collect(),
    };
    write_plot(args.plot.as_deref(), &figure)
}

/// Exit code 1 if `--fail-above` is exceeded.
#[allow(
    clippy::print_stderr,
    reason = "the reason of the exit code is for people"
)]
fn check(args: &Args, names: &[&str], ratios: &[f64]) -> CliResult {
    let Some(limit) = args.fail_above else {
        return Ok(Outcome::Done);
    };
    if !limit.is_finite() {
        return Err(Failure::usage(anyhow!(
            "--fail-above is {limit}; expected a percentage"
        )));
    }
    let mut outcome = Outcome::Done;
    for (name, ratio) in names.iter().zip(ratios).skip(1) {
        let percent = 100.0 * (ratio - 1.0);
        if percent > limit {
            let first = names[0];
            eprintln!("{name} is {percent:.1} % above {first}, more than the {limit} % allowed");
            outcome = Outcome::CheckFailed;
        }
    }
    Ok(outcome)
}
