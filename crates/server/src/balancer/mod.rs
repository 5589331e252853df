//! Servers of `stream` whose packets the kernel balances (`listen ... xdp=MODE`), as far as they are the server's: what a
//! configuration asks of the kernel (`plan`), what this machine has for it (`path`), the process that has the rights for it
//! (`helper`), and, in the worker, news of real servers on their way there (`watch`) and counts on their way back (`heard`).
//! Packets never come here. What is done with them: docs/l4.md; why these processes: docs/decisions/0017.

pub mod heard;
pub mod helper;
pub mod load;
pub mod path;
pub mod plan;
pub mod watch;
