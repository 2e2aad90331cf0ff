//! Passes on whether there are bindings of libslurm (`cfg(slurm)`), and of which Slurm.

use std::env;

fn main() {
    println!("cargo:rerun-if-env-changed=DEP_SLURM_VERSION");
    println!("cargo:rustc-check-cfg=cfg(slurm)");
    println!("cargo:rustc-check-cfg=cfg(slurm_26_05)");
    let version = env::var("DEP_SLURM_VERSION").ok().and_then(|v| v.parse::<u32>().ok());
    if let Some(version) = version {
        println!("cargo:rustc-cfg=slurm");
        if version >= (26 << 16 | 5 << 8) {
            println!("cargo:rustc-cfg=slurm_26_05");
        }
    }
}
