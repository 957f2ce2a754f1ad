//! `fsdpsim run`: how long a step takes and where its time goes.

use std::io::Write as _;

use serde::Serialize;

use super::args::{CalibrationArgs, Format, OutputArgs, RepeatArgs, SpecArgs};
use super::failure::{CliResult, Failure, Outcome};
use super::output::{csv_line, json_document, write_file, write_result};
use super::report_args::{check_plot, write_plot};
use super::shared::{load_model, print_notes};
use crate::analysis::{Prediction, predict, quantile};
use crate::report::plot::TimelinePlot;
use crate::trace::chrome_trace;
use crate::units::{Ns, ms};

/// Causes that the table shows.
const CAUSES_SHOWN: usize = 12;

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fsdpsim run dsv3-proxy --fsdp v2
  fsdpsim run models/dsv3-proxy.toml --fsdp v1 --set model.num_layers=8
  fsdpsim run dsv3-proxy --fsdp v2 --trace step.json.gz --plot step.svg
  fsdpsim run dsv3-proxy --fsdp v2 --host-speed 1.1 --format json")]
pub struct Args {
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    calibration: CalibrationArgs,
    #[command(flatten)]
    repeat: RepeatArgs,
    /// Speed of the host against the calibration's.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    host_speed: f64,
    /// Write the timeline of a step as Chrome trace JSON (opens in Perfetto); gzipped if the name
    /// ends in .gz.
    #[arg(long, value_name = "FILE")]
    trace: Option<std::path::PathBuf>,
    /// Draw the timeline of a step to an .svg or .png file.
    #[arg(long, value_name = "FILE")]
    plot: Option<std::path::PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `run`.
pub fn run(args: &Args) -> CliResult {
    check_plot(args.plot.as_deref())?;
    let mut spec = args.spec.load()?;
    print_notes([&spec]);
    args.repeat.apply(&mut spec);
    let model = load_model(args.calibration.calibration.as_deref(), args.host_speed)?;
    let prediction = predict(&spec, spec.fsdp(), &model).map_err(Failure::usage)?;
    let result = StepResult::new(&prediction);
    let text = match args.output.format {
        Format::Table => table(&prediction, &model.calibration().provenance.name),
        Format::Json => json_document(Document {
            seed: spec.run.seed,
            calibration: &model.calibration().provenance.name,
            spec: &spec,
            result,
        }),
        Format::Csv => csv(&result),
    };
    if let (Some(path), Some(iteration)) = (&args.trace, prediction.timeline.iterations.last()) {
        write_trace(path, &chrome_trace(&prediction.program, iteration))?;
    }
    if let (Some(path), Some(iteration)) = (&args.plot, prediction.timeline.iterations.last()) {
        let name = prediction.fsdp.name();
        let title = format!("{} under {name}: one step of rank 0", args.spec.spec);
        write_plot(
            Some(path),
            &TimelinePlot::new(&title, &prediction.program, iteration),
        )?;
    }
    write_result(args.output.output.as_deref(), text.as_bytes())?;
    Ok(Outcome::Done)
}

/// Writes the trace, gzipped by extension.
fn write_trace(path: &std::path::Path, text: &str) -> Result<(), Failure> {
    if path.extension().is_none_or(|extension| extension != "gz") {
        return write_file(path, text.as_bytes());
    }
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    let bytes = encoder
        .write_all(text.as_bytes())
        .and_then(|()| encoder.finish());
    write_file(path, &bytes.map_err(Failure::data)?)
}

#[derive(Serialize)]
struct Document<'a> {
    seed: u64,
    calibration: &'a str,
    spec: &'a crate::spec::Spec,
    result: StepResult,
}

/// The figures of a predicted step, units in the names.
#[derive(Debug, Clone, Serialize)]
pub struct StepResult {
    /// Implementation.
    pub fsdp: &'static str,
    /// Median step.
    pub step_ns: Ns,
    /// Mean step.
    pub step_mean_ns: Ns,
    /// Fastest step.
    pub step_min_ns: Ns,
    /// Slowest step.
    pub step_max_ns: Ns,
    /// Step without jitter; what follows describes it.
    pub step_centre_ns: Ns,
    /// Host work without launch calls.
    pub host_ns: Ns,
    /// Launch calls.
    pub launch_ns: Ns,
    /// The host waits for communication.
    pub exposed_communication_ns: Ns,
    /// The host waits for kernels.
    pub device_wait_ns: Ns,
    /// Some stream is busy.
    pub device_busy_ns: Ns,
    /// No stream is busy.
    pub device_idle_ns: Ns,
    /// Some stream runs a collective.
    pub communication_ns: Ns,
    /// Kernels and copies launched.
    pub kernels: usize,
    /// Collectives enqueued.
    pub collectives: usize,
    /// Host work by phase, launch calls included.
    pub phases_ns: std::collections::BTreeMap<&'static str, Ns>,
    /// Host work by cause, launch calls excluded.
    pub causes_ns: std::collections::BTreeMap<String, Ns>,
}

impl StepResult {
    /// The figures of a prediction.
    pub fn new(prediction: &Prediction) -> Self {
        let (summary, steps) = (&prediction.summary, &prediction.step_ns);
        StepResult {
            fsdp: prediction.fsdp.name(),
            step_ns: prediction.median_ns(),
            step_mean_ns: steps.iter().sum::<Ns>() / (steps.len().max(1) as Ns),
            step_min_ns: quantile(steps, 0.0),
            step_max_ns: quantile(steps, 1.0),
            step_centre_ns: prediction.centre_ns,
            host_ns: summary.host_ns(),
            launch_ns: summary.launch_ns,
            exposed_communication_ns: summary.exposed_communication_ns,
            device_wait_ns: summary.device_wait_ns,
            device_busy_ns: summary.device_busy_ns,
            device_idle_ns: summary.device_idle_ns(),
            communication_ns: summary.communication_ns,
            kernels: summary.kernels,
            collectives: summary.collectives,
            phases_ns: summary.phases_ns.iter().copied().collect(),
            causes_ns: summary.causes_ns.iter().cloned().collect(),
        }
    }
}

fn table(prediction: &Prediction, calibration: &str) -> String {
    use std::fmt::Write as _;
    let result = StepResult::new(prediction);
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}: {:.1} ms a step (mean {:.1}, min {:.1}, max {:.1} over {} steps), calibration {calibration}",
        result.fsdp,
        ms(result.step_ns),
        ms(result.step_mean_ns),
        ms(result.step_min_ns),
        ms(result.step_max_ns),
        prediction.step_ns.len()
    );
    let bound = if prediction.summary.host_bound() {
        "host-bound"
    } else {
        "device-bound"
    };
    let _ = writeln!(
        text,
        "\nwithout jitter {:.1} ms, {bound}:",
        ms(result.step_centre_ns)
    );
    let share = |ns: Ns| 100.0 * ns as f64 / result.step_centre_ns.max(1) as f64;
    for (name, ns) in [
        ("host work", result.host_ns),
        ("launch calls", result.launch_ns),
        ("exposed communication", result.exposed_communication_ns),
        ("wait for kernels", result.device_wait_ns),
    ] {
        let _ = writeln!(text, "  {name:<28} {:>8.2} ms {:>5.1} %", ms(ns), share(ns));
    }
    let _ = writeln!(
        text,
        "\ndevice ({} kernels, {} collectives):",
        result.kernels, result.collectives
    );
    for (name, ns) in [
        ("busy", result.device_busy_ns),
        ("  of it communication", result.communication_ns),
        ("idle", result.device_idle_ns),
    ] {
        let _ = writeln!(text, "  {name:<28} {:>8.2} ms {:>5.1} %", ms(ns), share(ns));
    }
    let _ = writeln!(text, "\nlargest causes of host work:");
    for (name, ns) in prediction.summary.causes_ns.iter().take(CAUSES_SHOWN) {
        let _ = writeln!(
            text,
            "  {name:<28} {:>8.2} ms {:>5.1} %",
            ms(*ns),
            share(*ns)
        );
    }
    text
}

fn csv(result: &StepResult) -> String {
    let mut text = csv_line(&["fsdp".into(), "kind".into(), "name".into(), "ns".into()]);
    let mut line = |kind: &str, name: &str, ns: Ns| {
        let fields = [
            result.fsdp.to_owned(),
            kind.to_owned(),
            name.to_owned(),
            ns.to_string(),
        ];
        text.push_str(&csv_line(&fields));
    };
    line("step", "median", result.step_ns);
    line("step", "mean", result.step_mean_ns);
    line("step", "min", result.step_min_ns);
    line("step", "max", result.step_max_ns);
    line("step", "centre", result.step_centre_ns);
    line("part", "host", result.host_ns);
    line("part", "launch", result.launch_ns);
    line(
        "part",
        "exposed_communication",
        result.exposed_communication_ns,
    );
    line("part", "device_wait", result.device_wait_ns);
    line("device", "busy", result.device_busy_ns);
    line("device", "communication", result.communication_ns);
    line("device", "idle", result.device_idle_ns);
    for (phase, ns) in &result.phases_ns {
        line("phase", phase, *ns);
    }
    for (cause, ns) in &result.causes_ns {
        line("cause", cause, *ns);
    }
    text
}
