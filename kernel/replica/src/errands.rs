//! Errands of `hop gpu`: the kernel's memory off its GPUs and back, by a child process, so that the replica never holds
//! a device file itself (docs/gpu-park.md). [`crate::core`] decides which errand is run.

use crate::core::{Errand, ErrandEnd, Left, Returned};
use crate::process::children_of;
use hop_gpu::procs::Procs;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;

/// Limit on a whole errand; `hop gpu` has a deadline for each of its steps.
const LIMIT: Duration = Duration::from_secs(300);

/// Names the program to run in place of the `hop` beside this program.
const HOP_VARIABLE: &str = "GRESSHOPPER_HOP";

/// The program that runs errands.
#[derive(Debug, Clone)]
pub(crate) struct Errands {
    hop: PathBuf,
}

impl Errands {
    /// `program` is the replica's own file.
    pub(crate) fn new(program: &Path) -> Self {
        let hop = std::env::var_os(HOP_VARIABLE).map(PathBuf::from);
        Self {
            hop: hop.unwrap_or_else(|| program.with_file_name("hop")),
        }
    }

    /// Whether the node has the program.
    pub(crate) fn can_run(&self) -> bool {
        self.hop.is_file()
    }

    /// Runs an errand to its end, for the kernel's process and these device files.
    pub(crate) async fn run(self, errand: Errand, kernel: u32, devices: Vec<PathBuf>) -> ErrandEnd {
        let end = match errand {
            Errand::Leave => leave(self.hop, kernel, devices).await,
            Errand::Stop => stop(self.hop, kernel, devices).await,
            Errand::StopAgain => match stop(self.hop, kernel, devices).await {
                ErrandEnd::Stopped(how) => ErrandEnd::Left(how),
                other => other,
            },
            Errand::Return => come_back(self.hop, kernel, devices).await,
        };
        match end {
            // The kernel was ended meanwhile: the reason is known already.
            ErrandEnd::Left(_) if is_over(kernel) => ErrandEnd::Left(Left::Nothing),
            ErrandEnd::Stopped(_) if is_over(kernel) => ErrandEnd::Stopped(Left::Nothing),
            end => end,
        }
    }
}

/// Whether a child of ours has ended.
fn is_over(pid: u32) -> bool {
    hop_words::process::start_time(pid).is_none()
}

async fn leave(hop: PathBuf, kernel: u32, devices: Vec<PathBuf>) -> ErrandEnd {
    if holders(&devices).await.is_empty() {
        return ErrandEnd::Left(Left::Nothing);
    }
    let report = hop_gpu(&hop, "park", &[], kernel, &[]).await;
    ErrandEnd::Left(left(report, &holders(&devices).await, kernel))
}

/// The end of a kernel's parking, by the errand's report and by the holders that are left.
fn left(report: Result<Report, Unsaid>, still: &[(u32, String)], kernel: u32) -> Left {
    // The errand speaks of the kernel, which may hold nothing.
    let failed = |why| match still.is_empty() || still.iter().any(|(pid, _)| *pid == kernel) {
        true => Left::Failed(why),
        false => Left::Failed(sentence(still)),
    };
    match report {
        Ok(Report { outcome, .. }) if outcome == "parked" && still.is_empty() => Left::Parked,
        Ok(Report { outcome, rung, .. }) if outcome == "parked" => {
            let what = sentence(still);
            match rung.as_deref() {
                Some("nothing") => Left::Failed(what),
                _ => Left::Half(what),
            }
        }
        Ok(Report { outcome, why, .. }) if matches!(&*outcome, "half-back" | "still-parked") => {
            Left::Half(why)
        }
        Ok(Report { why, .. }) => failed(why),
        Err(unsaid) => failed(unsaid.why()),
    }
}

/// Takes the memory off during a cell's run, by the driver alone. Memory that doesn't come off is put back.
async fn stop(hop: PathBuf, kernel: u32, devices: Vec<PathBuf>) -> ErrandEnd {
    let mut others = holders(&devices).await;
    others.retain(|(pid, _)| *pid != kernel);
    if !others.is_empty() {
        return ErrandEnd::Stopped(Left::Failed(sentence(&others)));
    }
    let report = hop_gpu(&hop, "park", &["--mid-cell"], kernel, &[]).await;
    let still = holders(&devices).await;
    match report {
        Ok(Report { outcome, .. }) if outcome == "parked" && still.is_empty() => {
            ErrandEnd::Stopped(Left::Parked)
        }
        Ok(Report { outcome, .. }) if outcome == "parked" => {
            put_back(hop, kernel, devices, sentence(&still)).await
        }
        Ok(Report { outcome, why, .. }) if outcome == "still-parked" => ErrandEnd::Stopped(Left::Half(why)),
        Ok(Report { outcome, why, .. }) if outcome == "broken" => ErrandEnd::Broken(why),
        Ok(Report { why, .. }) => ErrandEnd::Stopped(Left::Failed(why)),
        Err(Unsaid::Refused(why)) => ErrandEnd::Stopped(Left::Failed(why)),
        // The errand may have come to any point.
        Err(Unsaid::TooLate(why)) => put_back(hop, kernel, devices, why).await,
    }
}

async fn put_back(hop: PathBuf, kernel: u32, devices: Vec<PathBuf>, why: String) -> ErrandEnd {
    match come_back(hop, kernel, devices.clone()).await {
        ErrandEnd::Returned(Returned::Back) => ErrandEnd::Stopped(Left::Failed(why)),
        ErrandEnd::Broken(broken) => ErrandEnd::Broken(broken),
        _ if holders(&devices).await.iter().any(|(pid, _)| *pid == kernel) => ErrandEnd::Broken(why),
        _ => ErrandEnd::Stopped(Left::Half(why)),
    }
}

async fn come_back(hop: PathBuf, kernel: u32, devices: Vec<PathBuf>) -> ErrandEnd {
    ErrandEnd::Returned(match hop_gpu(&hop, "unpark", &[], kernel, &devices).await {
        Ok(Report { outcome, .. }) if outcome == "unparked" => Returned::Back,
        Ok(Report { outcome, why, .. }) if outcome == "half-back" => Returned::Half(why),
        Ok(Report { outcome, why, .. }) if outcome == "broken" => return ErrandEnd::Broken(why),
        Ok(Report { why, .. }) => Returned::StillAway(why),
        Err(unsaid) => Returned::StillAway(unsaid.why()),
    })
}

fn sentence(holders: &[(u32, String)]) -> String {
    let sentences: Vec<&str> = holders.iter().map(|(_, s)| s.as_str()).collect();
    sentences.join("; ")
}

/// The fields that are read of the report of `hop gpu park` and `unpark`.
#[derive(Debug, Deserialize)]
struct Report {
    outcome: String,
    #[serde(default)]
    rung: Option<String>,
    #[serde(default)]
    why: String,
}

/// Why `hop gpu` has written no report.
#[derive(Debug)]
enum Unsaid {
    /// It did nothing, for this reason.
    Refused(String),
    /// The errand didn't end in time, and was killed.
    TooLate(String),
}

impl Unsaid {
    fn why(self) -> String {
        match self {
            Self::Refused(why) | Self::TooLate(why) => why,
        }
    }
}

async fn hop_gpu(
    hop: &Path,
    verb: &str,
    how: &[&str],
    kernel: u32,
    devices: &[PathBuf],
) -> Result<Report, Unsaid> {
    let mut command = Command::new(hop);
    command
        .args(["gpu", verb, "--json", &kernel.to_string()])
        .args(how);
    for device in devices {
        command.arg("--device").arg(device);
    }
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(LIMIT, command.output())
        .await
        .map_err(|_| {
            Unsaid::TooLate(format!(
                "`hop gpu {verb}` has not ended after {} s",
                LIMIT.as_secs()
            ))
        })?
        .map_err(|error| Unsaid::Refused(format!("{} can't be run: {error}", hop.display())))?;
    let report = output.stdout.split(|b| *b == b'\n').find(|l| !l.is_empty());
    match report.map(serde_json::from_slice::<Report>) {
        Some(Ok(report)) => Ok(report),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.trim().trim_start_matches("hop: ");
            Err(Unsaid::Refused(if said.is_empty() {
                format!("`hop gpu {verb}` ended with {}", output.status)
            } else {
                said.to_owned()
            }))
        }
    }
}

/// Processes below us with a hold on these device files, each with a sentence.
async fn holders(devices: &[PathBuf]) -> Vec<(u32, String)> {
    let devices: Vec<String> = devices.iter().map(|d| d.display().to_string()).collect();
    let look = move || {
        let mut found = Vec::new();
        let mut todo = children_of(std::process::id());
        while let Some(pid) = todo.pop() {
            todo.extend(children_of(pid));
            let Ok(id) = i32::try_from(pid) else { continue };
            for device in &devices {
                let procs = Procs {
                    dev_prefix: device.clone(),
                    ..Procs::default()
                };
                // A process that ended meanwhile holds nothing.
                let held = procs.held(id).unwrap_or_default();
                found.extend(
                    held.into_iter()
                        .filter(|h| h.file == *device)
                        .map(|h| (pid, format!("process {pid} ({}) holds {device}", h.comm))),
                );
            }
        }
        found
    };
    tokio::task::spawn_blocking(look).await.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_that_holds_the_gpu_is_named_and_not_the_kernel() {
        let report = |outcome: &str| {
            let said = format!(r#"{{"outcome": "{outcome}", "why": "no agent answers"}}"#);
            serde_json::from_str::<Report>(&said).map_err(|e| Unsaid::Refused(e.to_string()))
        };
        let kernel = (7, "process 7 (python) holds /dev/x".to_owned());
        let daemon = (9, "process 9 (daemon) holds /dev/x".to_owned());
        let (of_kernel, of_daemon) = (
            Left::Failed("no agent answers".into()),
            Left::Failed(daemon.1.clone()),
        );
        for (still, expected) in [
            (vec![kernel.clone(), daemon.clone()], &of_kernel),
            (vec![kernel], &of_kernel),
            (vec![], &of_kernel),
            (vec![daemon], &of_daemon),
        ] {
            assert_eq!(&left(report("failed"), &still, 7), expected, "{still:?}");
            let unsaid = Err(Unsaid::TooLate("no agent answers".into()));
            assert_eq!(&left(unsaid, &still, 7), expected, "{still:?}");
        }
        assert_eq!(left(report("parked"), &[], 7), Left::Parked);
    }
}
