//! The kernelspec's `argv`: for clients that start the command themselves and know no provisioners (VS Code, Zed,
//! Positron, Enterprise Gateway). Ports and key come from the launcher's clients, in a connection file; the kernel
//! lives as long as these clients. Clients that know provisioners never come here: ours takes the kernel's own command
//! out of `argv`.

use crate::owner::{Ports, Start, VERSION};
use anyhow::{Context, Result, ensure};
use hop_protocol::file::{Durable, Interrupt, Launch};
use hop_words::id::{AccountName, Incarnation, PoolName};
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
    /// Jupyter's connection file
    #[arg(short = 'f', long = "connection-file", value_name = "FILE")]
    connection_file: PathBuf,
    /// The kernelspec's settings, as the provisioner has them
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
    let path = &args.connection_file;
    let text =
        std::fs::read(path).with_context(|| format!("can't read the connection file {}", path.display()))?;
    let options =
        serde_json::from_str(&args.options).context("the kernelspec's --options are not of this release")?;
    let file = path.to_string_lossy();
    let command = args
        .command
        .iter()
        .map(|a| a.replace(&*file, PLACEHOLDER))
        .collect();
    order(&text, options, command)
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
