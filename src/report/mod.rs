//! Tables, JSON, CSV and plots of results.
