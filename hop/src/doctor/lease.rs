//! A lease of a GPU for a moment, as for a kernel on this node: `hop doctor --nodes` runs this in a separate job on
//! each node.
//!
//! The process registers as a kernel's executor, asks for a GPU, opens the lent devices, gives the devices back, and
//! checks that none opens any longer. Neither Python nor Jupyter is needed.

use super::Finding;
use hop_api::client::{self, CallError, Client, Item, Items, Options};
use hop_api::config::Config;
use hop_api::message::{Bound, Event, Grant, Outcome, ReplicaUp, Request, Role, SeatStep};
use hop_words::id::{CellId, Incarnation, JobId, KernelId, NodeName, PoolName, Tenure};
use hop_words::need::{Class, Need};
use hop_words::process::start_time;
use hop_words::time::Timestamp;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use tokio::time::{Instant as Deadline, sleep, timeout_at};

/// The name of the finding.
pub(super) const CHECK: &str = "lease";
/// Names the process's kernel in its environment: the plugin then takes the step for a kernel's.
pub(super) const KERNEL: &str = "GRESSHOPPER_KERNEL";
/// `hopd`'s answer and a GPU are waited for as long as this together.
const PATIENCE: Duration = Duration::from_secs(30);
/// The take-back of the devices is waited for as long as this.
const TAKE_BACK: Duration = Duration::from_secs(15);
/// A device is held open for as long as this.
const HELD: Duration = Duration::from_secs(1);
const CELL: &str = "doctor";
const MEND: &str = "Read hopd's log and the agent's on that node (journalctl -u hopd; the pilot's output).";

/// Why nothing was leased.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error("this is no kernel's step of a Slurm job")]
    NoStep,
    #[error(transparent)]
    Hopd(#[from] CallError),
    #[error("hopd refused the GPU: {0}")]
    Refused(String),
    #[error("no GPU came within {limit} s: {0}", limit = PATIENCE.as_secs())]
    Busy(String),
    #[error("the GPU was taken back before it was used: {0}")]
    Revoked(String),
    #[error("{path} is lent and can't be opened: {source}")]
    Closed { path: PathBuf, source: std::io::Error },
    #[error("{0} can be opened still, {limit} s after it went back", limit = TAKE_BACK.as_secs())]
    StillOpen(PathBuf),
}

/// What became of it, in words.
pub(super) fn try_here(config: &Config, node: &str, pool: Option<&str>) -> Finding {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Finding::unknown(CHECK, error.to_string()),
    };
    judge(runtime.block_on(lease(config, node, pool)))
}

fn judge(result: Result<Leased, LeaseError>) -> Finding {
    match result {
        Ok(Leased { devices, after }) => {
            let named: Vec<String> = devices.iter().map(|path| path.display().to_string()).collect();
            let named = named.join(", ");
            let after = after.as_secs_f64();
            Finding::ok(
                CHECK,
                format!("{named} was lent after {after:.1} s, opened, and taken back"),
            )
        }
        Err(error @ LeaseError::Busy(_)) => Finding::unknown(CHECK, error.to_string()),
        Err(error) => {
            let mend = match &error {
                LeaseError::Closed { .. } | LeaseError::StillOpen(_) => {
                    "The plugin didn't do its part in the lease's step: see the checks `plugstack` and `plugin` of this node, \
                     and slurmd's log there."
                }
                _ => MEND,
            };
            Finding::failed(CHECK, error.to_string(), mend)
        }
    }
}

/// A lease that was had.
struct Leased {
    devices: Vec<PathBuf>,
    after: Duration,
}

/// One kernel of one cell.
struct Tried {
    kernel: KernelId,
    client: Client,
    items: Items,
}

async fn lease(config: &Config, node: &str, pool: Option<&str>) -> Result<Leased, LeaseError> {
    let up = report(node, pool).ok_or(LeaseError::NoStep)?;
    let kernel = up.kernel.clone();
    let (client, items) = client::start(Options::from_config(config, Role::Replica)?);
    let mut tried = Tried {
        kernel: kernel.clone(),
        client,
        items,
    };
    let leased = tried.whole(up).await;
    // A kernel that is gone is forgotten sooner or later.
    let options = Options::from_config(config, Role::Front)?;
    let _ = client::call(&options, Request::CloseKernel { kernel }, PATIENCE).await;
    leased
}

/// This process as the executor of a kernel of its own. `None` outside of a step.
fn report(node: &str, pool: Option<&str>) -> Option<ReplicaUp> {
    let variable = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    let pid = std::process::id();
    Some(ReplicaUp {
        kernel: KernelId::from(std::env::var(KERNEL).ok()?),
        tenure: Tenure::default(),
        incarnation: Incarnation(1),
        account: None,
        pool: pool.map(PoolName::from),
        node: NodeName::from(node),
        seat: SeatStep {
            job: JobId(variable("SLURM_JOB_ID")?),
            step: variable("SLURM_STEP_ID")?,
            pid,
            start_time: start_time(pid)?,
            uid: rustix::process::geteuid().as_raw(),
        },
        name: "hop doctor".to_owned(),
        holds: None,
        ended: None,
        waiting: Vec::new(),
        parks: false,
        parked: None,
        captured: false,
        unsaved: None,
        bound: Bound::default(),
        wanted: 1,
        standbys: Vec::new(),
        leader: None,
    })
}

impl Tried {
    async fn whole(&mut self, up: ReplicaUp) -> Result<Leased, LeaseError> {
        let began = Instant::now();
        let deadline = Deadline::now() + PATIENCE;
        self.connected(deadline).await?;
        self.client.request(Request::ReplicaUp(Box::new(up))).await?;
        self.client
            .request(Request::Submit {
                kernel: self.kernel.clone(),
                tenure: Tenure::default(),
                cell: CellId::from(CELL),
                need: Need::gpus(1),
                class: Class::Interactive,
                print: 0,
            })
            .await?;
        let grant = self.granted(deadline).await?;
        let after = began.elapsed();
        let devices: Vec<PathBuf> = grant.handover.devices.iter().map(|d| d.path.clone()).collect();
        let opened = use_devices(&devices).await;
        self.give_back(&grant).await?;
        opened?;
        gone(&devices).await?;
        Ok(Leased { devices, after })
    }

    async fn connected(&mut self, deadline: Deadline) -> Result<(), LeaseError> {
        let mut why = "hopd doesn't answer".to_owned();
        loop {
            match timeout_at(deadline, self.items.next()).await {
                Ok(Some(Item::Connected(_))) => return Ok(()),
                Ok(Some(Item::Disconnected { reason, .. })) => why = reason,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return Err(LeaseError::Refused(why)),
            }
        }
    }

    async fn granted(&mut self, deadline: Deadline) -> Result<Grant, LeaseError> {
        let mut why = "hopd gave no reason".to_owned();
        loop {
            let Ok(item) = timeout_at(deadline, self.items.next()).await else {
                return Err(LeaseError::Busy(why));
            };
            match item {
                Some(Item::Event(Event::Granted { grant, .. })) => return Ok(grant),
                Some(Item::Event(Event::Queued { reason, .. })) => why = reason,
                Some(Item::Event(Event::Refused { reason, .. })) => {
                    return Err(LeaseError::Refused(reason));
                }
                Some(Item::Event(Event::Revoked { reason, .. })) => return Err(LeaseError::Revoked(reason)),
                Some(Item::Refused { refusal, .. }) => return Err(LeaseError::Refused(refusal.to_string())),
                Some(_) => {}
                None => return Err(CallError::Disconnected.into()),
            }
        }
    }

    async fn give_back(&self, grant: &Grant) -> Result<(), LeaseError> {
        let (kernel, tenure, lease) = (self.kernel.clone(), Tenure::default(), grant.lease);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = Timestamp(now.map_or(0, |since| since.as_micros() as u64));
        let ended = Request::CellEnded {
            kernel: kernel.clone(),
            tenure,
            cell: CellId::from(CELL),
            lease,
            started: now,
            ended: now,
            outcome: Outcome::Ok,
        };
        self.client.request(ended).await?;
        let release = Request::ReleaseLease {
            kernel,
            tenure,
            lease,
        };
        self.client.request(release).await?;
        Ok(())
    }
}

/// Opens each device for a moment, as a framework does.
async fn use_devices(devices: &[PathBuf]) -> Result<(), LeaseError> {
    let opened: Result<Vec<_>, _> = devices.iter().map(|path| open(path)).collect();
    let opened = opened?;
    sleep(HELD).await;
    drop(opened);
    Ok(())
}

fn open(path: &Path) -> Result<std::fs::File, LeaseError> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.map_err(|source| LeaseError::Closed {
        path: path.to_owned(),
        source,
    })
}

/// Waits until no device can be opened any more.
async fn gone(devices: &[PathBuf]) -> Result<(), LeaseError> {
    let deadline = Deadline::now() + TAKE_BACK;
    let mut left: BTreeSet<&PathBuf> = devices.iter().collect();
    loop {
        left.retain(|path| !is_denied(path));
        match left.first() {
            None => return Ok(()),
            Some(path) if Deadline::now() >= deadline => {
                return Err(LeaseError::StillOpen((*path).clone()));
            }
            Some(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

fn is_denied(path: &Path) -> bool {
    let tried = OpenOptions::new().read(true).open(path);
    tried.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

#[cfg(test)]
mod tests {
    use super::super::Outcome as Found;
    use super::*;

    #[test]
    fn a_full_node_is_no_fault() {
        let busy = judge(Err(LeaseError::Busy("all are in use".into())));
        assert_eq!(busy.result, Found::Unknown);
        assert_eq!(busy.says, "no GPU came within 30 s: all are in use");
    }

    #[test]
    fn a_device_that_stays_shut_or_open_is_the_plugins_fault() {
        let path = PathBuf::from("/dev/nvidia0");
        let source = std::io::Error::from(ErrorKind::PermissionDenied);
        for error in [
            LeaseError::Closed {
                path: path.clone(),
                source,
            },
            LeaseError::StillOpen(path),
        ] {
            let found = judge(Err(error));
            assert_eq!(found.result, Found::Failed);
            assert!(found.says.contains("/dev/nvidia0"), "{found:?}");
            assert!(found.mend.contains("plugin"), "{found:?}");
        }
        let refused = judge(Err(LeaseError::Refused("no".into())));
        assert_eq!((refused.result, refused.mend.as_str()), (Found::Failed, MEND));
    }

    #[test]
    fn a_lease_that_was_had_is_told_with_its_devices() {
        let found = judge(Ok(Leased {
            devices: vec!["/dev/nvidia1".into()],
            after: Duration::from_millis(260),
        }));
        assert_eq!(found.result, Found::Ok);
        assert_eq!(
            found.says,
            "/dev/nvidia1 was lent after 0.3 s, opened, and taken back"
        );
    }
}
