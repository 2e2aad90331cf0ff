//! Leases for cells, and for code in the middle of one (`with gresshopper.gpu():`): asking, waiting aloud, giving back.

use super::cells::timestamp;
use super::standing::{Asked, Runner};
use super::{Place, Replica};
use crate::agent::{self, Parcel};
use crate::leases::News;
use crate::need::{self, Unattended};
use crate::turn::Answer;
use bytes::Bytes;
use hop_api::message::{Event, Grant, Outcome, ReplicaUp, Request as ToHopd};
use hop_core::id::{CellId, LeaseId};
use hop_core::need::{Class, Need};
use hop_core::time::{Span, Timestamp};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// A wait shorter than this is not told: a message for each cell would be noise.
const TELL_AFTER: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Lending {
    requests: mpsc::UnboundedSender<ToHopd>,
    place: Place,
    up: bool,
    /// Why there is no `hopd`.
    down: String,
    wait: Option<Wait>,
    /// The lease of the cell that runs, with what it asked for.
    current: Option<(LeaseId, Need, Value)>,
    /// What `with gresshopper.gpu():` waits for or holds.
    block: Block,
    /// Numbers the blocks of a kernel.
    blocks: u64,
}

/// Something that waits for a lease, and what its user was told.
#[derive(Debug)]
struct Wait {
    cell: CellId,
    header: Bytes,
    need: Need,
    class: Class,
    since: Instant,
    told: bool,
    state: Value,
}

#[derive(Debug, Default)]
enum Block {
    #[default]
    None,
    Asked {
        cell: CellId,
        inside: Option<CellId>,
        request: u64,
    },
    Held {
        cell: CellId,
        lease: LeaseId,
        started: Timestamp,
        need: Need,
        class: Class,
    },
    /// Parked in its middle.
    Standing { cell: CellId, need: Need, class: Class },
}

impl Lending {
    pub(super) fn new(requests: mpsc::UnboundedSender<ToHopd>, place: Place) -> Self {
        Self {
            requests,
            place,
            up: false,
            down: "hopd has not answered yet".into(),
            wait: None,
            current: None,
            block: Block::None,
            blocks: 0,
        }
    }

    /// When somebody has to be told that they wait.
    pub(super) fn tell_at(&self) -> Option<Instant> {
        self.wait
            .as_ref()
            .filter(|w| !w.told)
            .map(|w| w.since + TELL_AFTER)
    }

    /// The cell waits no longer.
    pub(super) fn forget(&mut self, cell: &CellId) {
        self.wait.take_if(|w| w.cell == *cell);
    }

    pub(super) fn send(&self, request: ToHopd) {
        // Down: said again when it is up.
        let _ = self.requests.send(request);
    }
}

/// What the reply of a cell says of its lease.
fn describe(grant: &Grant) -> Value {
    let devices = &grant.handover.devices;
    json!({
        "lease": grant.lease,
        "node": grant.node,
        "gpus": devices.iter().map(|d| d.index).collect::<Vec<_>>(),
        "devices": devices.iter().map(|d| &d.path).collect::<Vec<_>>(),
        "cores": grant.handover.cores,
        "waited_ms": grant.waited.0 / 1000,
        "lingering": grant.lingering,
    })
}

impl Replica {
    /// What the kernel is told of a cell's lease, with its request.
    pub(super) fn lease_of(&self, cell: &CellId) -> Option<&Value> {
        let (lease, _, described) = self.lending.current.as_ref()?;
        (self.turn.running_on(*lease) == Some(cell)).then_some(described)
    }

    pub(super) fn submit(&mut self, cell: CellId, need: Need) {
        let header = self
            .cells
            .header(&cell)
            .unwrap_or_else(|| Bytes::from_static(b"{}"));
        let class = need::class_of(&need, &self.cells.run(&cell));
        self.ask(cell, header, need, class);
    }

    fn ask(&mut self, cell: CellId, header: Bytes, need: Need, class: Class) {
        let state = if self.lending.up {
            json!({"state": "queued"})
        } else {
            json!({"state": "queued", "reason": format!("the scheduler is away: {}", self.lending.down)})
        };
        self.lending.wait = Some(Wait {
            cell: cell.clone(),
            header,
            need: need.clone(),
            class,
            since: Instant::now(),
            told: false,
            state,
        });
        let kernel = self.file.kernel.clone();
        self.lending.send(ToHopd::Submit {
            kernel,
            cell,
            need,
            class,
        });
    }

    pub(super) fn withdraw(&mut self, cell: &CellId) {
        self.lending.wait.take_if(|w| w.cell == *cell);
        self.parking.forget(cell);
        let (kernel, cell) = (self.file.kernel.clone(), cell.clone());
        self.lending.send(ToHopd::CancelCell { kernel, cell });
    }

    pub(super) fn cell_ended(&mut self, cell: CellId, lease: LeaseId, started: Timestamp, answer: Answer) {
        let outcome = match answer {
            Answer::Ok => Outcome::Ok,
            Answer::Error => Outcome::Error,
            Answer::Aborted => Outcome::Aborted,
        };
        let (kernel, ended) = (self.file.kernel.clone(), timestamp());
        self.lending.send(ToHopd::CellEnded {
            kernel,
            cell,
            lease,
            started,
            ended,
            outcome,
        });
    }

    /// Tells whoever has waited for long that they wait, and for what.
    pub(super) fn tell_wait(&mut self) {
        let due = self
            .lending
            .wait
            .as_mut()
            .filter(|w| w.told || w.since.elapsed() >= TELL_AFTER);
        if let Some(wait) = due {
            wait.told = true;
            let message = self
                .author
                .status(&wait.header, "busy", &json!({"gresshopper": wait.state}));
            self.publish(message);
        }
    }

    fn update_wait(&mut self, cell: &CellId, state: Value) {
        if let Some(wait) = self.lending.wait.as_mut().filter(|w| w.cell == *cell) {
            wait.state = state;
            if wait.told {
                self.tell_wait();
            }
        }
    }

    pub(super) async fn on_hopd(&mut self, news: News) {
        match news {
            News::Up => {
                self.lending.up = true;
                self.register();
            }
            News::Down { reason } => {
                self.lending.up = false;
                if let Some(cell) = self.lending.wait.as_ref().map(|w| w.cell.clone()) {
                    let reason = format!("the scheduler is away: {reason}");
                    self.update_wait(&cell, json!({"state": "queued", "reason": reason}));
                }
                self.lending.down = reason;
            }
            News::Unheard { reason } => {
                if let Some(cell) = self.lending.wait.as_ref().map(|w| w.cell.clone()) {
                    let reason = format!("the scheduler doesn't serve this kernel: {reason}");
                    self.update_wait(&cell, json!({"state": "queued", "reason": reason}));
                }
            }
            News::Event(event) => self.event(event).await,
        }
    }

    /// Why a cell can't be given a lease of its own now: a kernel has one at a time.
    pub(super) fn in_the_way(&self) -> Option<String> {
        match &self.lending.block {
            Block::None => None,
            Block::Asked { .. } => Some(
                "a gresshopper.gpu() or cpu() block outside of this cell waits for a lease, and a kernel has one at a \
                 time: let that block end, or restart the kernel"
                    .into(),
            ),
            Block::Standing { .. } => Some(
                "a gresshopper.gpu() block of an earlier cell is parked and waits for a GPU, and a kernel has one lease at \
                 a time: let that block end, or restart the kernel"
                    .into(),
            ),
            Block::Held { lease, .. } => Some(format!(
                "a gresshopper.gpu() or cpu() block of an earlier cell still holds lease {lease}, and a kernel has one \
                 at a time: let that block end (close its generator, join its thread), or restart the kernel"
            )),
        }
    }

    /// Says who we are, what we hold and what still waits.
    pub(super) fn register(&mut self) {
        let pending = self.parking.pending().map(|(_, cell)| cell);
        let held = match &self.lending.block {
            Block::Held { cell, lease, .. } => Some((*lease, Some(cell.clone()))),
            _ => self
                .turn
                .lease()
                .map(|(lease, cell)| (lease, cell.clone()))
                .or_else(|| self.parking.pending())
                .map(|(lease, cell)| (lease, Some(cell))),
        };
        let waiting = self
            .lending
            .wait
            .iter()
            .filter(|w| pending.as_ref() != Some(&w.cell))
            .map(|w| (w.cell.clone(), w.need.clone(), w.class));
        let standing = self.parking.standing.as_ref().filter(|_| pending.is_none());
        let launch = &self.file.launch;
        self.lending.send(ToHopd::ReplicaUp(ReplicaUp {
            kernel: self.file.kernel.clone(),
            incarnation: self.incarnation,
            account: launch.account.clone(),
            pool: launch.pool.clone(),
            node: self.lending.place.node.clone(),
            seat: self.lending.place.seat.clone(),
            name: launch.name.clone(),
            holds: held,
            waiting: waiting.collect(),
            parks: self.parking.can_ask(),
            parked: standing.map(|s| s.as_reported()),
        }));
    }

    async fn event(&mut self, event: Event) {
        match event {
            Event::Queued {
                cell,
                position,
                reason,
                estimate,
                ..
            } => {
                let eta = estimate.map(Span::as_secs_f64);
                let mut state =
                    json!({"state": "queued", "position": position, "reason": reason, "eta_s": eta});
                if let Some(standing) = self.parking.standing.as_ref().filter(|s| s.cell == cell) {
                    state["state"] = "parked".into();
                    state["because"] = standing.because().into();
                }
                self.update_wait(&cell, state);
            }
            Event::Granted { cell, grant, .. } => self.granted(&cell, &grant).await,
            Event::Refused { cell, reason, .. } => self.refused(&cell, reason).await,
            Event::Revoked {
                lease, reason, grace, ..
            } => {
                let running = match self.parking.returns_to(lease) {
                    true => None,
                    false => self.revoked(lease, &reason),
                };
                self.lease_over(lease, running, grace, &reason).await;
            }
            Event::Park {
                lease, cell, reason, ..
            } => {
                let interrupted = false;
                let asked = Asked {
                    cell,
                    lease,
                    reason,
                    interrupted,
                };
                self.asked_to_park(asked).await;
            }
            Event::Close { reason, .. } => {
                let reason = format!("the kernel was closed: {reason}");
                self.ended_by = Some(reason);
                self.kernel.kill();
            }
        }
    }

    /// The header of the request that waits for a lease.
    pub(super) fn waiting_header(&self, cell: &CellId) -> Bytes {
        let wait = self.lending.wait.as_ref().filter(|w| w.cell == *cell);
        wait.map_or_else(|| Bytes::from_static(b"{}"), |w| w.header.clone())
    }

    /// Who runs on this lease.
    pub(super) fn runner(&self, lease: LeaseId) -> Option<Runner> {
        if let Block::Held {
            cell,
            lease: held,
            started,
            need,
            class,
        } = &self.lending.block
            && *held == lease
        {
            let inside = self.turn.running().and_then(|c| self.cells.header(c));
            return Some(Runner {
                cell: cell.clone(),
                header: inside.unwrap_or_else(|| Bytes::from_static(b"{}")),
                need: need.clone(),
                class: *class,
                started: *started,
            });
        }
        let (cell, started) = (self.turn.running_on(lease)?, self.turn.since(lease)?);
        let (_, need, _) = self.lending.current.as_ref()?;
        Some(Runner {
            cell: cell.clone(),
            header: self.cells.header(cell)?,
            need: need.clone(),
            class: need::class_of(need, &self.cells.run(cell)),
            started,
        })
    }

    /// It waits for another lease, and its user is told as of any wait.
    pub(super) fn wait_standing(&mut self, runner: Runner) {
        let because = self.parking.standing.as_ref().map(|s| s.because().to_owned());
        self.lending.wait = Some(Wait {
            cell: runner.cell,
            header: runner.header,
            need: runner.need,
            class: runner.class,
            since: Instant::now(),
            told: false,
            state: json!({"state": "parked", "because": because}),
        });
    }

    /// Why it can't go on now.
    pub(super) fn told_standing(&mut self, why: &str) {
        if let Some(cell) = self.lending.wait.as_ref().map(|w| w.cell.clone()) {
            self.update_wait(&cell, json!({"state": "parked", "reason": why}));
        }
    }

    pub(super) fn stand_block(&mut self, stands: &CellId) {
        match std::mem::take(&mut self.lending.block) {
            Block::Held {
                cell, need, class, ..
            } if cell == *stands => self.lending.block = Block::Standing { cell, need, class },
            other => self.lending.block = other,
        }
    }

    pub(super) fn resume_block(&mut self, stood: &CellId, lease: LeaseId) {
        match std::mem::take(&mut self.lending.block) {
            Block::Standing { cell, need, class } if cell == *stood => {
                let started = timestamp();
                self.lending.block = Block::Held {
                    cell,
                    lease,
                    started,
                    need,
                    class,
                };
            }
            other => self.lending.block = other,
        }
    }

    /// What stood still runs on this lease now. Returns the header of its request.
    pub(super) fn granted_standing(&mut self, cell: &CellId, grant: &Grant, times: u32) -> Option<Bytes> {
        let wait = self.lending.wait.take_if(|w| w.cell == *cell)?;
        self.tell_granted(&wait, grant);
        let block = matches!(&self.lending.block, Block::Held { cell: held, .. } if held == cell);
        let replied = match block {
            true => self.turn.running().cloned(),
            false => Some(cell.clone()),
        };
        if let Some(replied) = replied {
            self.cells.set_metadata(&replied, None, describe(grant));
            self.cells.set_metadata(&replied, Some("parked"), times.into());
        }
        if !block {
            self.lending.current = Some((grant.lease, wait.need, describe(grant)));
        }
        Some(wait.header)
    }

    fn tell_granted(&mut self, wait: &Wait, grant: &Grant) {
        if wait.told {
            let mut state = describe(grant);
            state["state"] = "granted".into();
            let message = self
                .author
                .status(&wait.header, "busy", &json!({"gresshopper": state}));
            self.publish(message);
        }
    }

    /// What waited for this lease begins, or goes on.
    pub(super) async fn begin(&mut self, cell: &CellId, grant: &Grant) {
        if self.goes_on(cell, grant) {
            return;
        }
        let wait = self.lending.wait.take_if(|w| w.cell == *cell);
        let (need, class) = wait
            .as_ref()
            .map(|w| (w.need.clone(), w.class))
            .unwrap_or_default();
        if let Some(wait) = &wait {
            self.tell_granted(wait, grant);
        }
        match std::mem::take(&mut self.lending.block) {
            Block::Asked {
                cell: asked,
                inside,
                request,
                ..
            } if asked == *cell => {
                if let Some(inside) = inside {
                    self.cells.set_metadata(&inside, None, describe(grant));
                }
                self.lending.block = Block::Held {
                    cell: asked,
                    lease: grant.lease,
                    started: timestamp(),
                    need,
                    class,
                };
                self.to_agent(Parcel::answer(request, describe(grant)));
            }
            other => {
                self.lending.block = other;
                self.cells.set_metadata(cell, None, describe(grant));
                self.lending.current = Some((grant.lease, need, describe(grant)));
                let out = self.turn.granted(cell, grant.lease, timestamp());
                self.carry_out(out).await;
            }
        }
    }

    pub(super) async fn refused(&mut self, cell: &CellId, reason: String) {
        if self.parking.stands(cell) {
            return self.standing_refused(&reason);
        }
        self.lending.wait.take_if(|w| w.cell == *cell);
        match std::mem::take(&mut self.lending.block) {
            Block::Asked {
                cell: asked, request, ..
            } if asked == *cell => {
                self.to_agent(Parcel::refuse(request, "refused", reason));
            }
            other => {
                self.lending.block = other;
                let out = self.turn.refused(cell, reason);
                self.carry_out(out).await;
            }
        }
    }

    /// A lease is taken away. Whoever runs on it is told why and interrupted, and has what is left of the grace time.
    fn revoked(&mut self, lease: LeaseId, reason: &str) -> Option<CellId> {
        let mut cell = self.turn.running_on(lease).cloned();
        if let Block::Held { lease: held, .. } = &self.lending.block
            && *held == lease
        {
            cell = cell.or_else(|| self.turn.running().cloned());
            self.lending.block = Block::None;
        }
        let cell = cell?;
        let header = self
            .cells
            .header(&cell)
            .unwrap_or_else(|| Bytes::from_static(b"{}"));
        let state = json!({"gresshopper": {"state": "revoked", "lease": lease, "reason": reason}});
        self.publish(self.author.status(&header, "busy", &state));
        let text = format!("gresshopper: the GPU was taken away: {reason}\n");
        let text = json!({"name": "stderr", "text": text});
        self.publish(self.author.publish("stream", &header, &json!({}), &text));
        self.cells.set_metadata(&cell, Some("revoked"), reason.into());
        self.kernel.interrupt();
        self.standing_interrupted();
        Some(cell)
    }

    // The agent inside the kernel.

    fn to_agent(&self, parcel: Parcel) {
        // A kernel that is gone needs no answer.
        let _ = self.agent_out.send(parcel);
    }

    pub(super) fn on_agent(&mut self, parcel: Parcel) {
        let wire = parcel.wire;
        match (wire.op.as_deref(), wire.id) {
            (Some("hello"), Some(id)) => {
                if wire.body["version"] == json!(agent::VERSION) {
                    self.to_agent(Parcel::answer(
                        id,
                        json!({"version": agent::VERSION, "ops": ["need"]}),
                    ));
                } else {
                    let text = format!(
                        "this supervisor speaks version {} of the agent channel",
                        agent::VERSION
                    );
                    self.to_agent(Parcel::refuse(id, "version", text));
                }
            }
            (Some("need.acquire"), Some(id)) => self.acquire(id, &wire.body),
            (Some("need.release"), id) => {
                self.release();
                if let Some(id) = id {
                    self.to_agent(Parcel::answer(id, json!({})));
                }
            }
            (Some(op), Some(id)) => self.to_agent(Parcel::refuse(
                id,
                "unknown",
                format!("there is no operation {op}"),
            )),
            _ => {}
        }
    }

    /// `with gresshopper.gpu():` begins.
    fn acquire(&mut self, id: u64, body: &Value) {
        let need = serde_json::from_value::<Need>(body["need"].clone()).map_err(|e| e.to_string());
        let need = match need.and_then(|n| need::check(&n).map(|()| n)) {
            Ok(need) => need,
            Err(problem) => return self.to_agent(Parcel::refuse(id, "invalid", problem)),
        };
        if !matches!(self.lending.block, Block::None) {
            let text = "this kernel waits for or holds another lease of gresshopper.gpu() or cpu()";
            return self.to_agent(Parcel::refuse(id, "busy", text));
        }
        if self.turn.lease().is_some() {
            return self.share(id, &need);
        }
        if self.parking.standing.is_some() {
            let text = "the cell is parked and waits for a GPU, and a kernel has one lease at a time";
            return self.to_agent(Parcel::refuse(id, "busy", text));
        }
        if self.turn.waiting().is_some() {
            let text = "a cell of this kernel waits for its lease, and a kernel has one at a time";
            return self.to_agent(Parcel::refuse(id, "busy", text));
        }
        let inside = self.turn.running().cloned();
        self.lending.blocks += 1;
        let base = inside.as_ref().map_or("background", |c| c.as_str());
        let cell: CellId = format!("{base}/{}", self.lending.blocks).into();
        let header = inside
            .as_ref()
            .and_then(|c| self.cells.header(c))
            .unwrap_or_else(|| Bytes::from_static(b"{}"));
        let run = inside
            .as_ref()
            .map_or_else(Unattended::default, |c| self.cells.run(c));
        self.lending.block = Block::Asked {
            cell: cell.clone(),
            inside,
            request: id,
        };
        let need = run.hurry(need);
        let class = need::class_of(&need, &run);
        self.ask(cell, header, need, class);
    }

    /// The cell has a lease by its magic: what that covers is granted, and not given back by the block.
    fn share(&self, id: u64, need: &Need) {
        let covered = |(_, held, _): &&(LeaseId, Need, Value)| {
            let kind = need.gpu_type.is_none() || need.gpu_type == held.gpu_type;
            need.gpus <= held.gpus && need.cpus <= held.cpus && need.gpu_mem_mib <= held.gpu_mem_mib && kind
        };
        let parcel = match self.lending.current.as_ref().filter(covered) {
            Some((_, _, described)) => {
                let mut grant = described.clone();
                grant["shared"] = true.into();
                Parcel::answer(id, grant)
            }
            None => Parcel::refuse(
                id,
                "busy",
                "the cell's own lease (%%gpu or the kernel's default) is smaller: ask for all of it there",
            ),
        };
        self.to_agent(parcel);
    }

    /// It ends, or was interrupted while it waited.
    fn release(&mut self) {
        match std::mem::take(&mut self.lending.block) {
            Block::None => {}
            Block::Asked { cell, .. } => self.withdraw(&cell),
            Block::Standing { cell, .. } => {
                self.withdraw(&cell);
                self.cell_is_over(&cell);
            }
            Block::Held {
                cell, lease, started, ..
            } => {
                self.cell_is_over(&cell);
                self.cell_ended(cell, lease, started, Answer::Ok);
            }
        }
    }
}
