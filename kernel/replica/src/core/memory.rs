//! The place of the kernel's GPU memory, and its moves as leases come and go.
//!
//! [`Park`] decides. The shell carries out its acts by a child process, `hop gpu`, so that the replica never opens a
//! device file (docs/gpu-park.md).

use super::lease::Lease;
use super::wording;
use super::{Core, Output};
use bytes::Bytes;
use hop_api::message::{Outcome, Request as ToHopd};
use hop_words::id::{CellId, LeaseId};
use hop_words::time::Span;
use std::path::PathBuf;

/// The place of the kernel's GPU memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Park {
    /// The memory is on the kernel's GPUs, or there is none.
    #[default]
    Home,
    /// A running cell is being stopped, for its memory to be taken off the GPUs.
    Stopping(Meanwhile),
    /// The memory is being taken off the GPUs. `wanted` means that a new lease waits until the memory is off.
    Leaving { wanted: bool },
    /// The memory is in host memory.
    Away,
    /// The memory is being brought back for a lease.
    Returning(Target),
}

/// Present state of the lease for which memory is being brought back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Held,
    Over,
    /// The lease is over, and there is another lease.
    Another,
}

/// Present state of the cell under the stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meanwhile {
    /// The cell runs, as far as is known.
    Runs,
    /// The cell has ended by itself.
    Ended,
    /// The cell has ended, and its lease is over.
    Over,
    /// The cell has ended. Another lease, or the same lease for another cell, waits until the end of the stop.
    Wanted,
}

/// How taking the memory off ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Left {
    /// The kernel held no GPU.
    Nothing,
    Parked,
    /// Some of the memory is in host memory, the rest still on the GPU. The text gives the reason.
    Half(String),
    /// The memory is on the GPU. The text gives the reason.
    Failed(String),
}

/// How bringing the memory back ended. The texts give the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Returned {
    Back,
    StillAway(String),
    Half(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Act {
    Leave,
    Return,
    /// Take the memory off by the driver alone, in the middle of a cell.
    Stop,
    /// The cell stands still, and the GPUs hold none of its memory.
    Stopped,
    /// The cell can't be stopped, and runs on.
    RunsOn(String),
    /// The lease that waits can be used.
    Proceed,
    /// The lease that waits can't be used.
    Refuse(String),
    /// The kernel's user should know: the kernel is still on a GPU of a lease that is over.
    Warn(String),
}

impl Park {
    /// Asks the running cell to leave its GPUs during its run.
    pub(super) fn asked(&mut self) -> Vec<Act> {
        match self {
            Self::Home => {
                *self = Self::Stopping(Meanwhile::Runs);
                vec![Act::Stop]
            }
            // The answer is on its way.
            Self::Stopping(_) => Vec::new(),
            Self::Leaving { .. } | Self::Away | Self::Returning(_) => {
                vec![Act::RunsOn(
                    "its GPU memory is on its way to the GPU or off it just now".into(),
                )]
            }
        }
    }

    /// The cell under the stop has ended.
    pub(super) fn cell_ended(&mut self) {
        if let Self::Stopping(meanwhile @ Meanwhile::Runs) = self {
            *meanwhile = Meanwhile::Ended;
        }
    }

    pub(super) fn stopped(&mut self, how: Left) -> Vec<Act> {
        use Meanwhile::{Ended, Over, Runs, Wanted};
        let Self::Stopping(meanwhile) = *self else {
            return Vec::new();
        };
        let off = |park: &mut Self, out| {
            *park = Self::Away;
            out
        };
        let on = |park: &mut Self, out| {
            *park = Self::Home;
            out
        };
        match (how, meanwhile) {
            // The take-back of the lease ends the other processes that hold the device.
            (Left::Parked | Left::Half(_), Runs) => off(self, vec![Act::Stopped]),
            (Left::Parked | Left::Half(_), Ended | Over) => off(self, Vec::new()),
            (Left::Parked | Left::Half(_), Wanted) => self.go_back(),
            (Left::Failed(why), Runs) => on(self, vec![Act::RunsOn(why)]),
            (Left::Nothing, Runs) => on(self, vec![Act::RunsOn("it holds no GPU".into())]),
            (Left::Failed(_) | Left::Nothing, Ended) => on(self, Vec::new()),
            (Left::Failed(_) | Left::Nothing, Over) => self.leave(false),
            (Left::Failed(_) | Left::Nothing, Wanted) => on(self, vec![Act::Proceed]),
        }
    }

    /// A lease of GPUs was granted: nothing else may be granted before [`Act::Proceed`] or [`Act::Refuse`].
    pub(super) fn granted(&mut self) -> Vec<Act> {
        match self {
            Self::Home => vec![Act::Proceed],
            Self::Stopping(meanwhile) => {
                *meanwhile = Meanwhile::Wanted;
                Vec::new()
            }
            Self::Leaving { wanted } => {
                *wanted = true;
                Vec::new()
            }
            Self::Away => self.go_back(),
            Self::Returning(lease) => {
                *lease = Target::Another;
                Vec::new()
            }
        }
    }

    /// The lease is over, and no cell runs on it.
    pub(super) fn lease_over(&mut self) -> Vec<Act> {
        match self {
            Self::Home => self.leave(false),
            Self::Stopping(meanwhile) => {
                *meanwhile = Meanwhile::Over;
                Vec::new()
            }
            Self::Leaving { wanted } => {
                *wanted = false;
                Vec::new()
            }
            Self::Away => Vec::new(),
            Self::Returning(lease) => {
                *lease = Target::Over;
                Vec::new()
            }
        }
    }

    pub(super) fn left(&mut self, how: Left) -> Vec<Act> {
        let Self::Leaving { wanted } = *self else {
            return Vec::new();
        };
        match how {
            Left::Nothing => {
                *self = Self::Home;
                proceed(wanted).collect()
            }
            Left::Parked if wanted => self.go_back(),
            Left::Parked => {
                *self = Self::Away;
                Vec::new()
            }
            Left::Half(why) => {
                let mut out = vec![Act::Warn(why)];
                *self = Self::Away;
                if wanted {
                    out.extend(self.go_back());
                }
                out
            }
            Left::Failed(why) => {
                *self = Self::Home;
                std::iter::once(Act::Warn(why)).chain(proceed(wanted)).collect()
            }
        }
    }

    pub(super) fn returned(&mut self, how: Returned) -> Vec<Act> {
        let Self::Returning(lease) = *self else {
            return Vec::new();
        };
        match (how, lease) {
            (Returned::Back, Target::Held) => {
                *self = Self::Home;
                vec![Act::Proceed]
            }
            (Returned::Back | Returned::Half(_), Target::Over) => self.leave(false),
            // The memory is on the GPU of a lease that is over. First the memory leaves, then it goes to the other
            // lease's GPU.
            (Returned::Back | Returned::Half(_), Target::Another) => self.leave(true),
            (Returned::StillAway(_), Target::Another) => self.go_back(),
            (Returned::StillAway(_), Target::Over) => {
                *self = Self::Away;
                Vec::new()
            }
            (Returned::StillAway(why), Target::Held) => {
                *self = Self::Away;
                vec![Act::Refuse(why)]
            }
            (Returned::Half(why), Target::Held) => {
                let mut out = vec![Act::Refuse(why)];
                out.extend(self.leave(false));
                out
            }
        }
    }

    /// Whether the memory is on its way off a GPU, or has to leave again after its return.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(
            self,
            Self::Leaving { .. } | Self::Returning(Target::Over | Target::Another) | Self::Stopping(_)
        )
    }

    fn leave(&mut self, wanted: bool) -> Vec<Act> {
        *self = Self::Leaving { wanted };
        vec![Act::Leave]
    }

    fn go_back(&mut self) -> Vec<Act> {
        *self = Self::Returning(Target::Held);
        vec![Act::Return]
    }
}

fn proceed(wanted: bool) -> impl Iterator<Item = Act> {
    wanted.then_some(Act::Proceed).into_iter()
}

/// The last lease of GPUs: the kernel may hold memory on these GPUs after its cell's end.
#[derive(Debug)]
pub(super) struct Last {
    pub(super) id: LeaseId,
    pub(super) devices: Vec<PathBuf>,
    /// The header of the lease's first cell. The user reads of the memory's moves under that cell.
    pub(super) header: Bytes,
    pub(super) grace: Span,
}

/// The kernel's GPU memory, and the leases to give back once the memory has left.
#[derive(Debug, Default)]
pub(super) struct Gpu {
    pub(super) park: Park,
    pub(super) last: Option<Last>,
    /// A cell that should end because its lease is over, and the lease. The kernel leaves the lease's GPUs after
    /// the cell's end.
    pub(super) after: Option<(CellId, LeaseId)>,
    /// Leases to give back, once no memory is on its way off a GPU.
    pub(super) leaving: Vec<LeaseId>,
    /// The sentence for the user if the kernel is killed now.
    pub(super) doomed: Option<String>,
    /// The lease that the kernel may keep if it can't let go of the lease's GPUs.
    pub(super) may_hold: Option<LeaseId>,
    /// Set while the kernel can't let go of its last lease's GPUs.
    pub(super) held: Option<StillHeld>,
}

/// A lease whose GPUs the kernel can't let go of.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StillHeld {
    pub(super) lease: LeaseId,
    why: String,
    /// The user was told whether the lease stays.
    told: bool,
    /// Why the lease must go all the same. `None` means that the lease stays, as far as is known.
    wanted: Option<String>,
}

impl Gpu {
    /// Whether the lease is over, and its cell should end.
    pub(super) fn is_revoked(&self, lease: LeaseId) -> bool {
        self.after.as_ref().is_some_and(|(_, after)| *after == lease)
    }

    /// Stops waiting for the end of the lease's cell, which stands still now and is off the GPUs. Returns whether the
    /// cell should have ended.
    pub(super) fn revoked_meanwhile(&mut self, lease: LeaseId) -> bool {
        let revoked = self.after.take_if(|(_, after)| *after == lease).is_some();
        if revoked {
            self.doomed = None;
            self.last = None;
        }
        revoked
    }

    /// Why the kernel can't let go of the lease's GPUs.
    pub(super) fn why_held(&self, lease: LeaseId) -> Option<&str> {
        let held = self.held.as_ref().filter(|held| held.lease == lease);
        held.map(|held| held.why.as_str())
    }

    fn grace(&self) -> Span {
        self.last.as_ref().map_or(Span::ZERO, |last| last.grace)
    }
}

/// An errand of `hop gpu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errand {
    /// Take the memory off by the first rung that works (docs/gpu-park.md, "The ladder").
    Leave,
    /// Take the memory off during a cell's run, by the driver alone. Memory that doesn't come off is put back.
    Stop,
    /// As [`Self::Stop`], at the end of a lease whose cell stood still and was on its way back.
    StopAgain,
    /// Bring the memory back.
    Return,
}

/// How an errand ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ErrandEnd {
    Left(Left),
    Stopped(Left),
    Returned(Returned),
    /// The driver can do nothing with the process any more. The text gives the reason.
    Broken(String),
}

impl Core {
    /// Leaves the lease's GPUs, since no cell runs on the lease any more.
    pub(super) fn leave(&mut self, lease: LeaseId) {
        self.gpu.leaving.push(lease);
        let acts = self.gpu.park.lease_over();
        self.carry_out(acts);
    }

    /// Tells `hopd` that no memory of the kernel is on its way off the lease's devices any more.
    pub(super) fn release_lease(&mut self, lease: LeaseId) {
        let (kernel, tenure) = self.office();
        self.tell_hopd(ToHopd::ReleaseLease {
            kernel,
            tenure,
            lease,
        });
    }

    /// Gives back the last lease if the process ends between two cells: the memory on the GPUs ends with the process.
    pub(super) fn leave_devices(&mut self) {
        self.gpu.held = None;
        if let Some(last) = self.gpu.last.take() {
            self.release_lease(last.id);
        }
    }

    /// After a cell's end, leaves the GPUs of a lease that was over before the cell.
    pub(super) fn leave_after(&mut self, cell: &CellId) {
        if let Some((_, lease)) = self.gpu.after.take_if(|(after, _)| after == cell) {
            match &self.gpu.last {
                // A block of the cell has a newer lease, now the lease of the kernel's memory.
                Some(last) if last.id != lease => self.release_lease(lease),
                _ => self.leave(lease),
            }
        }
    }

    /// Handles the end of an errand.
    pub(super) fn errand_ended(&mut self, end: ErrandEnd) {
        let park = &mut self.gpu.park;
        let in_a_cell = matches!(self.lease, Lease::Stopping(..) | Lease::Standing(_));
        let acts = match end {
            ErrandEnd::Stopped(how) => park.stopped(how),
            ErrandEnd::Broken(why) if in_a_cell => return self.end_kernel(wording::lost_by_driver(&why)),
            ErrandEnd::Broken(why) => match park {
                Park::Stopping(_) => park.stopped(Left::Failed(why)),
                Park::Leaving { .. } => park.left(Left::Failed(why)),
                _ => park.returned(Returned::StillAway(why)),
            },
            ErrandEnd::Left(how) => {
                if !matches!(how, Left::Failed(_) | Left::Half(_)) {
                    self.gpu.doomed = None;
                    self.gpu.held = None;
                }
                park.left(how)
            }
            ErrandEnd::Returned(how) => park.returned(how),
        };
        self.carry_out(acts);
    }

    /// Carries out the decisions of [`Park`].
    pub(super) fn carry_out(&mut self, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Leave => {
                    self.gpu.doomed = self
                        .gpu
                        .last
                        .as_ref()
                        .map(|last| wording::parked_too_slowly(last.grace));
                    match self.lease {
                        // The lease ended during the return of its stopped cell.
                        Lease::Standing(_) => self.send_errand(Errand::StopAgain),
                        _ => self.send_errand(Errand::Leave),
                    }
                }
                Act::Stop => self.send_errand(Errand::Stop),
                Act::Stopped => self.stopped(),
                Act::RunsOn(why) => self.runs_on(why),
                Act::Return => self.send_errand(Errand::Return),
                Act::Proceed => self.proceed(),
                Act::Refuse(why) => self.give_up(&why),
                Act::Warn(why) => self.warn(&why),
            }
        }
        if !self.gpu.park.is_leaving() {
            self.release_left();
        }
    }

    /// Gives back the leases that are over. If the kernel can't let go of a lease, and may keep the lease, `hopd`
    /// is told instead.
    pub(super) fn release_left(&mut self) {
        for lease in std::mem::take(&mut self.gpu.leaving) {
            match &self.gpu.held {
                Some(held) if held.lease == lease => {
                    let ((kernel, tenure), why) = (self.office(), held.why.clone());
                    self.tell_hopd(ToHopd::StillHeld {
                        kernel,
                        tenure,
                        lease,
                        why,
                    });
                }
                _ => self.release_lease(lease),
            }
        }
    }

    /// The user wants to give the lease back. If the kernel can't let go of it, the kernel keeps the lease, and the
    /// user reads why.
    pub(super) fn user_lets_go(&mut self, lease: LeaseId) {
        self.gpu.may_hold = Some(lease);
        if let Some(held) = &mut self.gpu.held {
            held.told = false;
        }
    }

    /// Tries again to leave GPUs that the kernel held on to: the cell that has ended may have let go of them.
    pub(super) fn let_go_if_held(&mut self) {
        let held = self.gpu.held.as_ref().map(|held| held.lease);
        let idle = matches!(self.lease, Lease::None) && self.cells.running().is_none();
        if let Some(lease) = held.filter(|_| idle && self.gpu.park == Park::Home) {
            self.leave(lease);
        }
    }

    /// Follows `hopd`'s decision on GPUs that the kernel can't let go of. `None` means that the kernel keeps them;
    /// otherwise `wanted` says why the kernel must leave.
    pub(super) fn held(&mut self, lease: LeaseId, wanted: Option<&str>, within: Span) {
        let Some(held) = self.gpu.held.as_mut().filter(|held| held.lease == lease) else {
            return;
        };
        let news = !std::mem::replace(&mut held.told, true) || held.wanted.is_some() != wanted.is_some();
        held.wanted = wanted.map(str::to_owned);
        if wanted.is_none() {
            self.lingers_on(lease);
        }
        let Some(held) = &self.gpu.held else {
            return;
        };
        let text = match wanted {
            Some(wanted) => wording::must_let_go(wanted, &held.why, within),
            None => wording::stays_held(&held.why, within),
        };
        self.gpu.doomed = wanted.map(|wanted| wording::held_on(wanted, &held.why));
        if let Some(header) = self.gpu.last.as_ref().map(|last| last.header.clone())
            && news
        {
            self.stderr(&header, &text);
        }
    }

    fn send_errand(&mut self, errand: Errand) {
        let devices = self.gpu.last.as_ref().map(|last| last.devices.clone());
        self.out.push(Output::Gpu(errand, devices.unwrap_or_default()));
    }

    /// Gives back a lease that was granted and can't be used. The cell's user reads why.
    fn give_up(&mut self, why: &str) {
        let (cell, lease) = match &self.lease {
            Lease::Standing(_) => return self.can_not_return(why),
            Lease::Returning(seeker, _, grant) => (seeker.id.clone(), grant.lease),
            _ => return,
        };
        self.cell_ended(&cell, lease, self.now, Outcome::Aborted);
        self.release_lease(lease);
        self.refused(&cell, wording::can_not_go_back(why));
    }

    fn warn(&mut self, why: &str) {
        let last = self.gpu.last.as_ref().map(|last| last.id);
        // The next cell came while the kernel tried to let go, and has the same lease, so nothing goes back.
        if last.is_some() && last == self.lease.granted().map(|(lease, _)| lease) {
            return;
        }
        if let Some(lease) = last.filter(|id| self.gpu.may_hold == Some(*id) && self.gpu.leaving.contains(id))
        {
            let before = self.gpu.held.take().filter(|held| held.lease == lease);
            let held = StillHeld {
                lease,
                why: why.to_owned(),
                told: before.as_ref().is_some_and(|held| held.told),
                wanted: before.and_then(|held| held.wanted),
            };
            self.gpu.doomed = Some(match &held.wanted {
                Some(wanted) => wording::held_on(wanted, why),
                None => wording::held_too_long(why, self.gpu.grace()),
            });
            self.gpu.held = Some(held);
            return;
        }
        let grace = self.gpu.grace();
        if let Some(header) = self.gpu.last.as_ref().map(|last| last.header.clone()) {
            self.stderr(&header, &wording::still_holds(why, grace));
            self.gpu.doomed = Some(wording::held_too_long(why, grace));
        }
    }
}

#[cfg(test)]
mod tests;
