//! `hop kernelspec`: Jupyter kernelspecs whose kernels run through Gresshopper: made out of a Python environment or of
//! an existing kernelspec, listed, and removed.

use crate::context::Context;
use crate::failure::Failure;
use crate::files;
use crate::values::{self, CORES};
use clap::Subcommand;
use hop_api::config::{Config, MOST_GPUS};
use hop_words::id::PoolName;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const EXAMPLES: &str = "\
Examples:
  hop kernelspec install --user --python ~/envs/torch/bin/python --gpus 1
  hop kernelspec install --user --mem 8192 --name big         the site's kernel, with 8 GiB
  hop kernelspec install --prefix /opt/gresshopper --from python3 --display-name \"Python 3 (GPU on demand)\"
  hop kernelspec list
  hop kernelspec remove big

The user's environment needs ipykernel and nothing of ours. The Jupyter server needs the package
gresshopper-jupyter.";

const FILE: &str = "kernel.json";

/// The default name of a site's kernel.
const USUAL: &str = "gresshopper-python3";

/// The display name of a kernel made from an environment.
const USUAL_DISPLAY: &str = "Python 3 (GPU on demand)";

/// Kernels for Jupyter that run through Gresshopper
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a kernelspec, or make it anew
    Install(Box<Install>),
    /// Show those that run through Gresshopper, and where each is
    List,
    /// Remove one that runs through Gresshopper
    Remove(Remove),
}

#[derive(Debug, clap::Args)]
struct Remove {
    /// Its name, as `hop kernelspec list` shows it
    name: String,
    /// Not of your own: of PREFIX/share/jupyter/kernels
    #[arg(long)]
    prefix: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct Install {
    /// For yourself: into your Jupyter data folder (the default)
    #[arg(long, conflicts_with = "prefix")]
    user: bool,
    /// For all: into PREFIX/share/jupyter/kernels
    #[arg(long)]
    prefix: Option<PathBuf>,
    /// For all of an environment: into the one of --python, else of the python3 on the PATH
    #[arg(long, conflicts_with_all = ["user", "prefix"])]
    sys_prefix: bool,
    /// The interpreter of the environment that the kernels run in
    #[arg(long, conflicts_with = "from")]
    python: Option<PathBuf>,
    /// Take command, environment, language and logos of this kernelspec; without --python: of gresshopper-python3
    #[arg(long, value_name = "NAME")]
    from: Option<String>,
    /// Name of the kernelspec in files and commands; default: gresshopper-python3, or after the environment where the
    /// site has a kernelspec of that name
    #[arg(long)]
    name: Option<String>,
    /// The name that people see; default: the name of its base, with --name unless that is the usual one
    #[arg(long, value_parser = values::shown_name)]
    display_name: Option<String>,
    /// GPUs of a cell that names no need
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=i64::from(MOST_GPUS)))]
    gpus: u16,
    /// Slurm's GPU type of such a cell
    #[arg(long, requires = "gpus", value_parser = values::name)]
    gpu_type: Option<String>,
    /// Cores of a cell that names no need, beside the kernel's own
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(CORES))]
    cell_cpus: u16,
    /// Memory of the kernel in MiB, or with a unit as in 8G; 0: the site's default
    #[arg(long, default_value_t = 0, value_parser = values::memory)]
    mem: u64,
    /// Cores of the kernel; 0: the site's default
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(CORES))]
    cpus: u16,
    /// The Slurm account of its leases
    #[arg(long, value_parser = values::name)]
    account: Option<String>,
    /// The Slurm QOS of the job that its kernels run in
    #[arg(long, value_parser = values::name)]
    qos: Option<String>,
    /// The Slurm reservation of that job
    #[arg(long, value_parser = values::name)]
    reservation: Option<String>,
    /// The pool whose GPUs it uses
    #[arg(long, value_parser = values::name)]
    pool: Option<String>,
    /// Without Slurm and without GPUs, on the Jupyter server's own host: for development
    #[arg(long)]
    local: bool,
}

pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    match &args.action {
        Action::Install(install) => {
            install.check(context.config.as_ref())?;
            let place = install.run()?;
            writeln!(context.out, "{}", place.display())?;
            Ok(())
        }
        Action::List => {
            let ours = ours_in(&data_folders());
            for (name, place) in &ours {
                writeln!(context.out, "{name:<24} {}", place.display())?;
            }
            if ours.is_empty() {
                writeln!(
                    context.err,
                    "hop: there is none: `hop kernelspec install --user --python ENV/bin/python` makes one"
                )?;
            }
            Ok(())
        }
        Action::Remove(remove) => {
            check_name(&remove.name)?;
            remove.run(&kernels_folder(remove.prefix.as_deref())?.join(&remove.name))
        }
    }
}

/// Our kernelspecs, by name; of two with the same name the kernelspec preferred by Jupyter.
fn ours_in(folders: &[PathBuf]) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    let kernels = folders.iter().map(|f| f.join("kernels"));
    for entry in kernels.filter_map(|k| fs::read_dir(k).ok()).flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().join(FILE).is_file() {
            found.entry(name).or_insert_with(|| entry.path());
        }
    }
    found.retain(|_, place| is_ours(place));
    found
}

fn is_ours(place: &Path) -> bool {
    let spec = files::read(&place.join(FILE), MOST).ok();
    let spec: Option<Map<String, Value>> = spec.and_then(|text| serde_json::from_slice(&text).ok());
    spec.is_some_and(|s| names_us(&s))
}

fn names_us(spec: &Map<String, Value>) -> bool {
    let metadata = spec.get("metadata");
    metadata.is_some_and(|m| m["kernel_provisioner"]["provisioner_name"] == "gresshopper")
}

fn kernels_folder(prefix: Option<&Path>) -> Result<PathBuf, Failure> {
    match prefix {
        Some(prefix) => Ok(prefix.join("share/jupyter/kernels")),
        None => Ok(user_folder()?.join("kernels")),
    }
}

impl Remove {
    fn run(&self, place: &Path) -> Result<(), Failure> {
        let shown = place.display();
        if !place.join(FILE).is_file() {
            return Err(Failure::Failed(format!(
                "there is no kernelspec at {shown}: `hop kernelspec list` says where each is; --prefix removes one of all users'"
            )));
        }
        if !is_ours(place) {
            return Err(Failure::Failed(format!(
                "{shown} doesn't run through Gresshopper: `jupyter kernelspec remove {}` removes it",
                self.name
            )));
        }
        fs::remove_dir_all(place).map_err(|e| Failure::Failed(format!("can't remove {shown}: {e}")))
    }
}

impl Install {
    /// Refuses a kernelspec whose kernels could never start: the site allows less, or has no such pool.
    fn check(&self, config: Option<&Config>) -> Result<(), Failure> {
        if self.gpu_type.is_some() && self.gpus == 0 {
            return Err(Failure::Usage(
                "--gpu-type is the type of --gpus, and those are 0".to_owned(),
            ));
        }
        let Some(config) = config else { return Ok(()) };
        if !self.local {
            let allowed = config.seat.allows(self.mem, self.cpus);
            allowed.map_err(|too_large| Failure::Usage(too_large.to_string()))?;
        }
        let Some(name) = &self.pool else { return Ok(()) };
        if config.pool.is_empty() || config.pool.contains_key(&PoolName::from(name.as_str())) {
            return Ok(());
        }
        let there: Vec<&str> = config.pool.keys().map(PoolName::as_str).collect();
        Err(Failure::Usage(format!(
            "there is no pool {name}; this site has {}",
            there.join(", ")
        )))
    }

    fn run(&self) -> Result<PathBuf, Failure> {
        let folders = data_folders();
        let name = self.named(&folders)?;
        let base = match (&self.from, &self.python) {
            (Some(name), _) => Base::of_spec(&find_spec(name, &folders)?)?,
            (None, Some(python)) => Base::of_python(python)?,
            (None, None) => {
                let found = find_spec(USUAL, &folders).map_err(|failure| {
                    Failure::Failed(format!("{failure}; name an environment: --python ENV/bin/python"))
                })?;
                Base::of_spec(&found)?
            }
        };
        let prefix = match self.sys_prefix {
            true => Some(environment_of(
                self.python.as_deref().unwrap_or_else(|| Path::new("python3")),
            )?),
            false => self.prefix.clone(),
        };
        let place = kernels_folder(prefix.as_deref())?.join(&name);
        self.write(&base, &place, &name)
            .map_err(|e| Failure::Failed(format!("can't write {}: {e}", place.display())))?;
        Ok(place)
    }

    /// A name under which no other kernelspec hides the new kernelspec.
    fn named(&self, folders: &[PathBuf]) -> Result<String, Failure> {
        let own = kernels_folder(self.prefix.as_deref())?;
        let first = |name: &str| find_spec(name, folders).ok();
        let hidden = |name: &str| {
            self.prefix.is_none() && !self.sys_prefix && first(name).is_some_and(|p| !p.starts_with(&own))
        };
        let name = match &self.name {
            Some(name) => name.clone(),
            None if hidden(USUAL) => format!("gresshopper-{}", self.environment()),
            None => USUAL.to_owned(),
        };
        check_name(&name)?;
        match first(&name).filter(|_| hidden(&name)) {
            Some(other) => Err(Failure::Failed(format!(
                "{} goes before a kernelspec of your own with that name: choose another --name",
                other.display()
            ))),
            None => Ok(name),
        }
    }

    /// The base's name, in letters of a kernelspec's name.
    fn environment(&self) -> String {
        let of_python = |p: &PathBuf| Some(p.parent()?.parent()?.file_name()?.to_string_lossy().into_owned());
        let named = self
            .from
            .clone()
            .or_else(|| self.python.as_ref().and_then(of_python));
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let clean = |n: String| {
            n.chars()
                .map(|c| if allowed(c) { c } else { '-' })
                .collect::<String>()
        };
        named
            .map(clean)
            .filter(|n| !n.is_empty())
            .unwrap_or_else(|| "mine".to_owned())
    }

    fn write(&self, base: &Base, place: &Path, name: &str) -> std::io::Result<()> {
        fs::create_dir_all(place)?;
        match &base.folder {
            Some(from) => {
                for entry in fs::read_dir(from)?
                    .flatten()
                    .filter(|e| e.file_name() != FILE && e.path().is_file())
                {
                    fs::copy(entry.path(), place.join(entry.file_name()))?;
                }
            }
            None => fs::write(place.join(LOGO), include_str!("logo.svg"))?,
        }
        let text = serde_json::to_string_pretty(&self.spec(&base.spec, name, front_program().as_deref()))?;
        // A rename: readers of kernelspecs see the old file or the new one.
        let new = place.join(".kernel.json.new");
        fs::write(&new, text + "\n")?;
        fs::rename(new, place.join(FILE))
    }

    fn spec(&self, base: &Map<String, Value>, name: &str, front: Option<&Path>) -> Value {
        let mut spec = base.clone();
        let mut config = self.config(front);
        if is_signalled(base) {
            config["interrupt"] = "signal".into();
        }
        let command = spec
            .get("argv")
            .and_then(Value::as_array)
            .map(|argv| own_command(argv));
        if let (Some(front), Some(command)) = (front, command) {
            spec.insert("argv".into(), launcher_argv(front, &config, command));
        }
        // Each client gives the kernel's starter these; those of the server's environment are overridden.
        let billed = [
            ("GRESSHOPPER_QOS", &self.qos),
            ("GRESSHOPPER_RESERVATION", &self.reservation),
        ];
        let mut env = spec
            .get("env")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        env.extend(
            billed
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value.clone()?.into()))),
        );
        if !env.is_empty() {
            spec.insert("env".into(), env.into());
        }
        spec.insert("display_name".into(), self.shown_as(base, name).into());
        // A message reaches the kernel wherever it runs; a signal doesn't.
        spec.insert("interrupt_mode".into(), "message".into());
        for key in OF_THE_BASE {
            spec.remove(key);
        }
        let metadata = metadata(base, config);
        spec.insert("metadata".into(), metadata.into());
        spec.into()
    }

    /// Two kernels with one display name can't be told apart in a launcher.
    fn shown_as(&self, base: &Map<String, Value>, name: &str) -> String {
        let of_base = base
            .get("display_name")
            .and_then(Value::as_str)
            .unwrap_or("Kernel");
        let (ours, python) = (
            names_us(base),
            base.get("language").is_some_and(|l| l == "python"),
        );
        let kind = match (ours, python) {
            (true, _) => of_base.to_owned(),
            (false, true) => USUAL_DISPLAY.to_owned(),
            (false, false) => format!("{of_base} (GPU on demand)"),
        };
        match &self.display_name {
            Some(shown) => shown.clone(),
            None if name != USUAL && (ours || python) => {
                format!("{kind}, {}", name.strip_prefix("gresshopper-").unwrap_or(name))
            }
            None => kind,
        }
    }

    /// Traits of the provisioner; only what isn't the default.
    fn config(&self, front: Option<&Path>) -> Value {
        let mut config = Map::new();
        let mut need = Map::new();
        if self.gpus > 0 {
            need.insert("gpus".into(), self.gpus.into());
        }
        if let Some(kind) = &self.gpu_type {
            need.insert("gpu_type".into(), kind.clone().into());
        }
        if self.cell_cpus > 0 {
            need.insert("cpus".into(), self.cell_cpus.into());
        }
        if !need.is_empty() {
            config.insert("need".into(), need.into());
        }
        if self.mem > 0 {
            config.insert("mem_mib".into(), self.mem.into());
        }
        if self.cpus > 0 {
            config.insert("cpus".into(), self.cpus.into());
        }
        for (key, value) in [("account", &self.account), ("pool", &self.pool)] {
            if let Some(value) = value {
                config.insert(key.into(), value.clone().into());
            }
        }
        if self.local {
            config.insert("local".into(), true.into());
        }
        if let Some(front) = front {
            config.insert("front_program".into(), front.display().to_string().into());
        }
        config.into()
    }
}

/// Keys of the base that a kernelspec made from it must not have. By `name` VS Code takes a kernelspec for one of its
/// own. `kernel_protocol_version` promises a handshake (JEP 66), for which a client would write another file.
const OF_THE_BASE: [&str; 2] = ["name", "kernel_protocol_version"];

/// The base's metadata, with the provisioner.
fn metadata(base: &Map<String, Value>, config: Value) -> Map<String, Value> {
    let mut metadata = base
        .get("metadata")
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    let provisioner = json!({"provisioner_name": "gresshopper", "config": config});
    metadata.insert("kernel_provisioner".into(), provisioner);
    // Keys for CurveZMQ would be the local kernel's.
    metadata.remove("supported_encryption");
    // VS Code marks the kernelspecs that it registers by these keys. It would hide a marked kernelspec of ours, or start
    // the interpreter that the key names.
    for key in ["vscode", "interpreter", "originalSpecFile"] {
        metadata.remove(key);
    }
    metadata
}

/// Arguments that every client can start, even without provisioners. Our provisioner extracts the kernel's own
/// command.
fn launcher_argv(front: &Path, config: &Value, command: &[Value]) -> Value {
    let front = front.display().to_string();
    // jupyverse fills in placeholders by `str.format`, which takes each brace for the beginning of one.
    let options = config
        .to_string()
        .replace('%', "%25")
        .replace('{', "%7B")
        .replace('}', "%7D");
    let ours = [
        &front,
        "kernel",
        "-f",
        "{connection_file}",
        "--options",
        &options,
        "--",
    ];
    ours.into_iter()
        .map(Value::from)
        .chain(command.iter().cloned())
        .collect()
}

/// Whether the kernel is interrupted by SIGINT alone. An ipykernel takes the message whatever its kernelspec says, and a
/// kernelspec of ours has kept what the first one said.
fn is_signalled(spec: &Map<String, Value>) -> bool {
    let provisioner = &spec.get("metadata").unwrap_or(&Value::Null)["kernel_provisioner"];
    if provisioner["provisioner_name"] == "gresshopper" {
        return provisioner["config"]["interrupt"] == "signal";
    }
    let argv = spec.get("argv").and_then(Value::as_array).into_iter().flatten();
    let is_ipykernel = argv
        .filter_map(Value::as_str)
        .any(|word| word.contains("ipykernel"));
    !is_ipykernel && spec.get("interrupt_mode").is_none_or(|mode| mode != "message")
}

/// The kernel's own command in an `argv` that may be ours already.
fn own_command(argv: &[Value]) -> &[Value] {
    let word = |at: usize| argv.get(at).and_then(Value::as_str).unwrap_or_default();
    let ours = Path::new(word(0)).ends_with("hop-front") && word(1) == "kernel";
    let end = argv.iter().position(|a| a == "--").filter(|_| ours);
    end.map_or(argv, |end| &argv[end + 1..])
}

/// `hop-front` of this installation.
fn front_program() -> Option<PathBuf> {
    let front = std::env::current_exe().ok()?.with_file_name("hop-front");
    front.is_file().then_some(front)
}

/// The file that JupyterLab's launcher shows first.
const LOGO: &str = "logo-svg.svg";

/// Python's `sys.prefix`, where `jupyter kernelspec install --sys-prefix` puts kernelspecs, too.
fn environment_of(python: &Path) -> Result<PathBuf, Failure> {
    let said = Command::new(python)
        .args(["-c", "import sys; print(sys.prefix)"])
        .stdin(Stdio::null())
        .output();
    let shown = python.display();
    let said = said.map_err(|error| Failure::Failed(format!("can't run {shown}: {error}")))?;
    let prefix = PathBuf::from(String::from_utf8_lossy(&said.stdout).trim());
    if said.status.success() && prefix.is_absolute() {
        Ok(prefix)
    } else {
        Err(Failure::Failed(format!(
            "{shown} doesn't say where its environment is"
        )))
    }
}

/// What a new kernelspec is made of.
#[derive(Debug)]
struct Base {
    spec: Map<String, Value>,
    /// Where logos lie.
    folder: Option<PathBuf>,
}

impl Base {
    fn of_python(python: &Path) -> Result<Self, Failure> {
        let python = std::path::absolute(python).map_err(|e| Failure::of(&e))?;
        let shown = python.display();
        let probe = Command::new(&python)
            .args(["-c", "import ipykernel; print(ipykernel.__name__)"])
            .stdin(Stdio::null())
            .output();
        match probe {
            Err(error) => return Err(Failure::Failed(format!("can't run {shown}: {error}"))),
            Ok(done) if !done.status.success() => {
                let text =
                    format!("{shown} has no ipykernel. Install it there: {shown} -m pip install ipykernel");
                return Err(Failure::Failed(text));
            }
            Ok(done) if done.stdout.trim_ascii() != b"ipykernel" => {
                let text = format!("{shown} is no Python: name an environment's bin/python");
                return Err(Failure::Failed(text));
            }
            Ok(_) => {}
        }
        let spec = json!({
            "argv": [python.display().to_string(), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "language": "python",
            // As ipykernel's own: else debugpy says four lines about CPython's frozen modules on each terminal.
            "env": {"PYDEVD_DISABLE_FILE_VALIDATION": "1"},
            "metadata": {"debugger": true},
        });
        Ok(Self {
            spec: spec.as_object().cloned().unwrap_or_default(),
            folder: None,
        })
    }

    fn of_spec(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join(FILE);
        let text = files::read(&path, MOST)
            .map_err(|e| Failure::Failed(format!("can't read {}: {e}", path.display())))?;
        let spec: Value = serde_json::from_slice(&text)
            .map_err(|e| Failure::Failed(format!("{} is no kernelspec: {e}", path.display())))?;
        let provisioner = &spec["metadata"]["kernel_provisioner"]["provisioner_name"];
        if !(provisioner.is_null() || provisioner == "gresshopper" || provisioner == "local-provisioner") {
            let text = format!(
                "the kernels of {} are started by {provisioner}: they can't run here",
                path.display()
            );
            return Err(Failure::Failed(text));
        }
        let spec = spec
            .as_object()
            .filter(|s| s.get("argv").is_some_and(Value::is_array))
            .cloned();
        let spec =
            spec.ok_or_else(|| Failure::Failed(format!("{} has no command (argv)", path.display())))?;
        Ok(Self {
            spec,
            folder: Some(folder.to_owned()),
        })
    }
}

/// The most bytes of a kernelspec.
const MOST: u64 = 1 << 24;

/// The longest name of a kernelspec: it is a folder's.
const NAME: usize = 100;

/// Jupyter's own rule.
fn check_name(name: &str) -> Result<(), Failure> {
    let ok = !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    let text = || {
        format!(
            "a kernelspec's name has up to {NAME} letters, digits, dots, dashes and underscores: not {name:?}"
        )
    };
    if ok && !name.starts_with(['.', '-']) && name.len() <= NAME {
        Ok(())
    } else {
        Err(Failure::Usage(text()))
    }
}

fn user_folder() -> Result<PathBuf, Failure> {
    let named = std::env::var_os("JUPYTER_DATA_DIR").map(PathBuf::from);
    let data = || std::env::var_os("XDG_DATA_HOME").map(|d| Path::new(&d).join("jupyter"));
    let home = || std::env::var_os("HOME").map(|h| Path::new(&h).join(".local/share/jupyter"));
    let none = || Failure::Failed("there is no home folder (HOME is not set): say --prefix".to_owned());
    named.or_else(data).or_else(home).ok_or_else(none)
}

/// Jupyter's folders of kernelspecs, in its order.
fn data_folders() -> Vec<PathBuf> {
    let path = std::env::var_os("JUPYTER_PATH");
    let mut folders: Vec<PathBuf> = path.iter().flat_map(std::env::split_paths).collect();
    folders.extend(user_folder().ok());
    let environment = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(std::env::var_os);
    folders.extend(environment.map(|e| Path::new(&e).join("share/jupyter")));
    folders.extend(["/usr/local/share/jupyter", "/usr/share/jupyter"].map(PathBuf::from));
    folders.extend(of_the_site());
    folders
}

/// Where the installation has the site's kernels (docs/install.md), whatever JUPYTER_PATH says here.
pub(crate) fn of_the_site() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    Some(program.parent()?.parent()?.join("share/jupyter"))
}

fn find_spec(name: &str, folders: &[PathBuf]) -> Result<PathBuf, Failure> {
    let mut places = folders.iter().map(|f| f.join("kernels").join(name));
    places.find(|p| p.join(FILE).is_file()).ok_or_else(|| {
        let looked = folders
            .iter()
            .map(|f| f.display().to_string())
            .collect::<Vec<_>>()
            .join(", ");
        Failure::Failed(format!(
            "there is no kernelspec {name:?} in {looked}. `jupyter kernelspec list` lists them"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn parse(words: &[&str]) -> Install {
        let words = ["kernelspec", "install"].iter().chain(words);
        match Cli::try_parse_from(words).unwrap().args.action {
            Action::Install(install) => *install,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_kernelspec_keeps_what_it_was_made_of_and_starts_through_us() {
        let tmp = tempfile::tempdir().unwrap();
        let native = tmp.path().join("kernels/native");
        fs::create_dir_all(&native).unwrap();
        fs::write(native.join("logo.svg"), "<svg/>").unwrap();
        let spec = json!({"argv": ["python", "-f", "{connection_file}"], "display_name": "x", "language": "python",
            "env": {"A": "1"}, "metadata": {"debugger": true, "supported_encryption": ["curve"]}, "interrupt_mode": "signal"});
        fs::write(native.join(FILE), spec.to_string()).unwrap();

        let found = find_spec("native", &[tmp.path().join("none"), tmp.path().to_owned()]).unwrap();
        let install = parse(&[
            "--from",
            "native",
            "--gpus",
            "1",
            "--mem",
            "4096",
            "--display-name",
            "Mine",
        ]);
        let place = tmp.path().join("out");
        install
            .write(&Base::of_spec(&found).unwrap(), &place, USUAL)
            .unwrap();
        let made: Value = serde_json::from_slice(&fs::read(place.join(FILE)).unwrap()).unwrap();
        let config = json!({"need": {"gpus": 1}, "mem_mib": 4096, "interrupt": "signal"});
        let expected = json!({"argv": ["python", "-f", "{connection_file}"], "display_name": "Mine", "language": "python",
            "env": {"A": "1"}, "interrupt_mode": "message",
            "metadata": {"debugger": true, "kernel_provisioner": {"provisioner_name": "gresshopper", "config": config}}});
        assert_eq!(made, expected);
        assert!(place.join("logo.svg").is_file());
        let of_python = Base {
            spec: spec.as_object().cloned().unwrap(),
            folder: None,
        };
        let fresh = tmp.path().join("fresh");
        install.write(&of_python, &fresh, USUAL).unwrap();
        assert!(fs::read_to_string(fresh.join(LOGO)).unwrap().starts_with("<svg"));

        let front = Path::new("/opt/g/bin/hop-front");
        let made = install.spec(expected.as_object().unwrap(), USUAL, Some(front));
        let options = r#"%7B"front_program":"/opt/g/bin/hop-front","interrupt":"signal","mem_mib":4096,"need":%7B"gpus":1%7D%7D"#;
        let ours = [
            "/opt/g/bin/hop-front",
            "kernel",
            "-f",
            "{connection_file}",
            "--options",
            options,
            "--",
        ];
        let argv = [&ours[..], &["python", "-f", "{connection_file}"]].concat();
        assert_eq!(made["argv"], json!(argv));
        let again = install.spec(made.as_object().unwrap(), USUAL, Some(front));
        assert_eq!(again["argv"], made["argv"], "a spec of ours is not wrapped twice");
        assert_eq!(fs::read_dir(&place).unwrap().count(), 2);
    }

    #[test]
    fn what_vs_code_noted_of_the_base_is_left_out() {
        let base = json!({"argv": ["/env/bin/python", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "name": "python312jvsc74a57bd0c0ffee", "language": "python", "kernel_protocol_version": "5.5",
            "metadata": {"interpreter": {"path": "/env/bin/python"}, "originalSpecFile": "/x/kernel.json", "debugger": true,
                "vscode": {"originalSpecFile": "/x/kernel.json"}}});
        let front = Path::new("/opt/g/bin/hop-front");
        let made = parse(&[]).spec(base.as_object().unwrap(), USUAL, Some(front));
        let keys: Vec<&String> = made["metadata"].as_object().unwrap().keys().collect();
        assert_eq!(keys, ["debugger", "kernel_provisioner"]);
        assert!(made.get("name").is_none() && made.get("kernel_protocol_version").is_none());
        // VS Code starts an interpreter of its own choice where this is `python` or `python3`.
        assert_eq!(made["argv"][0], "/opt/g/bin/hop-front");
    }

    #[test]
    fn qos_and_reservation_reach_whoever_starts_the_kernel() {
        let base = json!({"argv": [], "language": "python", "env": {"A": "1", "GRESSHOPPER_QOS": "slow"}});
        let env = |words: &[&str]| parse(words).spec(base.as_object().unwrap(), USUAL, None)["env"].clone();
        assert_eq!(env(&[]), base["env"]);
        assert_eq!(
            env(&["--qos", "quick", "--reservation", "course"]),
            json!({"A": "1", "GRESSHOPPER_QOS": "quick", "GRESSHOPPER_RESERVATION": "course"})
        );
    }

    #[test]
    fn a_kernel_is_interrupted_as_its_own_kernelspec_says() {
        let signalled = |spec: Value| is_signalled(spec.as_object().unwrap());
        assert!(signalled(json!({"argv": ["R", "--slave"]})));
        assert!(!signalled(json!({"argv": ["xcpp"], "interrupt_mode": "message"})));
        assert!(!signalled(
            json!({"argv": ["python", "-m", "ipykernel_launcher"], "interrupt_mode": "signal"})
        ));
    }

    #[test]
    fn a_kernelspec_that_no_kernel_may_have_is_not_made() {
        let mut config = Config::default();
        (config.seat.most_mem_mib, config.seat.most_cpus) = (Some(16_384), Some(4));
        let free = Config::default();
        let made = |words: &[&str], config| parse(words).check(Some(config)).map_err(|f| f.to_string());
        assert_eq!(made(&["--mem", "16G", "--cpus", "4"], &config), Ok(()));
        assert_eq!(
            made(&["--mem", "64G", "--local"], &config),
            Ok(()),
            "without Slurm"
        );
        assert_eq!(made(&["--mem", "64G"], &free), Ok(()));
        let said = made(&["--mem", "64G"], &config).unwrap_err();
        assert!(
            said.contains("65536") && said.contains("16384 MiB (seat.most_mem_mib)"),
            "{said}"
        );
        let said = made(&["--cpus", "5"], &config).unwrap_err();
        assert!(
            said.contains("5 cores") && said.contains("seat.most_cpus"),
            "{said}"
        );
    }

    #[test]
    fn a_kernelspec_is_told_apart_from_what_it_was_made_of() {
        let plain = json!({"argv": [], "display_name": "Python 3 (ipykernel)", "language": "python"});
        let r = json!({"argv": [], "display_name": "R", "language": "R"});
        let site = json!({"argv": [], "display_name": "Python 3 (torch)", "language": "python",
            "metadata": {"kernel_provisioner": {"provisioner_name": "gresshopper"}}});
        let big = ["--mem", "8192", "--name", "big"];
        for (base, words, shown) in [
            (&plain, &[][..], "Python 3 (GPU on demand)"),
            (&plain, &big[..], "Python 3 (GPU on demand), big"),
            (&site, &[][..], "Python 3 (torch)"),
            (&site, &big[..], "Python 3 (torch), big"),
            (&r, &["--name", "ours"][..], "R (GPU on demand)"),
            (&r, &["--display-name", "Mine"][..], "Mine"),
        ] {
            let install = parse(words);
            let spec = install.spec(
                base.as_object().unwrap(),
                install.name.as_deref().unwrap_or(USUAL),
                None,
            );
            assert_eq!(spec["display_name"], shown, "{words:?} {base}");
        }
    }

    #[test]
    fn no_kernelspec_of_ones_own_is_hidden_by_the_sites() {
        let tmp = tempfile::tempdir().unwrap();
        let site = tmp.path().join("site");
        let there = |name: &str| {
            let place = site.join("kernels").join(name);
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join(FILE), "{}").unwrap();
        };
        let named = |words: &[&str]| {
            parse(words)
                .named(std::slice::from_ref(&site))
                .map_err(|e| e.to_string())
        };
        let torch = ["--user", "--python", "/home/ada/my torch/bin/python"];
        assert_eq!(named(&torch), Ok(USUAL.to_owned()));
        there(USUAL);
        assert_eq!(named(&torch), Ok("gresshopper-my-torch".to_owned()));
        assert_eq!(named(&["--mem", "8192"]), Ok("gresshopper-mine".to_owned()));
        assert_eq!(named(&["--from", "ir"]), Ok("gresshopper-ir".to_owned()));
        let said = named(&["--mem", "8192", "--name", USUAL]).unwrap_err();
        assert!(said.contains("choose another --name"), "{said}");
        // A site's own is made where it is.
        assert_eq!(
            named(&["--prefix", "/opt/g", "--python", "/usr/bin/python3"]),
            Ok(USUAL.to_owned())
        );
    }

    #[test]
    fn ours_are_listed_and_removed_and_no_others() {
        let tmp = tempfile::tempdir().unwrap();
        let folders = ["first", "second"].map(|f| tmp.path().join(f));
        for (folder, name, provisioner) in [
            (0, "big", "gresshopper"),
            (0, "plain", "local-provisioner"),
            (1, "big", "gresshopper"),
            (1, "plain", "gresshopper"),
        ] {
            let place = folders[folder].join("kernels").join(name);
            fs::create_dir_all(&place).unwrap();
            let spec =
                json!({"argv": [], "metadata": {"kernel_provisioner": {"provisioner_name": provisioner}}});
            fs::write(place.join(FILE), spec.to_string()).unwrap();
        }
        let big = folders[0].join("kernels/big");
        // "plain" of the second folder is never preferred by Jupyter.
        assert_eq!(
            Vec::from_iter(ours_in(&folders)),
            [("big".to_owned(), big.clone())]
        );
        let remove = |place: &Path| {
            let name = "it".to_owned();
            Remove { name, prefix: None }
                .run(place)
                .map_err(|e| e.to_string())
        };
        assert!(
            remove(&folders[0].join("kernels/plain"))
                .unwrap_err()
                .contains("jupyter kernelspec remove it")
        );
        assert!(
            remove(&folders[0].join("kernels/none"))
                .unwrap_err()
                .contains("hop kernelspec list")
        );
        remove(&big).unwrap();
        assert!(!big.exists() && folders[1].join("kernels/big").exists());
    }

    #[test]
    fn an_environments_kernelspec_lies_in_the_environment() {
        let tmp = tempfile::tempdir().unwrap();
        let python = tmp.path().join("python");
        fs::write(&python, format!("#!/bin/sh\necho {}/env\n", tmp.path().display())).unwrap();
        fs::set_permissions(&python, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(environment_of(&python).unwrap(), tmp.path().join("env"));
        assert!(environment_of(Path::new("/bin/true")).is_err());
        let words = ["kernelspec", "install", "--from", "ir", "--sys-prefix", "--user"];
        assert!(Cli::try_parse_from(words).is_err());
    }

    #[test]
    fn what_can_not_work_is_said() {
        assert!(
            matches!(find_spec("none", &[PathBuf::from("/nowhere")]), Err(Failure::Failed(t)) if t.contains("/nowhere"))
        );
        assert!(
            matches!(Base::of_python(Path::new("/nowhere/python")), Err(Failure::Failed(t)) if t.contains("can't run"))
        );
        assert!(
            matches!(Base::of_python(Path::new("/bin/false")), Err(Failure::Failed(t)) if t.contains("has no ipykernel"))
        );
        assert!(
            matches!(Base::of_python(Path::new("/bin/true")), Err(Failure::Failed(t)) if t.contains("is no Python"))
        );
        for name in ["", "a/b", "..", ".x", "a b"] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
