//! Measured steps: rows of `paired.jsonl`, with the spec of each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::spec::Fsdp;

use super::manifest::{DataError, Manifest, RowName, RowsEntry, read_text};

/// One configuration, several variants stepped in turn.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Row {
    /// Host.
    #[serde(default)]
    pub machine: String,
    /// Name of the configuration.
    pub tag: String,
    /// Process that stepped it; rows of one process share a host.
    #[serde(default)]
    pub group: String,
    /// Layers.
    pub layers: u64,
    /// Dense layers, the first ones.
    pub dense: u64,
    /// Experts over all ranks.
    pub experts: u64,
    /// Sequence length.
    pub seq: u64,
    /// Microbatches.
    pub mb: u64,
    /// Expert-parallel size.
    pub ep: u64,
    /// World size.
    pub world: u64,
    /// Optimizer instances.
    #[serde(default = "one")]
    pub outer: u64,
    /// Measured steps by variant.
    pub variants: BTreeMap<String, Variant>,
    /// File it came from, relative to the data folder.
    #[serde(skip)]
    pub file: PathBuf,
    /// Whether the calibration uses it.
    #[serde(skip)]
    pub fitted: bool,
}

fn one() -> u64 {
    1
}

/// Steps of one variant.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Variant {
    /// Median step.
    pub median: f64,
    /// All steps, aligned by round with the other variants of the row; `None` where a round skipped
    /// the variant.
    pub step_ms: Vec<Option<f64>>,
}

impl Row {
    /// Overrides that turn the shipped proxy into this row's configuration under `fsdp`. Version 2
    /// of the measured build has no hybrid mesh: it was stepped on the plain one beside the others.
    pub fn sets(&self, fsdp: Fsdp) -> Vec<String> {
        let mut sets = vec![
            format!("model.num_layers={}", self.layers),
            format!("train.seq_length={}", self.seq),
            format!("train.num_microbatches={}", self.mb),
            format!("parallel.world_size={}", self.world),
            format!("parallel.expert_model_parallel_size={}", self.ep),
            format!("model.first_k_dense_replace={}", self.dense),
            format!("model.num_moe_experts={}", self.experts),
        ];
        if self.outer > 1 && fsdp != Fsdp::V2 {
            sets.push(format!(
                "ddp.num_distributed_optimizer_instances={}",
                self.outer
            ));
            sets.push("ddp.outer_dp_sharding_strategy=optim".to_owned());
        }
        sets
    }

    /// Name for tables.
    pub fn name(&self) -> String {
        let machine = if self.machine.is_empty() {
            ""
        } else {
            self.machine.as_str()
        };
        format!("{} mb{} {machine}", self.tag, self.mb)
            .trim_end()
            .to_owned()
    }

    /// Step-by-step ratios of two variants, if both were measured.
    pub fn ratios(&self, numerator: &str, denominator: &str) -> Option<Vec<f64>> {
        let (a, b) = (
            self.variants.get(numerator)?,
            self.variants.get(denominator)?,
        );
        let rounds = a.step_ms.iter().zip(&b.step_ms);
        Some(rounds.filter_map(|(a, b)| Some((*a)? / (*b)?)).collect())
    }

    fn matches(&self, name: &RowName) -> bool {
        self.tag == name.tag
            && name
                .machine
                .as_ref()
                .is_none_or(|machine| *machine == self.machine)
            && name.mb.is_none_or(|mb| mb == self.mb)
    }
}

/// Reads all rows that the manifest names.
///
/// # Errors
/// A file that is absent or a line that is not a row.
pub fn read_rows(folder: &Path, manifest: &Manifest) -> Result<Vec<Row>, DataError> {
    let mut rows = Vec::new();
    for entry in &manifest.rows {
        read_entry(folder, entry, &mut rows)?;
    }
    Ok(rows)
}

fn read_entry(folder: &Path, entry: &RowsEntry, rows: &mut Vec<Row>) -> Result<(), DataError> {
    let path = folder.join(&entry.file);
    for (number, line) in read_text(&path)?.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let mut row: Row = serde_json::from_str(line).map_err(|error| {
            let line = number + 1;
            DataError::malformed(&path, format!("line {line} is not a measured row: {error}"))
        })?;
        row.file.clone_from(&entry.file);
        row.fitted = entry.fit.iter().any(|name| row.matches(name));
        rows.push(row);
    }
    Ok(())
}

/// The row that `name` names.
pub fn find_row<'a>(rows: &'a [Row], name: &RowName) -> Option<&'a Row> {
    rows.iter()
        .find(|row| row.matches(name) && name.file.as_ref().is_none_or(|file| *file == row.file))
}

/// The median; 0 of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}
