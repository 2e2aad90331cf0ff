//! Speaks Jupyter's protocol to clients on behalf of a kernel, wherever the kernel runs. `docs/kernel.md` tells how the
//! parts work together.

mod announce;
mod asleep;
pub mod claim;
mod content;
pub mod core;
mod delivered;
mod heirs;
mod home;
pub mod info;
pub mod launch;
pub mod launcher;
pub mod life;
pub mod listen;
mod memory;
pub mod moves;
mod moving;
pub mod opening;
mod orphans;
pub mod owner;
mod rekey;
pub mod run;
mod seat_wait;
mod sockets;
pub mod termination;
mod welcome;
