//! Measurements in, calibration file out, with error and hold-out.
