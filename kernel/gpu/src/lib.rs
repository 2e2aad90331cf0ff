//! Off the GPU and back on: the ways of a process's GPU state off the device and back, and the proof of a clean device.
//!
//! - [`ladder`]: the choice, a pure function of the facts that [`inspect`] gathers.
//! - [`machine`]: park and unpark as a pure state machine; [`park`] drives it, and [`calls`] makes its calls.
//! - [`driver`] and [`libcuda`]: the driver's checkpoint calls, loaded at run time.
//! - [`inside`]: the talk with `gresshopper.gpu` in the process, which copies out the frameworks' memory.
//! - [`helper`]: the privileged helper for sites whose driver refuses the owner.
//! - [`proof`] and [`telemetry`]: what NVML and the device files say.
//!
//! When to park, and who gets the device next, is the scheduler's matter. A long-lived process that must not hold
//! device files itself (a replica, an agent) runs `hop gpu park PID --json` rather than linking the driver.
#![allow(unsafe_code)] // libcuda is called through pointers got by dlsym (libcuda.rs)

pub mod bench;
pub mod calls;
pub mod driver;
pub mod helper;
pub mod inside;
pub mod inspect;
pub mod ladder;
pub mod libcuda;
pub mod machine;
pub mod park;
pub mod procs;
pub mod proof;
pub mod record;
pub mod reserve;
pub mod telemetry;

pub use hop_door::Pid;
