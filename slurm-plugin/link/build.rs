//! Passes on whether bindings of libslurm exist (`cfg(slurm)`), and the Slurm behind the bindings.

use std::env;

/// The series at which a struct that we read changed.
const SERIES: [(u32, u32); 3] = [(25, 5), (25, 11), (26, 5)];

fn main() {
    println!("cargo:rerun-if-env-changed=DEP_SLURM_VERSION");
    println!("cargo:rustc-check-cfg=cfg(slurm)");
    for (major, minor) in SERIES {
        println!("cargo:rustc-check-cfg=cfg(slurm_{major}_{minor:02})");
    }
    let version = env::var("DEP_SLURM_VERSION")
        .ok()
        .and_then(|v| v.parse::<u32>().ok());
    if let Some(version) = version {
        println!("cargo:rustc-cfg=slurm");
        for (major, minor) in SERIES {
            if version >= (major << 16 | minor << 8) {
                println!("cargo:rustc-cfg=slurm_{major}_{minor:02}");
            }
        }
    }
}
