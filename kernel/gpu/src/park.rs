//! Parking and unparking a process: the ladder's choice, the machine that carries it out, and the next rung after a
//! failure.

use crate::Pid;
use crate::calls::{Calls, Log};
use crate::driver::ProcessState;
use crate::inspect::{Look, LookError, Site};
use crate::ladder::{self, Chosen, Place, Reason, Refusal, RemapError, Rung, choose};
use crate::machine::{Call, Halves, Machine, Outcome};
use crate::proof::{self, Left};
use crate::record::Record;
use crate::reserve::Want;
use serde::Serialize;
use std::io;
use std::process::Command;

/// Rung (d): saves a kernel's state, restarts its interpreter, and restores. The state engine implements it where
/// available.
pub trait Restart {
    /// What could be saved of a process.
    ///
    /// # Errors
    /// It can't be saved; the text is for people.
    fn offer(&self, pid: Pid) -> Result<ladder::StateOffer, String>;

    /// Saves the process's state and restarts its interpreter under the same pid. Its agent restores the state when
    /// the device is back.
    ///
    /// # Errors
    /// The text is for people. The process is as it was.
    fn restart(&self, pid: Pid) -> Result<(), String>;
}

/// No state engine.
#[derive(Debug, Clone, Copy)]
pub struct NoRestart;

impl Restart for NoRestart {
    fn offer(&self, _: Pid) -> Result<ladder::StateOffer, String> {
        Err(ladder::NO_STATE.to_owned())
    }

    fn restart(&self, _: Pid) -> Result<(), String> {
        Err(ladder::NO_STATE.to_owned())
    }
}

/// Facts and callbacks that the caller of a park or an unpark provides.
#[allow(missing_debug_implementations, reason = "closures")]
pub struct ParkContext<'a> {
    /// Returns the command of a process that ends in [`crate::reserve::hold`].
    pub reserver: &'a dyn Fn(Want) -> Command,
    /// Told before each call.
    pub progress: &'a dyn Fn(Call),
    pub restart: &'a dyn Restart,
    /// Only this rung, if any: for measurements and for `--rung`.
    pub only: Option<Rung>,
    /// A cell runs in the process: the driver alone stops the process in place, without a word to the process.
    pub mid_cell: bool,
}

/// Result of a park or an unpark.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub pid: Pid,
    pub rung: Option<Rung>,
    #[serde(flatten)]
    pub outcome: Outcome,
    pub passed_over: ladder::PassedOver,
    pub log: Log,
    pub left: Option<Left>,
    pub device_bytes: Option<u64>,
}

/// A park or unpark that didn't begin.
#[derive(Debug, thiserror::Error)]
pub enum ParkError {
    #[error(transparent)]
    Look(#[from] LookError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("process {pid} is parked already")]
    AlreadyParked { pid: Pid },
    #[error("process {pid} isn't parked")]
    NotParked { pid: Pid },
    #[error("process {pid} is {state} by somebody else; ending that is theirs to do")]
    SomebodyElse { pid: Pid, state: ProcessState },
    #[error("the way back can't be written down, so process {pid} was left as it is")]
    Record {
        pid: Pid,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Remap(#[from] RemapError),
    #[error(
        "process {pid} can't be stopped in the middle of a cell: {}",
        sentences(reasons)
    )]
    MidCell { pid: Pid, reasons: Vec<Reason> },
}

fn sentences(reasons: &[Reason]) -> String {
    let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
    reasons.join("; ")
}

/// Takes a process off its devices, by the first rung without a reason against it.
///
/// # Errors
/// It isn't the caller's, is parked already, or no rung leads off.
pub fn park(site: &Site, pid: Pid, context: &ParkContext<'_>) -> Result<Report, ParkError> {
    let mut look = site.look(pid)?;
    if site
        .records(look.uid)
        .get(pid, look.start_time)
        .is_some_and(|r| !r.half_back)
    {
        return Err(ParkError::AlreadyParked { pid });
    }
    if let Some(state) = look.state.filter(|state| *state != ProcessState::Running) {
        return Err(ParkError::SomebodyElse { pid, state });
    }
    if context.mid_cell {
        return mid_cell(site, &look, context);
    }
    if let Some(only) = context.only {
        let others = Rung::ALL.into_iter().filter(|rung| *rung != only);
        look.found
            .tried
            .extend(others.map(|rung| (rung, "another rung was asked for".to_owned())));
    }
    let mut offered = false;
    loop {
        let chosen = match choose(&look.found) {
            Ok(chosen) if chosen.rung < Rung::Restart => chosen,
            // Asking the state engine costs a look at everything, so only where no quicker rung leads off.
            _ if !offered => {
                offered = true;
                look.found.state = context.restart.offer(pid);
                continue;
            }
            chosen => chosen?,
        };
        let report = attempt(site, &look, &chosen, context)?;
        match &report.outcome {
            // Moving is only a choice here: the scheduler carries it out.
            Outcome::NotParked { why } if chosen.rung != Rung::Move => {
                look.found.tried.push((chosen.rung, why.clone()))
            }
            _ => return Ok(report),
        }
    }
}

fn mid_cell(site: &Site, look: &Look, context: &ParkContext<'_>) -> Result<Report, ParkError> {
    let whole = |s: crate::telemetry::Sample| s.devices.iter().filter(|d| d.parent.is_none()).count();
    let reasons = ladder::against_mid_cell(&look.found, look.state, site.sample().map(whole));
    if !reasons.is_empty() {
        return Err(ParkError::MidCell {
            pid: look.pid,
            reasons,
        });
    }
    let by_the_driver = Chosen {
        rung: Rung::Checkpoint,
        passed_over: Vec::new(),
    };
    attempt(site, look, &by_the_driver, context)
}

fn attempt(
    site: &Site,
    look: &Look,
    chosen: &Chosen,
    context: &ParkContext<'_>,
) -> Result<Report, ParkError> {
    let halves = match chosen.rung {
        Rung::CopyOut => Halves {
            inside: true,
            driver: true,
        },
        Rung::Checkpoint => Halves {
            inside: false,
            driver: true,
        },
        Rung::Nothing => return Ok(plain(look, chosen, nothing(site, look))),
        Rung::Restart => {
            let outcome = restart(site, look, context)?;
            return Ok(plain(look, chosen, outcome));
        }
        Rung::Move => {
            return Ok(plain(
                look,
                chosen,
                Outcome::NotParked {
                    why: "moving is the scheduler's".into(),
                },
            ));
        }
    };
    let record = Record {
        devices: look.places.clone(),
        device_bytes: look.found.device_bytes,
        frameworks_bytes: look.found.inside.as_ref().map_or(0, |i| i.frameworks_bytes),
        mid_cell: context.mid_cell,
        ..Record::new(look.pid, look.start_time, halves)
    };
    // Written before the first call: whatever dies on the way, the way back is known.
    let records = site.records(look.uid);
    records.put(&record).map_err(|source| ParkError::Record {
        pid: look.pid,
        source,
    })?;
    let mut calls = Calls::new(
        site,
        &record,
        look.uid,
        Vec::new(),
        context.reserver,
        context.progress,
    );
    let outcome = calls.drive(Machine::park(halves));
    match &outcome {
        Outcome::NotParked { .. } => {
            calls.unguard();
            records.remove(look.pid);
        }
        Outcome::HalfBack { .. } => {
            let half = Record {
                half_back: true,
                ..record.clone()
            };
            records.put(&half).map_err(|source| ParkError::Record {
                pid: look.pid,
                source,
            })?;
        }
        _ => {}
    }
    let left = (outcome == Outcome::Parked).then(|| calls.left());
    Ok(Report {
        log: calls.log,
        left,
        ..plain(look, chosen, outcome)
    })
}

fn plain(look: &Look, chosen: &Chosen, outcome: Outcome) -> Report {
    Report {
        pid: look.pid,
        rung: Some(chosen.rung),
        outcome,
        passed_over: chosen.passed_over.clone(),
        log: Log::default(),
        left: None,
        device_bytes: look.found.device_bytes,
    }
}

/// Rung (a): a process that never touched CUDA has left nothing; a look proves it.
fn nothing(site: &Site, look: &Look) -> Outcome {
    let procs = &site.sources.procs;
    let left = proof::look(&procs.tree(look.pid), procs, site.sample_or_gap().as_ref());
    match left.is_empty() {
        true => Outcome::Parked,
        false => Outcome::NotParked {
            why: left.to_string(),
        },
    }
}

/// Rung (d): the process restarts under its pid. The proof for its devices is the same as after any other rung.
fn restart(site: &Site, look: &Look, context: &ParkContext<'_>) -> Result<Outcome, ParkError> {
    if let Err(why) = context.restart.restart(look.pid) {
        return Ok(Outcome::NotParked { why });
    }
    // Bringing the process back is the agent's part: the next cell restores the variables once the device is there.
    let halves = Halves {
        inside: true,
        driver: false,
    };
    let record = Record {
        devices: look.places.clone(),
        device_bytes: look.found.device_bytes,
        ..Record::new(look.pid, look.start_time, halves)
    };
    site.records(look.uid)
        .put(&record)
        .map_err(|source| ParkError::Record {
            pid: look.pid,
            source,
        })?;
    Ok(nothing(site, look))
}

/// Brings a parked process back, onto `given` devices or onto its former ones. A process without a record (rung a)
/// needs nothing.
///
/// # Errors
/// The process isn't the caller's, isn't parked, or can't come back onto these devices.
pub fn unpark(
    site: &Site,
    pid: Pid,
    given: &[Place],
    context: &ParkContext<'_>,
) -> Result<Report, ParkError> {
    let look = site.look_from_outside(pid)?;
    let records = site.records(look.uid);
    let Some(record) = records.get(pid, look.start_time) else {
        return Err(ParkError::NotParked { pid });
    };
    let api = site.driver.as_ref().ok().and_then(|driver| driver.api());
    let pairs = match given {
        [] => Vec::new(),
        given => ladder::remap(&record.devices, given, api)?,
    };
    let halves = record.halves;
    let machine = match record.half_back {
        true => Machine::finish_half_back(halves),
        false => resume(halves, look.state),
    };
    let mut calls = Calls::new(site, &record, look.uid, pairs, context.reserver, context.progress);
    let outcome = calls.drive(machine);
    match &outcome {
        Outcome::Unparked => {
            calls.unguard();
            records.remove(pid);
        }
        Outcome::HalfBack { .. } => {
            let half = Record {
                half_back: true,
                ..record.clone()
            };
            records
                .put(&half)
                .map_err(|source| ParkError::Record { pid, source })?;
        }
        _ => {}
    }
    Ok(Report {
        pid,
        rung: Some(match halves {
            Halves { driver: false, .. } => Rung::Restart,
            Halves { inside: true, .. } => Rung::CopyOut,
            Halves { .. } => Rung::Checkpoint,
        }),
        outcome,
        passed_over: Vec::new(),
        log: calls.log,
        left: None,
        device_bytes: record.device_bytes,
    })
}

/// The way back from where the process stands: whoever parked it may have died on the way.
fn resume(halves: Halves, state: Option<ProcessState>) -> (Machine, crate::machine::Next) {
    match state {
        Some(ProcessState::Locked) => Machine::unlock(halves),
        Some(ProcessState::Running) if halves.inside => Machine::finish_half_back(halves),
        _ => Machine::unpark(halves),
    }
}
