//! `libcuda.so.1`, loaded at run time: the checkpoint calls in both generations, and the few memory calls that a
//! reservation and the benchmark need.
//!
//! Loading maps the library only; `cuInit` opens the device files, and is called on first need. Functions are looked up
//! one by one: an old driver may lack some calls without any error.

use crate::Pid;
use crate::driver::{Api, CUDA_ERROR_NOT_INITIALIZED, Driver, DriverError, GpuUuid, ProcessState, Step};
use libloading::Library;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;

const LIBCUDA: &str = "libcuda.so.1";

/// `CUcheckpointLockArgs`.
#[repr(C)]
#[derive(Default)]
struct LockArgs {
    timeout_ms: c_uint,
    reserved0: c_uint,
    reserved1: [u64; 7],
}

/// `CUcheckpointCheckpointArgs`, `CUcheckpointUnlockArgs` and 12.8's `CUcheckpointRestoreArgs`: only reserved.
#[repr(C)]
#[derive(Default)]
struct NoArgs {
    reserved: [u64; 8],
}

/// `CUcheckpointRestoreArgs` since 13.0.
#[repr(C)]
struct RestoreArgs {
    pairs: *mut RawPair,
    pairs_count: c_uint,
    reserved: [c_char; 44],
    reserved1: u64,
}

/// `CUcheckpointGpuPair`.
#[repr(C)]
struct RawPair {
    old: [u8; 16],
    new: [u8; 16],
}

const _: () = {
    assert!(size_of::<LockArgs>() == 64);
    assert!(size_of::<NoArgs>() == 64);
    assert!(size_of::<RestoreArgs>() == 64);
    assert!(size_of::<RawPair>() == 32);
};

/// The loaded driver library. Cheap to clone.
#[derive(Debug, Clone, Copy)]
pub struct LibCuda {
    /// Never unloaded: the driver's own threads run its code until the process ends.
    lib: &'static Library,
    version: i32,
}

/// Why no driver library can be called.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{path} can't be loaded: there is no NVIDIA driver here, or not for this program")]
    Open { path: String },
    #[error("{path} has no cuDriverGetVersion, so it is no CUDA driver")]
    NotCuda { path: String },
    #[error("cuDriverGetVersion answered {code}")]
    Version { code: i32 },
}

/// Looks `name` up and calls the function with the given arguments: a line per call, with the type in sight.
macro_rules! call {
    ($self:ident, $name:literal, ($($ty:ty),*), ($($arg:expr),*)) => {{
        // SAFETY: the type is the driver API's declaration of this function: `extern "C"`, returning CUresult.
        match unsafe { $self.lib.get::<unsafe extern "C" fn($($ty),*) -> c_int>(concat!($name, "\0").as_bytes()) } {
            // SAFETY: each pointer passed points to a live value of the declared type for the length of the call.
            Ok(f) => checked($name, unsafe { f($($arg),*) }),
            Err(_) => Err(DriverError::Unsupported(format!("this driver ({}) has no {}", $self.version, $name))),
        }
    }};
}

fn checked(call: &str, code: c_int) -> Result<(), DriverError> {
    match code {
        0 => Ok(()),
        code => Err(DriverError::Refused {
            call: call.to_owned(),
            code,
        }),
    }
}

impl LibCuda {
    /// Loads `path`, or `libcuda.so.1` from the loader's places.
    ///
    /// # Errors
    /// No such library exists, or the library is no driver.
    pub fn load(path: Option<&Path>) -> Result<Self, LoadError> {
        let name = path.unwrap_or_else(|| Path::new(LIBCUDA));
        let shown = || name.display().to_string();
        // SAFETY: the driver library's initialisers run, as in every CUDA program.
        let lib = unsafe { Library::new(name) }.map_err(|_| LoadError::Open { path: shown() })?;
        let mut version: c_int = 0;
        {
            // SAFETY: the type is the driver API's declaration of this function.
            let f = unsafe { lib.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"cuDriverGetVersion\0") }
                .map_err(|_| LoadError::NotCuda { path: shown() })?;
            // SAFETY: `version` lives for the length of the call. This call needs no cuInit.
            let code = unsafe { f(&raw mut version) };
            if code != 0 {
                return Err(LoadError::Version { code });
            }
        }
        Ok(Self {
            lib: Box::leak(Box::new(lib)),
            version,
        })
    }

    /// `cuDriverGetVersion`: 1000 * major + 10 * minor of the newest CUDA that the driver serves.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Opens the device files. Calling it again costs nothing.
    ///
    /// # Errors
    /// No device, or no device open to this process.
    pub fn init(&self) -> Result<(), DriverError> {
        call!(self, "cuInit", (c_uint), (0))
    }

    fn raw_step(&self, pid: Pid, step: &Step) -> Result<ProcessState, DriverError> {
        match step {
            Step::State => self.state(pid),
            Step::Lock { timeout_ms } => {
                let mut args = LockArgs {
                    timeout_ms: *timeout_ms,
                    ..LockArgs::default()
                };
                call!(
                    self,
                    "cuCheckpointProcessLock",
                    (c_int, *mut LockArgs),
                    (pid, &raw mut args)
                )?;
                Ok(ProcessState::Locked)
            }
            Step::Checkpoint => {
                let mut args = NoArgs::default();
                call!(
                    self,
                    "cuCheckpointProcessCheckpoint",
                    (c_int, *mut NoArgs),
                    (pid, &raw mut args)
                )?;
                Ok(ProcessState::Checkpointed)
            }
            Step::Restore { pairs } => {
                self.restore(pid, pairs)?;
                Ok(ProcessState::Locked)
            }
            Step::Unlock => {
                let mut args = NoArgs::default();
                call!(
                    self,
                    "cuCheckpointProcessUnlock",
                    (c_int, *mut NoArgs),
                    (pid, &raw mut args)
                )?;
                Ok(ProcessState::Running)
            }
        }
    }

    fn state(&self, pid: Pid) -> Result<ProcessState, DriverError> {
        let mut raw: c_int = -1;
        call!(
            self,
            "cuCheckpointProcessGetState",
            (c_int, *mut c_int),
            (pid, &raw mut raw)
        )?;
        ProcessState::from_raw(raw).ok_or_else(|| {
            DriverError::Unsupported(format!(
                "the driver reports process state {raw}, which this version doesn't know"
            ))
        })
    }

    fn restore(&self, pid: Pid, pairs: &[crate::driver::GpuPair]) -> Result<(), DriverError> {
        if pairs.is_empty() {
            let mut args = NoArgs::default();
            return call!(
                self,
                "cuCheckpointProcessRestore",
                (c_int, *mut NoArgs),
                (pid, &raw mut args)
            );
        }
        if self.api() != Some(Api::V13) {
            let text = "restoring onto another device needs driver 580 (CUDA 13.0)";
            return Err(DriverError::Unsupported(text.to_owned()));
        }
        let mut raw: Vec<RawPair> = pairs
            .iter()
            .map(|p| RawPair {
                old: p.old.0,
                new: p.new.0,
            })
            .collect();
        let count = c_uint::try_from(raw.len()).expect("a process uses far fewer than 2^32 devices");
        let mut args = RestoreArgs {
            pairs: raw.as_mut_ptr(),
            pairs_count: count,
            reserved: [0; 44],
            reserved1: 0,
        };
        call!(
            self,
            "cuCheckpointProcessRestore",
            (c_int, *mut RestoreArgs),
            (pid, &raw mut args)
        )
    }

    /// The driver's number of the device with this UUID, or of the first device.
    fn device(&self, uuid: Option<GpuUuid>) -> Result<c_int, DriverError> {
        let mut count: c_int = 0;
        call!(self, "cuDeviceGetCount", (*mut c_int), (&raw mut count))?;
        for ordinal in 0..count {
            let mut device: c_int = 0;
            call!(
                self,
                "cuDeviceGet",
                (*mut c_int, c_int),
                (&raw mut device, ordinal)
            )?;
            let Some(wanted) = uuid else { return Ok(device) };
            let mut found = [0_u8; 16];
            call!(
                self,
                "cuDeviceGetUuid",
                (*mut [u8; 16], c_int),
                (&raw mut found, device)
            )?;
            if found == wanted.0 {
                return Ok(device);
            }
        }
        Err(DriverError::Refused {
            call: "cuDeviceGet".to_owned(),
            code: 101,
        })
    }

    /// Opens the device's primary context in this process.
    ///
    /// # Errors
    /// No such device, or the driver refuses a context.
    pub fn session(&self, uuid: Option<GpuUuid>) -> Result<Session, DriverError> {
        self.init()?;
        let device = self.device(uuid)?;
        let mut context: *mut c_void = std::ptr::null_mut();
        call!(
            self,
            "cuDevicePrimaryCtxRetain",
            (*mut *mut c_void, c_int),
            (&raw mut context, device)
        )?;
        call!(self, "cuCtxSetCurrent", (*mut c_void), (context))?;
        Ok(Session { cuda: *self })
    }
}

impl Driver for LibCuda {
    fn api(&self) -> Option<Api> {
        Api::of_version(self.version)
    }

    fn step(&self, pid: Pid, step: &Step) -> Result<ProcessState, DriverError> {
        match self.raw_step(pid, step) {
            Err(DriverError::Refused {
                code: CUDA_ERROR_NOT_INITIALIZED,
                ..
            }) => {
                self.init()?;
                self.raw_step(pid, step)
            }
            other => other,
        }
    }
}

/// A context of our own on one device: memory and copies, for a reservation or a measurement. The context lives
/// until the process ends.
#[derive(Debug)]
pub struct Session {
    cuda: LibCuda,
}

/// Device memory; freed on drop.
#[derive(Debug)]
pub struct DeviceMemory<'a> {
    session: &'a Session,
    at: u64,
    bytes: usize,
}

/// Page-locked host memory; freed on drop.
#[derive(Debug)]
pub struct PinnedMemory<'a> {
    session: &'a Session,
    at: *mut c_void,
    bytes: usize,
}

impl Session {
    /// # Errors
    /// The device has not that much free.
    pub fn alloc(&self, bytes: usize) -> Result<DeviceMemory<'_>, DriverError> {
        let cuda = self.cuda;
        let mut at = 0_u64;
        call!(cuda, "cuMemAlloc_v2", (*mut u64, usize), (&raw mut at, bytes))?;
        Ok(DeviceMemory {
            session: self,
            at,
            bytes,
        })
    }

    /// # Errors
    /// The host lacks the memory, or the memory can't be page-locked.
    pub fn pin(&self, bytes: usize) -> Result<PinnedMemory<'_>, DriverError> {
        let cuda = self.cuda;
        let mut at: *mut c_void = std::ptr::null_mut();
        call!(
            cuda,
            "cuMemHostAlloc",
            (*mut *mut c_void, usize, c_uint),
            (&raw mut at, bytes, 0)
        )?;
        Ok(PinnedMemory {
            session: self,
            at,
            bytes,
        })
    }
}

impl DeviceMemory<'_> {
    /// Fills the memory, for the device really to hold pages.
    ///
    /// # Errors
    /// The driver's.
    pub fn fill(&self, byte: u8) -> Result<(), DriverError> {
        let cuda = self.session.cuda;
        call!(
            cuda,
            "cuMemsetD8_v2",
            (u64, u8, usize),
            (self.at, byte, self.bytes)
        )?;
        call!(cuda, "cuCtxSynchronize", (), ())
    }

    /// Copies device to host, the shorter length of the two.
    ///
    /// # Errors
    /// The driver's.
    pub fn copy_out(&self, to: &mut PinnedMemory<'_>) -> Result<(), DriverError> {
        let cuda = self.session.cuda;
        call!(
            cuda,
            "cuMemcpyDtoH_v2",
            (*mut c_void, u64, usize),
            (to.at, self.at, self.bytes.min(to.bytes))
        )
    }

    /// Copies host to device, the shorter length of the two.
    ///
    /// # Errors
    /// The driver's.
    pub fn copy_in(&self, from: &PinnedMemory<'_>) -> Result<(), DriverError> {
        let cuda = self.session.cuda;
        call!(
            cuda,
            "cuMemcpyHtoD_v2",
            (u64, *const c_void, usize),
            (self.at, from.at, self.bytes.min(from.bytes))
        )?;
        call!(cuda, "cuCtxSynchronize", (), ())
    }
}

impl PinnedMemory<'_> {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the driver gave `bytes` bytes at `at`, which live as long as `self`; they were written before they
        // are read (cuMemHostAlloc hands out zeroed pages, and copy_out writes through the driver).
        unsafe { std::slice::from_raw_parts(self.at.cast::<u8>(), self.bytes) }
    }
}

impl Drop for DeviceMemory<'_> {
    fn drop(&mut self) {
        let cuda = self.session.cuda;
        // Freeing fails only when the context is gone, and then so is the memory.
        let _ = call!(cuda, "cuMemFree_v2", (u64), (self.at));
    }
}

impl Drop for PinnedMemory<'_> {
    fn drop(&mut self) {
        let cuda = self.session.cuda;
        let _ = call!(cuda, "cuMemFreeHost", (*mut c_void), (self.at));
    }
}
