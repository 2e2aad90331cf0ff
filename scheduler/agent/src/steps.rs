//! The `srun`s of a pilot: one for each lease, one for each take-back after a dead slurmstepd.
//!
//! Arguments are arrays, never a shell's; the token travels in the environment, in a credential that root
//! alone can open, and is logged nowhere.

use crate::link::GUARD;
use crate::state::{SlurmEnd, SrunWord};
use anyhow::{Context, Result};
use hop_api::message::StartLease;
use hop_handover::token::{KernelProcess, Lend, Look, MAX_AGE_S, Op, TOKEN_VARIABLE, Token, VERSION};
use hop_words::clock;
use hop_words::error::system_words;
use hop_words::id::{Epoch, GpuType, JobId, LeaseId};
use hop_words::process::children_named;
use hop_words::time::Span;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::process::{Child, Command};

/// Parts common to every step of this pilot.
#[derive(Debug, Clone)]
pub(crate) struct Steps {
    pub(crate) pilot: JobId,
    /// The agent's socket.
    pub(crate) socket: PathBuf,
    /// This program.
    pub(crate) program: PathBuf,
    pub(crate) munge_socket: Option<PathBuf>,
    /// For checkpoints of leases.
    pub(crate) scratch: PathBuf,
    /// Without the plugin there is nobody to give a token to.
    pub(crate) with_token: bool,
}

/// A running srun and its stderr.
#[derive(Debug)]
pub(crate) struct Srun {
    child: Child,
    said: File,
}

/// The arguments of the srun of a lease's step. Never `--overlap`, which lends a GPU twice; `--exact` and
/// `--mem=0` let the steps of one pilot run side by side.
pub(crate) fn lease_args(order: &StartLease, program: &Path, socket: &Path) -> Vec<String> {
    let gres = match order.gpus {
        0 => "none".to_owned(),
        gpus => gres(gpus, order.gpu_type.as_ref()),
    };
    let mut args: Vec<String> = ["-Q", "--exact", "-n1", "--mem=0"].map(Into::into).into();
    args.push(format!("-c{}", order.cpus.max(1)));
    args.push(format!("--gres={gres}"));
    args.extend(common_args(&order.step_name, &format!("{TOKEN_VARIABLE},PATH")));
    args.extend(hold_args(program, socket, order.lease));
    args
}

/// The arguments of the srun of a guard's step. The step has no token, so the plugin lends it nothing.
pub(crate) fn guard_args(gpu_type: &GpuType, program: &Path, socket: &Path) -> Vec<String> {
    let mut args: Vec<String> = ["-Q", "--exact", "-n1", "-c1", "--mem=0"].map(Into::into).into();
    args.push(format!("--gres={}", gres(1, Some(gpu_type))));
    args.extend(common_args("blocked GPU", "PATH"));
    args.extend(hold_args(program, socket, GUARD));
    args
}

fn gres(gpus: u16, gpu_type: Option<&GpuType>) -> String {
    match gpu_type.filter(|t| !t.as_str().is_empty()) {
        Some(gpu_type) => format!("gpu:{gpu_type}:{gpus}"),
        None => format!("gpu:{gpus}"),
    }
}

/// The program of a step that holds its GPUs.
fn hold_args(program: &Path, socket: &Path, lease: LeaseId) -> [String; 6] {
    [
        program.display().to_string(),
        "hold".into(),
        "--socket".into(),
        socket.display().to_string(),
        "--lease".into(),
        lease.to_string(),
    ]
}

/// The arguments of a step without GRES, which may overlap others.
pub(crate) fn plain_args(name: &str) -> Vec<String> {
    let mut args: Vec<String> = ["-Q", "--overlap", "-n1", "-c1", "--mem=0", "--gres=none"]
        .map(Into::into)
        .into();
    args.extend(common_args(name, &format!("{TOKEN_VARIABLE},PATH")));
    args.push("/bin/true".into());
    args
}

fn common_args(name: &str, variables: &str) -> [String; 4] {
    [
        "--mpi=none".into(),
        "--cpu-bind=none".into(),
        format!("--export={variables}"),
        format!("--job-name={name}"),
    ]
}

impl Steps {
    /// Starts the step of a lease.
    pub(crate) async fn lend(&self, order: &StartLease, epoch: Epoch, grace: Span) -> Result<Srun> {
        let op = Op::Lend(Lend {
            kernel: KernelProcess {
                uid: order.executor.uid,
                pid: order.executor.pid,
                start_time: order.executor.start_time,
                seat_job: order.executor.job,
                seat_step: order.executor.step,
            },
            gpus: order.gpus,
            cpus: order.cpus,
        });
        let args = lease_args(order, &self.program, &self.socket);
        self.start(&args, order.lease, epoch, op, grace).await
    }

    /// Starts a step that takes back the lease of a dead slurmstepd.
    pub(crate) async fn take_back(&self, lease: LeaseId, epoch: Epoch, grace: Span) -> Result<Srun> {
        let args = plain_args(&format!("take-back {lease}"));
        self.start(&args, lease, epoch, Op::TakeBack, grace).await
    }

    /// Starts a step that looks at blocked devices. The step belongs to no lease.
    pub(crate) async fn look(&self, look: Look) -> Result<Srun> {
        let (none, epoch) = (LeaseId(0), Epoch(0));
        self.start(&plain_args("look"), none, epoch, Op::Look(look), Span::ZERO)
            .await
    }

    async fn start(
        &self,
        args: &[String],
        lease: LeaseId,
        epoch: Epoch,
        op: Op,
        grace: Span,
    ) -> Result<Srun> {
        let mut command = Command::new("srun");
        command.args(args);
        if self.with_token {
            let token = Token {
                v: VERSION,
                op,
                lease,
                epoch,
                pilot: self.pilot,
                notify: self.socket.clone(),
                grace_ms: u32::try_from(grace.0 / 1000).unwrap_or(u32::MAX),
                issued_at: clock::now(),
            };
            let socket = self.munge_socket.clone();
            let credential = tokio::task::spawn_blocking(move || {
                let ttl = Duration::from_secs(MAX_AGE_S);
                hop_munge::encode(&token.to_payload(), Some(0), Some(ttl), socket.as_deref())
            })
            .await?
            .context("no credential for the lease's token")?;
            command.env(TOKEN_VARIABLE, credential);
        } else {
            command.env(TOKEN_VARIABLE, "none");
        }
        spawn(command)
    }

    /// Starts a step that only keeps a GPU of this type from leases.
    pub(crate) fn guard(&self, gpu_type: &GpuType) -> Result<Srun> {
        let mut command = Command::new("srun");
        command.args(guard_args(gpu_type, &self.program, &self.socket));
        spawn(command)
    }
}

fn spawn(mut command: Command) -> Result<Srun> {
    // In memory: a full disk mustn't keep a lease from starting.
    let said = rustix::fs::memfd_create("srun", rustix::fs::MemfdFlags::CLOEXEC);
    let said = File::from(said.context("no file for what srun says")?);
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::from(said.try_clone()?))
        .process_group(0)
        .spawn()
        .context("srun could not be started")?;
    Ok(Srun { child, said })
}

/// Keeps the death of an srun from ending its step. srun has a child on watch: the child cancels the step if srun dies
/// without a word. Without the child a killed srun leaves the step alone; an srun that ends normally only logs the
/// child's absence.
pub(crate) fn detach(srun: u32) {
    for child in children_named(srun, "srun") {
        if let Some(pid) = rustix::process::Pid::from_raw(child.cast_signed()) {
            // The process may already have exited.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

impl Srun {
    /// None once it has ended.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits for the srun's end; ends it once `stop` has resolved, at last by force. Returns its stderr.
    pub(crate) async fn wait(mut self, stop: impl Future<Output = ()>) -> String {
        tokio::pin!(stop);
        let mut status = tokio::select! {
            status = self.child.wait() => Some(status),
            () = &mut stop => None,
        };
        for signal in [
            rustix::process::Signal::TERM,
            rustix::process::Signal::TERM,
            rustix::process::Signal::KILL,
        ] {
            if status.is_some() {
                break;
            }
            let pid = self
                .child
                .id()
                .and_then(|p| rustix::process::Pid::from_raw(p.cast_signed()));
            if let Some(pid) = pid {
                let _ = rustix::process::kill_process(pid, signal);
            }
            status = tokio::time::timeout(Duration::from_secs(3), self.child.wait())
                .await
                .ok();
        }
        let status = match status {
            Some(status) => status,
            None => self.child.wait().await,
        };
        describe(status, &mut self.said)
    }
}

fn describe(status: std::io::Result<ExitStatus>, said: &mut File) -> String {
    let mut text = String::new();
    let _ = said.seek(SeekFrom::Start(0));
    let _ = said.take(4096).read_to_string(&mut text);
    let last = telling_line(&text);
    let status = match status {
        Ok(status) => status.to_string(),
        Err(e) => system_words(&e),
    };
    if last.is_empty() {
        format!("srun ended, {status}")
    } else {
        format!("{last} ({status})")
    }
}

/// The line that tells most of a step's end: slurmstepd's own, else the last.
fn telling_line(text: &str) -> &str {
    let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
    let last = lines.clone().next_back();
    let stepds = lines.rfind(|l| ended_by_slurm(l).is_some());
    stepds.or(last).unwrap_or_default()
}

/// The meaning of an srun's words for its step.
pub(crate) fn word_of(said: &str) -> SrunWord {
    match ended_by_slurm(said) {
        Some(by) => SrunWord::Ended(by),
        None if found_no_slurmctld(said) => SrunWord::Away,
        None => SrunWord::None,
    }
}

/// Slurm's reason for a step's end, by slurmstepd's words: "*** STEP 7.1 ON n1 CANCELLED AT (time) DUE TO PREEMPTION ***".
fn ended_by_slurm(said: &str) -> Option<SlurmEnd> {
    let (_, told) = said.split_once("*** STEP ")?;
    let (_, told) = told.split_once(" CANCELLED AT ")?;
    let (told, _) = told.split_once(" ***")?;
    let Some((_, due_to)) = told.split_once(" DUE TO ") else {
        return Some(SlurmEnd::Cancelled);
    };
    match due_to {
        "TIME LIMIT" => Some(SlurmEnd::TimeLimit),
        "PREEMPTION" => Some(SlurmEnd::Preempted),
        "JOB REQUEUE" => Some(SlurmEnd::Requeued),
        node if node.starts_with("NODE FAILURE") => Some(SlurmEnd::NodeFailed),
        _ => None,
    }
}

/// Whether an srun ended because there was no slurmctld to ask, by the words of 22.05 to 24.11.
fn found_no_slurmctld(said: &str) -> bool {
    [
        "Unable to contact slurm controller",
        "Socket timed out on send/recv operation",
        "Zero Bytes were transmitted or received",
        "Slurm controller not responding",
    ]
    .iter()
    .any(|words| said.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_api::message::SeatStep;
    use hop_words::id::Term;
    use hop_words::time::Timestamp;

    fn order(gpus: u16, cpus: u16) -> StartLease {
        StartLease {
            term: Term(1),
            lease: LeaseId(7),
            pilot: JobId(9),
            user: "alice".into(),
            account: None,
            pool: "main".into(),
            name: "digits.ipynb".into(),
            submit: Timestamp(1),
            kernel: "k".into(),
            cell: "c".into(),
            executor: SeatStep {
                job: JobId(3),
                step: 0,
                pid: 10,
                start_time: 11,
                uid: 1001,
            },
            gpus,
            gpu_type: None,
            cpus,
            step_name: "alice/k; rm -rf /".into(),
        }
    }

    #[test]
    fn a_lease_is_an_exclusive_step_and_never_overlaps() {
        let args = lease_args(
            &order(2, 4),
            Path::new("/opt/g/bin/hop-agent"),
            Path::new("/s/a.sock"),
        );
        assert_eq!(
            args,
            [
                "-Q",
                "--exact",
                "-n1",
                "--mem=0",
                "-c4",
                "--gres=gpu:2",
                "--mpi=none",
                "--cpu-bind=none",
                "--export=GRESSHOPPER_LEASE,PATH",
                "--job-name=alice/k; rm -rf /",
                "/opt/g/bin/hop-agent",
                "hold",
                "--socket",
                "/s/a.sock",
                "--lease",
                "7"
            ]
        );
    }

    #[test]
    fn cores_alone_and_types_are_said_to_slurm() {
        let socket = Path::new("/s");
        let cores = lease_args(&order(0, 8), Path::new("/a"), socket);
        assert!(cores.contains(&"--gres=none".to_owned()) && cores.contains(&"-c8".to_owned()));
        assert!(!cores.contains(&"--overlap".to_owned()));
        let mut typed = order(1, 0);
        typed.gpu_type = Some("h100".into());
        let typed = lease_args(&typed, Path::new("/a"), socket);
        assert!(typed.contains(&"--gres=gpu:h100:1".to_owned()) && typed.contains(&"-c1".to_owned()));
    }

    #[test]
    fn a_guard_has_a_gpu_of_the_type_and_no_token() {
        let args = guard_args(&"h100".into(), Path::new("/a"), Path::new("/s"));
        assert!(args.contains(&"--gres=gpu:h100:1".to_owned()) && args.contains(&"--exact".to_owned()));
        assert!(!args.contains(&"--overlap".to_owned()));
        assert!(args.iter().all(|arg| !arg.contains(TOKEN_VARIABLE)));
        assert!(
            guard_args(&"".into(), Path::new("/a"), Path::new("/s")).contains(&"--gres=gpu:1".to_owned())
        );
    }

    #[test]
    fn slurms_reason_for_a_steps_end_is_read_from_sruns_words() {
        let told = |due: &str| {
            format!(
                "slurmstepd: error: *** STEP 12.3 ON n1 CANCELLED AT 2026-11-30T12:00:00{due} ***\n\
                 srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
            )
        };
        for (due, by) in [
            ("", SlurmEnd::Cancelled),
            (" DUE TO PREEMPTION", SlurmEnd::Preempted),
            (" DUE TO TIME LIMIT", SlurmEnd::TimeLimit),
            (" DUE TO JOB REQUEUE", SlurmEnd::Requeued),
            (
                " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS",
                SlurmEnd::NodeFailed,
            ),
        ] {
            assert_eq!(word_of(telling_line(&told(due))), SrunWord::Ended(by), "{due}");
        }
        let away = "srun: error: Unable to contact slurm controller (connect failure)";
        assert_eq!(word_of(telling_line(&format!("{away}\n\n"))), SrunWord::Away);
        assert_eq!(word_of("srun: error: n1: task 0: Killed"), SrunWord::None);
    }

    #[test]
    fn a_take_back_holds_no_gres() {
        let args = plain_args("take-back 7");
        assert!(args.contains(&"--gres=none".to_owned()) && args.contains(&"--overlap".to_owned()));
    }
}
