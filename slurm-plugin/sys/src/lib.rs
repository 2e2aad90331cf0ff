//! Raw bindings of slurm.h, made by bindgen against the installed Slurm.
//!
//! Only `hop-slurm-link` depends on this crate: libslurm ends its process on errors (`fatal()`), so no daemon links
//! libslurm. Without Slurm's headers the crate is empty and `cfg(slurm)` is not set; see build.rs.

#![allow(
    unsafe_code,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    missing_debug_implementations,
    unreachable_pub,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    reason = "generated from C"
)]

include!(concat!(env!("OUT_DIR"), "/slurm.rs"));

/// The number of the linked library: the first part of `slurm_api_version()`.
#[cfg(slurm)]
pub const API: &str = env!("HOP_SLURM_API");
