//! Slurm's side of the interface: generated bindings, the symbols looked up by Slurm's loader, and a step handle with
//! typed questions.

use hop_handover::record::StepKey;
use hop_words::id::JobId;
use std::ffi::{CStr, CString, c_char, c_int};

#[allow(
    non_camel_case_types,
    non_upper_case_globals,
    dead_code,
    unreachable_pub,
    missing_debug_implementations,
    clippy::undocumented_unsafe_blocks
)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/spank.rs"));
}

pub(crate) use bindings::spank_t;

/// What SPANK_PLUGIN() of spank.h defines. The loader compares the series of `plugin_version` with its own.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static plugin_name: [u8; 12] = *b"gresshopper\0";
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static plugin_type: [u8; 6] = *b"spank\0";
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static plugin_version: u32 = bindings::SLURM_VERSION_NUMBER;
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static spank_plugin_version: u32 = 1;

const SUCCESS: bindings::spank_err_t = 0;

/// Slurm numbers its own steps (extern, batch, interactive) from the top; kernels and leases have other numbers.
const FIRST_SPECIAL_STEP: u32 = 0xffff_fff0;

/// The room for a credential: a token is under 1 KiB, and base64 and MUNGE's header don't double it.
const LONGEST_VALUE: usize = 16 * 1024;

/// A callback's view of its step or job. Never outlives the callback.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step(spank_t);

impl Step {
    pub(crate) fn new(handle: spank_t) -> Self {
        Self(handle)
    }

    /// Whether the step's environment has `name`, without copying the value.
    pub(crate) fn has_variable(self, name: &CStr) -> bool {
        let mut buffer = [0; 2];
        // SAFETY: the handle is Slurm's for this callback; the buffer has the length given.
        let code = unsafe { bindings::spank_getenv(self.0, name.as_ptr(), buffer.as_mut_ptr(), 2) };
        code == SUCCESS || code == bindings::slurm_err_t_ESPANK_NOSPACE
    }

    /// The value of `name` in the step's environment. Slurm sets its own variables after the user's.
    pub(crate) fn variable(self, name: &CStr) -> Option<String> {
        let mut buffer: Vec<c_char> = vec![0; LONGEST_VALUE];
        let length = c_int::try_from(LONGEST_VALUE).ok()?;
        // SAFETY: as above.
        let code = unsafe { bindings::spank_getenv(self.0, name.as_ptr(), buffer.as_mut_ptr(), length) };
        if code != SUCCESS {
            return None;
        }
        // SAFETY: on success Slurm wrote a string with its NUL into the buffer.
        let text = unsafe { CStr::from_ptr(buffer.as_ptr()) };
        text.to_str().ok().map(str::to_owned)
    }

    fn number(self, item: bindings::spank_item_t) -> Option<u32> {
        let mut value: u32 = 0;
        // SAFETY: each item that is asked for here gives 32 bits (uid_t, uint32_t, int, pid_t).
        let code = unsafe { bindings::spank_get_item(self.0, item, &raw mut value) };
        (code == SUCCESS).then_some(value)
    }

    pub(crate) fn job(self) -> Option<JobId> {
        self.number(bindings::spank_item_S_JOB_ID).map(JobId)
    }

    /// None for Slurm's own steps.
    pub(crate) fn key(self) -> Option<StepKey> {
        let step = self
            .number(bindings::spank_item_S_JOB_STEPID)
            .filter(|s| *s < FIRST_SPECIAL_STEP)?;
        Some(StepKey {
            job: self.job()?,
            step,
        })
    }

    pub(crate) fn uid(self) -> Option<u32> {
        self.number(bindings::spank_item_S_JOB_UID)
    }

    /// Whether the current task is the step's first on this node: replicas and leases have no other task.
    pub(crate) fn is_first_task(self) -> bool {
        self.number(bindings::spank_item_S_TASK_ID) == Some(0)
    }

    pub(crate) fn task_pid(self) -> Option<u32> {
        self.number(bindings::spank_item_S_TASK_PID)
    }
}

/// Whether this process is slurmstepd, not srun or sbatch.
pub(crate) fn in_stepd() -> bool {
    // SAFETY: takes nothing, reads a variable of Slurm's.
    unsafe { bindings::spank_context() == bindings::spank_context_S_CTX_REMOTE }
}

/// The plugin's arguments in plugstack.conf, as Slurm gives them to a callback.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arguments {
    pub(crate) count: c_int,
    pub(crate) values: *mut *mut c_char,
}

impl Arguments {
    pub(crate) fn words(self) -> Vec<String> {
        let count = usize::try_from(self.count).unwrap_or(0);
        if self.values.is_null() {
            return Vec::new();
        }
        (0..count)
            .filter_map(|i| {
                // SAFETY: Slurm gives `count` pointers to strings that live as long as the plugin is loaded.
                let value = unsafe { *self.values.add(i) };
                // SAFETY: as above.
                (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
            })
            .collect()
    }
}

/// Writes an error to slurmd's log and the step's srun.
pub(crate) fn log_error(text: &str) {
    let text = CString::new(text.replace(['\0', '\n'], " ")).unwrap_or_default();
    // SAFETY: the format takes one string.
    unsafe { bindings::slurm_error(c"gresshopper: %s".as_ptr(), text.as_ptr()) }
}
