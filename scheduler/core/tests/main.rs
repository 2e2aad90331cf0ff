//! The policy's tests as one program: each program would compile and link the core's generic code anew, ten seconds.
//! A new file runs once it has its line here.

mod ahead;
mod asked;
mod claims;
mod gaming;
mod holding;
mod limits;
mod model;
mod moving;
mod nodes;
mod pilots;
mod quantum;
mod random;
mod recorder;
mod restart;
mod shapes;
mod shares;
mod starvation;
mod waits;
mod world;
