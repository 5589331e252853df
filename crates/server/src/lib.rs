//! The data plane of Ironweir.

pub mod resolve;
