//! The functions that Slurm calls. Each is a guard and a line; the work is below them.

use crate::ffi::{self, Arguments, Step, spank_t};
use crate::notify;
use crate::site::Here;
use hop_handover::decide::Arrival;
use hop_handover::node::Node;
use hop_handover::options;
use hop_handover::record::{Agent, ProcessId, StepKey};
use hop_handover::token::{Confirmation, Op, Refusal, Refused, Token};
use hop_words::clock::now;
use hop_words::error::chain;
use hop_words::id::{JobId, LeaseId};
use hop_words::process::start_time;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

const LEASE: &CStr = c"GRESSHOPPER_LEASE";
const KERNEL: &CStr = c"GRESSHOPPER_KERNEL";

/// Runs `work`; an error or a panic becomes a line in the log.
fn guarded(name: &str, step: Step, work: impl FnOnce(Step) -> Result<(), String>) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(|| {
        panic_if_told(step);
        work(step)
    }));
    match result {
        Ok(Ok(())) => {}
        Ok(Err(why)) => ffi::log_error(&format!("{name}: {why}")),
        Err(_) => ffi::log_error(&format!("{name}: the plugin failed; the step goes on without it")),
    }
    0
}

/// A step without the variable is none of ours.
fn when(step: Step, variable: &CStr, work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    if step.has_variable(variable) {
        work()
    } else {
        Ok(())
    }
}

#[cfg(feature = "test-panic")]
fn panic_if_told(step: Step) {
    assert!(!step.has_variable(c"GRESSHOPPER_TEST_PANIC"), "told to panic");
}

#[cfg(not(feature = "test-panic"))]
fn panic_if_told(_: Step) {}

/// Slurm has confined the task by now, and lets the task go when this returns.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_task_post_fork(
    handle: spank_t,
    count: c_int,
    values: *mut *mut c_char,
) -> c_int {
    let arguments = Arguments { count, values };
    let step = Step::new(handle);
    guarded("the lease", step, |step| {
        when(step, LEASE, || carry_out(step, arguments))
    });
    guarded("registering the kernel", step, |step| {
        when(step, KERNEL, || register(step, arguments))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_task_exit(handle: spank_t, count: c_int, values: *mut *mut c_char) -> c_int {
    let arguments = Arguments { count, values };
    let step = Step::new(handle);
    guarded("the take-back", step, |step| {
        when(step, LEASE, || take_back(step, true, arguments))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_exit(handle: spank_t, count: c_int, values: *mut *mut c_char) -> c_int {
    let arguments = Arguments { count, values };
    if !ffi::in_stepd() {
        return 0;
    }
    guarded("the step's end", Step::new(handle), |step| {
        when(step, LEASE, || take_back(step, false, arguments))?;
        when(step, KERNEL, || unregister(step, arguments))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_job_epilog(handle: spank_t, count: c_int, values: *mut *mut c_char) -> c_int {
    let arguments = Arguments { count, values };
    guarded("the job's end", Step::new(handle), |step| {
        let Some(job) = step.job() else { return Ok(()) };
        if Here::knows(job, arguments) {
            end_job(job, arguments)
        } else {
            Ok(())
        }
    })
}

fn register(step: Step, arguments: Arguments) -> Result<(), String> {
    let (Some(key), true) = (step.key(), step.is_first_task()) else {
        return Ok(());
    };
    let (Some(uid), Some(pid)) = (step.uid(), step.task_pid()) else {
        return Err("Slurm gave no uid or pid".to_owned());
    };
    let here = Here::find(arguments)?;
    let node = here.open_node().map_err(|e| chain(&e))?;
    node.register(key, uid, pid).map(drop).map_err(|e| chain(&e))
}

fn unregister(step: Step, arguments: Arguments) -> Result<(), String> {
    let Some(key) = step.key() else { return Ok(()) };
    Here::by_its_records(arguments)?
        .unregister(key)
        .map_err(|e| chain(&e))
}

/// Carries out the step's token, and tells the agent the result.
fn carry_out(step: Step, arguments: Arguments) -> Result<(), String> {
    let (Some(key), true) = (step.key(), step.is_first_task()) else {
        return Ok(());
    };
    let here = Here::find(arguments)?;
    let job_uid = step.uid().ok_or("Slurm gave no uid")?;
    let usual = here
        .agent_dir
        .join(&here.name)
        .join(format!("agent.{}.sock", key.job));
    let (socket, said) = match open_token(step, &here, key, job_uid) {
        Ok((token, arrival)) => {
            // A node without room for records refuses in words: the agent would take silence for a missing plugin.
            let node = here.open_node().map_err(|e| Refusal::Failed {
                what: "the node's records".to_owned(),
                detail: chain(&e),
            });
            let said = node.and_then(|node| obey(step, &node, &token, &arrival));
            (
                token.notify.clone(),
                said.map_err(|reason| (Some(token.lease), reason)),
            )
        }
        // Other users' jobs have no agent to tell.
        Err(reason) if job_uid != here.service_uid => return Err(reason.to_string()),
        Err(reason) => (usual, Err((None, reason))),
    };
    let line = said.unwrap_or_else(|(lease, reason)| refusal(key, lease, reason));
    let uid = here.service_uid;
    tell(&Agent { socket, uid }, &line)
}

/// The token, if its credential is the service account's.
fn open_token(step: Step, here: &Here, key: StepKey, job_uid: u32) -> Result<(Token, Arrival), Refusal> {
    let credential = step.variable(LEASE).ok_or_else(|| Refusal::Token {
        detail: "the variable is too long".to_owned(),
    })?;
    let decoded = hop_munge::decode(&credential, here.munge_socket.as_deref()).map_err(|e| match e {
        hop_munge::Error::Replayed => Refusal::Replayed,
        other => Refusal::Credential {
            detail: chain(&other),
        },
    })?;
    if decoded.uid != here.service_uid {
        return Err(Refusal::MintedByOther { uid: decoded.uid });
    }
    let token = Token::from_payload(&decoded.payload).map_err(|e| match e {
        hop_handover::token::ReadError::Version { theirs } => Refusal::Version {
            ours: hop_handover::token::VERSION,
            theirs,
        },
        other => Refusal::Token {
            detail: chain(&other),
        },
    })?;
    let arrival = Arrival {
        step: key,
        job_uid,
        service_uid: here.service_uid,
        now: now(),
    };
    Ok((token, arrival))
}

fn obey(step: Step, node: &Node, token: &Token, arrival: &Arrival) -> Result<Confirmation, Refusal> {
    let gone = || Refusal::Token {
        detail: "the step has no process".to_owned(),
    };
    let task = step.task_pid().ok_or_else(gone)?;
    match &token.op {
        Op::Lend(lend) => {
            let gpus = step.variable(c"SLURM_STEP_GPUS").unwrap_or_default();
            let gpus = options::step_gpus(&gpus).ok_or_else(|| Refusal::Token {
                detail: format!("SLURM_STEP_GPUS is {gpus:?}"),
            })?;
            let stepd = this_process().ok_or_else(gone)?;
            node.lend(token, lend, arrival, &gpus, task, stepd)
                .map(Confirmation::HandedOver)
        }
        Op::TakeBack => node
            .take_back_by_token(token, arrival)
            .map(Confirmation::TakenBack),
        Op::Look(look) => {
            if let Some(operator) = &look.operator {
                ffi::log_error(&format!(
                    "operator {operator} has devices {:?} looked at again",
                    look.again
                ));
            }
            node.look(token, look, arrival).map(Confirmation::Standing)
        }
    }
}

fn this_process() -> Option<ProcessId> {
    let pid = std::process::id();
    Some(ProcessId {
        pid,
        start_time: start_time(pid)?,
    })
}

/// Takes the step's lease back, if any. A second try tells the agent only about improvements.
fn take_back(step: Step, first: bool, arguments: Arguments) -> Result<(), String> {
    let Some(key) = step.key() else { return Ok(()) };
    let node = Here::by_its_records(arguments)?;
    match node.take_back(key).map_err(|e| chain(&e))? {
        Some((taken, agent)) if first || taken.clean => tell(&agent, &Confirmation::TakenBack(taken)),
        _ => Ok(()),
    }
}

fn end_job(job: JobId, arguments: Arguments) -> Result<(), String> {
    let node = Here::by_its_records(arguments)?;
    for (taken, agent) in node.job_ended(job).map_err(|e| chain(&e))? {
        // The agent went with its job, as a rule.
        let _ = notify::send(&agent, &Confirmation::TakenBack(taken));
    }
    Ok(())
}

fn tell(agent: &Agent, line: &Confirmation) -> Result<(), String> {
    match line {
        Confirmation::Refused(refused) => ffi::log_error(&format!("refused: {}", refused.reason)),
        Confirmation::TakenBack(taken) if !taken.clean => {
            for holder in &taken.holders {
                ffi::log_error(&format!("lease {} is over, but {holder}", taken.lease));
            }
        }
        _ => {}
    }
    notify::send(agent, line)
        .map_err(|e| format!("the agent could not be told at {}: {e}", agent.socket.display()))
}

fn refusal(key: StepKey, lease: Option<LeaseId>, reason: Refusal) -> Confirmation {
    Confirmation::Refused(Refused {
        lease,
        pilot: key.job,
        step: key.step,
        reason,
        at: now(),
    })
}
