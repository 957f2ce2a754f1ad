//! Device time of a kernel that runs alone, from measured tables and a GEMM model.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::program::{Kernel, KernelClass};
use crate::units::Ns;

/// Device part of a calibration.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceCalibration {
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Shortest kernel.
    pub floor_ns: f64,
    /// Time over bytes, per table: points in order of bytes.
    pub tables: BTreeMap<String, Vec<Point>>,
    /// Matrix products.
    pub gemm: GemmModel,
    /// Attention: forward and backward time over flops, in order of flops.
    pub attention: Vec<Point>,
    /// Median leave-one-out error of the matrix products, percent.
    pub gemm_leave_one_out_percent: f64,
}

/// A measured point: `x` is bytes or flops.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Bytes or flops.
    pub x: f64,
    /// Time.
    pub ns: f64,
}

/// Matrix products: waves of output tiles over the multiprocessors, at a rate that grows with the
/// tile, beside the time of the bytes; then a correction from measured shapes nearby.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GemmModel {
    /// Time that every product takes.
    pub base_ns: f64,
    /// Flops per nanosecond of one multiprocessor for each of [`TILES`].
    pub tile_flops_per_ns: Vec<f64>,
    /// Bytes per nanosecond from memory.
    pub bytes_per_ns: f64,
    /// Measured products.
    pub shapes: Vec<Shape>,
}

/// A measured product.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Rows, columns, depth.
    pub mnk: [u64; 3],
    /// Time.
    pub ns: f64,
}

/// Output tiles that cuBLAS chooses among, rows by columns.
pub const TILES: [(u64, u64); 4] = [(64, 64), (128, 64), (128, 128), (128, 256)];

/// Distance in `ln` of m, n and k at which a measured shape's influence has fallen to 1/e.
const REACH: f64 = 0.5;

impl GemmModel {
    /// Time of a product by structure alone.
    pub fn structure_ns(&self, [m, n, k]: [u64; 3], multiprocessors: u32) -> f64 {
        let slots = f64::from(multiprocessors.max(1));
        let mut best = f64::INFINITY;
        for (&(rows, columns), &rate) in TILES.iter().zip(&self.tile_flops_per_ns) {
            let tiles = (m.div_ceil(rows) * n.div_ceil(columns)) as f64;
            let waves = (tiles / slots).ceil();
            // Few tiles with a deep product are split along k over idle multiprocessors.
            let split = (slots / tiles)
                .floor()
                .clamp(1.0, (k as f64 / 1024.0).max(1.0));
            let tile_ns = 2.0 * (rows * columns * k) as f64 / rate / split;
            best = best.min(waves * tile_ns);
        }
        let bytes = 2.0 * (m * k + n * k + m * n) as f64;
        self.base_ns + best.max(bytes / self.bytes_per_ns.max(1e-9))
    }

    /// Time of a product: structure, corrected by measured shapes in the neighbourhood. `skip`
    /// leaves one measured shape out.
    pub fn time_ns(&self, mnk: [u64; 3], multiprocessors: u32, skip: Option<usize>) -> f64 {
        let place = |[m, n, k]: [u64; 3]| [m, n, k].map(|size| (size.max(1) as f64).ln());
        let here = place(mnk);
        let (mut sum, mut weights) = (0.0, 1e-3);
        for (index, shape) in self.shapes.iter().enumerate() {
            if skip == Some(index) {
                continue;
            }
            let there = place(shape.mnk);
            let distance: f64 = here.iter().zip(there).map(|(a, b)| (a - b).powi(2)).sum();
            let weight = (-distance.sqrt() / REACH).exp().powi(2);
            sum += weight * (shape.ns / self.structure_ns(shape.mnk, multiprocessors)).ln();
            weights += weight;
        }
        self.structure_ns(mnk, multiprocessors) * (sum / weights).exp()
    }
}

/// Log-log interpolation between points; constant below the first, proportional beyond the last.
pub fn interpolate(points: &[Point], x: f64) -> f64 {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return 0.0;
    };
    if x <= first.x {
        return first.ns;
    }
    if x >= last.x {
        return last.ns * x / last.x;
    }
    let above = points.partition_point(|point| point.x < x).max(1);
    let (a, b) = (points[above - 1], points[above]);
    let share = (x / a.x).ln() / (b.x / a.x).ln();
    (a.ns.ln() + share * (b.ns / a.ns).ln()).exp()
}

/// The table that prices a class.
fn table(class: KernelClass) -> &'static str {
    match class {
        KernelClass::Copy => "copy",
        KernelClass::Cast => "cast",
        KernelClass::Fill => "fill",
        KernelClass::Norm => "norm",
        KernelClass::Softmax => "softmax",
        KernelClass::Reduction => "reduce",
        KernelClass::Index => "index",
        KernelClass::Adam => "adam",
        KernelClass::Memcpy => "memcpy",
        _ => "elementwise",
    }
}

impl DeviceCalibration {
    /// Device time of a kernel.
    pub fn time_ns(&self, kernel: &Kernel) -> Ns {
        if let Some(ns) = kernel.measured_ns {
            return ns;
        }
        let ns = match kernel.class {
            KernelClass::Gemm | KernelClass::GroupedGemm => {
                self.gemm.time_ns(kernel.mnk, self.multiprocessors, None)
            }
            KernelClass::AttentionForward | KernelClass::AttentionBackward => {
                interpolate(&self.attention, kernel.flops)
            }
            KernelClass::Tiny | KernelClass::Memset => self.floor_ns,
            class => self.bytes_ns(table(class), kernel.bytes),
        };
        ns.max(self.floor_ns).round() as Ns
    }

    /// Time over bytes from a table; `copy` stands in for a table that was not measured.
    pub fn bytes_ns(&self, table: &str, bytes: f64) -> f64 {
        let points = self.tables.get(table).or_else(|| self.tables.get("copy"));
        points.map_or(0.0, |points| interpolate(points, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> GemmModel {
        GemmModel {
            base_ns: 1000.0,
            tile_flops_per_ns: vec![1.0, 2.0, 4.0, 8.0],
            bytes_per_ns: 1e12,
            shapes: Vec::new(),
        }
    }

    #[test]
    fn interpolation_goes_through_the_points_and_on_in_proportion() {
        let points = [
            Point { x: 10.0, ns: 5.0 },
            Point {
                x: 1000.0,
                ns: 50.0,
            },
        ];
        assert_eq!(interpolate(&points, 1.0), 5.0);
        assert!((interpolate(&points, 100.0) - 250.0_f64.sqrt()).abs() < 1e-9);
        assert_eq!(interpolate(&points, 2000.0), 100.0);
    }

    #[test]
    fn a_wave_more_takes_a_tile_more() {
        // One multiprocessor and a tile rate that makes the largest tile best.
        let tile_ns = 2.0 * (128 * 256 * 64) as f64 / 8.0;
        let one = model().structure_ns([128, 256, 64], 1);
        let two = model().structure_ns([256, 256, 64], 1);
        assert!((one - 1000.0 - tile_ns).abs() < 1e-6);
        assert!((two - 1000.0 - 2.0 * tile_ns).abs() < 1e-6);
    }

    #[test]
    fn a_measured_shape_corrects_its_neighbourhood() {
        let mut model = model();
        let mnk = [512, 512, 512];
        let ns = 3.0 * model.structure_ns(mnk, 132);
        model.shapes.push(Shape { mnk, ns });
        assert!((model.time_ns(mnk, 132, None) / ns - 1.0).abs() < 0.01);
        let structure = model.structure_ns(mnk, 132);
        assert!((model.time_ns(mnk, 132, Some(0)) / structure - 1.0).abs() < 1e-9);
    }
}
