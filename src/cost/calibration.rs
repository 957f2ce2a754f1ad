//! The calibration file: what was measured, in a form that a person can read and a diff can show.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::kernel::DeviceCalibration;

/// Version of the file's layout.
pub const SCHEMA_VERSION: u32 = 1;

/// A calibration file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Layout version; this build reads [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Where the numbers come from.
    pub provenance: Provenance,
    /// Host costs.
    pub host: HostCalibration,
    /// Device times.
    pub device: DeviceCalibration,
    /// Communication.
    pub interconnect: Interconnect,
}

/// Communication.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "snake_case")]
pub enum Interconnect {
    /// A fake process group on one device: a plain copy of the output stands in for the transfer.
    FakeGroup,
    /// A ring over NVLink inside one node: `alpha_ns + hop_ns · (ranks - 1)`, then the bus bandwidth.
    Ring {
        /// Time of the smallest collective.
        alpha_ns: f64,
        /// Time of one hop.
        hop_ns: f64,
        /// Bus bandwidth.
        busbw_bytes_per_ns: f64,
    },
}

/// Where the numbers come from.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Name of the preset.
    pub name: String,
    /// Device that was measured.
    pub device: String,
    /// Host that was measured.
    pub host: String,
    /// Versions of the software that ran.
    pub software: String,
    /// Files that were read, relative to the data folder, in order.
    pub sources: Vec<String>,
    /// Recorded steps that the host costs were fitted on.
    pub recorded_steps: u32,
    /// Share of the recorded host time that found its place in the Programs, percent.
    pub coverage_percent: f64,
    /// Mean absolute error of the fitted phases against their plain times, percent.
    pub phase_error_percent: f64,
}

/// Host costs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostCalibration {
    /// Speed of the host against the reference: costs are divided by it.
    pub speed: f64,
    /// Extra host time of a recorded operator when a profiler is attached.
    pub recorded_operator_ns: f64,
    /// Extra host time of a recorded runtime call when a profiler is attached.
    pub recorded_runtime_ns: f64,
    /// How a step's host time spreads.
    pub jitter: Jitter,
    /// Cost per class; see `calibration/README.md` for the naming.
    pub classes: BTreeMap<String, HostClass>,
}

/// How a step's host time spreads beyond the spread of single operators.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jitter {
    /// Standard deviation of the logarithm of a step's speed.
    pub step_log_sigma: f64,
    /// Long pauses per second of host time.
    pub pauses_per_s: f64,
    /// Mean length of a long pause.
    pub pause_mean_ns: f64,
}

/// Cost of one class.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostClass {
    /// Mean host time.
    pub ns: f64,
    /// Standard deviation of its logarithm.
    pub log_sigma: f64,
    /// Samples behind it.
    pub samples: u32,
}

/// A calibration file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CalibrationError {
    /// Not TOML of this layout.
    #[error("{file}: not a calibration file: {detail}")]
    Malformed {
        /// File name.
        file: String,
        /// What the parser says, with line and column.
        detail: String,
    },
    /// Another layout version.
    #[error(
        "{file}: calibration schema {found}, but this build reads schema {SCHEMA_VERSION}; \
         make the file again with `fsdpsim calibrate`"
    )]
    Schema {
        /// File name.
        file: String,
        /// Version found.
        found: u32,
    },
    /// A number that makes no sense.
    #[error("{file}: {key} is {value}, expected a positive number")]
    Number {
        /// File name.
        file: String,
        /// Key.
        key: String,
        /// Value as text.
        value: String,
    },
}

impl Calibration {
    /// Parses a calibration file; `file` names it in errors.
    ///
    /// # Errors
    /// [`CalibrationError`]: malformed text, another schema version, an impossible number.
    pub fn parse(text: &str, file: &str) -> Result<Self, CalibrationError> {
        let malformed = |error: toml::de::Error| CalibrationError::Malformed {
            file: file.to_owned(),
            detail: error.to_string(),
        };
        #[derive(Deserialize)]
        struct Version {
            schema_version: u32,
        }
        let version: Version = toml::from_str(text).map_err(malformed)?;
        if version.schema_version != SCHEMA_VERSION {
            let found = version.schema_version;
            return Err(CalibrationError::Schema {
                file: file.to_owned(),
                found,
            });
        }
        let calibration: Calibration = toml::from_str(text).map_err(malformed)?;
        calibration.check(file)?;
        Ok(calibration)
    }

    fn check(&self, file: &str) -> Result<(), CalibrationError> {
        let number = |key: &str, value: f64, positive: bool| {
            let fine = value.is_finite() && value >= 0.0 && (value > 0.0 || !positive);
            if fine {
                return Ok(());
            }
            let (file, key, value) = (file.to_owned(), key.to_owned(), value.to_string());
            Err(CalibrationError::Number { file, key, value })
        };
        number("host.speed", self.host.speed, true)?;
        number(
            "host.recorded_operator_ns",
            self.host.recorded_operator_ns,
            false,
        )?;
        number(
            "host.recorded_runtime_ns",
            self.host.recorded_runtime_ns,
            false,
        )?;
        number(
            "host.jitter.step_log_sigma",
            self.host.jitter.step_log_sigma,
            false,
        )?;
        for (name, class) in &self.host.classes {
            number(&format!("host.classes.\"{name}\".ns"), class.ns, false)?;
            number(
                &format!("host.classes.\"{name}\".log_sigma"),
                class.log_sigma,
                false,
            )?;
        }
        Ok(())
    }

    /// The file's text: one line a class, so that a diff shows what moved.
    pub fn to_toml(&self) -> String {
        let mut text = String::from("# Made by `fsdpsim calibrate`; see calibration/README.md.\n");
        let head = toml::to_string(&Head {
            schema_version: self.schema_version,
            provenance: &self.provenance,
        });
        text.push_str(&head.unwrap_or_default());
        let host = &self.host;
        let rest = toml::to_string(&Tail {
            interconnect: &self.interconnect,
            device: &self.device,
        });
        let _ = writeln!(text, "\n{}", rest.unwrap_or_default().trim_end());
        let _ = writeln!(text, "\n[host]\nspeed = {:?}", host.speed);
        let _ = writeln!(
            text,
            "recorded_operator_ns = {:?}",
            host.recorded_operator_ns
        );
        let _ = writeln!(text, "recorded_runtime_ns = {:?}", host.recorded_runtime_ns);
        let jitter = &host.jitter;
        let _ = writeln!(
            text,
            "\n[host.jitter]\nstep_log_sigma = {:?}",
            jitter.step_log_sigma
        );
        let _ = writeln!(text, "pauses_per_s = {:?}", jitter.pauses_per_s);
        let _ = writeln!(text, "pause_mean_ns = {:?}", jitter.pause_mean_ns);
        let _ = writeln!(text, "\n[host.classes]");
        for (name, class) in &host.classes {
            let _ = writeln!(
                text,
                "{name:?} = {{ ns = {:?}, log_sigma = {:?}, samples = {} }}",
                class.ns, class.log_sigma, class.samples
            );
        }
        text
    }
}

/// What serde writes after the head.
#[derive(Serialize)]
struct Tail<'a> {
    interconnect: &'a Interconnect,
    device: &'a DeviceCalibration,
}

/// The part of the file that serde writes.
#[derive(Serialize)]
struct Head<'a> {
    schema_version: u32,
    provenance: &'a Provenance,
}
