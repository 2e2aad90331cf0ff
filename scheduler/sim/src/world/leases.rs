//! Agents: they start leases and end them, after a while.

use super::{Event, World};
use hop_core::{DecidedLease, Input, ReportedEnd};
use hop_words::id::{GpuIndex, JobId, LeaseId};
use hop_words::lease::EndCause;
use hop_words::time::{Span, Timestamp};

pub(super) struct Lease {
    pub pilot: JobId,
    pub session: usize,
    pub gpus: u16,
    pub ordered: Timestamp,
    pub devices: Vec<usize>,
    pub start: DecidedLease,
    /// Its cell was parked: nothing has to leave the GPUs.
    pub off: bool,
}

impl World<'_> {
    pub(super) fn start_lease(&mut self, start: DecidedLease) {
        let id = start.lease;
        let session = self.by_kernel[&start.kernel];
        self.slurm.pilot(start.pilot).leases += 1;
        let lease = Lease {
            pilot: start.pilot,
            session,
            gpus: start.gpus,
            ordered: self.now,
            devices: Vec::new(),
            start,
            off: false,
        };
        self.leases.insert(id, lease);
        let takes = self.cluster.latency.lease.draw(&mut self.rng);
        self.after(takes, Event::Started(id));
    }

    pub(super) fn started(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let (pilot, gpus) = (lease.pilot, usize::from(lease.gpus));
        let slots = &mut self.slurm.pilot(pilot).free;
        let free: Vec<usize> = (0..slots.len()).filter(|&i| slots[i]).take(gpus).collect();
        assert!(free.len() == gpus, "the core lends more GPUs than there are");
        for &i in &free {
            slots[i] = false;
        }
        let devices = free.iter().map(|&i| GpuIndex(i as u16)).collect();
        lease.devices = free;
        self.tell(Input::LeaseStarted {
            lease: id,
            pilot,
            devices,
        });
    }

    pub(super) fn end_lease(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.get(&id) else {
            return;
        };
        let leaves = lease.gpus > 0 && !lease.devices.is_empty() && !lease.off;
        let park = match leaves {
            true => self.park_takes(lease.session),
            false => Span::ZERO,
        };
        let takes = self.cluster.latency.take_back.draw(&mut self.rng);
        self.after(takes + park, Event::Ended(id));
    }

    pub(super) fn ended(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.remove(&id) else {
            return;
        };
        let pilot = self.slurm.pilot(lease.pilot);
        pilot.leases -= 1;
        for &i in &lease.devices {
            pilot.free[i] = true;
        }
        let empty = pilot.draining && pilot.leases == 0;
        if !lease.devices.is_empty() && !lease.off {
            self.is_parked(lease.session);
        }
        self.result
            .held
            .span(lease.ordered, self.now, i64::from(lease.gpus));
        let ended = ReportedEnd {
            lease: id,
            cause: EndCause::Done,
            clean: true,
            detail: String::new(),
        };
        let pilot = lease.pilot;
        self.tell(Input::LeaseEnded { pilot, ended });
        if empty {
            let takes = self.cluster.latency.pilot_end.draw(&mut self.rng);
            self.after(takes, Event::PilotEnded(lease.pilot));
        }
    }
}
