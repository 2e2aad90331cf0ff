//! The kernelspec's `argv`: for clients that start the command themselves and know no provisioners (VS Code, Zed,
//! Positron, Enterprise Gateway). Ports and key come from the launcher's clients, in a connection file; the kernel
//! lives as long as these clients. Clients that know provisioners never come here: ours takes the kernel's own command
//! out of `argv`.
//!
//! Each client has its own way to pass the connection file (`located`), and most look at the kernel's language first.

use crate::owner::{Ports, Start, VERSION};
use anyhow::{Context, Result, bail, ensure};
use hop_protocol::file::{Durable, Interrupt, Launch};
use hop_words::id::{AccountName, Incarnation, PoolName, Tenure};
use hop_words::need::Need;
use hop_words::replica::Replicas;
use serde::Deserialize;
use std::net::IpAddr;
use std::path::PathBuf;

/// The replica chooses the kernel's own connection file. Some clients fill the placeholder in, some don't.
const PLACEHOLDER: &str = "{connection_file}";

/// How the kernelspec calls us: `hop-front kernel -f {connection_file} [--options JSON] -- COMMAND..`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Jupyter's connection file; else the one that COMMAND names
    #[arg(
        short = 'f',
        long = "connection-file",
        alias = "f",
        value_name = "FILE",
        overrides_with = "connection_file"
    )]
    connection_file: Option<String>,
    /// The kernelspec's settings, as the provisioner has them; braces as %7B and %7D
    #[arg(long, value_name = "JSON", default_value = "{}")]
    options: String,
    /// The kernel's own command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// What of a connection file concerns us.
#[derive(Deserialize)]
struct Connection {
    ip: IpAddr,
    transport: String,
    signature_scheme: String,
    key: String,
    #[serde(flatten)]
    ports: Ports,
}

/// The provisioner's traits, in the kernelspec.
#[derive(Deserialize)]
struct Options {
    #[serde(default)]
    need: Need,
    mem_mib: Option<u64>,
    cpus: Option<u16>,
    account: Option<AccountName>,
    pool: Option<PoolName>,
    #[serde(default)]
    local: bool,
    durable: Option<Durable>,
    #[serde(default)]
    interrupt: Interrupt,
    replicas: Option<Replicas>,
    hot_standby: Option<bool>,
}

/// The start order, in the provisioner's form.
pub fn start(args: Args) -> Result<Start> {
    let (file, command) = located(args.connection_file.as_deref(), args.command)?;
    let path = PathBuf::from(file);
    let text =
        std::fs::read(&path).with_context(|| format!("can't read the connection file {}", path.display()))?;
    let options = serde_json::from_str(&braced(&args.options))
        .context("the kernelspec's --options are not of this release")?;
    order(&text, options, command)
}

/// Options as a kernelspec has them. To jupyverse a brace in `argv` begins a placeholder, so `hop kernelspec` writes none.
fn braced(options: &str) -> String {
    options
        .replace("%7B", "{")
        .replace("%7D", "}")
        .replace("%25", "%")
}

/// The connection file, and the kernel's command with the placeholder in its place. `ours` is the file before `--`.
/// Zed fills each word that is the placeholder, Enterprise Gateway and Positron each placeholder, VS Code the first one.
/// In a kernelspec that VS Code takes for a Python kernel of its own, it removes the first placeholder with its flag,
/// and appends `--f=FILE`.
fn located(ours: Option<&str>, mut command: Vec<String>) -> Result<(String, Vec<String>)> {
    if let Some(file) = ours.and_then(filled) {
        let words = command.iter().map(|word| emptied(word, file)).collect();
        return Ok((file.to_owned(), words));
    }
    let Some(named) = (0..command.len()).rev().find_map(|at| Named::at(&command, at)) else {
        bail!(
            "no connection file is named: a Jupyter client starts this command and fills in {PLACEHOLDER}; by hand, say -f FILE before --"
        );
    };
    let rest = |at: usize| !named.words.contains(&at);
    let placed = command
        .iter()
        .enumerate()
        .any(|(at, word)| rest(at) && word.contains(PLACEHOLDER));
    if placed {
        // The kernelspec's own word stays; of two, a kernel might take either.
        command.drain(named.words);
    }
    let words = command.iter().map(|word| emptied(word, &named.file)).collect();
    Ok((named.file, words))
}

/// A connection file in the kernel's own command, and the words that name it.
struct Named {
    file: String,
    words: std::ops::Range<usize>,
}

impl Named {
    /// `FLAG=FILE` at this word, or `FLAG` before it.
    fn at(command: &[String], at: usize) -> Option<Self> {
        let word = command.get(at)?;
        if let Some((flag, value)) = word.split_once('=') {
            let file = filled(value).filter(|_| is_flag(flag))?;
            return Some(Self {
                file: file.to_owned(),
                words: at..at + 1,
            });
        }
        let flag = command.get(at.checked_sub(1)?)?;
        let file = filled(word).filter(|_| is_flag(flag))?;
        Some(Self {
            file: file.to_owned(),
            words: at - 1..at + 1,
        })
    }
}

/// ipykernel's flags for the connection file, and those of kernels that do as it does.
fn is_flag(word: &str) -> bool {
    let name = word.trim_start_matches('-');
    let dashed = name.len() < word.len();
    // Traitlets' long form names the class, too.
    let name = name.rsplit('.').next().unwrap_or_default();
    dashed && matches!(name, "f" | "connection-file" | "connection_file")
}

/// The value without the quotes that VS Code puts around a path with spaces. `None` means that no client filled in
/// the placeholder.
fn filled(value: &str) -> Option<&str> {
    let value = unquoted(value.trim());
    (!value.is_empty() && !value.contains(PLACEHOLDER)).then_some(value)
}

fn unquoted(value: &str) -> &str {
    let within = |quote| value.strip_prefix(quote)?.strip_suffix(quote);
    within('"').or_else(|| within('\'')).unwrap_or(value)
}

/// The word with the placeholder where the client has put its own file.
fn emptied(word: &str, file: &str) -> String {
    word.replace(&format!("\"{file}\""), PLACEHOLDER)
        .replace(file, PLACEHOLDER)
}

fn order(connection: &[u8], options: Options, command: Vec<String>) -> Result<Start> {
    let connection: Connection =
        serde_json::from_slice(connection).context("this is no connection file of Jupyter's")?;
    ensure!(
        connection.transport == "tcp",
        "the client wants {}, kernels here speak tcp",
        connection.transport
    );
    ensure!(
        connection.signature_scheme == "hmac-sha256",
        "the client signs by {}, kernels here by hmac-sha256",
        connection.signature_scheme
    );
    ensure!(
        !connection.key.is_empty(),
        "the client has no key: anybody on this host could run code as you"
    );
    let name = std::env::var("JPY_SESSION_NAME").unwrap_or_default();
    Ok(Start {
        version: VERSION,
        kernel: uuid::Uuid::new_v4().to_string().as_str().into(),
        incarnation: Incarnation(1),
        fresh: false,
        tenure: Tenure(0),
        epoch: 1,
        close: false,
        resume: false,
        ip: connection.ip,
        ports: connection.ports,
        key: connection.key,
        launch: Launch {
            argv: command,
            cwd: std::env::current_dir().ok(),
            default_need: options.need,
            account: options.account,
            pool: options.pool,
            name: name.rsplit('/').next().unwrap_or_default().to_owned(),
            local: options.local,
            durable: options.durable.unwrap_or_default(),
            interrupt: options.interrupt,
            replicas: Replicas::One,
            hot_standby: false,
        },
        mem_mib: options.mem_mib,
        cpus: options.cpus,
        replicas: options.replicas,
        hot_standby: options.hot_standby,
        notebook: None,
        beside: None,
        // No other front follows.
        heirs: None,
        delivered: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{"shell_port": 9001, "iopub_port": 9002, "stdin_port": 9003, "control_port": 9004,
        "hb_port": 9005, "ip": "127.0.0.1", "key": "a0b1", "transport": "tcp",
        "signature_scheme": "hmac-sha256", "kernel_name": "gresshopper-python3"}"#;

    fn made(file: &str, options: &str) -> Result<Start> {
        let command = ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"];
        order(
            file.as_bytes(),
            serde_json::from_str(options).unwrap(),
            command.map(str::to_owned).to_vec(),
        )
    }

    #[test]
    fn options_are_read_with_and_without_braces() {
        let plain = r#"{"need":{"gpus":1},"front_program":"/x%7By"}"#;
        let written = r#"%7B"need":%7B"gpus":1%7D,"front_program":"/x%257By"%7D"#;
        assert_eq!(braced(written), plain);
        assert_eq!(braced(r#"{"need":{"gpus":1}}"#), r#"{"need":{"gpus":1}}"#);
    }

    #[test]
    fn the_clients_ports_and_key_are_taken() {
        let start = made(
            FILE,
            r#"{"need": {"gpus": 1}, "account": "physics", "front_program": "/x"}"#,
        )
        .unwrap();
        assert_eq!((start.ports.shell_port, start.ports.hb_port), (9001, 9005));
        assert_eq!(start.key, "a0b1");
        assert_eq!(
            start.launch.account.as_ref().map(AccountName::as_str),
            Some("physics")
        );
        assert_eq!(start.launch.durable, Durable::AfterReply);
        assert!(!start.resume && !start.launch.local);
    }

    const OWN: [&str; 5] = ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"];

    /// The file and the kernel's command, of a command line after `hop-front kernel`.
    fn parsed(line: &[&str]) -> Result<(String, Vec<String>)> {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let line = <Line as clap::Parser>::try_parse_from([&["kernel"], line].concat())?;
        located(line.args.connection_file.as_deref(), line.args.command)
    }

    #[test]
    fn the_file_is_found_however_a_client_passes_it() {
        let before: [&[&str]; 7] = [
            &["-f", "/run/k.json"],
            &["-f=/run/k.json"],
            &["--f=/run/k.json"],
            &["--connection-file", "/run/k.json"],
            &["--connection-file=/run/k.json"],
            &["--connection-file=\"/run/k.json\""],
            &["-f", "{connection_file}", "--f=/run/k.json"],
        ];
        for ours in before {
            for theirs in ["/run/k.json", "{connection_file}"] {
                let line = [ours, &["--options", "{}", "--"], &OWN[..4], &[theirs]].concat();
                let (file, command) = parsed(&line).unwrap();
                assert_eq!(file, "/run/k.json", "{line:?}");
                assert_eq!(command, OWN, "{line:?}");
            }
        }
        let behind: [&[&str]; 8] = [
            &["-f", "/run/k.json"],
            &["-f=/run/k.json"],
            &["--f=/run/k.json"],
            &["--f=\"/run/k.json\""],
            &["--f='/run/k.json'"],
            &["--connection-file", "/run/k.json"],
            &["--connection-file=/run/k.json"],
            &["--IPKernelApp.connection_file=/run/k.json"],
        ];
        let unfilled: [&[&str]; 2] = [&[], &["-f", "{connection_file}"]];
        for (ours, theirs) in unfilled.iter().flat_map(|o| behind.map(|t| (*o, t))) {
            let line = [ours, &["--options", "{}", "--"], &OWN, theirs].concat();
            let (file, command) = parsed(&line).unwrap();
            assert_eq!(file, "/run/k.json", "{line:?}");
            assert_eq!(command, OWN, "{line:?}");
        }
    }

    #[test]
    fn a_command_without_the_placeholder_has_it_where_the_file_is() {
        let line = [
            "--",
            "python",
            "-m",
            "ipykernel_launcher",
            "--f=/run/k.json",
            "--debug",
        ];
        let (file, command) = parsed(&line).unwrap();
        assert_eq!(file, "/run/k.json");
        assert_eq!(command[3..], ["--f={connection_file}", "--debug"]);
        let bare = parsed(&["-f", "/run/k.json", "--", "R", "--args", "/run/k.json"]).unwrap();
        assert_eq!(bare.1, ["R", "--args", "{connection_file}"]);
    }

    #[test]
    fn a_path_with_spaces_is_one_word() {
        let line = [&["--options", "{}", "--"][..], &OWN, &["--f=\"/run/my k.json\""]].concat();
        assert_eq!(parsed(&line).unwrap().0, "/run/my k.json");
        let quoted = ["-f", "\"/a b.json\"", "--", "julia", "\"/a b.json\""];
        assert_eq!(parsed(&quoted).unwrap().1, ["julia", "{connection_file}"]);
    }

    #[test]
    fn a_line_without_a_file_says_what_is_missing() {
        let lines: [&[&str]; 4] = [
            &["--options", "{}", "--"],
            &["-f", "{connection_file}", "--"],
            &["-f", "", "--"],
            &["--f=\"\"", "--"],
        ];
        for line in lines {
            let error = parsed(&[line, &OWN].concat()).unwrap_err().to_string();
            assert!(
                error.starts_with("no connection file is named"),
                "{line:?}: {error}"
            );
        }
    }

    #[test]
    fn what_kernels_here_dont_speak_is_said() {
        let ipc = made(&FILE.replace("\"tcp\"", "\"ipc\""), "{}").unwrap_err();
        assert_eq!(ipc.to_string(), "the client wants ipc, kernels here speak tcp");
        let curve = made(&FILE.replace("sha256", "md5"), "{}").unwrap_err();
        assert!(curve.to_string().contains("hmac-md5"));
        let open = made(&FILE.replace("a0b1", ""), "{}").unwrap_err();
        assert!(open.to_string().contains("no key"));
    }
}
