//! What several subcommands do: find the calibration, build the cost model.

use crate::cost::calibrated::CalibratedModel;
use crate::cost::calibration::Calibration;

use super::failure::Failure;
use crate::spec::Spec;

/// Calibrations in the binary, first the default.
pub const SHIPPED_CALIBRATIONS: [(&str, &str); 1] = [(
    "h200-1gpu",
    include_str!("../../calibration/h200-1gpu.toml"),
)];

/// The calibration named by `--calibration`: a shipped name or a file; the default if absent.
///
/// # Errors
/// Exit code 3 for a file that cannot be read or is no calibration.
pub fn load_calibration(name: Option<&str>) -> Result<Calibration, Failure> {
    let name = name.unwrap_or(SHIPPED_CALIBRATIONS[0].0);
    let shipped = SHIPPED_CALIBRATIONS
        .iter()
        .find(|(known, _)| *known == name);
    let text = match shipped {
        Some((_, text)) => (*text).to_owned(),
        None => std::fs::read_to_string(name).map_err(|error| {
            let names: Vec<&str> = SHIPPED_CALIBRATIONS.iter().map(|(name, _)| *name).collect();
            Failure::data(anyhow::Error::new(error).context(format!("{name}: cannot be read")))
                .help(format!(
                    "give a calibration file or a shipped one: {}",
                    names.join(", ")
                ))
        })?,
    };
    Calibration::parse(&text, name).map_err(|error| {
        Failure::data(error).help("make one with `fsdpsim calibrate DATA_DIR -o FILE`")
    })
}

/// The cost model for `--calibration` and `--host-speed`.
///
/// # Errors
/// As [`load_calibration`]; exit code 2 for a speed that is not positive.
pub fn load_model(name: Option<&str>, host_speed: f64) -> Result<CalibratedModel, Failure> {
    if !(host_speed.is_finite() && host_speed > 0.0) {
        return Err(
            Failure::usage(anyhow::anyhow!("--host-speed is {host_speed}"))
                .help("expected a positive factor: 1.1 is a host a tenth faster"),
        );
    }
    Ok(CalibratedModel::new(load_calibration(name)?, host_speed))
}

/// Says on stderr what of the specs the simulation does not follow, each thing once.
#[allow(
    clippy::print_stderr,
    reason = "notes are for people and stay out of the result"
)]
pub fn print_notes<'a>(specs: impl IntoIterator<Item = &'a Spec>) {
    let mut said = Vec::new();
    for note in specs.into_iter().flat_map(Spec::notes) {
        if !said.contains(&note) {
            eprintln!("note: {note}");
            said.push(note);
        }
    }
}
