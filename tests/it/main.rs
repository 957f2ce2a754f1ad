//! All integration tests, in one binary so that they link once.

mod any_spec;
mod architecture;
mod calibrate;
mod cli_analysis;
mod cli_run;
mod cli_spec;
mod knobs;
mod recipes;
mod schedule_counts;
