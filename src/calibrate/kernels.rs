//! Device part of a calibration from kernel microbenchmarks.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::cost::kernel::{DeviceCalibration, GemmModel, Point, Shape, TILES};

use super::manifest::{DataError, Manifest, read_text};
use super::rows::median;

/// Sweeps over the parameters of the GEMM model.
const SWEEPS: usize = 40;

#[derive(Debug, Clone, Deserialize)]
struct Record {
    name: String,
    method: Option<String>,
    us_median: Option<f64>,
    bytes: Option<f64>,
    m: Option<u64>,
    n: Option<u64>,
    nn: Option<u64>,
    k: Option<u64>,
    heads: Option<u64>,
    h: Option<u64>,
    b: Option<u64>,
    seq: Option<u64>,
    s: Option<u64>,
    tokens: Option<u64>,
    experts: Option<u64>,
    n_in: Option<u64>,
    n_out: Option<u64>,
    #[serde(default)]
    kernels: Vec<Inner>,
}

#[derive(Debug, Clone, Deserialize)]
struct Inner {
    us_each: f64,
}

/// Tables and the microbenchmarks that fill them.
const TABLES: [(&str, &[&str]); 8] = [
    ("copy", &["copy_bf16"]),
    ("elementwise", &["add_bf16"]),
    ("cast", &["cast_bf16_fp32"]),
    ("fill", &["fill_bf16"]),
    ("softmax", &["softmax_bf16"]),
    ("norm", &["rmsnorm_bf16"]),
    ("reduce", &["softmax_bf16"]),
    ("adam", &["adamw.fused32", "torch_fused_adamw"]),
];

/// Fits the device part from the manifest's kernel files.
///
/// # Errors
/// Missing or malformed files.
pub fn fit_device(folder: &Path, manifest: &Manifest) -> Result<DeviceCalibration, DataError> {
    let mut records = Vec::new();
    for file in &manifest.preset.kernels {
        let path = folder.join(file);
        for (number, line) in read_text(&path)?.lines().enumerate() {
            let record: Record = serde_json::from_str(line).map_err(|error| {
                DataError::malformed(&path, format!("line {}: {error}", number + 1))
            })?;
            records.push(record);
        }
    }
    let mut device = DeviceCalibration {
        multiprocessors: manifest.preset.multiprocessors,
        floor_ns: floor_ns(&records),
        ..Default::default()
    };
    for (table, names) in TABLES {
        let points = table_points(&records, names);
        if !points.is_empty() {
            device.tables.insert(table.to_owned(), points);
        }
    }
    // Gathers and scatters touch memory irregularly; a cast's kernel is the nearest that was measured.
    if let Some(cast) = device.tables.get("cast").cloned() {
        device.tables.insert("index".to_owned(), cast);
    }
    device.attention = attention_points(&records);
    device.gemm = fit_gemm(shapes(&records), device.multiprocessors, &device.tables);
    device.gemm_leave_one_out_percent = leave_one_out(&device.gemm, device.multiprocessors);
    Ok(device)
}

fn floor_ns(records: &[Record]) -> f64 {
    let tiny: Vec<f64> = records
        .iter()
        .filter(|r| r.name == "kernel.tiny")
        .filter_map(|r| r.us_median)
        .collect();
    (median(&tiny) * 1e3).round()
}

/// Medians over files at equal bytes, in order of bytes.
fn table_points(records: &[Record], names: &[&str]) -> Vec<Point> {
    let mut by_bytes: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for record in records
        .iter()
        .filter(|record| names.contains(&record.name.as_str()))
    {
        if let (Some(bytes), Some(us)) = (record.bytes, record.us_median) {
            by_bytes.entry(bytes as u64).or_default().push(us * 1e3);
        }
    }
    let point = |(bytes, list): (u64, Vec<f64>)| Point {
        x: bytes as f64,
        ns: median(&list).round(),
    };
    by_bytes.into_iter().map(point).collect()
}

/// Causal attention with head dimensions 192 and 128 over its flops.
fn attention_points(records: &[Record]) -> Vec<Point> {
    let mut by_flops: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for record in records
        .iter()
        .filter(|record| record.name == "sdpa_causal_mla")
    {
        let (heads, seq) = (record.heads.or(record.h), record.seq.or(record.s));
        if let (Some(heads), Some(seq), Some(us)) = (heads, seq, record.us_median) {
            let scores = (record.b.unwrap_or(1) * heads * seq * seq) as f64 / 2.0;
            by_flops
                .entry((2.0 * scores * 320.0) as u64)
                .or_default()
                .push(us * 1e3);
        }
    }
    let point = |(flops, list): (u64, Vec<f64>)| Point {
        x: flops as f64,
        ns: median(&list).round(),
    };
    by_flops.into_iter().map(point).collect()
}

/// Measured products, one entry a shape: dense ones, and one expert of grouped ones.
fn shapes(records: &[Record]) -> Vec<Shape> {
    let mut by_shape: BTreeMap<[u64; 3], Vec<f64>> = BTreeMap::new();
    for record in records {
        let dense = match (record.m, record.n.or(record.nn), record.k) {
            (Some(m), Some(n), Some(k)) if record.name == "gemm_bf16" => Some(([m, n, k], None)),
            _ => None,
        };
        let grouped = match (record.tokens, record.experts, record.n_in, record.n_out) {
            (Some(tokens), Some(experts), Some(k), Some(n))
                if record.name == "te_grouped_gemm_fwd"
                    && record.method.as_deref() == Some("profiler")
                    && record.kernels.len() == 1 =>
            {
                Some((
                    [tokens / experts.max(1), n, k],
                    Some(record.kernels[0].us_each),
                ))
            }
            _ => None,
        };
        let Some((mnk, each)) = dense.or(grouped) else {
            continue;
        };
        if let Some(us) = each.or(record.us_median) {
            by_shape.entry(mnk).or_default().push(us * 1e3);
        }
    }
    by_shape
        .into_iter()
        .map(|(mnk, list)| Shape {
            mnk,
            ns: median(&list).round(),
        })
        .collect()
}

/// Least squares of the logarithm by coordinate search: every parameter is multiplied by steps that
/// shrink, as long as the error falls.
fn fit_gemm(
    shapes: Vec<Shape>,
    multiprocessors: u32,
    tables: &BTreeMap<String, Vec<Point>>,
) -> GemmModel {
    let stream = tables.get("copy").and_then(|points| points.last());
    let mut model = GemmModel {
        base_ns: 2_000.0,
        tile_flops_per_ns: TILES.map(|(m, n)| 2_000.0 + (m * n) as f64 / 8.0).to_vec(),
        bytes_per_ns: stream.map_or(1_000.0, |point| point.x / point.ns),
        shapes,
    };
    let error = |model: &GemmModel| {
        let square = |shape: &Shape| {
            (model.structure_ns(shape.mnk, multiprocessors) / shape.ns)
                .ln()
                .powi(2)
        };
        model.shapes.iter().map(square).sum::<f64>()
    };
    let mut step: f64 = 1.3;
    for _ in 0..SWEEPS {
        for parameter in 0..2 + TILES.len() {
            for factor in [step, 1.0 / step] {
                let mut changed = model.clone();
                match parameter {
                    0 => changed.base_ns *= factor,
                    1 => changed.bytes_per_ns *= factor,
                    tile => changed.tile_flops_per_ns[tile - 2] *= factor,
                }
                if error(&changed) < error(&model) {
                    model = changed;
                }
            }
        }
        step = 1.0 + (step - 1.0) * 0.85;
    }
    model.base_ns = model.base_ns.round();
    model.bytes_per_ns = model.bytes_per_ns.round();
    model
        .tile_flops_per_ns
        .iter_mut()
        .for_each(|rate| *rate = rate.round());
    model
}

/// Median absolute error of each measured product when it is left out, percent.
fn leave_one_out(model: &GemmModel, multiprocessors: u32) -> f64 {
    let error = |(index, shape): (usize, &Shape)| {
        100.0 * (model.time_ns(shape.mnk, multiprocessors, Some(index)) / shape.ns - 1.0).abs()
    };
    let errors: Vec<f64> = model.shapes.iter().enumerate().map(error).collect();
    (median(&errors) * 10.0).round() / 10.0
}
