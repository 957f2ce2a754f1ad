//! `fsdpsim validate`: predictions against measured rows.

use std::path::PathBuf;

use serde::Serialize;

use super::args::{CalibrationArgs, Format, OutputArgs};
use super::failure::{CliResult, Failure, Outcome};
use super::output::{csv_line, json_document, write_result};
use super::shared::load_model;
use crate::calibrate::{RatioCheck, StepCheck, ValidateError, Validation, validate};

/// Arguments of `validate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fsdpsim validate
  fsdpsim validate --tolerance 5 --ratio-tolerance 2
  fsdpsim validate my-data --calibration my.toml --format json")]
pub struct Args {
    /// Folder with a manifest.toml and the files that it names.
    #[arg(value_name = "DATA_DIR", default_value = "calibration/data")]
    data: PathBuf,
    #[command(flatten)]
    calibration: CalibrationArgs,
    /// Fail (exit code 1) if a step time is off by more than this many percent after its row's host
    /// factor.
    #[arg(long, value_name = "PERCENT")]
    tolerance: Option<f64>,
    /// Fail (exit code 1) if a ratio is off by more than this many points and outside the
    /// measurement's own 90 % interval.
    #[arg(long, value_name = "POINTS")]
    ratio_tolerance: Option<f64>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `validate`.
pub fn run(args: &Args) -> CliResult {
    let model = load_model(args.calibration.calibration.as_deref(), 1.0)?;
    let validation = validate(&args.data, &model).map_err(|error| match error {
        ValidateError::Data(error) => Failure::data(error)
            .help("give the folder that holds manifest.toml, e.g. calibration/data"),
        other => Failure::usage(other),
    })?;
    let text = match args.output.format {
        Format::Table => table(&validation),
        Format::Json => json(&validation),
        Format::Csv => csv(&validation),
    };
    write_result(args.output.output.as_deref(), text.as_bytes())?;
    let steps_fail = args.tolerance.is_some_and(|tolerance| {
        validation
            .steps
            .iter()
            .any(|check| check.error_percent().abs() > tolerance)
    });
    let ratios_fail = args
        .ratio_tolerance
        .is_some_and(|points| validation.ratios.iter().any(|check| !check.within(points)));
    Ok(if steps_fail || ratios_fail {
        Outcome::CheckFailed
    } else {
        Outcome::Done
    })
}

fn role(fitted: bool) -> &'static str {
    if fitted { "fitted" } else { "held out" }
}

fn table(validation: &Validation) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:<28} {:<9} {:<5} {:>9} {:>9} {:>7} {:>8} {:>8}",
        "row", "", "fsdp", "measured", "predicted", "host", "scaled", "error"
    );
    let _ = writeln!(
        text,
        "{:<28} {:<9} {:<5} {:>9} {:>9} {:>7} {:>8} {:>8}",
        "", "", "", "ms", "ms", "factor", "ms", "%"
    );
    for check in &validation.steps {
        let error = if check.sets_factor {
            "(sets)".to_owned()
        } else {
            format!("{:+.1}", check.error_percent())
        };
        let _ = writeln!(
            text,
            "{:<28} {:<9} {:<5} {:>9.1} {:>9.1} {:>7.3} {:>8.1} {:>8}",
            check.row,
            role(check.fitted),
            check.variant,
            check.measured_ms,
            check.predicted_ms,
            check.host_factor,
            check.predicted_ms * check.host_factor,
            error
        );
    }
    let _ = writeln!(
        text,
        "\n{:<28} {:<9} {:<7} {:>8} {:>16} {:>9} {:>8} {:>7}",
        "row", "", "ratio", "measured", "90 % interval", "predicted", "points", "rounds"
    );
    for check in &validation.ratios {
        let interval = check.interval.map_or("too few".to_owned(), |(low, high)| {
            format!("{low:.3} to {high:.3}")
        });
        let _ = writeln!(
            text,
            "{:<28} {:<9} {:<7} {:>8.3} {:>16} {:>9.3} {:>+8.1} {:>7}",
            check.row,
            role(check.fitted),
            check.ratio,
            check.measured,
            interval,
            check.predicted,
            check.error_points(),
            check.rounds
        );
    }
    summary(validation, &mut text);
    text
}

fn summary(validation: &Validation, text: &mut String) {
    use std::fmt::Write as _;
    for fitted in [true, false] {
        let errors: Vec<f64> = validation
            .steps
            .iter()
            .filter(|check| check.fitted == fitted && !check.sets_factor)
            .map(|check| check.error_percent().abs())
            .collect();
        if errors.is_empty() {
            continue;
        }
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        let max = errors.iter().copied().fold(0.0, f64::max);
        let inside = validation
            .ratios
            .iter()
            .filter(|check| check.fitted == fitted);
        let (within, all) = inside.fold((0, 0), |(within, all), check| {
            (within + usize::from(check.within(2.0)), all + 1)
        });
        let _ = writeln!(
            text,
            "\n{}: {} step times, mean error {mean:.1} %, largest {max:.1} %; {within} of {all} \
             ratios within 2 points or the measurement's interval",
            role(fitted),
            errors.len()
        );
    }
}

#[derive(Serialize)]
struct StepRow<'a> {
    row: &'a str,
    file: &'a str,
    fitted: bool,
    fsdp: &'a str,
    measured_ms: f64,
    predicted_ms: f64,
    host_factor: f64,
    sets_factor: bool,
    error_percent: f64,
    absolute_error_percent: f64,
}

#[derive(Serialize)]
struct RatioRow<'a> {
    row: &'a str,
    fitted: bool,
    ratio: &'a str,
    measured: f64,
    measured_low: Option<f64>,
    measured_high: Option<f64>,
    predicted: f64,
    error_points: f64,
    rounds: usize,
}

fn step_row(check: &StepCheck) -> StepRow<'_> {
    StepRow {
        row: &check.row,
        file: &check.file,
        fitted: check.fitted,
        fsdp: &check.variant,
        measured_ms: check.measured_ms,
        predicted_ms: check.predicted_ms,
        host_factor: check.host_factor,
        sets_factor: check.sets_factor,
        error_percent: check.error_percent(),
        absolute_error_percent: check.absolute_error_percent(),
    }
}

fn ratio_row(check: &RatioCheck) -> RatioRow<'_> {
    RatioRow {
        row: &check.row,
        fitted: check.fitted,
        ratio: &check.ratio,
        measured: check.measured,
        measured_low: check.interval.map(|(low, _)| low),
        measured_high: check.interval.map(|(_, high)| high),
        predicted: check.predicted,
        error_points: check.error_points(),
        rounds: check.rounds,
    }
}

fn json(validation: &Validation) -> String {
    #[derive(Serialize)]
    struct Body<'a> {
        steps: Vec<StepRow<'a>>,
        ratios: Vec<RatioRow<'a>>,
    }
    json_document(Body {
        steps: validation.steps.iter().map(step_row).collect(),
        ratios: validation.ratios.iter().map(ratio_row).collect(),
    })
}

fn csv(validation: &Validation) -> String {
    let header = [
        "kind",
        "row",
        "role",
        "name",
        "measured",
        "predicted",
        "host_factor",
        "error",
    ];
    let mut text = csv_line(&header.map(str::to_owned));
    for check in &validation.steps {
        text.push_str(&csv_line(&[
            "step_ms".to_owned(),
            check.row.clone(),
            role(check.fitted).to_owned(),
            check.variant.clone(),
            check.measured_ms.to_string(),
            check.predicted_ms.to_string(),
            check.host_factor.to_string(),
            check.error_percent().to_string(),
        ]));
    }
    for check in &validation.ratios {
        text.push_str(&csv_line(&[
            "ratio".to_owned(),
            check.row.clone(),
            role(check.fitted).to_owned(),
            check.ratio.clone(),
            check.measured.to_string(),
            check.predicted.to_string(),
            String::new(),
            check.error_points().to_string(),
        ]));
    }
    text
}
