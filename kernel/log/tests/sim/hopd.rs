//! hopd's leases and the agents' devices, as far as a kernel's log rests on them: two devices, each in one hand; a lease is
//! granted to an incarnation; hopd hears the highest tenure alone.

use super::Bug;
use super::world::{Message, Party, World};
use hop_words::id::Tenure;
use std::collections::{BTreeMap, VecDeque};

#[derive(Debug)]
pub struct Lease {
    pub holder: u32,
    pub tenure: Tenure,
    pub device: usize,
    /// The device was taken back.
    pub over: bool,
}

#[derive(Default)]
pub struct Hopd {
    pub leases: BTreeMap<u64, Lease>,
    highest: Tenure,
    waiting: VecDeque<(u32, Tenure, u32)>,
}

const DEVICES: usize = 2;

impl World {
    pub fn hopd_hears(&mut self, from: Party, message: Message) {
        let Party::Node(replica) = from else { return };
        match message {
            Message::Submit { tenure, cell } if tenure >= self.hopd.highest => {
                self.hopd.highest = tenure;
                self.hopd.waiting.retain(|(_, t, c)| *t == tenure && *c != cell);
                self.hopd.waiting.push_back((replica, tenure, cell));
            }
            Message::Release { lease } => self.end_lease(lease),
            _ => {}
        }
    }

    /// Leases of older tenures and of dead replicas end; the oldest request is served.
    pub fn hopd_step(&mut self) {
        let highest = self.hopd.highest;
        let stale = |l: &Lease, alive: bool| !l.over && (!alive || l.tenure < highest);
        let ends: Vec<u64> = self
            .hopd
            .leases
            .iter()
            .filter(|(_, l)| stale(l, self.replicas.get(&l.holder).is_some_and(|r| r.alive)))
            .map(|(i, _)| *i)
            .collect();
        for lease in ends {
            self.end_lease(lease);
        }
        let Some((replica, tenure, cell)) = self.hopd.waiting.pop_front() else {
            return;
        };
        let lingering = self
            .hopd
            .leases
            .iter()
            .find(|(_, l)| !l.over && l.holder == replica)
            .map(|(i, _)| *i);
        let lease = lingering.or_else(|| self.grant(replica, tenure));
        match lease {
            Some(lease) => {
                let grant = Message::Grant { tenure, cell, lease };
                self.send(Party::Hopd, Party::Node(replica), grant);
            }
            None => self.hopd.waiting.push_front((replica, tenure, cell)),
        }
    }

    fn grant(&mut self, holder: u32, tenure: Tenure) -> Option<u64> {
        let taken: Vec<usize> = self
            .hopd
            .leases
            .values()
            .filter(|l| !l.over)
            .map(|l| l.device)
            .collect();
        let device = (0..DEVICES).find(|d| !taken.contains(d))?;
        let lease = self.hopd.leases.len() as u64 + 1;
        self.hopd.leases.insert(
            lease,
            Lease {
                holder,
                tenure,
                device,
                over: false,
            },
        );
        self.count("leases");
        Some(lease)
    }

    /// The agent takes the device back: whoever has it open is ended first.
    pub fn end_lease(&mut self, lease: u64) {
        let Some(known) = self.hopd.leases.get_mut(&lease) else {
            return;
        };
        known.over = true;
        let holder = known.holder;
        if self.has(Bug::NoTakeBack) {
            return;
        }
        let uses = self
            .replicas
            .get(&holder)
            .and_then(|r| r.process.as_ref())
            .is_some_and(|p| p.device == Some(lease));
        if uses {
            self.ipykernel_dies(holder);
        }
    }

    pub fn revoke_something(&mut self) {
        let live: Vec<u64> = self
            .hopd
            .leases
            .iter()
            .filter(|(_, l)| !l.over)
            .map(|(i, _)| *i)
            .collect();
        if let Some(lease) = self.rng.pick(&live) {
            self.end_lease(lease);
        }
    }
}
