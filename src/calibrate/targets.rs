//! What each implementation's step takes without a profiler, part by part: the scale that recorded
//! steps are brought to.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::spec::Fsdp;

use super::manifest::{DataError, Manifest, read_text};
use super::rows::{Row, find_row, median};

/// Implementations that are measured side by side.
pub const VERSIONS: [&str; 3] = ["ddp", "v1", "v2"];

/// Plain time of every part of the step, per implementation, on the reference host.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Targets {
    /// Milliseconds by implementation and phase name, of the configuration that traces recorded.
    pub phase_ms: BTreeMap<String, BTreeMap<&'static str, f64>>,
    /// Further configurations, on hosts of their own.
    pub others: Vec<OtherTarget>,
}

/// Plain phase times of another configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct OtherTarget {
    /// Process that measured it: its configurations were stepped in turn and share a host speed.
    pub group: String,
    /// Configuration.
    pub row: Row,
    /// Implementation.
    pub version: String,
    /// Milliseconds by phase name.
    pub phase_ms: BTreeMap<&'static str, f64>,
}

#[derive(Deserialize)]
struct PhaseRow {
    tag: String,
    group: String,
    mb: u64,
    variant: String,
    median_ms: BTreeMap<String, f64>,
}

/// Parts of the collector's record by the phase of a Program they belong to. What the collector
/// records between forward and backward (loss, data) belongs to the forward.
fn phase_of(part: &str) -> Option<&'static str> {
    match part {
        "zero_grad" => Some("zero_grad"),
        "finalize" => Some("finalize"),
        "optimizer" => Some("optimizer"),
        "loss_item" => Some("outside"),
        part if part.starts_with("forward.") => Some("forward"),
        part if part.starts_with("backward.") => Some("backward"),
        _ => None,
    }
}

/// Builds the targets: shares of the phases from the manifest's phase rows, totals from the pooled
/// step-by-step ratios of all fitted rows, the scale from the reference row's v1 median.
///
/// # Errors
/// Missing or malformed files, or rows that the manifest names but no file has.
pub fn targets(folder: &Path, manifest: &Manifest, rows: &[Row]) -> Result<Targets, DataError> {
    let missing = || {
        let path = folder.join(super::manifest::MANIFEST);
        DataError::malformed(&path, "preset.reference names a row without a v1 variant")
    };
    let reference_row = find_row(rows, &manifest.preset.reference).ok_or_else(missing)?;
    let reference = reference_row.variants.get("v1").ok_or_else(missing)?;
    let mut targets = Targets::default();
    let (shares, others) = phase_shares(folder, manifest, rows)?;
    targets.others = others;
    for version in VERSIONS {
        let Some(shares) = shares.get(version) else {
            continue;
        };
        let ratio = if version == "v1" {
            1.0
        } else {
            pooled_ratio(rows, reference_row, version)
        };
        let total_ms = reference.median * ratio;
        let phases = shares
            .iter()
            .map(|(&phase, share)| (phase, share * total_ms))
            .collect();
        targets.phase_ms.insert(version.to_owned(), phases);
    }
    Ok(targets)
}

type Shares = BTreeMap<String, BTreeMap<&'static str, f64>>;

/// Shares of the phases for the recorded configuration, and the phases of all other configurations
/// that the manifest gives for fitting.
fn phase_shares(
    folder: &Path,
    manifest: &Manifest,
    rows: &[Row],
) -> Result<(Shares, Vec<OtherTarget>), DataError> {
    let (mut shares, mut others) = (Shares::new(), Vec::new());
    for entry in &manifest.phases {
        let path = folder.join(&entry.file);
        for (number, line) in read_text(&path)?.lines().enumerate() {
            let recorded: PhaseRow = serde_json::from_str(line).map_err(|error| {
                DataError::malformed(&path, format!("line {}: {error}", number + 1))
            })?;
            let fits = recorded.tag == entry.tag && recorded.mb == entry.microbatches;
            if !fits || !VERSIONS.contains(&recorded.variant.as_str()) {
                continue;
            }
            let mut phase_ms = phases(&recorded.median_ms);
            let total: f64 = phase_ms.values().sum();
            if entry.recorded {
                phase_ms.values_mut().for_each(|ms| *ms /= total);
                shares.insert(recorded.variant, phase_ms);
                continue;
            }
            let row = rows.iter().find(|row| {
                row.tag == recorded.tag && row.mb == recorded.mb && row.group == recorded.group
            });
            let Some(row) = row else { continue };
            // The sum of medians falls short of the median of the sum: keep the step's own median.
            let step_ms = row
                .variants
                .get(&recorded.variant)
                .map_or(total, |v| v.median);
            phase_ms.values_mut().for_each(|ms| *ms *= step_ms / total);
            others.push(OtherTarget {
                group: recorded.group,
                row: row.clone(),
                version: recorded.variant,
                phase_ms,
            });
        }
    }
    Ok((shares, others))
}

/// Parts of the collector's record summed by phase.
fn phases(parts: &BTreeMap<String, f64>) -> BTreeMap<&'static str, f64> {
    let mut phases: BTreeMap<&'static str, f64> = BTreeMap::new();
    for (part, ms) in parts {
        if let Some(phase) = phase_of(part) {
            *phases.entry(phase).or_default() += ms;
        }
    }
    if let Some(whole) = parts.get("forward_backward") {
        let inside = ["forward", "backward", "finalize"].map(|p| phases.get(p).copied());
        let inside: f64 = inside.into_iter().flatten().sum();
        *phases.entry("forward").or_default() += (whole - inside).max(0.0);
    }
    phases
}

/// Median step-by-step ratio of `version` to v1 over the fitted rows of the reference's
/// configuration, weighted by their rounds over
/// the variance of the logarithm of the ratios.
pub fn pooled_ratio(rows: &[Row], reference: &Row, version: &str) -> f64 {
    let (mut sum, mut weights) = (0.0, 0.0);
    let same = |row: &&Row| row.fitted && row.sets(Fsdp::V1) == reference.sets(Fsdp::V1);
    for row in rows.iter().filter(same) {
        let Some(ratios) = row.ratios(version, "v1") else {
            continue;
        };
        let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
        let centre = median(&logs);
        let variance =
            logs.iter().map(|log| (log - centre).powi(2)).sum::<f64>() / logs.len().max(1) as f64;
        let weight = logs.len() as f64 / variance.max(1e-6);
        sum += weight * centre;
        weights += weight;
    }
    if weights > 0.0 {
        (sum / weights).exp()
    } else {
        1.0
    }
}
