//! Tables, JSON, CSV, Markdown and plots of results.

pub mod explain;
pub mod gains;
pub mod gap;
pub mod number;
pub mod plot;
pub mod side_by_side;
pub mod sweep_file;
#[cfg(feature = "parquet")]
pub mod sweep_parquet;
pub mod sweep_plot;
pub mod table;

pub use table::{Cell, Column, Table, column};
