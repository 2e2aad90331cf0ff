//! The trace simulator: the production core and the baselines on the same trace, cluster and seed.
//!
//! `ours` is [`hop_core::Core`] itself, driven by an event loop in which agents, pilots and replicas answer after
//! latencies drawn from distributions. The baselines are models of their own. All chance comes from [`rng::Rng`]: the
//! same seed gives the same result to the byte. Arguments and files are left to the command line.

mod baselines;
pub mod cluster;
pub mod deadline;
mod html;
mod jobs;

pub mod metrics;
pub mod policy;
pub mod rng;
mod session;
pub mod study;
pub mod synth;

pub mod trace;
mod world;

pub use cluster::{Cluster, Misfit};

pub use html::{FrontierPoint, Turnaround, report, study_report};
pub use metrics::{CellResult, PolicyResult, Summary, Why, csv};
pub use policy::{Policy, run};
pub use session::LeftOut;
pub use study::{Point, Spread};
pub use synth::Synth;
pub use trace::{Trace, TraceError};
pub use world::Without;
