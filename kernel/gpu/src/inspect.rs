//! Looking at a machine and a process: everything that the ladder's choice depends on, gathered once.

use crate::Pid;
use crate::driver::{Driver, DriverError, GpuUuid, ProcessState, Step};
use crate::helper::Client;
use crate::inside::Agent;
use crate::ladder::{DriverFound, Found, Inside, Known, Place};
use crate::libcuda::LibCuda;
use crate::procs::Procs;
use crate::record::Records;
use crate::telemetry::{Absent, Sample, Telemetry};
use hop_words::deadline::within;
use hop_words::memory::MemoryPaths;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Time for a process's agent to report its memory.
const REPORT: Duration = Duration::from_secs(5);
/// How long NVML may take for one look.
const NVML: Duration = Duration::from_secs(5);
/// How long the driver may take to say how a process stands.
pub const STATE: Duration = Duration::from_secs(5);

/// Where things are. The default is the machine's own.
#[derive(Debug, Clone)]
pub struct Sources {
    pub procs: Procs,
    pub memory: MemoryPaths,
    pub libcuda: Option<PathBuf>,
    pub libnvml: Option<PathBuf>,
    pub helper: PathBuf,
    /// Folder of agents' sockets and records, instead of the owner's own places.
    pub dir: Option<PathBuf>,
    /// Longest time for one driver step, and an upper bound for steps with a shorter limit of their own.
    pub deadline: Duration,
}

impl Sources {
    /// How long something may take that usually gets `usual`.
    pub fn limit(&self, usual: Duration) -> Duration {
        usual.min(self.deadline)
    }
}

impl Default for Sources {
    fn default() -> Self {
        Self {
            procs: Procs::default(),
            memory: MemoryPaths::here(),
            libcuda: None,
            libnvml: None,
            helper: crate::helper::SOCKET.into(),
            dir: None,
            deadline: Duration::from_secs(120),
        }
    }
}

/// The machine: driver and NVML, either possibly absent.
pub struct Site {
    pub sources: Sources,
    pub telemetry: Result<Arc<Telemetry>, Absent>,
    /// The checkpoint calls, by ourselves or through the helper; the text says why there are none.
    pub driver: Result<Arc<dyn Driver>, String>,
    /// `cuDriverGetVersion`; 0 without a driver.
    pub cuda: i32,
    helper_is_there: bool,
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Site")
            .field("sources", &self.sources)
            .field("cuda", &self.cuda)
            .finish_non_exhaustive()
    }
}

/// One process as it was found.
#[derive(Debug, Clone)]
pub struct Look {
    pub pid: Pid,
    pub uid: u32,
    pub start_time: u64,
    pub found: Found,
    pub state: Option<ProcessState>,
    /// The devices that list it.
    pub places: Vec<Place>,
}

/// The process can't be looked at.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    #[error("there is no process {pid}")]
    NoProcess { pid: Pid },
    #[error("process {pid} belongs to user {uid}: only its owner and root can look into it")]
    NotYours {
        pid: Pid,
        uid: u32,
        #[source]
        source: io::Error,
    },
}

impl Site {
    /// Loads what there is.
    pub fn open(sources: Sources) -> Self {
        let limit = sources.limit(NVML);
        let path = sources.libnvml.clone();
        let telemetry = within(limit, move || Telemetry::open(path.as_deref()))
            .unwrap_or_else(|| Err(Absent::silent(limit)))
            .map(Arc::new);
        let path = sources.libcuda.clone();
        let cuda = match within(limit, move || LibCuda::load(path.as_deref())) {
            Some(loaded) => loaded.map_err(|error| error.to_string()),
            None => Err(format!("libcuda has not answered for {limit:?}")),
        };
        let version = cuda.as_ref().map_or(0, LibCuda::version);
        let api = cuda.as_ref().ok().and_then(Driver::api);
        let helper = Client::new(
            sources.helper.clone(),
            api,
            sources.procs.clone(),
            sources.deadline,
        );
        let helper_is_there = helper.is_there();
        let routed = |cuda| {
            Arc::new(Routed {
                direct: cuda,
                helper,
                there: helper_is_there,
            }) as Arc<dyn Driver>
        };
        Self {
            driver: cuda.map(routed),
            cuda: version,
            sources,
            telemetry,
            helper_is_there,
        }
    }

    /// NVML's sample; `None` if NVML is absent or doesn't answer in time.
    pub fn sample(&self) -> Option<Sample> {
        self.nvml(Telemetry::sample)
    }

    /// The same for a proof: an NVML present but late with its answer is a gap, not an absence.
    pub fn sample_or_gap(&self) -> Option<Sample> {
        let gap = || Sample {
            at_us: 0,
            driver: None,
            devices: Vec::new(),
            unknown: vec!["anything: it doesn't answer".to_owned()],
        };
        self.telemetry.is_ok().then(|| self.sample().unwrap_or_else(gap))
    }

    fn nvml<T: Send + 'static>(&self, ask: impl FnOnce(&Telemetry) -> T + Send + 'static) -> Option<T> {
        let telemetry = Arc::clone(self.telemetry.as_ref().ok()?);
        within(self.sources.limit(NVML), move || ask(&telemetry))
    }

    pub fn records(&self, uid: u32) -> Records {
        Records::of(uid, self.sources.dir.as_deref())
    }

    pub fn agent(&self, pid: Pid, uid: u32) -> Agent {
        Agent::of(pid, uid, self.sources.dir.as_deref())
    }

    /// Gathers the facts on one process.
    ///
    /// # Errors
    /// No such process exists, or the process isn't the caller's.
    pub fn look(&self, pid: Pid) -> Result<Look, LookError> {
        let mut look = self.look_from_outside(pid)?;
        look.found.inside = self.inside(pid, look.uid);
        Ok(look)
    }

    /// As [`Self::look`], without the process's agent, which can't answer while the process stands still.
    ///
    /// # Errors
    /// No such process exists, or the process isn't the caller's.
    pub fn look_from_outside(&self, pid: Pid) -> Result<Look, LookError> {
        let procs = &self.sources.procs;
        let gone = |_| LookError::NoProcess { pid };
        let start_time = procs.start_time(pid).map_err(gone)?;
        let uid = procs.uids(pid).map_err(gone)?.real;
        let held = procs
            .held(pid)
            .map_err(|source| LookError::NotYours { pid, uid, source })?;
        let sample = self.sample();
        let listed: Vec<_> = sample.iter().flat_map(|s| s.devices_of(pid)).cloned().collect();
        let touched = !listed.is_empty() || held.iter().any(|h| h.is_device(&procs.dev_prefix));
        let found = Found {
            touched,
            device_bytes: sample
                .as_ref()
                .filter(|_| !listed.is_empty())
                .and_then(|s| s.memory_of(pid)),
            devices: listed
                .iter()
                .filter_map(|d| d.uuid.parse::<GpuUuid>().ok())
                .collect(),
            inside: None,
            driver: self.driver_found(sample.as_ref()),
            mig: mig(&listed, pid),
            mps: self
                .nvml(move |telemetry| telemetry.mps(pid))
                .unwrap_or(Known::Unknown),
            ipc_job: procs.env(pid, "CUDA_CHECKPOINT_JOB_FILE") == Some(true),
            host_left: self.sources.memory.left(pid),
            children: self.children(pid),
            state: Err(crate::ladder::NO_STATE.to_owned()),
            other_replica: false,
            tried: Vec::new(),
        };
        let state = if touched || self.records(uid).get(pid, start_time).is_some() {
            self.state(pid)
        } else {
            None
        };
        Ok(Look {
            pid,
            uid,
            start_time,
            found,
            state,
            places: listed
                .iter()
                .filter_map(crate::telemetry::DeviceSample::place)
                .collect(),
        })
    }

    fn inside(&self, pid: Pid, uid: u32) -> Option<Inside> {
        self.agent(pid, uid).report(REPORT).ok()
    }

    fn driver_found(&self, sample: Option<&Sample>) -> Result<DriverFound, String> {
        let driver = self.driver.as_ref().map_err(Clone::clone)?;
        let privileged = rustix::process::geteuid().is_root() || self.helper_is_there;
        Ok(DriverFound {
            cuda: self.cuda,
            branch: sample.and_then(Sample::branch),
            api: driver.api(),
            // Unprivileged, only the driver's own answer tells.
            permitted: if privileged { Known::Yes } else { Known::Unknown },
        })
    }

    /// Processes below `pid` with a device open. This process may itself be below `pid`, in a notebook's `!hop gpu`,
    /// and holds NVML's files.
    fn children(&self, pid: Pid) -> Vec<Pid> {
        let procs = &self.sources.procs;
        let this = Pid::try_from(std::process::id());
        let holds = |child: &Pid| {
            procs
                .held(*child)
                .is_ok_and(|held| held.iter().any(|h| h.is_device(&procs.dev_prefix)))
        };
        let below = procs.tree(pid).into_iter().skip(1);
        below.filter(|child| this != Ok(*child)).filter(holds).collect()
    }

    fn state(&self, pid: Pid) -> Option<ProcessState> {
        let driver = Arc::clone(self.driver.as_ref().ok()?);
        driver.api()?;
        within(self.sources.limit(STATE), move || driver.step(pid, &Step::State)).and_then(Result::ok)
    }
}

fn mig(listed: &[crate::telemetry::DeviceSample], pid: Pid) -> Known {
    match listed {
        [] => Known::Unknown,
        _ if listed
            .iter()
            .any(|d| d.mig || d.process(pid).is_some_and(|p| p.gpu_instance.is_some())) =>
        {
            Known::Yes
        }
        _ => Known::No,
    }
}

/// The driver by ourselves, and through the helper where we aren't let.
struct Routed {
    direct: LibCuda,
    helper: Client,
    there: bool,
}

impl Driver for Routed {
    fn api(&self) -> Option<crate::driver::Api> {
        self.direct.api()
    }

    fn step(&self, pid: Pid, step: &Step) -> Result<ProcessState, DriverError> {
        match self.direct.step(pid, step) {
            Err(error) if error.is_permission() && self.there => self.helper.step(pid, step),
            other => other,
        }
    }
}
