//! What people and programs read of a run. From: `run::Record`. All pure but for writing.

pub mod compare;
pub mod html;
pub mod json;
pub mod live;
pub mod text;
mod units;

pub use units::{binary, metric, time};
