//! Health of peers: what is known of it (`record`, `cause`), and who finds it out. The switch itself is
//! `upstream::standing`, which the choice of a peer reads.

pub mod cause;
pub mod record;
