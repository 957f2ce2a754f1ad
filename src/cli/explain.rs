//! `fsdpsim explain`: where the time of a step goes, and why it differs from another.

use std::path::PathBuf;

use serde::Serialize;

use super::args::{CalibrationArgs, RepeatArgs, SpecArgs, fsdp_parser};
use super::failure::{CliResult, Failure, Outcome};
use super::output::{json_document, write_result};
use super::report_args::{ReportArgs, ReportFormat, check_plot, write_plot};
use super::shared::{load_model, print_notes};
use crate::analysis::{Comparison, Scenario, compare};
use crate::report::explain::{Document, Explained};
use crate::report::gap::{GapDocument, gap_table};
use crate::report::plot::{TimelinePlot, Waterfall};
use crate::report::{Cell, Table, column, number};
use crate::spec::{Fsdp, Spec};

/// Arguments of `explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fsdpsim explain dsv3-proxy --fsdp v2
  fsdpsim explain dsv3-proxy --fsdp v2 --against v1 --plot gap.svg
  fsdpsim explain dsv3-proxy --fsdp v2 --against v1 --format markdown | gh pr comment -F -")]
pub struct Args {
    #[command(flatten)]
    spec: SpecArgs,
    /// Split the gap to this implementation over causes.
    #[arg(long, value_name = "FSDP", value_parser = fsdp_parser())]
    against: Option<Fsdp>,
    /// Causes, phases and units shown one by one.
    #[arg(long, value_name = "N", default_value_t = 15)]
    top: usize,
    /// Draw the waterfall (with --against) or the timeline to an .svg or .png file.
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
    result: Document,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<Document>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gap: Option<GapDocument>,
}

/// Runs `explain`.
pub fn run(args: &Args) -> CliResult {
    check_plot(args.plot.as_deref())?;
    let mut spec = args.spec.load()?;
    print_notes([&spec]);
    args.repeat.apply(&mut spec);
    let model = load_model(args.calibration.calibration.as_deref(), args.host_speed)?;
    let scenario = |fsdp| Scenario::from_spec(&spec, fsdp, &model).map_err(Failure::usage);
    let explained = |scenario: &Scenario, fsdp: Fsdp| {
        Explained::new(fsdp.name(), scenario).map_err(Failure::usage)
    };
    let right = scenario(spec.fsdp())?;
    let step = explained(&right, spec.fsdp())?;
    let other = match args.against {
        None => None,
        Some(fsdp) => {
            // The other implementation may refuse what this one allows.
            Spec::load(&args.spec.spec, &args.spec.set, Some(fsdp))?;
            let left = scenario(fsdp)?;
            let gap = compare(&left, &right, spec.run.seed).map_err(Failure::usage)?;
            Some((explained(&left, fsdp)?, gap))
        }
    };
    let calibration = &model.calibration().provenance.name;
    let text = match args.report.format {
        ReportFormat::Table => table(&step, other.as_ref(), args.top, calibration),
        ReportFormat::Markdown => markdown(&step, other.as_ref(), args.top, calibration),
        ReportFormat::Csv => match &other {
            None => step.tidy_table().to_csv(),
            Some((_, gap)) => gap_csv(gap),
        },
        ReportFormat::Json => json_document(Json {
            seed: spec.run.seed,
            calibration,
            spec: &spec,
            result: step.document(),
            against: other.as_ref().map(|(left, _)| left.document()),
            gap: other.as_ref().map(|(_, gap)| GapDocument::new(gap)),
        }),
    };
    if args.plot.is_some() {
        plot(args, &step, other.as_ref())?;
    }
    write_result(args.report.output.as_deref(), text.as_bytes())?;
    Ok(Outcome::Done)
}

fn plot(
    args: &Args,
    step: &Explained,
    other: Option<&(Explained, Comparison)>,
) -> Result<(), Failure> {
    let path = args.plot.as_deref();
    match other {
        Some((left, gap)) => write_plot(path, &Waterfall::of(gap, &left.name, &step.name)),
        None => {
            let title = format!("{} under {}: one step of rank 0", args.spec.spec, step.name);
            write_plot(
                path,
                &TimelinePlot::new(&title, &step.program, &step.iteration),
            )
        }
    }
}

fn bound(step: &Explained) -> &'static str {
    if step.summary.host_bound() {
        "host-bound"
    } else {
        "device-bound"
    }
}

fn headline(step: &Explained, calibration: &str) -> String {
    format!(
        "{}: a step takes {} ms without jitter and is {}; calibration {calibration}",
        step.name,
        number::ms(step.breakdown.step_ns),
        bound(step)
    )
}

fn gap_line(left: &Explained, step: &Explained, gap: &Comparison) -> String {
    let percent = 100.0 * gap.gap_ns() as f64 / gap.left_ns.max(1) as f64;
    let orders = if gap.exact { "all" } else { "sampled" };
    format!(
        "{} takes {} ms, {} takes {} ms: {} ms or {} %. Split by removing causes from both, \
         averaged over {} {orders} orders",
        left.name,
        number::ms(gap.left_ns),
        step.name,
        number::ms(gap.right_ns),
        number::signed_ms(gap.gap_ns() as f64),
        number::percent(percent),
        gap.orders,
    )
}

fn table(
    step: &Explained,
    other: Option<&(Explained, Comparison)>,
    top: usize,
    calibration: &str,
) -> String {
    if let Some((left, gap)) = other {
        return format!(
            "{}\n\n{}",
            gap_line(left, step, gap),
            gap_table(gap, top).to_text()
        );
    }
    let tables = [
        step.parts_table(),
        step.device_table(),
        step.splits_table("cause", &step.by_cause(), top),
        step.splits_table("phase", &step.by_phase(), top),
        step.splits_table("unit", &step.by_unit(), top),
        step.lanes_table(),
    ];
    let tables: Vec<String> = tables.iter().map(Table::to_text).collect();
    format!("{}\n\n{}", headline(step, calibration), tables.join("\n"))
}

fn markdown(
    step: &Explained,
    other: Option<&(Explained, Comparison)>,
    top: usize,
    calibration: &str,
) -> String {
    match other {
        Some((left, gap)) => {
            format!(
                "{}.\n\n{}",
                gap_line(left, step, gap),
                gap_table(gap, top).to_markdown()
            )
        }
        None => format!(
            "{}.\n\n{}\n{}",
            headline(step, calibration),
            step.parts_table().to_markdown(),
            step.splits_table("cause", &step.by_cause(), top)
                .to_markdown()
        ),
    }
}

fn gap_csv(gap: &Comparison) -> String {
    let mut table = Table::new(&[
        column("cause", "cause"),
        column("gap", "gap_ns"),
        column("low", "order_low_ns"),
        column("high", "order_high_ns"),
        column("left", "left_ns"),
        column("right", "right_ns"),
    ]);
    let number = |ns: i64| Cell::Difference(ns as f64);
    for c in &gap.contributions {
        table.row([
            Cell::text(c.cause.clone()),
            number(c.ns),
            number(c.low_ns),
            number(c.high_ns),
            number(c.left_ns),
            number(c.right_ns),
        ]);
    }
    let rest = gap.unexplained_ns();
    let (left, right) = (gap.left_rest_ns as i64, gap.right_rest_ns as i64);
    let cells = [rest, rest, rest, left, right].map(number);
    table.row(std::iter::once(Cell::text("not explained")).chain(cells));
    table.to_csv()
}
