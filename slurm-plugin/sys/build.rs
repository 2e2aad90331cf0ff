//! Makes the bindings from the `slurm/slurm.h` that is installed.
//!
//! `HOP_SLURM_INCLUDE` (the folder with `slurm/slurm.h`) and `HOP_SLURM_LIB` (the folder with `libslurm.so`) come
//! before pkg-config and the system's own folders. Without headers, libslurm or libclang the crate is empty, which a
//! warning says, and nothing else of the workspace changes.
//!
//! For dependents: `DEP_SLURM_VERSION` (decimal `SLURM_VERSION_NUMBER`) is set exactly if there are bindings.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The series, with its number in libslurm's file name and in `slurm_api_version()`. `cfg(slurm_23_11)` means "that
/// series or later".
const SERIES: [(u32, u32, u32); 8] = [
    (22, 5, 38),
    (23, 2, 39),
    (23, 11, 40),
    (24, 5, 41),
    (24, 11, 42),
    (25, 5, 43),
    (25, 11, 44),
    (26, 5, 45),
];

fn main() {
    println!("cargo:rerun-if-env-changed=HOP_SLURM_INCLUDE");
    println!("cargo:rerun-if-env-changed=HOP_SLURM_LIB");
    println!("cargo:rustc-check-cfg=cfg(slurm)");
    for (major, minor, _) in SERIES {
        println!("cargo:rustc-check-cfg=cfg(slurm_{major}_{minor:02})");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("slurm.rs");
    if let Err(why) = generate(&out) {
        println!(
            "cargo:warning=hop-slurm-link is built without libslurm ({why}); Slurm's commands are used instead"
        );
        fs::write(&out, "").expect("OUT_DIR is writable");
    }
}

fn generate(out: &Path) -> Result<(), String> {
    let include = include_dir().ok_or("no slurm/slurm.h: install libslurm-dev or set HOP_SLURM_INCLUDE")?;
    println!(
        "cargo:rerun-if-changed={}",
        include.join("slurm/slurm.h").display()
    );
    let version = header_version(&include)?;
    let lib = lib_dir().ok_or("no libslurm.so: install libslurm-dev or set HOP_SLURM_LIB")?;
    let api = api_number(&lib, version)?;
    bindings(&include, out)?;
    println!("cargo:rustc-env=HOP_SLURM_API={api}");
    println!("cargo:rustc-link-search=native={}", lib.display());
    println!("cargo:rustc-link-lib=dylib=slurm");
    println!("cargo:rustc-cfg=slurm");
    for (major, minor, _) in SERIES {
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
    candidates
        .into_iter()
        .find(|dir| dir.join("slurm/slurm.h").is_file())
}

fn lib_dir() -> Option<PathBuf> {
    let candidates = env::var_os("HOP_SLURM_LIB")
        .map(|dir| vec![PathBuf::from(dir)])
        .unwrap_or_else(|| {
            let triplet = format!(
                "/usr/lib/{}-linux-gnu",
                env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default()
            );
            let mut dirs: Vec<PathBuf> = pkg_config("--libs-only-L", "-L").into_iter().collect();
            dirs.push(triplet.into());
            dirs.extend(["/usr/lib64", "/usr/lib", "/usr/local/lib", "/opt/slurm/lib"].map(PathBuf::from));
            dirs
        });
    candidates
        .into_iter()
        .find(|dir| dir.join("libslurm.so").exists())
}

fn pkg_config(what: &str, prefix: &str) -> Option<PathBuf> {
    let output = Command::new("pkg-config").args([what, "slurm"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let first = text
        .split_whitespace()
        .find_map(|word| word.strip_prefix(prefix))?;
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

/// The library's number, equal to the header's series by requirement.
fn api_number(lib: &Path, version: u32) -> Result<u32, String> {
    let file = fs::canonicalize(lib.join("libslurm.so")).map_err(|e| format!("libslurm.so: {e}"))?;
    let name = file
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let found = name
        .strip_prefix("libslurm.so.")
        .and_then(|rest| rest.split('.').next()?.parse().ok())
        .ok_or_else(|| format!("{name} has no number"))?;
    let known = SERIES
        .iter()
        .find(|(major, minor, _)| version >> 8 == (major << 8 | minor));
    match known {
        Some((_, _, number)) if *number != found => Err(format!("slurm.h is of another series than {name}")),
        _ => Ok(found),
    }
}

/// Constants written as expressions by the headers of some series: bindgen does not evaluate expressions in macros.
const CONSTANTS: [&str; 35] = [
    "SHOW_ALL",
    "SHOW_DETAIL",
    "SHOW_MIXED",
    "PARTITION_UP",
    "PARTITION_DOWN",
    "PARTITION_DRAIN",
    "PART_FLAG_DEFAULT",
    "PART_FLAG_EXCLUSIVE_USER",
    "PREEMPT_MODE_SUSPEND",
    "PREEMPT_MODE_REQUEUE",
    "PREEMPT_MODE_CANCEL",
    "PREEMPT_MODE_GANG",
    "JOB_STATE_BASE",
    "NODE_STATE_BASE",
    "SLURM_NO_CHANGE_IN_DATA",
    "JOB_COMPLETING",
    "JOB_CONFIGURING",
    "JOB_REQUEUE",
    "JOB_REQUEUE_HOLD",
    "JOB_STOPPED",
    "NODE_STATE_CLOUD",
    "NODE_STATE_COMPLETING",
    "NODE_STATE_DRAIN",
    "NODE_STATE_FAIL",
    "NODE_STATE_INVALID_REG",
    "NODE_STATE_MAINT",
    "NODE_STATE_NO_RESPOND",
    "NODE_STATE_POWER_DOWN",
    "NODE_STATE_POWERING_DOWN",
    "NODE_STATE_POWERED_DOWN",
    "NODE_STATE_POWERING_UP",
    "NODE_STATE_PLANNED",
    "NODE_STATE_REBOOT_ISSUED",
    "NODE_STATE_REBOOT_REQUESTED",
    "NODE_STATE_RES",
];

fn header() -> String {
    let mut text = String::from(
        "#include <slurm/slurm.h>\n#include <slurm/slurm_errno.h>\n#include <slurm/slurm_version.h>\n",
    );
    for name in CONSTANTS {
        text.push_str(&format!("static const unsigned int HOP_{name} = {name};\n"));
    }
    text
}

fn bindings(include: &Path, out: &Path) -> Result<(), String> {
    let builder = bindgen::Builder::default()
        .header_contents("hop.h", &header())
        .clang_arg(format!("-I{}", include.display()))
        .allowlist_function(
            "slurm_(init|fini|api_version|strerror|allocate_resources|init_job_desc_msg|free_resource_allocation_response_msg\
             |load_jobs|load_job|free_job_info_msg|load_node|free_node_info_msg|load_partitions|free_partition_info_msg|get_select_nodeinfo|load_ctl_conf|free_ctl_conf|kill_job|kill_job_step)",
        )
        .allowlist_var("SLURM_VERSION_NUMBER|HOP_.*")
        .allowlist_type("job_states|node_states|select_nodedata_type")
        .derive_debug(false)
        .layout_tests(true)
        .generate_comments(false);
    // bindgen panics where libclang is missing, which must not fail a build without a need for bindings.
    std::panic::set_hook(Box::new(|_| {}));
    let generated = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.generate()));
    let _ = std::panic::take_hook();
    generated
        .map_err(|_| "bindgen found no libclang: install libclang-dev".to_owned())?
        .map_err(|e| format!("bindgen: {e}"))?
        .write_to_file(out)
        .map_err(|e| e.to_string())
}
