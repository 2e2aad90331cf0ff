//! What the front decides: which message goes where, what is kept for clients that are away, and what clients are told
//! when the kernel dies. It acts through [`Wire`] and has no socket and no clock.

use bytes::Bytes;
use hop_protocol::jupyter::{Author, Channel, Envelope, Header, now};
use hop_protocol::link::Item;
use hop_protocol::message::{InFlight, Note, Over};
use hop_zmtp::Message;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};

/// How much is kept for clients that are away, in bytes. Beyond it the oldest outputs go first.
const KEEP: usize = 64 << 20;

/// What the front can do.
pub trait Wire {
    /// Sends to one client. `seq` is done when the message has left; it comes back when the client is away.
    fn reply(
        &mut self,
        channel: Channel,
        identity: &[u8],
        message: Message,
        seq: Option<u64>,
    ) -> Result<(), Message>;
    /// Sends to all subscribers; false where there is none. `seq` is done when the message has left.
    fn publish(&mut self, message: &Message, seq: Option<u64>) -> bool;
    fn send(&mut self, item: Item);
    /// Nothing is left to do with this item.
    fn done(&mut self, seq: u64);
}

/// How the kernel ended, as far as the front is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Shutdown,
    Dead { reason: String },
}

#[derive(Debug)]
struct Waiting {
    seq: u64,
    message: Message,
}

/// The state of one kernel's front.
#[derive(Debug)]
pub struct Front {
    author: Author,
    /// When its kernel was launched; none: an earlier front did it.
    launched: Option<Timestamp>,
    /// Execute requests that have no reply, the oldest first.
    open: Vec<Open>,
    outputs: VecDeque<Waiting>,
    replies: HashMap<(Channel, Bytes), Vec<Waiting>>,
    kept: usize,
    dropped: u64,
    /// Replies that say that the kernel died, sent a little after its death was told.
    obituaries: Vec<(Bytes, Message)>,
    end: Option<End>,
}

#[derive(Debug)]
struct Open {
    msg_id: String,
    identity: Bytes,
    header: Bytes,
}

impl Front {
    pub fn new(signing_key: &[u8]) -> Self {
        Self {
            author: Author::new(signing_key),
            launched: None,
            open: Vec::new(),
            outputs: VecDeque::new(),
            replies: HashMap::new(),
            kept: 0,
            dropped: 0,
            obituaries: Vec::new(),
            end: None,
        }
    }

    /// Its kernel was launched then, on the ports of one that may have ended before.
    #[must_use]
    pub fn launched(mut self, at: Timestamp) -> Self {
        self.launched = Some(at);
        self
    }

    /// How the kernel ended, once it has.
    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// A client sent a request.
    pub fn request(&mut self, channel: Channel, identity: &Bytes, message: Message, wire: &mut impl Wire) {
        let Ok(envelope) = Envelope::parse(&message) else {
            tracing::warn!("dropped something that is no message of Jupyter's");
            return;
        };
        let checked = self
            .author
            .signer()
            .verify(&envelope)
            .and_then(|()| envelope.header());
        let header = match checked {
            Ok(header) => header,
            Err(error) => {
                tracing::warn!(%error, "dropped a message");
                return;
            }
        };
        if self.end.is_some() {
            return;
        }
        if header.msg_type == "shutdown_request" && self.is_older(&envelope) {
            tracing::info!("dropped a request to shut down the kernel that was here before");
            return;
        }
        if header.msg_type == "execute_request" {
            self.open.push(Open {
                msg_id: header.msg_id,
                identity: identity.clone(),
                header: envelope.header,
            });
        }
        wire.send(Item::Jupyter {
            channel,
            identity: identity.clone(),
            message,
        });
    }

    /// Made before this kernel was launched. A manager that restarts a kernel which has died asks it to shut down all the
    /// same; its socket holds that back for a second, and gives it to whoever listens there by then. Managers run where
    /// fronts do, so they have one clock.
    fn is_older(&self, request: &Envelope) -> bool {
        request
            .date()
            .zip(self.launched)
            .is_some_and(|(made, launched)| made < launched)
    }

    /// A client subscribed to iopub: it is greeted (JEP 65), and gets what nobody was there for.
    pub fn subscribed(&mut self, topic: &Bytes, wire: &mut impl Wire) {
        let parent = Bytes::from_static(b"{}");
        let content = json!({"subscription": String::from_utf8_lossy(topic)});
        let mut welcome = self.author.write("iopub_welcome", &parent, &json!({}), &content);
        if !topic.is_empty() {
            welcome.identities = vec![topic.clone()];
        }
        wire.publish(&welcome.message(), None);
        if self.dropped > 0 {
            let text = format!(
                "gresshopper: {} outputs were dropped while no client was connected\n",
                self.dropped
            );
            let notice = json!({"name": "stderr", "text": text});
            self.dropped = 0;
            wire.publish(&self.author.publish("stream", &parent, &json!({}), &notice), None);
        }
        while let Some(waiting) = self.outputs.pop_front() {
            if !wire.publish(&waiting.message, Some(waiting.seq)) {
                self.outputs.push_front(waiting);
                return;
            }
            self.kept -= waiting.message.size();
        }
    }

    /// A client (again) has a connection: it gets the replies that came while it was away.
    pub fn connected(&mut self, channel: Channel, identity: &Bytes, wire: &mut impl Wire) {
        let key = (channel, identity.clone());
        let mut waiting = self.replies.remove(&key).unwrap_or_default().into_iter();
        for Waiting { seq, message } in waiting.by_ref() {
            let size = message.size();
            match wire.reply(channel, identity, message, Some(seq)) {
                Ok(()) => self.kept -= size,
                Err(message) => {
                    let rest = std::iter::once(Waiting { seq, message }).chain(waiting).collect();
                    self.replies.insert(key, rest);
                    return;
                }
            }
        }
    }

    /// A client is gone for good: nobody will fetch its replies.
    pub fn gone(&mut self, identity: &Bytes, wire: &mut impl Wire) {
        for channel in Channel::ALL {
            for waiting in self
                .replies
                .remove(&(channel, identity.clone()))
                .unwrap_or_default()
            {
                self.kept -= waiting.message.size();
                wire.done(waiting.seq);
            }
        }
        let identity = hex::encode(identity);
        wire.send(Item::Note(Note::ClientGone { identity }));
    }

    /// Whether a client has asked for something that it hasn't got yet.
    pub fn owes(&self, identity: &Bytes) -> bool {
        self.open.iter().any(|o| o.identity == *identity)
    }

    /// A replica came (back): these are the requests that it works on.
    pub fn resume(&mut self, in_flight: Vec<InFlight>) {
        let known: Vec<Open> = std::mem::take(&mut self.open);
        let mut open: Vec<Open> = in_flight.into_iter().filter_map(Open::from_flight).collect();
        open.extend(
            known
                .into_iter()
                .filter(|o| !open.iter().any(|n| n.msg_id == o.msg_id))
                .collect::<Vec<_>>(),
        );
        self.open = open;
    }

    /// Something came from the replica.
    pub fn item(&mut self, seq: u64, item: Item, wire: &mut impl Wire) {
        match item {
            Item::Jupyter {
                channel: Channel::Iopub,
                message,
                ..
            } => self.output(seq, message, wire),
            Item::Jupyter {
                channel,
                identity,
                message,
            } => {
                if channel == Channel::Shell {
                    self.close(&message);
                }
                if let Err(message) = wire.reply(channel, &identity, message, Some(seq)) {
                    self.kept += message.size();
                    self.replies
                        .entry((channel, identity))
                        .or_default()
                        .push(Waiting { seq, message });
                    self.enforce(wire);
                }
            }
            Item::Note(note) => {
                match note {
                    Note::KernelOver { over: Over::Shutdown } => self.end = Some(End::Shutdown),
                    Note::KernelOver {
                        over: Over::Died { reason } | Over::NotStarted { reason },
                    } => {
                        self.die(reason, wire);
                    }
                    Note::Dropped { messages, .. } => self.dropped += messages,
                    _ => {}
                }
                wire.done(seq);
            }
        }
    }

    fn output(&mut self, seq: u64, message: Message, wire: &mut impl Wire) {
        if wire.publish(&message, Some(seq)) {
            return;
        }
        if !is_worth_keeping(&message) {
            wire.done(seq);
            return;
        }
        self.kept += message.size();
        self.outputs.push_back(Waiting { seq, message });
        self.enforce(wire);
    }

    fn enforce(&mut self, wire: &mut impl Wire) {
        while self.kept > KEEP && self.outputs.len() > 1 {
            let oldest = self.outputs.pop_front().expect("there are two");
            self.kept -= oldest.message.size();
            self.dropped += 1;
            wire.done(oldest.seq);
        }
    }

    /// The request that this answers is no longer open.
    fn close(&mut self, reply: &Message) {
        if self.open.is_empty() {
            return;
        }
        let parent = Envelope::parse(reply).ok().and_then(|e| e.parent());
        if let Some(Header { msg_id, .. }) = parent {
            self.open.retain(|o| o.msg_id != msg_id);
        }
    }

    /// The kernel died. Whoever looks at the cell that ran reads why at once; its reply follows by
    /// [`Self::send_obituaries`], for clients that watch the kernel's process are to notice its death first, as they
    /// do with a plain kernel.
    pub fn die(&mut self, reason: String, wire: &mut impl Wire) {
        if self.end.is_some() {
            return;
        }
        for (i, open) in std::mem::take(&mut self.open).into_iter().enumerate() {
            let content = if i == 0 {
                let shown = failure(&reason);
                wire.publish(
                    &self.author.publish("error", &open.header, &json!({}), &shown),
                    None,
                );
                let mut content = shown;
                content["status"] = "error".into();
                content["execution_count"] = 0.into();
                content
            } else {
                json!({"status": "aborted"})
            };
            wire.publish(&self.author.status(&open.header, "idle", &json!({})), None);
            let metadata = json!({"started": now(), "dependencies_met": true, "engine": "", "status": content["status"]});
            let reply = self
                .author
                .write("execute_reply", &open.header, &metadata, &content)
                .message();
            self.obituaries.push((open.identity, reply));
        }
        self.end = Some(End::Dead { reason });
    }

    /// Answers what the dead kernel was asked.
    pub fn send_obituaries(&mut self, wire: &mut impl Wire) {
        for (identity, reply) in std::mem::take(&mut self.obituaries) {
            // A client that is away now will find another kernel when it is back.
            let _ = wire.reply(Channel::Shell, &identity, reply, None);
        }
    }

    /// What must hold after every call.
    pub fn sanity_check(&self) {
        let outputs: usize = self.outputs.iter().map(|w| w.message.size()).sum();
        let replies: usize = self.replies.values().flatten().map(|w| w.message.size()).sum();
        assert_eq!(self.kept, outputs + replies);
        assert!(self.obituaries.is_empty() || self.end.is_some());
    }
}

impl Open {
    fn from_flight(flight: InFlight) -> Option<Self> {
        let header: Header = serde_json::from_str(&flight.header).ok()?;
        Some(Self {
            msg_id: header.msg_id,
            identity: hex::decode(flight.identity).ok()?.into(),
            header: flight.header.into(),
        })
    }
}

fn failure(reason: &str) -> Value {
    json!({"ename": "KernelDied", "evalue": reason, "traceback": [format!("KernelDied: {reason}")]})
}

/// Whether an output is for a cell or a widget. A kernel's own states, long past, are of no use to who comes later.
fn is_worth_keeping(message: &Message) -> bool {
    let Ok(envelope) = Envelope::parse(message) else {
        return false;
    };
    envelope
        .parent()
        .is_some_and(|p| p.msg_type == "execute_request" || p.msg_type.starts_with("comm_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Recorder {
        here: Vec<&'static [u8]>,
        subscribed: bool,
        seen: Vec<String>,
    }

    impl Recorder {
        fn take(&mut self) -> Vec<String> {
            std::mem::take(&mut self.seen)
        }
    }

    fn kind(message: &Message) -> String {
        let e = Envelope::parse(message).unwrap();
        let state = serde_json::from_slice::<Value>(&e.content).unwrap()["status"]
            .as_str()
            .unwrap_or("")
            .to_owned();
        format!("{} {state}", e.header().unwrap().msg_type)
            .trim()
            .to_owned()
    }

    impl Wire for Recorder {
        fn reply(
            &mut self,
            _: Channel,
            id: &[u8],
            message: Message,
            seq: Option<u64>,
        ) -> Result<(), Message> {
            if !self.here.contains(&id) {
                return Err(message);
            }
            self.seen.push(format!("reply {} {seq:?}", kind(&message)));
            Ok(())
        }

        fn publish(&mut self, message: &Message, seq: Option<u64>) -> bool {
            if self.subscribed {
                self.seen.push(format!("publish {} {seq:?}", kind(message)));
            }
            self.subscribed
        }

        fn send(&mut self, item: Item) {
            self.seen.push(match item {
                Item::Jupyter { channel, message, .. } => format!("send {channel:?} {}", kind(&message)),
                Item::Note(note) => format!("send {note:?}"),
            });
        }

        fn done(&mut self, seq: u64) {
            self.seen.push(format!("done {seq}"));
        }
    }

    const ME: Bytes = Bytes::from_static(b"me");

    fn request(author: &Author) -> Envelope {
        author.write(
            "execute_request",
            &Bytes::from_static(b"{}"),
            &json!({}),
            &json!({"code": "1"}),
        )
    }

    fn from_kernel(channel: Channel, message: Message) -> Item {
        let identity = if channel == Channel::Iopub {
            Bytes::new()
        } else {
            ME
        };
        Item::Jupyter {
            channel,
            identity,
            message,
        }
    }

    #[test]
    fn only_signed_requests_pass() {
        let (mut front, mut wire) = (Front::new(b"key"), Recorder::default());
        front.request(
            Channel::Shell,
            &ME,
            request(&Author::new(b"wrong")).message(),
            &mut wire,
        );
        front.request(
            Channel::Shell,
            &ME,
            Message(vec![Bytes::from_static(b"x")]),
            &mut wire,
        );
        assert!(wire.take().is_empty());
        front.request(
            Channel::Shell,
            &ME,
            request(&Author::new(b"key")).message(),
            &mut wire,
        );
        assert_eq!(wire.take(), ["send Shell execute_request"]);
    }

    #[test]
    fn a_kernel_is_not_shut_down_in_the_place_of_the_one_before_it() {
        let author = Author::new(b"key");
        let asked = author.write(
            "shutdown_request",
            &Bytes::from_static(b"{}"),
            &json!({}),
            &json!({}),
        );
        let made = asked.date().unwrap();
        let second = jiff::SignedDuration::from_secs(1);
        let passes = |front: Front, request: Envelope| {
            let (mut front, mut wire) = (front, Recorder::default());
            front.request(Channel::Control, &ME, request.message(), &mut wire);
            front.sanity_check();
            wire.take()
        };
        let front = || Front::new(b"key");
        let sent = ["send Control shutdown_request"];
        assert!(passes(front().launched(made + second), asked.clone()).is_empty());
        assert_eq!(passes(front().launched(made - second), asked.clone()), sent);
        assert_eq!(passes(front(), asked.clone()), sent, "a front that took over");
        let mut undated = asked;
        undated.header =
            Bytes::from_static(br#"{"msg_id": "1", "msg_type": "shutdown_request", "date": "?"}"#);
        author.signer().sign(&mut undated);
        assert_eq!(passes(front().launched(made + second), undated), sent);
        // Other requests wait for the kernel that comes.
        let early = request(&author);
        let kept = passes(front().launched(made + second), early);
        assert_eq!(kept, ["send Control execute_request"]);
    }

    #[test]
    fn what_nobody_was_there_for_is_delivered_on_return() {
        let (mut front, mut wire, author) = (Front::new(b"key"), Recorder::default(), Author::new(b"key"));
        let r = request(&author);
        front.request(Channel::Shell, &ME, r.clone().message(), &mut wire);
        wire.take();
        let nothing = json!({});
        let starting = author.status(&Bytes::from_static(b"{}"), "starting", &nothing);
        front.item(1, from_kernel(Channel::Iopub, starting), &mut wire);
        front.item(
            2,
            from_kernel(
                Channel::Iopub,
                author.publish("stream", &r.header, &nothing, &nothing),
            ),
            &mut wire,
        );
        let reply = author
            .write("execute_reply", &r.header, &nothing, &json!({"status": "ok"}))
            .message();
        front.item(3, from_kernel(Channel::Shell, reply), &mut wire);
        front.sanity_check();
        assert_eq!(wire.take(), ["done 1"]);

        wire.subscribed = true;
        front.subscribed(&Bytes::new(), &mut wire);
        assert_eq!(
            wire.take(),
            ["publish iopub_welcome None", "publish stream Some(2)"]
        );
        wire.here.push(b"me");
        front.connected(Channel::Control, &ME, &mut wire);
        assert!(wire.take().is_empty(), "it is for shell");
        front.connected(Channel::Shell, &ME, &mut wire);
        assert_eq!(wire.take(), ["reply execute_reply ok Some(3)"]);
        front.sanity_check();
    }

    #[test]
    fn too_much_is_dropped_from_the_oldest_and_said() {
        let (mut front, mut wire, author) = (Front::new(b"key"), Recorder::default(), Author::new(b"key"));
        let r = request(&author);
        let large = json!({"text": "x".repeat(KEEP / 2 + 1)});
        for seq in 1..=3 {
            front.item(
                seq,
                from_kernel(
                    Channel::Iopub,
                    author.publish("stream", &r.header, &json!({}), &large),
                ),
                &mut wire,
            );
            front.sanity_check();
        }
        assert_eq!(wire.take(), ["done 1", "done 2"]);
        wire.subscribed = true;
        front.subscribed(&Bytes::new(), &mut wire);
        let expected = [
            "publish iopub_welcome None",
            "publish stream None",
            "publish stream Some(3)",
        ];
        assert_eq!(wire.take(), expected);
    }

    #[test]
    fn a_death_is_told_in_the_cell_at_once_and_answered_after() {
        let (mut front, mut wire, author) = (Front::new(b"key"), Recorder::default(), Author::new(b"key"));
        wire.here.push(b"me");
        wire.subscribed = true;
        for _ in 0..2 {
            front.request(Channel::Shell, &ME, request(&author).message(), &mut wire);
        }
        wire.take();
        let over = Over::Died {
            reason: "out of memory".into(),
        };
        front.item(1, Item::Note(Note::KernelOver { over }), &mut wire);
        front.sanity_check();
        assert_eq!(
            wire.take(),
            [
                "publish error None",
                "publish status None",
                "publish status None",
                "done 1"
            ]
        );
        assert_eq!(
            front.end(),
            Some(&End::Dead {
                reason: "out of memory".into()
            })
        );
        front.send_obituaries(&mut wire);
        assert_eq!(
            wire.take(),
            [
                "reply execute_reply error None",
                "reply execute_reply aborted None"
            ]
        );
        front.request(Channel::Shell, &ME, request(&author).message(), &mut wire);
        assert!(wire.take().is_empty(), "a dead kernel is asked nothing");
    }

    #[test]
    fn a_new_front_learns_what_is_open_from_the_replica() {
        let (mut front, mut wire, author) = (Front::new(b"key"), Recorder::default(), Author::new(b"key"));
        let r = request(&author);
        front.resume(vec![InFlight {
            identity: hex::encode(ME),
            header: String::from_utf8(r.header.to_vec()).unwrap(),
        }]);
        assert!(front.owes(&ME));
        let reply = author
            .write("execute_reply", &r.header, &json!({}), &json!({"status": "ok"}))
            .message();
        wire.here.push(b"me");
        front.item(1, from_kernel(Channel::Shell, reply), &mut wire);
        assert!(!front.owes(&ME));
        assert_eq!(wire.take(), ["reply execute_reply ok Some(1)"]);
    }
}
