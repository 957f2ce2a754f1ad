//! Makes a calibration from a data folder.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::cost::calibration::{
    Calibration, HostCalibration, HostClass, Interconnect, Jitter, Provenance, SCHEMA_VERSION,
};
use crate::program::Program;
use crate::schedule;
use crate::spec::{Fsdp, Spec};

use super::host_fit::{ClassCost, Inflation, TracedStep, fit_classes};
use super::kernels::fit_device;
use super::manifest::{DataError, Manifest, TraceEntry, read_text};
use super::reconcile::{Factors, KnownTotals, reconcile};
use super::recorded::recorded_items;
use super::rows::{Row, median, read_rows};
use super::samples::{StepSamples, step_samples};
use super::targets::{Targets, targets};
use super::trace_file::read_trace;

/// A calibration with what there is to say about its making.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibrated {
    /// The calibration.
    pub calibration: Calibration,
    /// One line a recorded step.
    pub steps: Vec<StepReport>,
    /// Plain phase time against the fitted one, per implementation.
    pub phases: Vec<PhaseReport>,
    /// Factors that brought classes and totals together, by family and phase.
    pub factors: Factors,
}

/// How one recorded step was used.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    /// Trace file.
    pub file: String,
    /// Recorded step time.
    pub recorded_ms: f64,
    /// Share of its host time that found its place, percent.
    pub coverage_percent: f64,
    /// The same, by phase.
    pub phase_coverage_percent: BTreeMap<&'static str, f64>,
    /// Recorded over plain time once the events' cost is taken off, by phase.
    pub slowness: BTreeMap<&'static str, f64>,
}

/// A fitted phase.
#[derive(Debug, Clone, PartialEq)]
pub struct PhaseReport {
    /// Implementation.
    pub version: String,
    /// Phase.
    pub phase: &'static str,
    /// Plain time.
    pub plain_ms: f64,
    /// Sum of the fitted host costs.
    pub fitted_ms: f64,
}

struct Traced {
    entry: TraceEntry,
    program: Program,
    samples: StepSamples,
    recorded_ms: f64,
}

/// Reads the folder and fits.
///
/// # Errors
/// Files that are missing, torn or of another layout; a spec or override that is wrong.
pub fn calibrate(folder: &Path) -> Result<Calibrated, DataError> {
    let manifest = Manifest::load(folder)?;
    let rows = read_rows(folder, &manifest)?;
    let targets = targets(folder, &manifest, &rows)?;
    let traced = trace_steps(folder, &manifest)?;
    let known = known_classes(folder, &manifest)?;
    let event_cost = event_cost(&traced, &targets);
    let mut reports = Vec::new();
    let mut steps = Vec::new();
    for trace in &traced {
        let slowness = slowness(trace, event_cost, &targets);
        reports.push(step_report(trace, &slowness));
        steps.push(TracedStep {
            program: &trace.program,
            samples: &trace.samples,
            inflation: Inflation {
                operator_ns: event_cost.0,
                runtime_ns: event_cost.1,
                slowness,
            },
        });
    }
    let mut classes = fit_classes(&steps, &known);
    let mut programs = Vec::new();
    for fsdp in [Fsdp::Ddp, Fsdp::V1, Fsdp::V2] {
        programs.push((fsdp.name(), program(&manifest, fsdp, &[])?));
    }
    let known_totals = known_totals(&manifest, &programs, &targets)?;
    let factors = reconcile(&mut classes, &known, &known_totals);
    let phases = phase_reports(&programs, &classes, &targets);
    let calibration = Calibration {
        schema_version: SCHEMA_VERSION,
        provenance: provenance(&manifest, &reports, &phases),
        interconnect: Interconnect::FakeGroup,
        device: fit_device(folder, &manifest)?,
        host: HostCalibration {
            speed: 1.0,
            recorded_operator_ns: event_cost.0.round(),
            recorded_runtime_ns: event_cost.1.round(),
            jitter: jitter(&rows),
            classes: classes
                .into_iter()
                .map(|(name, cost)| (name, rounded(cost)))
                .collect(),
        },
    };
    Ok(Calibrated {
        calibration,
        steps: reports,
        phases,
        factors,
    })
}

/// The recorded configuration on the reference host and all others on theirs.
fn known_totals(
    manifest: &Manifest,
    programs: &[(&str, Program)],
    targets: &Targets,
) -> Result<Vec<KnownTotals>, DataError> {
    let mut known = Vec::new();
    for (version, program) in programs {
        if let Some(phase_ms) = targets.phase_ms.get(*version) {
            let (program, phase_ms) = (program.clone(), phase_ms.clone());
            known.push(KnownTotals {
                program,
                phase_ms,
                group: None,
            });
        }
    }
    for other in &targets.others {
        let Some(fsdp) = Fsdp::from_name(&other.version) else {
            continue;
        };
        known.push(KnownTotals {
            program: program(manifest, fsdp, &other.row.sets(fsdp))?,
            phase_ms: other.phase_ms.clone(),
            group: Some(other.group.clone()),
        });
    }
    Ok(known)
}

/// Whole nanoseconds and two digits of spread: what the samples support, and a short file.
fn rounded(cost: ClassCost) -> HostClass {
    HostClass {
        ns: cost.ns.round(),
        log_sigma: (cost.log_sigma * 100.0).round() / 100.0,
        samples: cost.samples,
    }
}

fn trace_steps(folder: &Path, manifest: &Manifest) -> Result<Vec<Traced>, DataError> {
    let mut traced = Vec::new();
    for entry in &manifest.trace {
        let path = folder.join(&entry.file);
        let trace = read_trace(&path)?;
        let program = program(manifest, entry.fsdp, &entry.set)?;
        for (start_ns, end_ns) in trace.steps {
            let items = recorded_items(&trace.events, start_ns, end_ns);
            traced.push(Traced {
                entry: entry.clone(),
                samples: step_samples(&program, &items),
                program: program.clone(),
                recorded_ms: (end_ns - start_ns) as f64 / 1e6,
            });
        }
    }
    Ok(traced)
}

fn program(manifest: &Manifest, fsdp: Fsdp, sets: &[String]) -> Result<Program, DataError> {
    let path = Path::new(super::manifest::MANIFEST);
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let spec = Spec::load(&manifest.spec, &sets, Some(fsdp))
        .map_err(|error| DataError::malformed(path, error.to_string()))?;
    schedule::build(&spec, fsdp).map_err(|error| DataError::malformed(path, error.to_string()))
}

#[derive(Deserialize)]
struct HostOp {
    name: String,
    us_median: Option<f64>,
}

/// Classes whose cost a microbenchmark gives: stream and event calls, nvtx ranges. Traces show them
/// inside gaps only, where they cannot be told from the Python around them.
fn known_classes(folder: &Path, manifest: &Manifest) -> Result<BTreeMap<String, f64>, DataError> {
    let path = folder.join(&manifest.preset.host_ops);
    let mut measured = BTreeMap::new();
    for (number, line) in read_text(&path)?.lines().enumerate() {
        let op: HostOp = serde_json::from_str(line).map_err(|error| {
            DataError::malformed(&path, format!("line {}: {error}", number + 1))
        })?;
        if let Some(us) = op.us_median {
            measured.entry(op.name).or_insert(us * 1e3);
        }
    }
    let find = |name: &str| {
        measured.get(name).copied().ok_or_else(|| {
            DataError::malformed(
                &path,
                format!("no line with name {name:?}, which is needed"),
            )
        })
    };
    let wait_event = find("stream.wait_event")?;
    // What an operator with one kernel costs beyond one that only makes a view.
    let launch = find("aten.add_")? - find("aten.narrow")?;
    Ok(BTreeMap::from([
        ("launch/runtime".to_owned(), launch),
        ("launch/driver".to_owned(), launch),
        ("launch/memcpy".to_owned(), launch),
        ("launch/memset".to_owned(), launch),
        ("launch/alltoall".to_owned(), 0.0),
        ("cuda.wait_event".to_owned(), wait_event),
        ("cuda.wait_stream/wait".to_owned(), wait_event),
        (
            "cuda.wait_stream/record".to_owned(),
            find("stream.wait_stream")? - wait_event,
        ),
        ("cuda.event_record".to_owned(), find("event.new_record")?),
        ("v2.nvtx/python".to_owned(), find("nvtx.push_pop")?),
    ]))
}

/// Weight of a recording process's own plain steps against one phase of its recording.
const PLAIN_WEIGHT: f64 = 10.0;

/// Extra host time of a recorded operator and of a recorded runtime call, by least squares over the
/// phases of all recorded steps: recorded = slowness · plain + events · cost, with one slowness a
/// step.
fn event_cost(traced: &[Traced], targets: &Targets) -> (f64, f64) {
    let mut rows = Vec::new();
    for (index, trace) in traced.iter().enumerate() {
        let Some(plain) = targets.phase_ms.get(trace.entry.fsdp.name()) else {
            continue;
        };
        for (phase, (ns, operators, runtime)) in phase_sums(&trace.samples) {
            let Some(plain_ms) = plain.get(phase).filter(|&&ms| ms > 3.0) else {
                continue;
            };
            // Relative errors matter: weigh by the inverse square of the plain time.
            let terms = vec![(0, operators), (1, runtime), (2 + index, plain_ms * 1e6)];
            rows.push(super::nnls::Row {
                terms,
                value: ns,
                weight: (plain_ms * 1e6).powi(-2),
            });
        }
        // Plain steps of the recording process itself tell how fast its host was.
        if let Some(plain_ms) = trace.entry.plain_ms {
            let reference: f64 = plain.values().sum();
            let (terms, value) = (vec![(2 + index, 1.0)], plain_ms / reference);
            rows.push(super::nnls::Row {
                terms,
                value,
                weight: PLAIN_WEIGHT,
            });
        }
    }
    let x = super::nnls::solve(&rows, 2 + traced.len(), 0.0);
    (x[0], x[1])
}

/// Host time and recorded events of each phase.
fn phase_sums(samples: &StepSamples) -> BTreeMap<&'static str, (f64, f64, f64)> {
    let mut sums: BTreeMap<&'static str, (f64, f64, f64)> = BTreeMap::new();
    for equation in samples.operators.iter().chain(&samples.gaps) {
        let sum = sums.entry(equation.phase.name()).or_default();
        sum.0 += equation.ns;
        sum.1 += f64::from(equation.events.operators);
        sum.2 += f64::from(equation.events.runtime);
    }
    sums
}

/// How much slower than plain each phase of a recorded step was, after the events' cost.
fn slowness(
    trace: &Traced,
    event_cost: (f64, f64),
    targets: &Targets,
) -> BTreeMap<&'static str, f64> {
    let plain = targets.phase_ms.get(trace.entry.fsdp.name());
    let sums = phase_sums(&trace.samples);
    let left = |(ns, operators, runtime): (f64, f64, f64)| {
        ns - event_cost.0 * operators - event_cost.1 * runtime
    };
    // The hybrid mesh does more work than the plain one that the targets describe.
    let hybrid = !trace.entry.set.is_empty();
    let whole: f64 = sums.values().map(|&sum| left(sum)).sum();
    let whole_plain: f64 = plain.map_or(0.0, |plain| plain.values().sum::<f64>() * 1e6);
    sums.into_iter()
        .map(|(phase, sum)| {
            let plain_ns = plain
                .and_then(|plain| plain.get(phase))
                .map_or(0.0, |ms| ms * 1e6);
            let usable = plain_ns > 0.5e6 && !hybrid;
            let (above, below) = if usable {
                (left(sum), plain_ns)
            } else {
                (whole, whole_plain)
            };
            (
                phase,
                if above > 0.0 && below > 0.0 {
                    above / below
                } else {
                    1.0
                },
            )
        })
        .collect()
}

fn step_report(trace: &Traced, slowness: &BTreeMap<&'static str, f64>) -> StepReport {
    let samples = &trace.samples;
    let matched: f64 = samples.matched_ns.values().sum();
    let unmatched: f64 = samples.unmatched_ns.values().sum();
    let phase_coverage_percent = samples
        .matched_ns
        .iter()
        .map(|(&phase, ns)| {
            let missed = samples.unmatched_ns.get(phase).copied().unwrap_or(0.0);
            (phase, 100.0 * ns / (ns + missed))
        })
        .collect();
    StepReport {
        file: trace.entry.file.display().to_string(),
        recorded_ms: trace.recorded_ms,
        coverage_percent: 100.0 * matched / (matched + unmatched),
        phase_coverage_percent,
        slowness: slowness.clone(),
    }
}

fn phase_reports(
    programs: &[(&str, Program)],
    classes: &BTreeMap<String, ClassCost>,
    targets: &Targets,
) -> Vec<PhaseReport> {
    let mut reports = Vec::new();
    for (version, program) in programs {
        let Some(plain) = targets.phase_ms.get(*version) else {
            continue;
        };
        let mut fitted: BTreeMap<&'static str, f64> = BTreeMap::new();
        for (_, action) in program.actions(0) {
            let work = program.host_work(action);
            let ns = classes.get(&work.class).map_or(0.0, |cost| cost.ns) * f64::from(work.count);
            *fitted.entry(program.tag(action).phase.name()).or_default() += ns / 1e6;
        }
        for (&phase, &plain_ms) in plain {
            let fitted_ms = fitted.get(phase).copied().unwrap_or(0.0);
            let version = (*version).to_owned();
            reports.push(PhaseReport {
                version,
                phase,
                plain_ms,
                fitted_ms,
            });
        }
    }
    reports
}

fn provenance(manifest: &Manifest, steps: &[StepReport], phases: &[PhaseReport]) -> Provenance {
    let plain: f64 = phases.iter().map(|phase| phase.plain_ms).sum();
    let off: f64 = phases
        .iter()
        .map(|phase| (phase.fitted_ms - phase.plain_ms).abs())
        .sum();
    let covered: f64 = steps.iter().map(|step| step.coverage_percent).sum();
    let tenth = |value: f64| (value * 10.0).round() / 10.0;
    let preset = &manifest.preset;
    let mut sources: Vec<String> = manifest
        .trace
        .iter()
        .map(|entry| entry.file.display().to_string())
        .collect();
    sources.extend(
        manifest
            .phases
            .iter()
            .map(|entry| entry.file.display().to_string()),
    );
    sources.extend(
        manifest
            .rows
            .iter()
            .map(|entry| entry.file.display().to_string()),
    );
    sources.push(preset.host_ops.display().to_string());
    sources.extend(preset.kernels.iter().map(|file| file.display().to_string()));
    Provenance {
        name: preset.name.clone(),
        device: preset.device.clone(),
        host: preset.host.clone(),
        software: preset.software.clone(),
        sources,
        recorded_steps: steps.len() as u32,
        coverage_percent: tenth(covered / steps.len().max(1) as f64),
        phase_error_percent: tenth(100.0 * off / plain),
    }
}

/// Spread of a step's speed: robust standard deviation of the logarithm of the fitted rows' steps
/// around their median.
fn jitter(rows: &[Row]) -> Jitter {
    let mut deviations = Vec::new();
    for row in rows.iter().filter(|row| row.fitted) {
        for version in super::targets::VERSIONS {
            let Some(variant) = row.variants.get(version) else {
                continue;
            };
            let steps: Vec<f64> = variant.step_ms.iter().flatten().copied().collect();
            let centre = median(&steps).ln();
            deviations.extend(steps.iter().map(|ms| (ms.ln() - centre).abs()));
        }
    }
    // For a normal distribution the median absolute deviation is 0.6745 standard deviations.
    let step_log_sigma = (median(&deviations) / 0.6745 * 1000.0).round() / 1000.0;
    Jitter {
        step_log_sigma,
        pauses_per_s: 0.0,
        pause_mean_ns: 0.0,
    }
}
