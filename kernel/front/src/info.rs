//! The `kernel_info_reply` of a kernelspec's kernels, kept in the user's data folder. The next kernel of the same
//! command and environment answers the same, so clients needn't wait for it.

use hop_protocol::file::{Launch, data_dir, make_private};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A kernelspec's command, in the environment of now.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Command {
    argv: Vec<String>,
    /// When a package of the interpreter's environment was last installed or removed. 0: it has none.
    changed: u64,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    command: Command,
    content: Value,
}

/// The place of the reply by one command's kernels.
#[derive(Debug)]
pub struct Place {
    file: PathBuf,
    command: Command,
}

impl Place {
    /// `None` means that the user has no data folder.
    pub fn of(launch: &Launch) -> Option<Self> {
        Some(Self::below(&data_dir()?, launch))
    }

    fn below(data: &Path, launch: &Launch) -> Self {
        let argv = launch.argv.clone();
        let changed = argv.first().map_or(0, |program| changed(Path::new(program)));
        let mut name = DefaultHasher::new();
        argv.hash(&mut name);
        Self {
            file: data.join("infos").join(format!("{:016x}.json", name.finish())),
            command: Command { argv, changed },
        }
    }

    /// The reply of this command's last kernel, if the environment is still the same.
    pub fn read(&self) -> Option<Value> {
        let kept: Kept = serde_json::from_slice(&std::fs::read(&self.file).ok()?).ok()?;
        (kept.command == self.command).then_some(kept.content)
    }

    /// # Errors
    /// The file system's.
    pub fn write(self, content: Value) -> io::Result<()> {
        let folder = self.file.parent().expect("it is in a folder of ours");
        make_private(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        let command = self.command;
        serde_json::to_writer(&mut file, &Kept { command, content })?;
        file.persist(&self.file).map_err(|e| e.error)?;
        Ok(())
    }
}

/// When the packages of a Python environment last changed, in seconds since the epoch.
fn changed(python: &Path) -> u64 {
    let lib = python.parent().and_then(Path::parent).map(|p| p.join("lib"));
    let versions = lib
        .and_then(|lib| std::fs::read_dir(lib).ok())
        .into_iter()
        .flatten();
    let times = versions.flatten().filter_map(|version| {
        let packages = std::fs::metadata(version.path().join("site-packages")).ok()?;
        packages
            .modified()
            .unwrap_or(SystemTime::UNIX_EPOCH)
            .duration_since(UNIX_EPOCH)
            .ok()
    });
    times.map(|at| at.as_secs()).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs::File;
    use std::time::Duration;

    #[test]
    fn what_a_kernel_said_is_of_its_command_and_environment() {
        let dir = tempfile::tempdir().unwrap();
        let packages = dir.path().join("env/lib/python3.11/site-packages");
        std::fs::create_dir_all(&packages).unwrap();
        let python = dir.path().join("env/bin/python").display().to_string();
        let launch =
            |argv: &[&str]| -> Launch { serde_json::from_value(json!({"argv": argv, "cwd": null})).unwrap() };
        let place = |argv: &[&str]| Place::below(dir.path(), &launch(argv));
        let argv = [python.as_str(), "-m", "ipykernel_launcher"];
        assert_eq!(place(&argv).read(), None);
        place(&argv).write(json!({"banner": "x"})).unwrap();
        assert_eq!(place(&argv).read(), Some(json!({"banner": "x"})));
        assert_eq!(place(&["R"]).read(), None);
        let later = SystemTime::now() + Duration::from_secs(60);
        File::open(&packages).unwrap().set_modified(later).unwrap();
        assert_eq!(place(&argv).read(), None, "another ipykernel may be there now");
    }
}
