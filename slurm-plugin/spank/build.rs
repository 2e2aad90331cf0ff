//! Makes the bindings from the `slurm/spank.h` that is installed.
//!
//! `HOP_SLURM_INCLUDE` (the folder that holds `slurm/spank.h`) comes before the system's own folders. Slurm loads a
//! plugin only into the series of the plugin's build: a site with two series builds the plugin twice. Without headers
//! or libclang the library is empty, which a warning says, and nothing else of the workspace changes.

use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-env-changed=HOP_SLURM_INCLUDE");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(spank)");
    match generate() {
        Ok(()) => println!("cargo:rustc-cfg=spank"),
        Err(why) => println!("cargo:warning=gresshopper.so is empty and can't be loaded by Slurm: {why}"),
    }
}

fn generate() -> Result<(), String> {
    let include = include_dir().ok_or("no slurm/spank.h: install libslurm-dev or set HOP_SLURM_INCLUDE")?;
    println!(
        "cargo:rerun-if-changed={}",
        include.join("slurm/slurm_version.h").display()
    );
    let builder = bindgen::Builder::default()
        .header_contents("hop.h", "#include <slurm/spank.h>\n")
        .clang_arg(format!("-I{}", include.display()))
        .allowlist_function("spank_(getenv|get_item|context)|slurm_(error|info|debug)")
        .allowlist_type("spank_(item|context)")
        .allowlist_var("SLURM_VERSION_NUMBER")
        .generate_comments(false);
    // bindgen panics where libclang is missing, which must not fail a build without a need for bindings.
    std::panic::set_hook(Box::new(|_| {}));
    let bindings = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.generate()));
    let _ = std::panic::take_hook();
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets no OUT_DIR")?).join("spank.rs");
    bindings
        .map_err(|_| "bindgen found no libclang: install libclang-dev".to_owned())?
        .map_err(|e| format!("bindgen: {e}"))?
        .write_to_file(out)
        .map_err(|e| e.to_string())
}

fn include_dir() -> Option<PathBuf> {
    let candidates = match env::var_os("HOP_SLURM_INCLUDE") {
        Some(dir) => vec![PathBuf::from(dir)],
        None => ["/usr/include", "/usr/local/include", "/opt/slurm/include"]
            .map(PathBuf::from)
            .to_vec(),
    };
    candidates
        .into_iter()
        .find(|dir| dir.join("slurm/spank.h").is_file())
}
