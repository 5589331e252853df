//! The data plane of Ironweir.
