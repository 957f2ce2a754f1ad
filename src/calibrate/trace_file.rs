//! Host events of a profiler trace file.

use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use super::manifest::DataError;
use super::recorded::HostEvent;

/// Host events and the windows of the recorded steps.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HostTrace {
    /// Events.
    pub events: Vec<HostEvent>,
    /// Start and end of every `ProfilerStep`, in order.
    pub steps: Vec<(i64, i64)>,
}

#[derive(Deserialize)]
struct File {
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    name: String,
    #[serde(default)]
    cat: String,
    #[serde(default)]
    tid: serde_json::Value,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
}

/// Reads host events and steps.
///
/// # Errors
/// An unreadable or torn file, or one without a recorded step.
pub fn read_trace(path: &Path) -> Result<HostTrace, DataError> {
    let unreadable = |source| DataError::Unreadable {
        path: path.display().to_string(),
        source,
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    flate2::read::MultiGzDecoder::new(file)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    let file: File = serde_json::from_str(&text)
        .map_err(|error| DataError::malformed(path, format!("not a profiler trace: {error}")))?;
    let mut trace = HostTrace::default();
    for event in file.events {
        let runtime = event.cat.starts_with("cuda_");
        let annotation = event.cat == "user_annotation";
        if !(runtime || annotation || event.cat == "cpu_op") {
            continue;
        }
        let start_ns = (event.ts * 1e3).round() as i64;
        let duration_ns = (event.dur * 1e3).round() as u64;
        if event.name.starts_with("ProfilerStep") {
            trace.steps.push((start_ns, start_ns + duration_ns as i64));
        }
        trace.events.push(HostEvent {
            name: event.name,
            annotation,
            runtime,
            thread: event.tid.as_u64().unwrap_or(0),
            start_ns,
            duration_ns,
        });
    }
    trace.steps.sort_unstable();
    if trace.steps.is_empty() {
        let detail = "no ProfilerStep annotation: record the step with torch.profiler's schedule";
        return Err(DataError::malformed(path, detail));
    }
    Ok(trace)
}
