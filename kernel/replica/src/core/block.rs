//! `with gresshopper.gpu():`: leases that code asks for in the middle of a cell, over the agent channel
//! (docs/agent-wire.md).

use super::lease::{Holder, Kind, Lease, Seeker};
use super::{Core, Output, wording};
use crate::agent::{self, Parcel};
use crate::need::{self, Unattended};
use hop_api::message::Outcome;
use hop_words::id::CellId;
use hop_words::need::Need;
use serde_json::{Value, json};

impl Core {
    /// The agent inside the kernel said something.
    pub(super) fn agent(&mut self, parcel: Parcel) {
        match parcel.wire.op.as_deref() {
            Some("state.cell" | "state.record") => return self.captured(parcel),
            Some("state.failed") => return self.captures_fail(parcel.wire.body),
            Some("state.audited") => return self.audited(&parcel.wire.body),
            Some("state.notice") => return self.tell_restored(parcel.wire.body),
            Some("state.begins") => return self.begins(parcel.wire.body),
            _ => {}
        }
        let wire = parcel.wire;
        if let Some(answered) = wire.re {
            let answer = match (wire.ok, wire.error) {
                (_, Some(error)) => Err(error.message),
                (ok, None) => Ok(ok.unwrap_or_default()),
            };
            return self.agent_answered(answered, answer);
        }
        match (wire.op.as_deref(), wire.id) {
            (Some("hello"), Some(id)) => self.hello(id, &wire.body),
            (Some("need.acquire"), Some(id)) => self.acquire(id, &wire.body),
            (Some("need.status"), Some(id)) => {
                let notice = self.notice();
                self.answer_agent(id, notice);
            }
            (Some("need.end_linger"), Some(id)) => {
                let ended = self.end_linger();
                self.answer_agent(id, json!({"ended": ended}));
            }
            (Some("need.release"), id) => {
                self.release_block();
                if let Some(id) = id {
                    self.answer_agent(id, json!({}));
                }
            }
            (Some(op), Some(id)) => self.refuse_agent(id, "unknown", &format!("there is no operation {op}")),
            _ => {}
        }
    }

    pub(super) fn answer_agent(&mut self, id: u64, body: Value) {
        self.out.push(Output::ToAgent(Parcel::answer(id, body)));
    }

    pub(super) fn refuse_agent(&mut self, id: u64, kind: &str, text: &str) {
        self.out.push(Output::ToAgent(Parcel::refuse(id, kind, text)));
    }

    fn hello(&mut self, id: u64, body: &Value) {
        let (answer, speaks) = answer_to_hello(id, body);
        self.out.push(Output::ToAgent(answer));
        if speaks {
            self.greeted();
        }
    }

    /// A block begins.
    fn acquire(&mut self, id: u64, body: &Value) {
        let need = match need::of_value(body["need"].clone()) {
            Ok(need) => need,
            Err(problem) => return self.refuse_agent(id, "invalid", &problem),
        };
        if self.lease.seeker().is_some_and(|s| s.as_cell().is_none()) {
            return self.refuse_agent(id, "busy", wording::ANOTHER_BLOCK);
        }
        match &self.lease {
            Lease::None => self.ask_for_block(id, need),
            Lease::Held(holder) | Lease::Stopping(holder, _) => {
                let shared = shared(holder, &need);
                self.share(id, shared);
            }
            Lease::Standing(standing) => match &standing.grant {
                Some((grant, _)) => {
                    let enough = covers(&standing.seeker.need, &need);
                    let shared = enough.then(|| wording::describe(grant, &self.identity.models));
                    self.share(id, shared);
                }
                None => self.refuse_agent(id, "busy", wording::CELL_IS_PARKED),
            },
            Lease::Asked(..) | Lease::Returning(..) => self.refuse_agent(id, "busy", wording::CELL_WAITS),
        }
    }

    fn ask_for_block(&mut self, request: u64, need: Need) {
        let inside = self.cells.running().cloned();
        self.blocks += 1;
        let base = inside.as_ref().map_or("background", CellId::as_str);
        let run = inside
            .as_ref()
            .and_then(|c| self.cells.find(c))
            .map(|c| c.run.clone());
        let run: Unattended = run.unwrap_or_default();
        let need = run.hurry(need);
        self.ask(Seeker {
            id: format!("{base}/{}", self.blocks).into(),
            header: inside
                .as_ref()
                .map_or_else(super::cells::no_header, |c| self.cells.header(c)),
            class: need::class_of(&need, &run),
            print: 0,
            need,
            kind: Kind::Block { request, inside },
        });
    }

    /// The cell around the block has a lease by its magic. A block within that lease is granted, and gives nothing
    /// back.
    fn share(&mut self, id: u64, described: Option<Value>) {
        match described {
            Some(mut grant) => {
                grant["shared"] = true.into();
                self.answer_agent(id, grant);
            }
            None => self.refuse_agent(id, "busy", wording::LEASE_TOO_SMALL),
        }
    }

    /// A block ends, or was interrupted in its wait.
    fn release_block(&mut self) {
        let Some(seeker) = self.lease.seeker().filter(|s| s.as_cell().is_none()) else {
            return;
        };
        let block = seeker.id.clone();
        match &self.lease {
            Lease::Asked(..) | Lease::Returning(..) => {
                self.lease = Lease::None;
                self.withdraw(&block);
            }
            _ => self.lease_used(&block, Outcome::Ok),
        }
    }
}

fn shared(holder: &Holder, need: &Need) -> Option<Value> {
    covers(&holder.seeker.need, need).then(|| holder.described.clone())
}

/// Whether a lease for the need `held` is enough for `need`.
fn covers(held: &Need, need: &Need) -> bool {
    let kind = need.gpu_type.is_none() || need.gpu_type == held.gpu_type;
    need.gpus <= held.gpus && need.cpus <= held.cpus && need.gpu_mem_mib <= held.gpu_mem_mib && kind
}

/// The answer to the agent's first request, and whether both speak the same version.
pub(super) fn answer_to_hello(id: u64, body: &Value) -> (Parcel, bool) {
    if body["version"] == json!(agent::VERSION) {
        let answer = json!({"version": agent::VERSION, "ops": ["need", "state"]});
        return (Parcel::answer(id, answer), true);
    }
    let text = format!(
        "this supervisor speaks version {} of the agent channel",
        agent::VERSION
    );
    (Parcel::refuse(id, "version", text), false)
}
