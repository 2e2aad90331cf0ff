//! The agent's report at each connection, in frames that `hopd` takes.
//!
//! While the disk of `hopd` is full, no end is acknowledged and the agent keeps all of them. There are at most as many as
//! steps in a pilot (Slurm's MaxStepCount, 40,000), each of some 800 bytes: tens of megabytes, and one frame holds a
//! thousand. So a long report goes in parts. `hopd` judges the leases of the pilot by all parts together: a lease
//! whose end were still on its way would be lost to it.

use super::{AgentState, Output};
use hop_api::message::{AgentUp, EndedLease, LiveLease, Request};

/// Bytes of ended leases in one part: a quarter of what a frame may have.
const PART: usize = hop_api::channel::TO_HOPD_LIMIT / 4;

impl AgentState {
    /// Tells `hopd` everything, at each connection.
    pub(super) fn report_up(&self, out: &mut Vec<Output>) {
        let mut rest = self.agent_up();
        let mut parts = parts(std::mem::take(&mut rest.ended));
        let last = parts.pop().unwrap_or_default();
        let part = |ended, more| {
            Output::Report(Request::AgentUp(Box::new(AgentUp {
                ended,
                more,
                ..rest.clone()
            })))
        };
        out.extend(parts.into_iter().map(|ended| part(ended, true)));
        out.push(part(last, false));
    }

    /// All that `hopd` is to know.
    pub(crate) fn agent_up(&self) -> AgentUp {
        AgentUp {
            node: self.facts.node.clone(),
            pilot: self.facts.pilot,
            pool: self.facts.pool.clone(),
            gpus: self.facts.gpus.clone(),
            cpus: self.facts.cpus,
            ends: self.facts.ends,
            steps_used: self.steps_used,
            steps_max: self.facts.steps_max,
            term: self.term,
            leases: self
                .leases
                .values()
                .filter_map(|lease| {
                    lease.lent().map(|handover| LiveLease {
                        order: lease.order.clone(),
                        handover: handover.clone(),
                    })
                })
                .collect(),
            starting: self
                .leases
                .iter()
                .filter(|(_, lease)| lease.lent().is_none())
                .map(|(id, _)| *id)
                .collect(),
            ended: self.ended.values().cloned().collect(),
            draining: self.draining,
            standing: self.standing.clone(),
            more: false,
        }
    }
}

/// Divides ended leases by their size in a message.
fn parts(ended: Vec<EndedLease>) -> Vec<Vec<EndedLease>> {
    let mut parts: Vec<Vec<EndedLease>> = Vec::new();
    let mut room = 0;
    for ended in ended {
        let size = serde_json::to_vec(&ended).map_or(PART, |text| text.len());
        match parts.last_mut().filter(|_| size <= room) {
            Some(part) => part.push(ended),
            None => {
                parts.push(vec![ended]);
                room = PART;
            }
        }
        room = room.saturating_sub(size);
    }
    parts
}
