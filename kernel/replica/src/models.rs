//! Names of this node's GPUs, from NVIDIA's kernel driver: reading them opens no device.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The driver's list of GPUs, a folder for each.
const DRIVER: &str = "/proc/driver/nvidia/gpus";

/// Names by device file, as NVML gives them.
pub type Models = BTreeMap<PathBuf, String>;

/// Names of the GPUs known to the driver now; empty without a driver.
pub fn of_node() -> Models {
    below(Path::new(DRIVER))
}

fn below(driver: &Path) -> Models {
    std::fs::read_dir(driver)
        .into_iter()
        .flatten()
        .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("information")).ok())
        .filter_map(|text| named(&text))
        .collect()
}

fn named(text: &str) -> Option<(PathBuf, String)> {
    let field = |name: &str| {
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.trim() == name)
            .map(|(_, value)| value.trim().to_owned())
    };
    let minor: u32 = field("Device Minor")?.parse().ok()?;
    Some((PathBuf::from(format!("/dev/nvidia{minor}")), field("Model")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_go_by_their_device_files() {
        let driver = tempfile::tempdir().unwrap();
        for (bus, minor, model) in [
            ("0000:18:00.0", 1, "NVIDIA H200"),
            ("0000:0f:00.0", 0, "NVIDIA A100-SXM4-40GB"),
        ] {
            let folder = driver.path().join(bus);
            std::fs::create_dir(&folder).unwrap();
            let text = format!(
                "Model: \t\t {model}\nIRQ:   \t\t 21\nBus Location: \t {bus}\nDevice Minor: \t {minor}\n"
            );
            std::fs::write(folder.join("information"), text).unwrap();
        }
        let found = below(driver.path());
        assert_eq!(found[Path::new("/dev/nvidia1")], "NVIDIA H200");
        assert_eq!(found[Path::new("/dev/nvidia0")], "NVIDIA A100-SXM4-40GB");
        assert!(below(Path::new("/nowhere")).is_empty());
    }
}
