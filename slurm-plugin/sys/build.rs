//! Makes the bindings from the `slurm/slurm.h` that is installed.
//!
//! `HOP_SLURM_INCLUDE` (the folder that holds `slurm/slurm.h`) and `HOP_SLURM_LIB` (the one that holds
//! `libslurm.so`) come before pkg-config and the system's own folders. Without headers, libslurm or libclang the
//! crate is empty, which a warning says, and nothing else of the workspace changes.
//!
//! For dependents: `DEP_SLURM_VERSION` (decimal `SLURM_VERSION_NUMBER`) is set exactly if there are bindings.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The series at which something that we use changed; `cfg(slurm_23_11)` means "that one or later".
const SERIES: [(u32, u32); 9] = [
    (22, 5),
    (23, 2),
    (23, 11),
    (24, 5),
    (24, 11),
    (25, 5),
    (25, 11),
    (26, 5),
    (26, 11),
];

fn main() {
    println!("cargo:rerun-if-env-changed=HOP_SLURM_INCLUDE");
    println!("cargo:rerun-if-env-changed=HOP_SLURM_LIB");
    println!("cargo:rustc-check-cfg=cfg(slurm)");
    for (major, minor) in SERIES {
        println!("cargo:rustc-check-cfg=cfg(slurm_{major}_{minor:02})");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("slurm.rs");
    if let Err(why) = generate(&out) {
        println!("cargo:warning=hop-slurm-link is built without libslurm ({why}); Slurm's commands are used instead");
        fs::write(&out, "").expect("OUT_DIR is writable");
    }
}

fn generate(out: &Path) -> Result<(), String> {
    let include = include_dir().ok_or("no slurm/slurm.h: install libslurm-dev or set HOP_SLURM_INCLUDE")?;
    println!("cargo:rerun-if-changed={}", include.join("slurm/slurm.h").display());
    let version = header_version(&include)?;
    let lib = lib_dir().ok_or("no libslurm.so: install libslurm-dev or set HOP_SLURM_LIB")?;
    bindings(&include, out)?;
    println!("cargo:rustc-link-search=native={}", lib.display());
    println!("cargo:rustc-link-lib=dylib=slurm");
    println!("cargo:rustc-cfg=slurm");
    for (major, minor) in SERIES {
        if version >= (major << 16 | minor << 8) {
            println!("cargo:rustc-cfg=slurm_{major}_{minor:02}");
        }
    }
    println!("cargo:version={version}");
    Ok(())
}

fn include_dir() -> Option<PathBuf> {
    let candidates = env::var_os("HOP_SLURM_INCLUDE")
        .map(|dir| vec![PathBuf::from(dir)])
        .unwrap_or_else(|| {
            let mut dirs: Vec<PathBuf> = pkg_config("--cflags-only-I", "-I").into_iter().collect();
            dirs.extend(["/usr/include", "/usr/local/include", "/opt/slurm/include"].map(PathBuf::from));
            dirs
        });
    candidates.into_iter().find(|dir| dir.join("slurm/slurm.h").is_file())
}

fn lib_dir() -> Option<PathBuf> {
    let candidates = env::var_os("HOP_SLURM_LIB")
        .map(|dir| vec![PathBuf::from(dir)])
        .unwrap_or_else(|| {
            let triplet = format!("/usr/lib/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default());
            let mut dirs: Vec<PathBuf> = pkg_config("--libs-only-L", "-L").into_iter().collect();
            dirs.push(triplet.into());
            dirs.extend(["/usr/lib64", "/usr/lib", "/usr/local/lib", "/opt/slurm/lib"].map(PathBuf::from));
            dirs
        });
    candidates.into_iter().find(|dir| dir.join("libslurm.so").exists())
}

fn pkg_config(what: &str, prefix: &str) -> Option<PathBuf> {
    let output = Command::new("pkg-config").args([what, "slurm"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let first = text.split_whitespace().find_map(|word| word.strip_prefix(prefix))?;
    Some(PathBuf::from(first))
}

/// `SLURM_VERSION_NUMBER`: major << 16 | minor << 8 | micro.
fn header_version(include: &Path) -> Result<u32, String> {
    let path = include.join("slurm/slurm_version.h");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    text.lines()
        .find_map(|line| line.strip_prefix("#define SLURM_VERSION_NUMBER"))
        .and_then(|rest| u32::from_str_radix(rest.trim().strip_prefix("0x")?, 16).ok())
        .ok_or_else(|| format!("{} names no version", path.display()))
}

fn bindings(include: &Path, out: &Path) -> Result<(), String> {
    let builder = bindgen::Builder::default()
        .header_contents("hop.h", "#include <slurm/slurm.h>\n#include <slurm/slurm_errno.h>\n")
        .clang_arg(format!("-I{}", include.display()))
        .allowlist_function(
            "slurm_(init|fini|api_version|strerror|allocate_resources|init_job_desc_msg|free_resource_allocation_response_msg\
             |load_jobs|load_job|free_job_info_msg|load_node|free_node_info_msg|load_partitions|free_partition_info_msg|kill_job|kill_job_step)",
        )
        .allowlist_var("SLURM_VERSION_NUMBER|SLURM_NO_CHANGE_IN_DATA|SHOW_ALL|SHOW_DETAIL|SHOW_MIXED|NO_VAL|NO_VAL16|NO_VAL64|INFINITE|JOB_STATE_BASE|NODE_STATE_BASE|JOB_.*|NODE_STATE_.*|ESLURM_INVALID_JOB_ID|ESLURM_NODES_BUSY|ESLURM_ALREADY_DONE")
        .derive_debug(false)
        .layout_tests(true)
        .generate_comments(false);
    // bindgen panics where libclang is missing; that must not fail a build which doesn't need it.
    std::panic::set_hook(Box::new(|_| {}));
    let generated = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.generate()));
    let _ = std::panic::take_hook();
    generated
        .map_err(|_| "bindgen found no libclang: install libclang-dev".to_owned())?
        .map_err(|e| format!("bindgen: {e}"))?
        .write_to_file(out)
        .map_err(|e| e.to_string())
}
