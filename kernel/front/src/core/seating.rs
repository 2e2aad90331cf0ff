//! Answers to clients while the kernel has no node, so that no client gives up. Also the clients that announced
//! themselves, for the kernel's next replica (docs/wiring.md, "While the seat waits").

use super::unseen::Change;
use super::{Front, Open, Wire};
use bytes::Bytes;
use hop_protocol::comm::{ANNOUNCED_MAX, CommContent};
use hop_protocol::jupyter::{Channel, Envelope, Header};
use hop_protocol::link::Item;
use hop_words::id::CellId;
use hop_words::time::Timestamp as Time;
use hop_zmtp::Message;
use serde_json::{Value, json};

/// Most remembered requests with an answer in the kernel's place.
const ANSWERED_MAX: usize = 1000;

/// The reason for the wait of the kernel's seat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeatWaits {
    /// Slurm's word for the reason, such as `Resources`.
    pub reason: String,
    /// When Slurm expects to start the seat.
    pub start: Option<Time>,
}

/// The reason if Slurm can't say one.
pub(crate) const NO_SLURMCTLD: &str = "Slurm's controller doesn't answer";
/// The reason if the seat runs, and Slurm doesn't start the kernel's step in it.
pub(crate) const NO_STEP: &str = "Slurm has not started its process in its seat yet";

impl SeatWaits {
    /// Slurm's reason in a person's words.
    pub fn sentence(&self) -> String {
        // `ReqNodeNotAvail, UnavailableNodes:...` has its detail behind the word.
        let word = self.reason.split(',').next().unwrap_or_default().trim();
        let said = match word {
            "Priority" => "other jobs come first",
            "Resources" => "no node has room",
            "PartitionDown" | "PartitionInactive" => "the partition is down",
            "ReqNodeNotAvail" => "the nodes are not available",
            "QOSMaxJobsPerUserLimit" => "you have as many jobs as your QOS allows",
            "AssocMaxJobsLimit" => "your account has as many jobs as it may",
            "AssocGrpCpuLimit" => "your account uses as many cores as it may",
            "None" | "BeginTime" | "" => "Slurm is about to start it",
            known @ (NO_SLURMCTLD | NO_STEP) => known,
            other => return format!("Slurm's reason is {other}"),
        };
        said.to_owned()
    }
}

/// A seat's wait.
#[derive(Debug)]
struct Wait {
    seat: SeatWaits,
    since: Time,
}

/// A client that shows notices.
#[derive(Debug)]
struct Announced {
    session: String,
    comm: String,
    identity: Bytes,
    header: Bytes,
    /// The client's `comm_open`, and its last word on the notebook's default need.
    messages: Vec<Message>,
}

/// The text at a cell, for a client that shows no notices.
#[derive(Debug)]
struct Shown {
    header: Bytes,
    cell: CellId,
}

#[derive(Debug, Default)]
pub(super) struct Seating {
    /// The answer of the kernelspec's last kernel to a `kernel_info_request`.
    info: Option<Value>,
    /// What the present kernel says.
    learnt: Option<Value>,
    wait: Option<Wait>,
    /// Requests already answered in the kernel's place.
    answered: Vec<CellId>,
    /// The oldest first.
    announced: Vec<Announced>,
    shown: Option<Shown>,
}

impl Seating {
    fn notice(&self) -> Option<Value> {
        let Wait { seat, since } = self.wait.as_ref()?;
        let mut notice = json!({"state": "seat", "reason": seat.sentence(), "since": seconds(*since)});
        if let Some(start) = seat.start {
            notice["start"] = json!(seconds(start));
        }
        Some(notice)
    }

    /// Whether this request was already answered in the kernel's place: the kernel's own reply is then superfluous.
    pub(super) fn is_answered(&mut self, request: &str) -> bool {
        let at = self.answered.iter().position(|id| id.as_str() == request);
        at.map(|at| self.answered.swap_remove(at)).is_some()
    }

    pub(super) fn has_answered(&self) -> bool {
        !self.answered.is_empty()
    }

    /// The kernel says what it is.
    pub(super) fn learns(&mut self, reply: &Bytes) {
        let content = serde_json::from_slice::<Value>(reply).ok();
        if let Some(content) = content.filter(|c| c["status"] == "ok") {
            self.learnt = (self.info.as_ref() != Some(&content)).then_some(content);
        }
    }

    /// A client announces itself, changes its announcement, or leaves.
    pub(super) fn comm(
        &mut self,
        identity: &Bytes,
        header: &Header,
        envelope: &Envelope,
        content: CommContent,
        message: &Message,
    ) {
        let known = self.announced.iter().position(|a| a.comm == content.comm_id);
        match (header.msg_type.as_str(), known) {
            ("comm_open", _) if content.announces() => {
                self.announced.retain(|a| a.session != header.session);
                if self.announced.len() == ANNOUNCED_MAX {
                    self.announced.remove(0);
                }
                self.announced.push(Announced {
                    session: header.session.clone(),
                    comm: content.comm_id,
                    identity: identity.clone(),
                    header: envelope.header.clone(),
                    messages: vec![message.clone()],
                });
            }
            ("comm_msg", Some(at)) if content.data.get("default_need").is_some() => {
                let messages = &mut self.announced[at].messages;
                messages.truncate(1);
                messages.push(message.clone());
            }
            ("comm_close", Some(at)) => {
                self.announced.remove(at);
            }
            _ => {}
        }
    }

    pub(super) fn client_gone(&mut self, identity: &Bytes) {
        self.announced.retain(|a| a.identity != *identity);
    }

    /// Introduces the clients to another replica.
    pub(super) fn introduce(&self, wire: &mut impl Wire) {
        for announced in &self.announced {
            for message in &announced.messages {
                wire.send(Item::Jupyter {
                    channel: Channel::Shell,
                    identity: announced.identity.clone(),
                    message: message.clone(),
                });
            }
        }
    }

    pub(super) fn check(&self) {
        assert!(self.announced.len() <= ANNOUNCED_MAX);
        assert!(self.answered.len() <= ANSWERED_MAX);
        assert!(self.shown.is_none() || self.wait.is_some());
    }
}

impl Front {
    /// Notes the `kernel_info_reply` of the kernelspec's last kernel.
    #[must_use]
    pub fn knowing(mut self, info: Option<Value>) -> Self {
        self.seating.info = info;
        self
    }

    /// The present kernel's information, if it differs from the last kernel's.
    pub fn take_learnt(&mut self) -> Option<Value> {
        let learnt = self.seating.learnt.take()?;
        self.seating.info = Some(learnt.clone());
        Some(learnt)
    }

    /// The kernel's seat waits in Slurm's queue, for this reason.
    pub fn seat_waits(&mut self, seat: SeatWaits, at: Time, wire: &mut impl Wire) {
        let before = self.seating.wait.take();
        let news = before.as_ref().is_none_or(|b| b.seat != seat);
        let since = before.map_or(at, |b| b.since);
        self.seating.wait = Some(Wait { seat, since });
        if news && self.end.is_none() {
            self.answer_in_its_place(at, wire);
            self.tell_notice(at, wire);
            self.tell_wait(at, wire);
        }
    }

    /// A client asks for a cell, and the kernel may have no seat.
    pub(super) fn cell_waits(&mut self, at: Time, wire: &mut impl Wire) {
        if let Some(notice) = self.seating.notice() {
            self.tell_standing("starting", &notice, at, wire);
        }
        self.tell_wait(at, wire);
    }

    /// The replica has a connection: the kernel is there, or about to come.
    pub fn replica_is_there(&mut self, at: Time, wire: &mut impl Wire) {
        self.hide_wait(at, wire);
        if self.runs_before().is_some() {
            self.answer_in_its_place(at, wire);
        }
        if self.seating.wait.take().is_some() {
            self.tell_standing("idle", &json!({"state": "cpu"}), at, wire);
        }
    }

    /// The replica is lost or leaves, and another one is started.
    pub fn goes_elsewhere(&mut self, at: Time, wire: &mut impl Wire) {
        self.tell_comms(&json!({"state": "moving"}), at, wire);
    }

    pub(super) fn tell_notice(&mut self, at: Time, wire: &mut impl Wire) {
        if let Some(notice) = self.seating.notice() {
            self.tell_standing("starting", &notice, at, wire);
            self.tell_comms(&notice, at, wire);
        }
    }

    /// Tells all clients how the kernel stands: `busy` at a waiting cell, or else in this `state`. A client takes any
    /// other state for the end of its turn, and a culler for a kernel without a cell.
    fn tell_standing(&mut self, state: &str, notice: &Value, at: Time, wire: &mut impl Wire) {
        let cell = self.open.iter().find(|o| o.is_cell).map(|o| o.header.clone());
        let state = if cell.is_some() { "busy" } else { state };
        let metadata = json!({"gresshopper": notice});
        let status = self
            .author
            .status(&cell.unwrap_or_else(none), state, &metadata, at);
        self.publish(&status, None, at, wire);
    }

    fn tell_comms(&mut self, notice: &Value, at: Time, wire: &mut impl Wire) {
        for announced in &self.seating.announced {
            let content = json!({"comm_id": announced.comm, "data": notice});
            let said = self
                .author
                .publish("comm_msg", &announced.header, &json!({}), &content, at);
            wire.publish(&said, None);
        }
    }

    // A client's questions before it accepts a kernel.

    /// Answers the open questions for the kernel's information.
    fn answer_in_its_place(&mut self, at: Time, wire: &mut impl Wire) {
        if self.seating.info.is_none() {
            return;
        }
        let (asked, rest) = std::mem::take(&mut self.open)
            .into_iter()
            .partition::<Vec<_>, _>(Open::asks_for_info);
        self.open = rest;
        for open in asked {
            self.unseen.note(Some(Change::Closed(open.id.clone())));
            // The replica has the request already, or will.
            if self.seating.answered.len() == ANSWERED_MAX {
                self.seating.answered.remove(0);
            }
            self.seating.answered.push(open.id.clone());
            self.inform(open.channel, &open.identity, &open.header, at, wire);
        }
    }

    /// Whether a new question was answered in the kernel's place. The kernel then never sees it.
    pub(super) fn is_informed(
        &mut self,
        (channel, identity): (Channel, &Bytes),
        header: &Bytes,
        at: Time,
        wire: &mut impl Wire,
    ) -> bool {
        // An earlier server's cell may run for hours, and a client gives up a kernel that doesn't answer.
        let engaged = self.seating.wait.is_some() || self.runs_before().is_some();
        let answers = engaged && self.seating.info.is_some();
        if answers {
            self.inform(channel, identity, header, at, wire);
            // A new client hears why the kernel isn't there.
            self.tell_notice(at, wire);
        }
        answers
    }

    fn inform(&mut self, channel: Channel, identity: &Bytes, header: &Bytes, at: Time, wire: &mut impl Wire) {
        let Some(info) = self.seating.info.clone() else {
            return;
        };
        self.says(
            (channel, identity, header),
            ("kernel_info_reply", &info),
            at,
            wire,
        );
        if let Some(before) = self.runs_before() {
            let busy = self.author.status(&before, "busy", &json!({}), at);
            wire.publish(&busy, None);
        }
    }

    /// Answers a request that isn't a cell, in the kernel's place.
    pub(super) fn says(
        &mut self,
        (channel, identity, header): (Channel, &Bytes, &Bytes),
        (kind, content): (&str, &Value),
        at: Time,
        wire: &mut impl Wire,
    ) {
        let nothing = json!({});
        let busy = self.author.status(header, "busy", &nothing, at);
        let reply = self.author.write(kind, header, &nothing, content, at);
        let idle = self.author.status(header, "idle", &nothing, at);
        wire.publish(&busy, None);
        // A client that is away asks again.
        let _ = wire.reply(channel, identity, reply.message(), None);
        wire.publish(&idle, None);
    }

    // The text at a cell.

    /// Shows the wait at the first open cell, to a client that shows no notices.
    pub(super) fn tell_wait(&mut self, at: Time, wire: &mut impl Wire) {
        let Some(Wait { seat, .. }) = &self.seating.wait else {
            return;
        };
        let Some(open) = self.open.iter().find(|o| o.is_shown()) else {
            return;
        };
        let announced = |session: &str| self.seating.announced.iter().any(|a| a.session == session);
        let header = serde_json::from_slice::<Header>(&open.header).ok();
        if header.is_none_or(|h| announced(&h.session)) || open.is_unattended() {
            return;
        }
        let text = format!(
            "Waiting for a node for this notebook's kernel: {}",
            seat.sentence()
        );
        let kind = match &self.seating.shown {
            Some(shown) if shown.cell == open.id => "update_display_data",
            _ => "display_data",
        };
        let display = format!("gresshopper-{}", open.id);
        let content = json!({
            "data": {"text/plain": text}, "metadata": {}, "transient": {"display_id": display},
        });
        let (header, cell) = (open.header.clone(), open.id.clone());
        let message = self.author.publish(kind, &header, &json!({}), &content, at);
        self.publish(&message, None, at, wire);
        self.seating.shown = Some(Shown { header, cell });
    }

    /// Takes the text away again, before the cell begins or is answered.
    pub(super) fn hide_wait(&mut self, at: Time, wire: &mut impl Wire) {
        if let Some(shown) = self.seating.shown.take() {
            let content = json!({"wait": false});
            let cleared = self
                .author
                .publish("clear_output", &shown.header, &json!({}), &content, at);
            self.publish(&cleared, None, at, wire);
            if self.told.are_at(&shown.cell) {
                self.tell_again(at, wire);
            }
        }
    }
}

/// The parent of messages without a request.
fn none() -> Bytes {
    Bytes::from_static(b"{}")
}

/// Seconds since the epoch.
fn seconds(at: Time) -> f64 {
    at.0 as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{Interrupt, Mark};
    use hop_protocol::jupyter::Author;
    use hop_words::id::Tenure;

    const ME: Bytes = Bytes::from_static(b"me");

    /// Everybody is there, and what is said is written down. The screen has what all cells show.
    #[derive(Default)]
    struct Ear {
        said: Vec<String>,
        screen: Vec<String>,
    }

    impl Ear {
        fn shows(&mut self, message: &Message) {
            let e = Envelope::parse(message).unwrap();
            let content: Value = serde_json::from_slice(&e.content).unwrap();
            let texts = [&content["text"], &content["data"]["text/plain"]];
            let text = texts.iter().find_map(|t| t.as_str());
            match &*e.header().unwrap().msg_type {
                "clear_output" => self.screen.clear(),
                "stream" | "display_data" => self.screen.push(text.unwrap().to_owned()),
                _ => {}
            }
        }
    }

    fn line(message: &Message) -> String {
        let e = Envelope::parse(message).unwrap();
        let content: Value = serde_json::from_slice(&e.content).unwrap();
        let metadata: Value = serde_json::from_slice(&e.metadata).unwrap();
        let notice = [&metadata["gresshopper"], &content["data"]]
            .into_iter()
            .find(|n| n["state"].is_string());
        let words = [
            content["execution_state"].as_str(),
            content["data"]["text/plain"].as_str(),
            notice.and_then(|n| n["state"].as_str()),
            notice.and_then(|n| n["reason"].as_str()),
        ];
        let mut line = e.header().unwrap().msg_type;
        for word in words.into_iter().flatten() {
            line = format!("{line} {word}");
        }
        let parent = e.parent().filter(|p| p.msg_type == "execute_request");
        if line.starts_with("status busy") && parent.is_some() {
            line += " at the cell";
        }
        line
    }

    impl Wire for Ear {
        fn reply(&mut self, _: Channel, _: &[u8], message: Message, _: Option<Mark>) -> Result<(), Message> {
            self.said.push(line(&message));
            Ok(())
        }

        fn publish(&mut self, message: &Message, _: Option<Mark>) -> bool {
            self.said.push(line(message));
            self.shows(message);
            true
        }

        fn subscribers(&self) -> usize {
            1
        }

        fn send(&mut self, item: Item) {
            if let Item::Jupyter { message, .. } = item {
                self.said.push(format!("to the replica: {}", line(&message)));
            }
        }

        fn done(&mut self, _: u64) {
            self.said.push("done".to_owned());
        }
    }

    struct World {
        front: Front,
        client: Author,
        ear: Ear,
    }

    impl World {
        fn new(info: Option<Value>) -> Self {
            Self {
                front: Front::new(b"key", "front".into()).durable(true).knowing(info),
                client: Author::new(b"key", "client".into()),
                ear: Ear::default(),
            }
        }

        fn asks(&mut self, kind: &str, metadata: &Value, content: &Value) -> (Envelope, Vec<String>) {
            let asked = self.client.write(kind, &none(), metadata, content, Time(0));
            self.front.request(
                Channel::Shell,
                &ME,
                asked.clone().message(),
                Time(0),
                &mut self.ear,
            );
            (asked, self.said())
        }

        fn waits(&mut self, reason: &str) -> Vec<String> {
            let seat = SeatWaits {
                reason: reason.to_owned(),
                start: Some(Time(9_000_000)),
            };
            self.front.seat_waits(seat, Time(5_000_000), &mut self.ear);
            self.said()
        }

        /// The kernel's own answer.
        fn answers(&mut self, request: &Envelope, kind: &str, content: &Value) -> Vec<String> {
            let mut kernel = Author::new(b"key", "kernel".into());
            let reply = kernel.write(kind, &request.header, &json!({}), content, Time(0));
            let item = Item::Jupyter {
                channel: Channel::Shell,
                identity: ME,
                message: reply.message(),
            };
            self.front.item(1, item, Time(0), &mut self.ear);
            self.said()
        }

        fn comes(&mut self) -> Vec<String> {
            self.front.replica_is_there(Time(0), &mut self.ear);
            self.said()
        }

        fn said(&mut self) -> Vec<String> {
            self.front.sanity_check();
            std::mem::take(&mut self.ear.said)
        }
    }

    const INFORMED: [&str; 4] = [
        "status busy",
        "kernel_info_reply",
        "status idle",
        "status starting seat no node has room",
    ];

    const BUSY: &str = "status busy seat no node has room at the cell";

    fn nothing() -> Value {
        json!({})
    }

    #[test]
    fn who_asks_for_a_kernel_without_a_node_is_answered_in_its_place_once() {
        let mut world = World::new(Some(json!({"status": "ok", "banner": "old"})));
        let (first, said) = world.asks("kernel_info_request", &nothing(), &nothing());
        assert_eq!(
            said,
            ["to the replica: kernel_info_request"],
            "it may come at once"
        );
        assert_eq!(world.waits("Resources"), INFORMED);
        assert_eq!(world.waits("Resources"), [""; 0], "it is no news");
        let (_, said) = world.asks("kernel_info_request", &nothing(), &nothing());
        assert_eq!(said, INFORMED, "and the kernel never sees it");
        assert_eq!(
            world.waits("Priority"),
            ["status starting seat other jobs come first"]
        );
        assert_eq!(world.comes(), ["status idle cpu"]);
        let own = json!({"status": "ok", "banner": "new"});
        assert_eq!(
            world.answers(&first, "kernel_info_reply", &own),
            ["done"],
            "one too many"
        );
        assert_eq!(world.front.take_learnt(), Some(own.clone()));
        let (later, said) = world.asks("kernel_info_request", &nothing(), &nothing());
        assert_eq!(said, ["to the replica: kernel_info_request"]);
        assert_eq!(
            world.answers(&later, "kernel_info_reply", &own),
            ["kernel_info_reply"]
        );
        assert_eq!(world.front.take_learnt(), None, "it says what it said before");
    }

    #[test]
    fn a_kernelspec_without_a_kernel_before_waits_for_its_first() {
        let mut world = World::new(None);
        world.asks("kernel_info_request", &nothing(), &nothing());
        assert_eq!(
            world.waits("Resources"),
            ["status starting seat no node has room"]
        );
        let (_, said) = world.asks("kernel_info_request", &nothing(), &nothing());
        assert_eq!(said, ["to the replica: kernel_info_request"]);
    }

    #[test]
    fn a_cell_reads_why_it_waits_where_its_client_shows_no_notices() {
        let mut world = World::new(None);
        world.waits("Resources");
        let (_, said) = world.asks("execute_request", &nothing(), &json!({"code": "1"}));
        let text = "Waiting for a node for this notebook's kernel: no node has room";
        assert_eq!(
            said,
            [
                "to the replica: execute_request".to_owned(),
                BUSY.to_owned(),
                format!("display_data {text}")
            ]
        );
        let said = world.waits("Priority");
        let text = text.replace("no node has room", "other jobs come first");
        assert_eq!(said[1..], [format!("update_display_data {text}")]);
        assert_eq!(
            world.comes(),
            ["clear_output", "status busy cpu at the cell"],
            "its cell is next"
        );

        let mut unattended = World::new(None);
        unattended.waits("Resources");
        let run = json!({"gresshopper": {"run": {"class": "batch"}}});
        let (_, said) = unattended.asks("execute_request", &run, &json!({"code": "1"}));
        assert_eq!(said, ["to the replica: execute_request", BUSY]);
    }

    #[test]
    fn a_kernel_whose_cell_waits_for_a_seat_looks_busy_until_the_cell_ends() {
        let mut world = World::new(Some(json!({"status": "ok"})));
        world.asks("execute_request", &nothing(), &json!({"code": "1"}));
        assert_eq!(world.waits("Resources")[0], BUSY);
        let (_, said) = world.asks("kernel_info_request", &nothing(), &nothing());
        assert_eq!(said.last().unwrap(), BUSY, "after the question's idle");
        world
            .front
            .interrupt(Interrupt::Signal, true, Time(0), &mut world.ear);
        let said = world.said();
        assert_eq!(said.last().unwrap(), "status starting seat no node has room");
    }

    #[test]
    fn a_clients_hidden_request_reads_no_reason_in_the_place_of_the_users_cell() {
        let mut world = World::new(None);
        world.waits("Resources");
        let hidden = json!({"code": "1", "silent": false, "store_history": false});
        let (_, said) = world.asks("execute_request", &nothing(), &hidden);
        assert_eq!(said, ["to the replica: execute_request", BUSY]);
        let (_, said) = world.asks("execute_request", &nothing(), &json!({"code": "1"}));
        assert!(said[2].starts_with("display_data Waiting"), "{said:?}");
    }

    const LOST: &str = "gresshopper: it was lost.\n";

    /// The kernel's node says something about a cell.
    fn publishes(world: &mut World, cell: &Envelope, kind: &str, content: &Value) {
        let mut replica = Author::new(b"key", format!("replica {kind}"));
        let said = replica.publish(kind, &cell.header, &json!({}), content, Time(0));
        let item = Item::Jupyter {
            channel: Channel::Iopub,
            identity: Bytes::new(),
            message: said,
        };
        world.front.item(1, item, Time(0), &mut world.ear);
    }

    #[test]
    fn sentences_at_a_cell_outlast_the_text_of_its_wait() {
        let mut world = World::new(None);
        world.front.tell("it was lost", Time(0), &mut world.ear);
        world.waits("Resources");
        let (cell, _) = world.asks("execute_request", &nothing(), &json!({"code": "1"}));
        assert_eq!(world.ear.screen.len(), 2);
        world.comes();
        assert_eq!(world.ear.screen, [LOST], "the seat is there");
        let text = json!({"data": {"text/plain": "Waiting for 1 GPU"}});
        publishes(&mut world, &cell, "display_data", &text);
        world.front.tell("it was lost", Time(0), &mut world.ear);
        publishes(&mut world, &cell, "clear_output", &nothing());
        assert_eq!(world.ear.screen, [LOST, LOST], "the GPU is there");
        publishes(&mut world, &cell, "execute_input", &nothing());
        world.front.tell("it was lost", Time(0), &mut world.ear);
        publishes(&mut world, &cell, "clear_output", &nothing());
        assert_eq!(world.ear.screen, [""; 0], "the cell clears its own outputs");
    }

    #[test]
    fn the_text_is_gone_before_a_dead_kernels_error() {
        let mut world = World::new(None);
        world.waits("Resources");
        world.asks("execute_request", &nothing(), &json!({"code": "1"}));
        world.front.die("no".into(), Time(0), &mut world.ear);
        assert_eq!(world.said(), ["clear_output", "error", "status idle"]);
    }

    #[test]
    fn clients_that_announced_themselves_are_told_and_introduced_to_the_next_replica() {
        let mut world = World::new(None);
        let open = json!({"comm_id": "c", "target_name": "gresshopper", "data": {"version": 1}});
        world.asks("comm_open", &nothing(), &open);
        world.asks(
            "comm_open",
            &nothing(),
            &json!({"comm_id": "w", "target_name": "jupyter.widget", "data": {}}),
        );
        for need in [json!({"gpus": 1}), Value::Null, json!({"gpus": 2})] {
            let wish = json!({"comm_id": "c", "data": {"default_need": need}});
            world.asks("comm_msg", &nothing(), &wish);
        }
        world.asks(
            "comm_msg",
            &nothing(),
            &json!({"comm_id": "c", "data": {"release": true}}),
        );
        let wait = "seat no node has room";
        assert_eq!(
            world.waits("Resources"),
            [format!("status starting {wait}"), format!("comm_msg {wait}")]
        );
        let (_, said) = world.asks("execute_request", &nothing(), &json!({"code": "1"}));
        assert_eq!(
            said,
            [
                "to the replica: execute_request",
                &format!("status busy {wait} at the cell")
            ],
            "it shows the notice itself"
        );
        world.comes();
        world.front.goes_elsewhere(Time(0), &mut world.ear);
        assert_eq!(world.said(), ["comm_msg moving"]);
        world.front.next_tenure(Tenure(2), true, Time(0), &mut world.ear);
        let to = |kind: &str| format!("to the replica: {kind}");
        assert_eq!(
            world.said(),
            [to("comm_open"), to("comm_msg"), to("execute_request")]
        );
        world.front.gone(&ME, &mut world.ear);
        world.front.next_tenure(Tenure(3), true, Time(0), &mut world.ear);
        assert_eq!(world.said(), [to("execute_request")]);
    }
}
