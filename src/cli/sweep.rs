//! `fsdpsim sweep`: the same step over a grid of configurations.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rayon::prelude::*;

use super::args::{CalibrationArgs, SpecArgs};
use super::failure::{CliResult, Failure, Outcome};
use super::output::write_file;
use super::report_args::{check_plot, write_plot};
use super::shared::{load_calibration, load_model, print_notes};
use crate::report::sweep_file::RowFormat;
use crate::report::sweep_plot::{SweepFigure, sweep_figure};
use crate::spec::{Spec, SpecError};
use crate::sweep::{Axis, Grid, Row, Shard, Sweep, SweepError, SweepFile};

/// Points simulated between two writes: enough to keep the threads busy, few enough that a stop
/// loses little.
const CHUNK: usize = 8;

/// Arguments of `sweep`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fsdpsim sweep dsv3-proxy --vary fsdp=v1,v2 --vary model.num_layers=2..32*2 -o layers.csv
  fsdpsim sweep dsv3-proxy --fsdp v2 --vary host_speed=0.5..2+0.25 --plot host.svg
  fsdpsim sweep llama3-8b --fsdp v1 --vary ddp.suggested_communication_unit_size=1e7..1e10*10
  fsdpsim sweep dsv3-proxy --vary train.seq_length=512..8192*2 -o part.$I.csv --shard $I/8
  fsdpsim merge part.*.csv -o all.csv

Ranges are LOW..HIGH, LOW..HIGH+STEP and LOW..HIGH*FACTOR. The last key varies fastest.")]
pub struct Args {
    #[command(flatten)]
    spec: SpecArgs,
    /// A key with its values; repeatable: the grid is the product. Keys are `section.field`, `fsdp`
    /// and `host_speed`.
    #[arg(long, value_name = "KEY=VALUES", required = true)]
    vary: Vec<String>,
    /// CSV, or JSON Lines.
    #[arg(long, value_enum, default_value_t = SweepFormat::Csv)]
    format: SweepFormat,
    /// Write to a file instead of stdout (`-`). Rows appear while the sweep runs, in order.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Go on with a sweep that was stopped: keep the rows of the output file.
    #[arg(long, requires = "output")]
    resume: bool,
    /// Simulate every N-th point only, from the I-th on: a part of the grid for `fsdpsim merge`.
    #[arg(long, value_name = "I/N")]
    shard: Option<String>,
    /// Threads; all cores if absent. The result does not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    jobs: Option<u64>,
    /// Draw the result to an .svg or .png file: lines over the first key, one for each value of the
    /// others, or a heat map over two keys.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Figure that the plot shows.
    #[arg(long, value_name = "COLUMN", default_value = "step_ns",
          value_parser = clap::builder::PossibleValuesParser::new(crate::sweep::FIGURES))]
    plot_figure: String,
    #[command(flatten)]
    calibration: CalibrationArgs,
    /// Speed of the host against the calibration's.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    host_speed: f64,
}

/// How rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SweepFormat {
    /// A header and rows.
    Csv,
    /// One JSON object a line.
    Jsonl,
    /// Columns with types, written when the sweep is done.
    #[cfg(feature = "parquet")]
    Parquet,
}

/// Runs `sweep`.
pub fn run(args: &Args) -> CliResult {
    check_plot(args.plot.as_deref())?;
    let spec = args.spec.load()?;
    print_notes([&spec]);
    let shard = args.shard.as_deref().map_or(Ok(Shard::ALL), Shard::parse);
    let shard = shard.map_err(Failure::usage)?;
    // Checks the speed; the points make models of their own.
    let name = args.calibration.calibration.as_deref();
    load_model(name, args.host_speed)?;
    let sweep = Sweep {
        spec: args.spec.spec.clone(),
        sets: args.spec.set.clone(),
        fsdp: args.spec.fsdp,
        calibration: load_calibration(name)?,
        host_speed: args.host_speed,
        grid: grid(&args.vary)?,
    };
    check_keys(&sweep)?;
    let format = match args.format {
        SweepFormat::Csv => RowFormat::Csv,
        SweepFormat::Jsonl => RowFormat::JsonLines,
        #[cfg(feature = "parquet")]
        SweepFormat::Parquet => return run_parquet(args, &sweep, &spec, shard),
    };
    let mut file = empty_file(&sweep, &spec);
    let path = args
        .output
        .as_deref()
        .filter(|path| *path != Path::new("-"));
    if let Some(path) = path.filter(|_| args.resume) {
        file.rows = kept(path, &file)?;
    }
    let mut sink = Sink::open(path, &file, format)?;
    let done: Vec<u64> = file.rows.iter().map(|row| row.point).collect();
    let todo: Vec<u64> = sweep
        .grid
        .shard(shard)
        .filter(|point| done.binary_search(point).is_err())
        .collect();
    let bar = progress(todo.len() as u64);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(args.jobs.unwrap_or(0) as usize)
        .build()
        .map_err(Failure::data)?;
    for chunk in todo.chunks(CHUNK) {
        let rows: Vec<Row> = pool.install(|| chunk.par_iter().map(|&p| sweep.row(p)).collect());
        let text: String = rows.iter().map(|row| file.line(row, format)).collect();
        sink.write(&text)?;
        file.rows.extend(rows);
        bar.inc(chunk.len() as u64);
    }
    bar.finish_and_clear();
    if !done.is_empty() {
        // New rows came behind the kept ones; the finished file has the order of the grid.
        file.rows.sort_by_key(|row| row.point);
        if let Some(path) = path {
            write_file(path, file.to_text(format).as_bytes())?;
        }
    }
    warn_impossible(&file.rows);
    if args.plot.is_some() {
        let figure = sweep_figure(&args.spec.spec, &file, &args.plot_figure);
        match figure.map_err(Failure::usage)? {
            SweepFigure::Lines(lines) => write_plot(args.plot.as_deref(), &lines)?,
            SweepFigure::HeatMap(map) => write_plot(args.plot.as_deref(), &map)?,
        }
    }
    Ok(Outcome::Done)
}

/// A sweep whose rows are written at the end: a Parquet file cannot grow.
#[cfg(feature = "parquet")]
fn run_parquet(args: &Args, sweep: &Sweep, spec: &Spec, shard: Shard) -> CliResult {
    if args.resume {
        let told = anyhow!("--resume cannot go on with a Parquet file");
        return Err(Failure::usage(told).help("sweep to CSV and let `fsdpsim merge` convert it"));
    }
    let points: Vec<u64> = sweep.grid.shard(shard).collect();
    let file = SweepFile {
        rows: points.par_iter().map(|&point| sweep.row(point)).collect(),
        ..empty_file(sweep, spec)
    };
    warn_impossible(&file.rows);
    let bytes = crate::report::sweep_parquet::to_parquet(&file).map_err(Failure::data)?;
    super::output::write_result(args.output.as_deref(), &bytes)?;
    Ok(Outcome::Done)
}

/// The file of a sweep before its first row.
fn empty_file(sweep: &Sweep, spec: &Spec) -> SweepFile {
    let axes = sweep.grid.axes.iter();
    SweepFile {
        grid: sweep.fingerprint(spec),
        points: sweep.grid.points(),
        keys: axes.map(|axis| axis.key.clone()).collect(),
        rows: Vec::new(),
    }
}

fn grid(vary: &[String]) -> Result<Grid, Failure> {
    let axes: Result<Vec<Axis>, SweepError> = vary.iter().map(|text| Axis::parse(text)).collect();
    axes.and_then(Grid::new).map_err(|error| {
        Failure::usage(error).help("for example `--vary model.num_layers=2..32*2`")
    })
}

/// Refuses keys and values that no combination could make right, so that a slip of the pen does not
/// become a file of errors.
fn check_keys(sweep: &Sweep) -> Result<(), Failure> {
    for axis in &sweep.grid.axes {
        for value in axis.values.iter().filter(|_| axis.key.contains('.')) {
            let set = format!("{}={value}", axis.key);
            let sets: Vec<&String> = sweep.sets.iter().chain([&set]).collect();
            match Spec::load(&sweep.spec, &sets, sweep.fsdp) {
                Err(SpecError::Impossible { .. }) | Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// The rows of a file that a stopped sweep left behind, by point.
fn kept(path: &Path, expected: &SweepFile) -> Result<Vec<Row>, Failure> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            let told = format!("cannot read `{}`", path.display());
            return Err(Failure::data(anyhow::Error::new(error).context(told)));
        }
    };
    if !text.contains('\n') || text.lines().count() == 1 && text.starts_with("grid,") {
        return Ok(Vec::new());
    }
    let (file, _) = SweepFile::parse(&text).map_err(|error| {
        Failure::data(anyhow::Error::new(error).context(format!("`{}`", path.display())))
    })?;
    if (&file.grid, file.points) != (&expected.grid, expected.points) {
        let told = anyhow!("`{}` holds another sweep", path.display());
        return Err(Failure::data(told).help(
            "spec, calibration, keys, values or version differ; give another -o, or leave out \
             --resume to start anew",
        ));
    }
    let mut rows = file.rows;
    rows.sort_by_key(|row| row.point);
    rows.dedup_by_key(|row| row.point);
    Ok(rows)
}

/// Where rows go while the sweep runs.
enum Sink {
    Stdout(io::Stdout),
    File(File, PathBuf),
}

impl Sink {
    /// Opens the sink and writes what is there already.
    fn open(path: Option<&Path>, file: &SweepFile, format: RowFormat) -> Result<Self, Failure> {
        let mut sink = match path {
            None => Sink::Stdout(io::stdout()),
            Some(path) => {
                // Kept rows are written anew first, so that a line that was cut off is gone.
                write_file(path, file.to_text(format).as_bytes())?;
                let opened = OpenOptions::new().append(true).open(path);
                let told = || format!("cannot write `{}`", path.display());
                let opened = opened.with_context(told).map_err(Failure::data)?;
                return Ok(Sink::File(opened, path.to_owned()));
            }
        };
        sink.write(&file.to_text(format))?;
        Ok(sink)
    }

    /// Writes whole lines at once, so that a stop leaves whole lines.
    fn write(&mut self, text: &str) -> Result<(), Failure> {
        match self {
            Sink::Stdout(stdout) => stdout
                .write_all(text.as_bytes())
                .and_then(|()| stdout.flush())
                .map_err(Failure::stdout),
            Sink::File(file, path) => file
                .write_all(text.as_bytes())
                .with_context(|| format!("cannot write `{}`", path.display()))
                .map_err(Failure::data),
        }
    }
}

/// A bar with the time left, on stderr if it is a terminal.
fn progress(points: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = "{bar:30} {pos}/{len} points, {per_sec}, {eta} left";
    ProgressBar::with_draw_target(Some(points), ProgressDrawTarget::stderr()).with_style(
        ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()),
    )
}

/// Says how many configurations cannot be, and why the first cannot.
#[allow(
    clippy::print_stderr,
    reason = "notes are for people and stay out of the result"
)]
fn warn_impossible(rows: &[Row]) {
    let mut errors = rows
        .iter()
        .filter_map(|row| row.result.as_ref().err().map(|e| (row, e)));
    if let Some((row, error)) = errors.next() {
        let all = 1 + errors.count();
        eprintln!(
            "warning: {all} of {} points cannot be simulated; the first is point {}: {error}",
            rows.len(),
            row.point
        );
    }
}
