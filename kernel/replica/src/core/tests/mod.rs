//! The core alone: inputs by hand, outputs told as short lines, and the whole state checked after each.

mod asked;
mod attempts;
mod durable;
mod group;
mod growing;
mod logged;
mod mending;
mod missing;
mod moving;
mod notices;
mod orders;
mod parked;
mod random;
mod replacing;
mod staying;
mod together;
mod unlogged;

use super::*;
use hop_api::message::{Device, EndCause, Grant, Handover};
use hop_protocol::file::{Durable, Interrupt};
use hop_words::id::{Epoch, GpuIndex, LeaseId};
use hop_words::need::{Class, Need};
use hop_words::replica::Replicas;
use serde_json::json;
use std::collections::VecDeque;

const KEY: &[u8] = b"key";

/// Slurm ends the seat, and kills it after 5 s: a running cell has 2 of them.
pub(super) fn terminated() -> Input {
    Input::Terminated {
        grace: Span::from_secs(5),
    }
}

/// A core whose outputs are read as lines.
pub(super) struct World {
    pub(super) core: Core,
    client: Author,
    now: Timestamp,
    /// The front gives its word for each cell at once.
    pub(super) permits: bool,
    /// What is proposed is committed at once; else it waits for [`World::commit`].
    pub(super) commits: bool,
    pub(super) proposed: VecDeque<Entry>,
    /// The last order to have all records on disk.
    pub(super) sync: SyncNumber,
}

impl World {
    /// A kernel that is up, with `hopd` there.
    pub(super) fn up() -> Self {
        let mut world = Self::starting();
        assert_eq!(world.input(Input::KernelUp { pid: 7 }), ["front: note kernel-up"]);
        assert_eq!(world.hopd(News::Up), ["hopd: up"]);
        world
    }

    /// A kernel that is being started, without a log.
    pub(super) fn starting() -> Self {
        Self::new(None)
    }

    pub(super) fn new(durably: Option<Durably>) -> Self {
        Self::of(durably, Replicas::One)
    }

    pub(super) fn of(durably: Option<Durably>, replicas: Replicas) -> Self {
        Self::of_program("ipykernel", durably, replicas)
    }

    /// A kernel that is started by this program.
    pub(super) fn of_program(program: &str, durably: Option<Durably>, replicas: Replicas) -> Self {
        let seat = SeatStep {
            job: hop_words::id::JobId(1),
            step: 0,
            pid: 1,
            start_time: 1,
            uid: 1,
        };
        let launch = Launch {
            argv: vec![program.into()],
            cwd: None,
            default_need: Need::default(),
            account: None,
            pool: None,
            name: "n.ipynb".into(),
            local: false,
            durable: Durable::No,
            interrupt: match program {
                "ipykernel" => Interrupt::Message,
                _ => Interrupt::Signal,
            },
            replicas,
            hot_standby: false,
        };
        let identity = Identity {
            kernel: "k".into(),
            incarnation: Incarnation(1),
            node: "n1".into(),
            seat,
            launch,
            has_keeper: true,
            can_park: true,
            models: [("/dev/fakegpu0".into(), "NVIDIA H200".to_owned())].into(),
        };
        let now = Timestamp(1_000_000);
        Self {
            core: Core::new(identity, durably, Author::new(KEY, "replica".into()), now),
            client: Author::new(KEY, "client".into()),
            now,
            permits: false,
            commits: true,
            proposed: VecDeque::new(),
            sync: SyncNumber::default(),
        }
    }

    /// The group commits what was proposed.
    pub(super) fn commit(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        while !self.proposed.is_empty() {
            all.extend(self.commit_one());
        }
        all
    }

    /// The group commits the entry that was proposed first.
    pub(super) fn commit_one(&mut self) -> Vec<String> {
        let index = self.core.applied_index().next();
        match self.proposed.pop_front() {
            Some(entry) => self.input(Input::Applied { index, entry }),
            None => Vec::new(),
        }
    }

    /// What the core says to an input, and to the entries that are committed by it: a group of one replica commits at
    /// once. Proposals themselves aren't told.
    pub(super) fn input(&mut self, input: Input) -> Vec<String> {
        let mut all = Vec::new();
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let out = self.core.handle(input, self.now);
            let mut index = self.core.applied_index();
            for output in &out {
                match output {
                    Output::Propose(entry) if !self.commits => self.proposed.push_back(entry.clone()),
                    Output::Propose(entry) => {
                        index = index.next();
                        inputs.push_back(Input::Applied {
                            index,
                            entry: entry.clone(),
                        });
                    }
                    Output::ToFront(Item::Note(Note::Begins { cell })) if self.permits => {
                        inputs.push_back(Input::MayBegin { cell: cell.clone() });
                    }
                    output => {
                        if let Output::Sync(number) = output {
                            self.sync = *number;
                        }
                        all.push(told(output));
                    }
                }
            }
        }
        self.core.sanity_check();
        all
    }

    pub(super) fn hopd(&mut self, news: News) -> Vec<String> {
        self.input(Input::Hopd(news))
    }

    /// Lets time pass, with each tick that is due.
    pub(super) fn after(&mut self, span: Span) -> Vec<String> {
        let end = self.now + span;
        let mut all = Vec::new();
        while let Some(due) = self.core.due().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            let before = self.core.due();
            all.extend(self.input(Input::Tick));
            assert_ne!(self.core.due(), before, "a tick settles what was due");
        }
        self.now = end;
        all
    }

    /// A client runs a cell. `need` is as in `metadata.gresshopper.need`; null asks for nothing.
    pub(super) fn run(&mut self, cell: &str, need: Value) -> Vec<String> {
        self.run_with(cell, &json!({"code": cell}), need)
    }

    pub(super) fn run_with(&mut self, cell: &str, content: &Value, need: Value) -> Vec<String> {
        let metadata = if need.is_null() {
            json!({})
        } else {
            json!({"gresshopper": {"need": need}})
        };
        self.request(Channel::Shell, "execute_request", cell, &metadata, content)
    }

    pub(super) fn request(
        &mut self,
        channel: Channel,
        kind: &str,
        id: &str,
        metadata: &Value,
        content: &Value,
    ) -> Vec<String> {
        let header = json!({"msg_id": id, "msg_type": kind, "session": "client"});
        self.request_as(header, channel, metadata, content)
    }

    /// A request with this header: from a client's other session, say.
    pub(super) fn request_as(
        &mut self,
        header: Value,
        channel: Channel,
        metadata: &Value,
        content: &Value,
    ) -> Vec<String> {
        let mut envelope = self
            .client
            .write("", &cells::no_header(), metadata, content, self.now);
        envelope.header = header.to_string().into();
        self.client.signer().sign(&mut envelope);
        let (identity, message) = (Bytes::from_static(b"me"), envelope.message());
        self.input(Input::Request {
            channel,
            identity,
            message,
        })
    }

    /// The kernel answers a cell.
    pub(super) fn reply(&mut self, cell: &str, status: &str) -> Vec<String> {
        let parent = json!({"msg_id": cell, "msg_type": "execute_request"})
            .to_string()
            .into();
        let content = json!({"status": status, "execution_count": 3});
        let reply = self
            .client
            .write("execute_reply", &parent, &json!({}), &content, self.now);
        let (identity, message) = (Bytes::from_static(b"me"), reply.message());
        self.input(Input::FromKernel {
            channel: Channel::Shell,
            identity,
            message,
        })
    }

    pub(super) fn grant(&mut self, cell: &str, lease: u64, gpus: u16) -> Vec<String> {
        let (kernel, cell, grant) = ("k".into(), cell.into(), grant(lease, gpus));
        self.hopd(News::Event(Event::Granted { kernel, cell, grant }))
    }

    pub(super) fn refuse(&mut self, cell: &str) -> Vec<String> {
        let (kernel, cell, reason) = ("k".into(), cell.into(), "too many".into());
        self.hopd(News::Event(Event::Refused { kernel, cell, reason }))
    }

    pub(super) fn revoke(&mut self, lease: u64) -> Vec<String> {
        self.revoke_after(lease, Span::from_secs(2))
    }

    pub(super) fn revoke_after(&mut self, lease: u64, grace: Span) -> Vec<String> {
        self.hopd(News::Event(Event::Revoked {
            kernel: "k".into(),
            lease: LeaseId(lease),
            cause: EndCause::Claimed,
            reason: "others wait".into(),
            grace,
            may_hold: false,
        }))
    }

    /// The lease is over, and may be held on to.
    pub(super) fn over(&mut self, lease: u64) -> Vec<String> {
        self.hopd(News::Event(Event::Revoked {
            kernel: "k".into(),
            lease: LeaseId(lease),
            cause: EndCause::Done,
            reason: String::new(),
            grace: Span::from_secs(2),
            may_hold: true,
        }))
    }

    /// What becomes of a lease that is held on to.
    pub(super) fn held(&mut self, lease: u64, wanted: Option<&str>) -> Vec<String> {
        self.hopd(News::Event(Event::Held {
            kernel: "k".into(),
            lease: LeaseId(lease),
            wanted: wanted.map(str::to_owned),
            within: Span::from_secs(4),
        }))
    }

    pub(super) fn park(&mut self, cell: &str, lease: u64) -> Vec<String> {
        let (kernel, lease, cell, reason) = ("k".into(), LeaseId(lease), cell.into(), "others wait".into());
        self.hopd(News::Event(Event::Park {
            kernel,
            lease,
            cell,
            reason,
        }))
    }

    pub(super) fn errand(&mut self, end: ErrandEnd) -> Vec<String> {
        self.input(Input::Errand(end))
    }

    pub(super) fn agent(&mut self, id: u64, op: &str, body: Value) -> Vec<String> {
        let mut parcel = Parcel::default();
        (parcel.wire.op, parcel.wire.id, parcel.wire.body) = (Some(op.into()), Some(id), body);
        self.input(Input::Agent(parcel))
    }

    pub(super) fn place(&self, cell: &str) -> Option<Place> {
        self.core.place(&cell.into())
    }
}

pub(super) fn grant(lease: u64, gpus: u16) -> Grant {
    let device = |index| Device {
        index: GpuIndex(index),
        path: format!("/dev/fakegpu{index}").into(),
        major: 4,
        minor: u32::from(index),
    };
    Grant {
        executor: Incarnation(1),
        lease: LeaseId(lease),
        node: "n1".into(),
        handover: Handover {
            epoch: Epoch(1),
            pilot: hop_words::id::JobId(2),
            step: 1,
            devices: (0..gpus).map(device).collect(),
            cores: "2-3".into(),
            at: Timestamp(0),
        },
        waited: Span(7000),
        lingering: false,
        quanta: vec![(Class::Interactive, Span::from_secs(3600))],
    }
}

/// One GPU, as a cell's metadata ask for it.
pub(super) fn gpu() -> Value {
    json!({"gpus": 1})
}

/// An output as a short line: to whom, what, and the part of its content that tests care about.
fn told(output: &Output) -> String {
    match output {
        Output::ToKernel { message, .. } => format!("kernel: {}", of_jupyter(message)),
        Output::ToFront(Item::Jupyter { message, .. }) => format!("front: {}", of_jupyter(message)),
        Output::ToFront(Item::Note(note)) => {
            let note = serde_json::to_value(note).unwrap();
            let over = &note["over"];
            let more = [&over["how"], &over["reason"], &note["cell"], &note["reason"]];
            let more: Vec<&str> = more.iter().filter_map(|v| v.as_str()).collect();
            let name = note["note"].as_str().unwrap();
            let lost = if note["lost"] == true { " lost" } else { "" };
            format!("front: note {name} {}{lost}", more.join(" "))
                .trim()
                .to_owned()
        }
        Output::ToHopd(request) => format!("hopd: {}", of_hopd(request)),
        Output::ToAgent(parcel) => match (&parcel.wire.op, &parcel.wire.error) {
            (Some(op), _) => format!("agent: {op}"),
            (None, Some(error)) => format!("agent: refuse {}", error.kind),
            (None, None) => format!("agent: answer {}", parcel.wire.ok.as_ref().unwrap()["lease"]),
        },
        Output::Gpu(errand, devices) => format!("gpu: {errand:?} {}", devices.len()),
        Output::InterruptKernel { .. } => "interrupt".into(),
        Output::AskFormer => "ask-former".into(),
        Output::Guard(None) => "unguard".into(),
        Output::Guard(Some(at)) => format!("guard {}", at.0 / 1_000_000),
        Output::KillKernel => "kill".into(),
        Output::StartKernel => "start".into(),
        Output::Propose(_) => "propose".into(),
        Output::Append { number, behind, .. } => {
            let behind = behind.as_ref().map(|s| format!(" behind {}", s.upto));
            format!("append {number}{}", behind.unwrap_or_default())
        }
        Output::Sync(_) => "sync".into(),
        Output::TryStore => "try-store".into(),
        Output::WriteState { .. } => "write-state".into(),
        Output::OpenTenure { state } => format!("open {}", state.tenure()),
        Output::KeepState(folder) => format!("keep {}", folder.display()),
        Output::Found { wanted, .. } => format!("found {wanted}"),
        Output::Disband => "disband".into(),
        Output::GoAlone => "go-alone".into(),
        Output::Leave => "leave".into(),
    }
}

fn of_jupyter(message: &Message) -> String {
    let e = Envelope::parse(message).unwrap();
    let json = |bytes: &Bytes| serde_json::from_slice::<Value>(bytes).unwrap();
    let (header, content) = (e.header().unwrap(), json(&e.content));
    let of = match header.msg_type.as_str() {
        "execute_request" => header.msg_id,
        _ => e.parent().map(|p| p.msg_id).unwrap_or_default(),
    };
    let ours = &json(&e.metadata)["gresshopper"];
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let detail = match header.msg_type.as_str() {
        "status" if ours.is_null() => text(&content["execution_state"]),
        "status" => text(&ours["state"]),
        "execute_reply" | "error" => {
            let lease = ours["lease"]
                .as_u64()
                .map(|l| format!("lease {l}"))
                .unwrap_or_default();
            let words = [text(&content["status"]), text(&content["ename"]), lease];
            words
                .iter()
                .filter(|w| !w.is_empty())
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(" ")
        }
        "execute_request" => {
            let lease = ours["lease"]["lease"].as_u64().map(|l| format!("lease {l}"));
            // The code of a cell that names its language.
            let code = content["code"].as_str().filter(|code| code.contains("bash"));
            let words = [lease, code.map(|code| format!("{code:?}"))];
            words.into_iter().flatten().collect::<Vec<_>>().join(" ")
        }
        "stream" => text(&content["text"])
            .split([':', ';', '.'])
            .take(2)
            .collect::<Vec<_>>()
            .join(":")
            .trim()
            .into(),
        "comm_msg" => text(&content["data"]["state"]),
        "display_data" | "update_display_data" => text(&content["data"]["text/plain"]),
        _ => String::new(),
    };
    format!("{} {of} {detail}", header.msg_type).trim().to_owned()
}

fn of_hopd(request: &ToHopd) -> String {
    match request {
        ToHopd::Submit { cell, need, .. } => format!("submit {cell} {} gpus", need.gpus),
        ToHopd::CancelCell { cell, .. } => format!("cancel {cell}"),
        ToHopd::CellEnded {
            cell, lease, outcome, ..
        } => format!("ended {cell} {lease} {outcome:?}"),
        ToHopd::ReleaseLease { lease, .. } => format!("release {lease}"),
        ToHopd::StillHeld { lease, .. } => format!("still held {lease}"),
        ToHopd::CellParked { cell, lease, .. } => format!("parked {cell} {lease}"),
        ToHopd::ParkRefused { lease, .. } => format!("park-refused {lease}"),
        ToHopd::ReplicaUp(up) => {
            let holds = up
                .holds
                .as_ref()
                .map(|(lease, cell)| format!(" holds {lease} {}", cell.as_ref().unwrap()));
            let waits: Vec<String> = up.waiting.iter().map(|w| format!(" waits {}", w.cell)).collect();
            let parked = up
                .parked
                .as_ref()
                .map(|p| format!(" parked {} from {}", p.cell, p.lease));
            let ended = up
                .ended
                .as_ref()
                .map(|e| format!(" ended {} {:?}", e.cell, e.outcome));
            format!(
                "up{}{}{}{}",
                ended.unwrap_or_default(),
                holds.unwrap_or_default(),
                waits.concat(),
                parked.unwrap_or_default()
            )
        }
        ToHopd::Hibernated { .. } => "hibernated".into(),
        ToHopd::KernelEnded { .. } => "kernel-ended".into(),
        ToHopd::MigrationFailed {
            incarnation, reason, ..
        } => format!("not moved {incarnation} {reason}"),
        ToHopd::HibernateRefused { reason, .. } => format!("stays {reason}"),
        ToHopd::KernelBound { bound, .. } => format!("bound {}", bound.reasons().len()),
        other => format!("{other:?}"),
    }
}
