//! What people and programs read of a run. Before: `run::Record`. All pure but for writing.

pub mod text;
mod units;

pub use units::{binary, metric, time};
