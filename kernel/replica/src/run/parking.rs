//! Off the GPU when a lease is over, and back on before the next one is used: by `hop gpu` as a child, so that this
//! process never holds a device file itself (docs/gpu-park.md).

use super::cells::timestamp;
use super::standing::{Asked, Ran, Standing};
use super::{Replica, children_of};
use crate::park::{Left, Output, Park, Returned};
use bytes::Bytes;
use hop_api::message::{Grant, Outcome, Request as ToHopd};
use hop_core::id::{CellId, LeaseId};
use hop_core::time::Span;
use hop_gpu::procs::Procs;
use serde::Deserialize;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

/// `hop gpu` has a deadline for each of its steps; this is for all of it.
const LIMIT: Duration = Duration::from_secs(300);

/// Names the program instead of the `hop` that lies beside this one.
const HOP_VARIABLE: &str = "GRESSHOPPER_HOP";

/// What `hop gpu` came to.
#[derive(Debug)]
pub(super) enum Ended {
    Left(Left),
    Stopped(Left),
    Returned(Returned),
    /// The driver can do nothing with the process any more.
    Broken(String),
}

pub(super) struct Parking {
    pub(super) park: Park,
    /// The cell that is being stopped in its middle, the one that stands still, and what is known of one that did.
    pub(super) asked: Option<Asked>,
    pub(super) standing: Option<Standing>,
    pub(super) ran: Option<Ran>,
    hop: PathBuf,
    /// The last lease of GPUs.
    lease: Option<Last>,
    /// What was granted and waits for its turn.
    pending: Option<(CellId, Grant)>,
    /// The lease is over as soon as this cell is.
    after: Option<(CellId, LeaseId)>,
    /// Leases that are over and are taken back as soon as we say that nothing more leaves their GPUs.
    leaving: Vec<LeaseId>,
    /// What to say of a kernel that is killed now.
    doomed: Option<String>,
    tell: mpsc::UnboundedSender<Ended>,
    pub(super) ended: mpsc::UnboundedReceiver<Ended>,
}

struct Last {
    id: LeaseId,
    devices: Vec<PathBuf>,
    /// Of the cell that it was granted for: who is told what becomes of it.
    header: Bytes,
    grace: Span,
}

impl Parking {
    pub(super) fn new(program: &Path) -> Self {
        let (tell, ended) = mpsc::unbounded_channel();
        let hop = std::env::var_os(HOP_VARIABLE).map(PathBuf::from);
        Self {
            park: Park::default(),
            asked: None,
            standing: None,
            ran: None,
            hop: hop.unwrap_or_else(|| program.with_file_name("hop")),
            lease: None,
            pending: None,
            after: None,
            leaving: Vec::new(),
            doomed: None,
            tell,
            ended,
        }
    }

    /// A lease that is held, but whose cell doesn't run yet.
    pub(super) fn pending(&self) -> Option<(LeaseId, CellId)> {
        self.pending
            .as_ref()
            .map(|(cell, grant)| (grant.lease, cell.clone()))
    }

    /// The cell was interrupted.
    pub(super) fn forget(&mut self, cell: &CellId) {
        self.pending.take_if(|(pending, _)| pending == cell);
    }

    /// Whether a cell can be parked in its middle as far as this node's programs are concerned.
    pub(super) fn can_ask(&self) -> bool {
        self.hop.is_file()
    }

    /// The cell stands still in its middle, or is on its way back.
    pub(super) fn stands(&self, cell: &CellId) -> bool {
        self.standing.as_ref().is_some_and(|s| s.cell == *cell)
    }

    /// A cell that stood still is being brought back to this lease's GPUs.
    pub(super) fn returns_to(&self, lease: LeaseId) -> bool {
        let pending = self.pending.as_ref().filter(|(_, grant)| grant.lease == lease);
        pending.is_some_and(|(cell, _)| self.stands(cell))
    }

    /// The lease is over, and its cell should end.
    pub(super) fn is_revoked(&self, lease: LeaseId) -> bool {
        self.after.as_ref().is_some_and(|(_, after)| *after == lease)
    }

    /// The cell that should have ended stands still now, off the lease's GPUs: nothing is waited for any more.
    pub(super) fn revoked_meanwhile(&mut self, lease: LeaseId) -> bool {
        let revoked = self.after.take_if(|(_, after)| *after == lease).is_some();
        if revoked {
            self.doomed = None;
            self.lease = None;
        }
        revoked
    }

    pub(super) fn no_lease(&mut self) {
        self.lease = None;
    }

    /// When something of the cell that stands still is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.standing.as_ref().and_then(Standing::due)
    }

    /// Why a kernel was killed that died of SIGKILL, where we know.
    pub(super) fn doomed(&mut self) -> Option<String> {
        self.doomed.take()
    }
}

impl Replica {
    /// A lease was granted; what the kernel has parked comes back before it is used.
    pub(super) async fn granted(&mut self, cell: &CellId, grant: &Grant) {
        let devices: Vec<PathBuf> = grant.handover.devices.iter().map(|d| d.path.clone()).collect();
        if devices.is_empty() {
            return self.begin(cell, grant).await;
        }
        if self.pending_or_running(cell, grant.lease) {
            // Said again on a new connection.
            return;
        }
        self.parking.lease = Some(Last {
            id: grant.lease,
            devices,
            header: self.waiting_header(cell),
            grace: Span::ZERO,
        });
        self.parking.doomed = None;
        self.parking.pending = Some((cell.clone(), grant.clone()));
        self.resume(cell, grant.lease);
        let out = self.parking.park.granted();
        self.park(out).await;
    }

    fn pending_or_running(&self, cell: &CellId, lease: LeaseId) -> bool {
        let pending = self.parking.pending();
        pending.is_some_and(|p| p == (lease, cell.clone()))
            || self.runner(lease).is_some_and(|r| r.cell == *cell)
    }

    /// A lease of ours is over. `running`: the cell that still runs on it, which has to end first.
    pub(super) async fn lease_over(
        &mut self,
        lease: LeaseId,
        running: Option<CellId>,
        grace: Span,
        reason: &str,
    ) {
        let Some(last) = self.parking.lease.as_mut().filter(|last| last.id == lease) else {
            self.let_go(lease);
            if self.parking.standing.as_ref().is_some_and(|s| s.from == lease) {
                // It was over before hopd heard that its cell stands still.
                self.register();
            }
            return;
        };
        last.grace = grace;
        if let Some((cell, _)) = self.parking.pending.take_if(|(_, grant)| grant.lease == lease) {
            if self.stands_again(&cell, lease) {
                self.leave(lease).await;
                return self.register();
            }
            self.refused(&cell, format!("the GPU was taken away: {reason}"))
                .await;
        }
        if let Some(cell) = running {
            self.parking.after = Some((cell, lease));
            let text = format!(
                "its GPU was taken away ({reason}) and the running cell hadn't ended {} later",
                seconds(twice(grace))
            );
            self.parking.doomed = Some(text);
            return;
        }
        self.leave(lease).await;
    }

    /// Nothing runs on the lease any more: off its GPUs.
    async fn leave(&mut self, lease: LeaseId) {
        self.parking.leaving.push(lease);
        let out = self.parking.park.lease_over();
        self.park(out).await;
    }

    pub(super) fn let_go(&self, lease: LeaseId) {
        let kernel = self.file.kernel.clone();
        self.lending.send(ToHopd::ReleaseLease { kernel, lease });
    }

    /// A cell is over: perhaps one whose lease was over before.
    pub(super) async fn park_after(&mut self, cell: &CellId) {
        if let Some((_, lease)) = self.parking.after.take_if(|(after, _)| after == cell) {
            self.leave(lease).await;
        }
    }

    pub(super) async fn parked(&mut self, ended: Ended) {
        tracing::info!(?ended, "hop gpu");
        let out = match ended {
            // It was ended meanwhile: what is to be said of that is known already.
            Ended::Left(_) if is_over(self.kernel.pid()) => self.parking.park.left(Left::Nothing),
            Ended::Stopped(_) if is_over(self.kernel.pid()) => self.parking.park.stopped(Left::Nothing),
            Ended::Stopped(how) => self.parking.park.stopped(how),
            Ended::Broken(why) if self.parking.asked.is_some() || self.parking.standing.is_some() => {
                return self.is_lost(&why);
            }
            Ended::Broken(why) => match self.parking.park {
                Park::Stopping(_) => self.parking.park.stopped(Left::Failed(why)),
                Park::Leaving { .. } => self.parking.park.left(Left::Failed(why)),
                _ => self.parking.park.returned(Returned::StillAway(why)),
            },
            Ended::Left(how) => {
                if !matches!(how, Left::Failed(_) | Left::Half(_)) {
                    self.parking.doomed = None;
                }
                self.parking.park.left(how)
            }
            Ended::Returned(how) => self.parking.park.returned(how),
        };
        self.park(out).await;
    }

    pub(super) async fn park(&mut self, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Leave => {
                    self.parking.doomed = self.parking.lease.as_ref().map(too_slow);
                    match self.parking.standing {
                        // Its lease ended while it came back: in its middle still.
                        Some(_) => self.start(stop_again),
                        None => self.start(leave),
                    }
                }
                Output::Stop => self.start(stop),
                Output::Stopped => self.stopped(),
                Output::RunsOn(why) => self.not_stopped(why),
                Output::Return => self.start(come_back),
                Output::Proceed => {
                    if let Some((cell, grant)) = self.parking.pending.take() {
                        self.begin(&cell, &grant).await;
                    }
                }
                Output::Refuse(why) => self.give_up(&why).await,
                Output::Warn(why) => self.warn(&why),
            }
        }
        if !self.parking.park.is_leaving() {
            for lease in std::mem::take(&mut self.parking.leaving) {
                self.let_go(lease);
            }
        }
    }

    fn start<F, W>(&self, work: F)
    where
        F: FnOnce(PathBuf, u32, Vec<PathBuf>) -> W,
        W: Future<Output = Ended> + Send + 'static,
    {
        let devices = self.parking.lease.as_ref().map(|last| last.devices.clone());
        let work = work(
            self.parking.hop.clone(),
            self.kernel.pid(),
            devices.unwrap_or_default(),
        );
        let tell = self.parking.tell.clone();
        tokio::spawn(async move {
            // The replica may be at its end.
            let _ = tell.send(work.await);
        });
    }

    /// The lease is there and can't be used: it goes back, and the cell reads why.
    async fn give_up(&mut self, why: &str) {
        let Some((cell, grant)) = self.parking.pending.take() else {
            return;
        };
        if self.stands_again(&cell, grant.lease) {
            return self.can_not_return(&cell, grant.lease, why);
        }
        let (kernel, now) = (self.file.kernel.clone(), timestamp());
        self.lending.send(ToHopd::CellEnded {
            kernel: kernel.clone(),
            cell: cell.clone(),
            lease: grant.lease,
            started: now,
            ended: now,
            outcome: Outcome::Aborted,
        });
        let lease = grant.lease;
        self.lending.send(ToHopd::ReleaseLease { kernel, lease });
        let text =
            format!("a GPU was there, but what this kernel has in host memory can't go back to it: {why}");
        self.refused(&cell, text).await;
    }

    fn warn(&mut self, why: &str) {
        let Some(last) = &self.parking.lease else {
            return;
        };
        let grace = seconds(last.grace);
        let text = format!(
            "gresshopper: the GPU goes back, but this kernel still holds it: {why}. What holds it is ended {grace} \
             after the end of the lease.\n"
        );
        let text = json!({"name": "stderr", "text": text});
        let message = self.author.publish("stream", &last.header, &json!({}), &text);
        self.publish(message);
        self.parking.doomed = Some(format!(
            "the kernel still held its GPU {grace} after the end of its lease ({why}), so it was ended"
        ));
    }
}

/// What to say of a kernel that is killed while it is parked.
fn too_slow(last: &Last) -> String {
    format!(
        "its GPU memory was still on its way to host memory {} after the end of its lease, so it was ended. An \
         administrator can give kernels longer: `grace_ms` of the pool is {} now",
        seconds(twice(last.grace)),
        seconds(last.grace)
    )
}

/// Who doesn't say that it is off gets the grace until the take-back begins, and once more while it goes on.
fn twice(grace: Span) -> Span {
    Span(2 * grace.0)
}

/// Whether a child of ours has ended.
fn is_over(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

fn seconds(span: Span) -> String {
    format!("{} s", span.as_secs_f64())
}

async fn leave(hop: PathBuf, kernel: u32, devices: Vec<PathBuf>) -> Ended {
    if holders(&devices).await.is_empty() {
        return Ended::Left(Left::Nothing);
    }
    let report = hop_gpu(&hop, "park", &[], kernel, &[]).await;
    let still = holders(&devices).await;
    Ended::Left(match report {
        Ok(Report { outcome, .. }) if outcome == "parked" && still.is_empty() => Left::Parked,
        Ok(Report { outcome, rung, .. }) if outcome == "parked" => {
            let what = sentence(&still);
            match rung.as_deref() {
                Some("nothing") => Left::Failed(what),
                _ => Left::Half(what),
            }
        }
        Ok(Report { outcome, why, .. }) if matches!(&*outcome, "half-back" | "still-parked") => {
            Left::Half(why)
        }
        Ok(Report { why, .. }) => Left::Failed(why),
        Err(unsaid) => Left::Failed(unsaid.why()),
    })
}

/// In the middle of a cell, by the driver alone. What doesn't come off is put back.
async fn stop(hop: PathBuf, kernel: u32, devices: Vec<PathBuf>) -> Ended {
    let mut others = holders(&devices).await;
    others.retain(|(pid, _)| *pid != kernel);
    if !others.is_empty() {
        return Ended::Stopped(Left::Failed(sentence(&others)));
    }
    let report = hop_gpu(&hop, "park", &["--mid-cell"], kernel, &[]).await;
    let still = holders(&devices).await;
    match report {
        Ok(Report { outcome, .. }) if outcome == "parked" && still.is_empty() => Ended::Stopped(Left::Parked),
        Ok(Report { outcome, .. }) if outcome == "parked" => {
            put_back(hop, kernel, devices, sentence(&still)).await
        }
        Ok(Report { outcome, why, .. }) if outcome == "still-parked" => Ended::Stopped(Left::Half(why)),
        Ok(Report { outcome, why, .. }) if outcome == "broken" => Ended::Broken(why),
        Ok(Report { why, .. }) => Ended::Stopped(Left::Failed(why)),
        Err(Unsaid::Refused(why)) => Ended::Stopped(Left::Failed(why)),
        // It may have come to any point.
        Err(Unsaid::TooLate(why)) => put_back(hop, kernel, devices, why).await,
    }
}

async fn put_back(hop: PathBuf, kernel: u32, devices: Vec<PathBuf>, why: String) -> Ended {
    match come_back(hop, kernel, devices.clone()).await {
        Ended::Returned(Returned::Back) => Ended::Stopped(Left::Failed(why)),
        Ended::Broken(broken) => Ended::Broken(broken),
        _ if holders(&devices).await.iter().any(|(pid, _)| *pid == kernel) => Ended::Broken(why),
        _ => Ended::Stopped(Left::Half(why)),
    }
}

/// The same at the end of a lease.
async fn stop_again(hop: PathBuf, kernel: u32, devices: Vec<PathBuf>) -> Ended {
    match stop(hop, kernel, devices).await {
        Ended::Stopped(how) => Ended::Left(how),
        other => other,
    }
}

async fn come_back(hop: PathBuf, kernel: u32, devices: Vec<PathBuf>) -> Ended {
    Ended::Returned(match hop_gpu(&hop, "unpark", &[], kernel, &devices).await {
        Ok(Report { outcome, .. }) if outcome == "unparked" => Returned::Back,
        Ok(Report { outcome, why, .. }) if outcome == "half-back" => Returned::Half(why),
        Ok(Report { outcome, why, .. }) if outcome == "broken" => return Ended::Broken(why),
        Ok(Report { why, .. }) => Returned::StillAway(why),
        Err(unsaid) => Returned::StillAway(unsaid.why()),
    })
}

fn sentence(holders: &[(u32, String)]) -> String {
    let sentences: Vec<&str> = holders.iter().map(|(_, s)| s.as_str()).collect();
    sentences.join("; ")
}

/// What is read of the report of `hop gpu park` and `unpark`.
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
    /// It did nothing.
    Refused(String),
    /// It didn't come to its end, and was ended.
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

/// The processes below us that hold one of these device files, each with a sentence.
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
