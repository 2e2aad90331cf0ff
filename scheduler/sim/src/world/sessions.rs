//! People: they open notebooks, submit cells, and close them some time after the last.

use super::{Event, World, memory::Memory};
use crate::cluster::Cluster;
use crate::metrics::{CellResult, Foretold, PROGRESS, Why};
use crate::rng::Rng;
use crate::trace::Trace;
use hop_core::{Input, PlaceReplica, Submit, WaitingCell};
use hop_words::id::{CellId, KernelId, LeaseId, NodeName};
use hop_words::lease::Outcome;
use hop_words::need::{Class, Need};
use hop_words::reason::Reason;
use hop_words::time::{Span, Timestamp};

pub(super) struct Session {
    pub kernel: KernelId,
    pub opens: Timestamp,
    /// When the kernel is closed, if its last cell is over by then.
    pub closes: Timestamp,
    pub memory: Memory,
    pub next: usize,
    pub waiting: Option<Waiting>,
    pub last_node: Option<usize>,
    /// Executor and standbys of a kernel with three replicas.
    pub log: Option<super::moves::Log>,
    pub closing: bool,
    /// Its processes can be parked in the middle of a cell.
    pub parkable: bool,
    pub runs: Option<Run>,
    /// Remaining run of the parked cell.
    pub parked: Option<Span>,
    /// Factor by which run-time forecasts for the deadline are wrong.
    pub foretold: f64,
}

/// A cell running on a lease, or leaving it.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub lease: LeaseId,
    pub cell: usize,
    /// Its place in the results.
    pub result: usize,
    pub done: Timestamp,
    /// Set while the cell is being parked: its remaining run.
    pub parking: Option<Span>,
}

pub(super) struct Waiting {
    pub cell: usize,
    pub submit: Timestamp,
    pub queued: bool,
    /// The reason that was told last.
    pub reason: Option<&'static str>,
    pub migrated: bool,
    pub estimate: Option<Span>,
    pub foretold: Option<Foretold>,
}

/// The sessions of a trace. Openings before the first cell and closings after the last one are drawn if the trace has
/// none.
pub(super) fn of_trace(trace: &Trace, cluster: &Cluster, draw: &mut Rng) -> Vec<Session> {
    let people = &cluster.people;
    let sessions = trace.sessions.iter().map(|s| {
        let first = s.cells.first().map_or(s.open, |c| c.submit);
        let opens = |before: Span| Timestamp(first.0.saturating_sub(before.0));
        let before = people.opens_before.map(|d| d.draw(draw));
        let after = people.closes_after.map(|d| d.draw(draw));
        Session {
            kernel: s.id.as_str().into(),
            opens: before.map_or(s.open, opens),
            closes: s.close + after.unwrap_or_default(),
            memory: Memory::draw(cluster, draw),
            next: 0,
            waiting: None,
            last_node: None,
            log: None,
            closing: false,
            parkable: cluster.policy.parkable.is_none_or(|share| draw.unit() < share),
            runs: None,
            parked: None,
            foretold: draw.lognormal(0.0, 0.3),
        }
    });
    sessions.collect()
}

impl World<'_> {
    pub(super) fn open(&mut self, s: usize) {
        let session = &self.trace.sessions[s];
        if session.cells.is_empty() {
            return;
        }
        // A kernel starts on its first seat, and grows.
        self.ask_for_place(s, Vec::new());
        let first = session.cells[0].submit;
        self.at(first.max(self.now), Event::Submit { session: s, cell: 0 });
    }

    /// Asks for a place for one more replica, on another node.
    pub(super) fn ask_for_place(&mut self, s: usize, avoid: Vec<NodeName>) {
        let session = &self.trace.sessions[s];
        self.tell(Input::PlaceKernel(PlaceReplica {
            kernel: self.sessions[s].kernel.clone(),
            user: session.user.as_str().into(),
            account: session.account.as_deref().map(Into::into),
            pool: "main".into(),
            first: None,
            // The kernelspec's default: the cells' needs are still unknown.
            default_need: Need::gpus(self.cluster.people.default_gpus),
            mem_mib: 1024,
            cpus: 1,
            avoid,
            name: session.id.clone(),
        }));
    }

    pub(super) fn submit(&mut self, s: usize, cell: usize) {
        let c = &self.trace.sessions[s].cells[cell];
        let (gpus, cpus, print) = (c.gpus, c.cpus, c.print);
        self.sessions[s].waiting = Some(Waiting {
            cell,
            submit: self.now,
            queued: false,
            reason: None,
            migrated: false,
            estimate: None,
            foretold: self.foretell(s, print),
        });
        if gpus == 0 && cpus == 0 {
            // Needs nothing: runs at once, and the scheduler doesn't hear of it.
            let run = c.run;
            self.record(s, self.now, (Span::ZERO, Span::ZERO), None);
            let lease = LeaseId(0);
            return self.after(
                run,
                Event::CellDone {
                    session: s,
                    cell,
                    lease,
                },
            );
        }
        let WaitingCell {
            cell,
            need,
            class,
            print,
        } = self.waiting_cell(s, cell);
        self.tell(Input::Submit(Submit {
            kernel: self.sessions[s].kernel.clone(),
            cell,
            need,
            class,
            print,
        }));
    }

    /// The core's forecast for a cell of this text, submitted by the session now.
    fn foretell(&self, s: usize, print: u64) -> Option<Foretold> {
        let kernel = &self.sessions[s].kernel;
        let now = self.core.foretell(kernel, print, Span::ZERO)?;
        let later = self.core.foretell(kernel, print, PROGRESS)?;
        Some(Foretold {
            run: now.left,
            later: later.left.map(|l| Span(PROGRESS.0 + l.0)),
            gpus: now.gpus,
            history: now.history,
        })
    }

    /// The replica's request for the cell.
    pub(super) fn waiting_cell(&self, s: usize, cell: usize) -> WaitingCell {
        let c = &self.trace.sessions[s].cells[cell];
        WaitingCell {
            cell: CellId::from(cell.to_string()),
            need: Need {
                gpus: c.gpus,
                cpus: c.cpus,
                deadline: self.cell_deadline(s, cell),
                ..Need::default()
            },
            class: self.class(s),
            print: c.print,
        }
    }

    fn class(&self, s: usize) -> Class {
        match self.trace.sessions[s].deadline {
            None => Class::Interactive,
            Some(_) if self.without.deadlines => Class::Batch,
            Some(_) => Class::Deadline,
        }
    }

    /// By when the cell should be done: the notebook's deadline less what is foretold for the cells after it.
    fn cell_deadline(&self, s: usize, cell: usize) -> Option<Timestamp> {
        let session = &self.trace.sessions[s];
        let deadline = session.deadline.filter(|_| !self.without.deadlines)?;
        let rest: u64 = session.cells[cell + 1..].iter().map(|c| c.run.0).sum();
        let foretold = (rest as f64 * self.sessions[s].foretold) as u64;
        Some(Timestamp(deadline.0.saturating_sub(foretold)))
    }

    pub(super) fn queued(&mut self, kernel: &KernelId, estimate: Option<Span>, reason: &Reason) {
        let session = self.by_kernel[kernel];
        if let Some(w) = &mut self.sessions[session].waiting {
            if !w.queued {
                w.estimate = estimate;
            }
            w.queued = true;
            // A node's name or a number may change every quarter of a minute.
            if w.reason != Some(reason.word()) {
                w.reason = Some(reason.word());
                self.result.whys.push(Why {
                    session: session as u32,
                    cell: w.cell as u32,
                    at: self.now,
                    word: reason.word(),
                    says: reason.to_string(),
                });
            }
        }
    }

    /// Books a cell with the granted GPUs; the cell's code runs once the kernel's memory is back.
    fn record(&mut self, s: usize, granted: Timestamp, memory: (Span, Span), node: Option<usize>) {
        let Some(w) = self.sessions[s].waiting.take() else {
            return;
        };
        let c = &self.trace.sessions[s].cells[w.cell];
        let reused = match (self.sessions[s].last_node, node) {
            (Some(last), Some(now)) => Some(last == now),
            _ => None,
        };
        if node.is_some() {
            self.sessions[s].last_node = node;
        }
        let (fetch, unpark) = memory;
        let start = granted + fetch + unpark;
        self.result.waiting.span(w.submit, granted, 1);
        self.result.cells.push(CellResult {
            session: s as u32,
            cell: w.cell as u32,
            gpus: c.gpus,
            submit: w.submit,
            granted,
            fetch,
            unpark,
            start,
            end: start + c.run,
            immediate: !w.queued,
            reused,
            migrated: w.migrated,
            node: node.map_or(u32::MAX, |n| n as u32),
            estimate: w.estimate,
            foretold: w.foretold,
        });
    }

    pub(super) fn granted(
        &mut self,
        kernel: &KernelId,
        cell: &CellId,
        lease: LeaseId,
        node: &NodeName,
        lingering: bool,
    ) {
        let s = self.by_kernel[kernel];
        let n = self.by_node[node];
        let i: usize = cell.as_str().parse().expect("cells are named by number here");
        let gpus = self.trace.sessions[s].cells[i].gpus;
        let message = self.cluster.latency.message.draw(&mut self.rng);
        let memory = match gpus {
            0 => (Span::ZERO, Span::ZERO),
            _ => self.bring_memory(s, n, gpus, lingering),
        };
        let granted = self.now + message;
        let parked = self.sessions[s].parked.take();
        let run = parked.unwrap_or(self.trace.sessions[s].cells[i].run);
        let done = granted + memory.0 + memory.1 + run;
        let result = match self.sessions[s].runs.filter(|_| parked.is_some()) {
            Some(run) => {
                self.result.cells[run.result].end = done;
                run.result
            }
            None => {
                self.record(s, granted, memory, Some(n));
                self.result.cells.len() - 1
            }
        };
        self.sessions[s].runs = Some(Run {
            lease,
            cell: i,
            result,
            done,
            parking: None,
        });
        let (session, cell) = (s, i);
        self.at(done, Event::CellDone { session, cell, lease });
    }

    pub(super) fn cell_done(&mut self, s: usize, cell: usize, lease: LeaseId) {
        let stopped = |r: Run| r.lease != lease || r.parking.is_some();
        if lease.0 > 0 && self.sessions[s].runs.is_none_or(stopped) {
            return;
        }
        if lease.0 > 0 {
            self.sessions[s].runs = None;
            self.tell(Input::CellEnded {
                kernel: self.sessions[s].kernel.clone(),
                cell: CellId::from(cell.to_string()),
                lease,
                outcome: Outcome::Ok,
            });
        }
        self.sessions[s].next = cell + 1;
        if let Some(next) = self.trace.sessions[s].cells.get(cell + 1) {
            let (session, cell) = (s, cell + 1);
            self.at(next.submit.max(self.now), Event::Submit { session, cell });
        }
        self.close_if_done(s);
    }

    pub(super) fn close_if_done(&mut self, s: usize) {
        let cells = self.trace.sessions[s].cells.len();
        let session = &mut self.sessions[s];
        if !session.closing || session.next < cells {
            return;
        }
        session.closing = false;
        self.open -= 1;
        self.leave_host(s);
        if cells > 0 {
            self.tell(Input::CloseKernel {
                kernel: self.sessions[s].kernel.clone(),
            });
        }
    }

    // --- parking in the middle of a cell ---

    /// The cell is asked to park: the cell stands still while its memory goes to the host.
    pub(super) fn park(&mut self, kernel: KernelId, lease: LeaseId) {
        let s = self.by_kernel[&kernel];
        let (now, session) = (self.now, &mut self.sessions[s]);
        let parkable = session.parkable;
        let run = session.runs.as_mut().filter(|r| r.lease == lease && r.done > now);
        let Some(run) = run.filter(|_| parkable) else {
            return self.tell(Input::ParkRefused { kernel, lease });
        };
        run.parking = Some(run.done.since(now));
        let takes = self.park_takes(s);
        self.after(takes, Event::Parked { session: s, lease });
    }

    pub(super) fn parked(&mut self, s: usize, lease: LeaseId) {
        let session = &mut self.sessions[s];
        let Some(run) = session.runs.filter(|r| r.lease == lease) else {
            return;
        };
        session.parked = run.parking;
        let kernel = session.kernel.clone();
        self.is_parked(s);
        if let Some(l) = self.leases.get_mut(&lease) {
            l.off = true;
        }
        self.result.parks += 1;
        self.tell(Input::CellParked {
            kernel,
            cell: CellId::from(run.cell.to_string()),
            lease,
        });
    }
}
