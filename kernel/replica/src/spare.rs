//! A process in wait to become a kernel. Its interpreter has imported the modules that each kernel imports first, and
//! has run no user's code. The process is a child of the replica to be, in the step for the kernel; `gresshopper.spare`
//! is its inside.
//!
//! A spare serves once. If anything keeps the spare from serving, a fresh start follows in the same step.

use crate::agent::{self, Agent, Parcel};
use crate::child::{self, Kernel, OF_ONE_KERNEL, own_variables};
use crate::connected::{Process, author};
use crate::scratch::Scratch;
use crate::sockets::Sockets;
use anyhow::{Context, Result, bail, ensure};
use hop_protocol::file::{FrontFile, Launch};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::timeout;

/// Time in which an interpreter imports ipykernel, from a cold file system.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// Time in which a spare becomes the kernel, before a fresh interpreter is started instead.
const BECOMES_WITHIN: Duration = Duration::from_secs(2);

/// Everything that a spare must have in common with a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kind {
    argv: Vec<String>,
    environment: BTreeMap<String, String>,
    hash_seed: Option<u32>,
    mem_mib: u64,
    cpus: u16,
}

impl Kind {
    /// Of the kernel in this file. `None`: no spare can become it.
    pub(crate) fn of(file: &FrontFile) -> Option<Self> {
        let takeover = file.takeover.as_ref().filter(|_| can_wait(&file.launch))?;
        let environment = takeover.environment.iter();
        Some(Self {
            argv: file.launch.argv.clone(),
            environment: environment
                .filter(|(name, _)| !OF_ONE_KERNEL.contains(&name.as_str()))
                .cloned()
                .collect(),
            hash_seed: file.state.as_ref().map(|s| s.hash_seed),
            mem_mib: takeover.size.mem_mib,
            cpus: takeover.size.cpus,
        })
    }
}

/// Whether the command starts ipykernel in the way known to spares.
fn can_wait(launch: &Launch) -> bool {
    let is_module = |pair: &[String]| pair[0] == "-m" && pair[1] == "ipykernel_launcher";
    let Some(at) = launch.argv.windows(2).position(is_module) else {
        return false;
    };
    // With -I and -E, also beside others, Python doesn't read the path by which the spare's module is found.
    let isolates = |arg: &String| arg.starts_with('-') && arg.contains(['I', 'E']);
    !launch.argv[..at].iter().any(isolates)
}

/// A process that waits.
#[derive(Debug)]
pub struct Spare {
    kind: Option<Kind>,
    kernel: Kernel,
    agent: Agent,
    scratch: Scratch,
}

impl Spare {
    /// Starts a process of this kernel's kind, and returns once the process is ready.
    ///
    /// # Errors
    /// The process can't be started, ends, or isn't ready in time.
    pub async fn start(program: &std::path::Path, file: &FrontFile, lends: bool) -> Result<Self> {
        let scratch = Scratch::create().context("can't make a folder for the kernel's sockets")?;
        let (agent, theirs) = agent::open()?;
        let kernel = Kernel::start_spare(program, file, scratch.path(), &theirs, lends)?;
        drop(theirs);
        let mut spare = Self {
            kind: Kind::of(file),
            kernel,
            agent,
            scratch,
        };
        let first = timeout(STARTS_WITHIN, spare.agent.input.recv()).await;
        let first = first.context("the spare interpreter is too slow")?;
        let first = first.context("the spare interpreter has ended")?;
        match first.wire.op.as_deref() {
            Some("spare.ready") => Ok(spare),
            other => bail!("the spare interpreter says {other:?}"),
        }
    }

    /// Returns when the process has ended.
    pub async fn ended(&mut self) {
        // An error means that the process is already gone.
        let _ = self.kernel.wait().await;
    }

    /// Becomes the kernel of this file.
    pub(crate) async fn become_kernel(mut self, file: &FrontFile) -> Result<Process> {
        // The kernel's file may have been written anew since the seat has read it.
        ensure!(self.kind == Kind::of(file), "the kernel is of another kind");
        child::write_connection_file(self.scratch.path(), &file.signing_key)?;
        let order = Parcel::request(0, "spare.become", order(file)?);
        self.agent.out.send(order).context("the spare has ended")?;
        let answer = timeout(BECOMES_WITHIN, self.agent.input.recv()).await;
        let answer = answer.context("the spare doesn't answer")?;
        let answer = answer.context("the spare has ended")?;
        if let Some(refusal) = answer.wire.error {
            bail!("{}", refusal.message);
        }
        ensure!(answer.wire.re == Some(0), "the spare says something else");
        let (sockets, events) = Sockets::new(self.scratch.path(), author(file));
        Ok(Process::new(
            self.kernel,
            self.agent,
            sockets,
            events,
            self.scratch,
        ))
    }
}

/// The folder and the variables that the process still needs in order to be this kernel's. A variable without a value
/// is removed.
fn order(file: &FrontFile) -> Result<Value> {
    let mut environment: Map<String, Value> = child::path_of_kernel()
        .map(|(name, value)| (name, value.into()))
        .into_iter()
        .collect();
    environment.extend(own_variables(file).map(|(name, value)| (name.to_owned(), value.into())));
    let cwd = match file.launch.cwd.clone().filter(|d| d.is_dir()) {
        Some(cwd) => cwd,
        None => std::env::current_dir().context("the step's folder is gone")?,
    };
    Ok(json!({"environment": environment, "cwd": cwd}))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use hop_protocol::file::Takeover;
    use hop_protocol::step::StepSize;
    use hop_protocol::tls::KernelKeys;

    pub(crate) fn file(kernel: &str, environment: &[(&str, &str)], argv: &[&str]) -> FrontFile {
        let launch = json!({"argv": argv, "cwd": null});
        FrontFile {
            version: 1,
            kernel: kernel.into(),
            incarnation: hop_words::id::Incarnation(1),
            epoch: 1,
            state: None,
            addresses: Vec::new(),
            keys: KernelKeys::generate().unwrap(),
            signing_key: "key".into(),
            launch: serde_json::from_value(launch).unwrap(),
            takeover: Some(Takeover {
                size: StepSize {
                    mem_mib: 2048,
                    cpus: 1,
                },
                environment: environment
                    .iter()
                    .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
                    .collect(),
            }),
        }
    }

    /// The kind of kernels of this Python.
    pub(crate) fn kind(python: &str) -> Kind {
        let mut argv = IPYKERNEL;
        argv[0] = python;
        Kind::of(&file("k", &[], &argv)).unwrap()
    }

    const IPYKERNEL: [&str; 5] = ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"];

    #[test]
    fn kernels_of_one_server_have_a_spare_in_common_and_others_have_none() {
        let of = |env: &[(&str, &str)], argv: &[&str]| Kind::of(&file("k", env, argv));
        let one = of(&[("PATH", "/bin"), ("JPY_SESSION_NAME", "a.ipynb")], &IPYKERNEL);
        let other = of(&[("PATH", "/bin"), ("JPY_SESSION_NAME", "b.ipynb")], &IPYKERNEL);
        assert!(one.is_some() && one == other);
        assert_ne!(one, of(&[("PATH", "/usr/bin")], &IPYKERNEL));
        assert_ne!(one, of(&[("PATH", "/bin"), ("OMP_NUM_THREADS", "1")], &IPYKERNEL));
        let mut elsewhere = IPYKERNEL;
        elsewhere[0] = "/env/bin/python";
        assert_ne!(one, of(&[("PATH", "/bin")], &elsewhere));
        assert_eq!(of(&[], &["R", "-e", "IRkernel::main()"]), None);
        assert_eq!(of(&[], &["python", "-sI", "-m", "ipykernel_launcher"]), None);
        let usual = ["python", "-Xfrozen_modules=off", "-m", "ipykernel_launcher"];
        assert!(of(&[], &usual).is_some());
    }

    #[test]
    fn the_order_has_the_kernels_own_variables_alone() {
        let given = [("PATH", "/bin"), ("JPY_SESSION_NAME", "a.ipynb")];
        let order = order(&file("k", &given, &IPYKERNEL)).unwrap();
        let environment = &order["environment"];
        assert_eq!(environment["JPY_SESSION_NAME"], "a.ipynb");
        assert_eq!(environment["GRESSHOPPER_KERNEL"], "k");
        assert_eq!(environment["GRESSHOPPER_NOTEBOOK"], Value::Null);
        assert!(environment.get("PATH").is_none() && environment.get("JPY_PARENT_PID").is_none());
    }
}
