//! From a point to its row.

use crate::analysis::{Scenario, summarise};
use crate::cost::calibrated::CalibratedModel;
use crate::cost::calibration::Calibration;
use crate::spec::{Fsdp, Spec};

use super::{FIGURES, Grid, HOST_SPEED, IMPLEMENTATION, Row};

/// A grid with the configuration that it varies.
#[derive(Debug, Clone)]
pub struct Sweep {
    /// Path or shipped name of the spec.
    pub spec: String,
    /// `--set` of all points; what an axis sets comes after.
    pub sets: Vec<String>,
    /// Implementation of all points, unless an axis varies it.
    pub fsdp: Option<Fsdp>,
    /// Calibration.
    pub calibration: Calibration,
    /// Speed of the host of all points, unless an axis varies it.
    pub host_speed: f64,
    /// The grid.
    pub grid: Grid,
}

impl Sweep {
    /// Tells grids apart: everything that a row depends on, hashed (FNV-1a, 64 bits).
    pub fn fingerprint(&self, spec: &Spec) -> String {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut take = |text: &str| {
            for byte in text.bytes().chain([0]) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        take(env!("CARGO_PKG_VERSION"));
        take(&spec.to_toml());
        take(&self.calibration.to_toml());
        take(&self.host_speed.to_string());
        for axis in &self.grid.axes {
            take(&axis.key);
            axis.values.iter().for_each(|value| take(value));
            take("");
        }
        format!("{hash:016x}")
    }

    /// Simulates a point, without jitter.
    pub fn row(&self, point: u64) -> Row {
        let values = self.grid.values(point);
        Row {
            point,
            values: values.iter().map(|&value| value.to_owned()).collect(),
            result: self.figures(&values),
        }
    }

    fn figures(&self, values: &[&str]) -> Result<[u64; FIGURES.len()], String> {
        let (mut sets, mut fsdp, mut host_speed) = (self.sets.clone(), self.fsdp, self.host_speed);
        for (axis, &value) in self.grid.axes.iter().zip(values) {
            match axis.key.as_str() {
                HOST_SPEED => {
                    let speed = value
                        .parse()
                        .ok()
                        .filter(|s: &f64| s.is_finite() && *s > 0.0);
                    host_speed = speed.ok_or("host_speed: expected a positive factor")?;
                }
                IMPLEMENTATION => {
                    let named = Fsdp::from_name(value);
                    fsdp = Some(named.ok_or_else(|| format!("fsdp: `{value}` is none"))?);
                }
                key => sets.push(format!("{key}={value}")),
            }
        }
        let spec = Spec::load(&self.spec, &sets, fsdp).map_err(|error| one_line(&error))?;
        let model = CalibratedModel::new(self.calibration.clone(), host_speed);
        let scenario =
            Scenario::from_spec(&spec, spec.fsdp(), &model).map_err(|error| one_line(&error))?;
        let iteration = scenario.still().map_err(|error| one_line(&error))?;
        let summary = summarise(&scenario.program, &iteration);
        Ok([
            summary.step_ns,
            summary.host_ns(),
            summary.launch_ns,
            summary.exposed_communication_ns,
            summary.hidden_communication_ns(),
            summary.device_wait_ns,
            summary.device_busy_ns,
            summary.device_idle_ns(),
            summary.kernels as u64,
            summary.collectives as u64,
        ])
    }
}

/// An error that fits into a cell.
fn one_line(error: &dyn std::error::Error) -> String {
    let text = error.to_string();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
