//! Notices to clients on the kernel's standing towards its GPU (docs/wiring.md, "Notices").
//!
//! A notice is a projection of the state, made anew after each input. Clients that announced themselves get changed
//! notices on their comm. Any other client gets a text at its cell after a long wait, before the cell begins. The
//! `status` messages for all clients are told where the wait changes ([`super::lease`]).

use super::cells::no_header;
use super::lease::{Holder, Kind, Lease, Revoked, Seeker, Wait};
use super::{Core, Hopd, wording};
use crate::need::{self, Unattended};
use bytes::Bytes;
use hop_protocol::comm::{ANNOUNCED_MAX, CommContent, VERSION};
use hop_protocol::jupyter::{Envelope, Header};
use hop_words::id::{CellId, LeaseId};
use hop_words::need::Need;
use hop_words::time::{Span, Timestamp};
use serde_json::{Value, json};

/// A client without the announcement is told of a wait as long as this, and of news as often as this.
const TEXT_AFTER: Span = Span::from_secs(2);

/// A client that announced itself.
#[derive(Debug)]
struct Announced {
    session: String,
    comm: String,
    /// The header of its `comm_open`.
    header: Bytes,
}

/// The text at a waiting cell.
#[derive(Debug)]
struct Shown {
    cell: CellId,
    header: Bytes,
    text: String,
    at: Timestamp,
}

/// A lease kept for the next cell.
#[derive(Debug)]
struct Lingering {
    lease: LeaseId,
    need: Need,
    described: Value,
    since: Timestamp,
    /// The time of the lease's end, where `hopd` has told the time.
    until: Option<Timestamp>,
}

#[derive(Debug, Default)]
pub(super) struct Notices {
    /// The oldest first.
    announced: Vec<Announced>,
    /// The notice that they were told last.
    told: Value,
    shown: Option<Shown>,
    lingering: Option<Lingering>,
    /// The last lingering lease: it lingers again if the kernel can't let go of the GPUs.
    lingered: Option<Lingering>,
    /// The notebook's own default, before the kernelspec's.
    pub(super) default_need: Option<Need>,
    /// The sentence on a default that can't be read, for the next cell.
    pub(super) bad_default: Option<String>,
}

impl Core {
    /// Takes in a comm message with a client's possible announcement. Returns whether a client announced itself: then
    /// the kernel never sees the message.
    pub(super) fn announcement(&mut self, envelope: &Envelope, header: &Header) -> bool {
        if !header.msg_type.starts_with("comm_") {
            return false;
        }
        let Ok(content) = serde_json::from_slice::<CommContent>(&envelope.content) else {
            return false;
        };
        let known = self
            .notices
            .announced
            .iter()
            .position(|a| a.comm == content.comm_id);
        match (header.msg_type.as_str(), known) {
            ("comm_open", _) if content.announces() => {
                self.announce(&content, envelope.header.clone(), &header.session);
                true
            }
            ("comm_msg", Some(_)) => {
                self.asked_by_client(&content.data);
                true
            }
            ("comm_close", Some(at)) => {
                self.notices.announced.remove(at);
                true
            }
            _ => false,
        }
    }

    fn announce(&mut self, content: &CommContent, header: Bytes, session: &str) {
        if content.data["version"] != json!(VERSION) {
            let close = json!({"comm_id": content.comm_id, "data": {"version": VERSION}});
            return self.say(&header, "comm_close", &close);
        }
        let announced = &mut self.notices.announced;
        announced.retain(|a| a.session != session);
        if announced.len() == ANNOUNCED_MAX {
            announced.remove(0);
        }
        announced.push(Announced {
            session: session.to_owned(),
            comm: content.comm_id.clone(),
            header: header.clone(),
        });
        let notice = self.notice();
        self.tell_comm(&header, &content.comm_id, &notice);
        // The others have heard of it already.
        self.notices.told = notice;
    }

    /// A client's wish. Wishes that can't be read are left alone: another release's client may have others.
    fn asked_by_client(&mut self, data: &Value) {
        if let Some(need) = data.get("default_need") {
            let read = (!need.is_null())
                .then(|| need::of_value(need.clone()))
                .transpose();
            self.notices.bad_default = read.as_ref().err().map(|why| wording::bad_default(why));
            self.notices.default_need = read.ok().flatten();
        }
        if data["release"] == json!(true) {
            self.end_linger();
        }
    }

    /// The user wants the lingering lease to end now. Returns whether there is one.
    pub(super) fn end_linger(&mut self) -> bool {
        let Some(lease) = self.notices.lingering.as_ref().map(|l| l.lease) else {
            return false;
        };
        self.linger_is_over(lease);
        self.user_lets_go(lease);
        if self.gpu.last.as_ref().is_some_and(|last| last.id == lease) {
            self.leave(lease);
        } else {
            self.release_lease(lease);
        }
        true
    }

    /// The lease stays with the kernel after its cell, until `hopd` says otherwise. For a lease taken away, `hopd` has
    /// said so already.
    pub(super) fn lingers(&mut self, holder: &Holder) {
        if holder.revoked.is_some() {
            return;
        }
        self.notices.lingering = Some(Lingering {
            lease: holder.lease,
            need: holder.seeker.need.clone(),
            described: holder.described.clone(),
            since: self.now,
            until: None,
        });
    }

    /// `hopd` says how long the lingering lease is kept.
    pub(super) fn linger_ends(&mut self, lease: LeaseId, until: Timestamp) {
        if let Some(lingering) = self.notices.lingering.as_mut().filter(|l| l.lease == lease) {
            lingering.until = Some(until);
        }
    }

    /// Without `hopd` nobody ends the linger in time, and the next `hopd` may keep the lease for longer.
    pub(super) fn linger_ends_unknown(&mut self) {
        if let Some(lingering) = &mut self.notices.lingering {
            lingering.until = None;
        }
    }

    /// The lease lingers no longer: a cell runs on it, or the lease is over.
    pub(super) fn linger_is_over(&mut self, lease: LeaseId) {
        if let Some(over) = self.notices.lingering.take_if(|l| l.lease == lease) {
            self.notices.lingered = Some(over);
        }
    }

    /// The lease lingers on: the kernel can't let go of its GPUs.
    pub(super) fn lingers_on(&mut self, lease: LeaseId) {
        if let Some(again) = self.notices.lingered.take_if(|l| l.lease == lease) {
            self.notices.lingering = Some(Lingering { until: None, ..again });
        }
    }

    /// How the kernel stands towards its GPU.
    pub(super) fn notice(&self) -> Value {
        let mut notice = match (&self.lease, &self.attempts.waiting, &self.notices.lingering) {
            (Lease::None, Some(waiting), _) => self.about_cell(&waiting.cell, of_wait(&waiting.wait)),
            (Lease::None, None, None) => json!({"state": "cpu"}),
            (Lease::None, None, Some(l)) => {
                let more = json!({"state": "lingering", "need": l.need, "since": seconds(l.since)});
                let more = with(more, until(l.until));
                let held = self.gpu.why_held(l.lease).map(|why| json!({"reason": why}));
                with(l.described.clone(), held.into_iter().fold(more, with))
            }
            (Lease::Asked(seeker, wait) | Lease::Returning(seeker, wait, _), ..) => {
                self.about(seeker, of_wait(wait))
            }
            (Lease::Standing(standing), ..) => self.about(&standing.seeker, of_wait(&standing.wait)),
            (Lease::Held(holder) | Lease::Stopping(holder, _), ..) => {
                self.about(&holder.seeker, of_holder(holder))
            }
        };
        let launch = &self.identity.launch;
        if let Some(account) = &launch.account {
            notice["account"] = json!(account);
        }
        if let Some(pool) = &launch.pool {
            notice["pool"] = json!(pool);
        }
        if let Hopd::Down(why) = &self.hopd
            && !launch.local
        {
            notice["away"] = json!(why);
        }
        notice
    }

    /// Adds a notice's cell, and the cell's need.
    fn about(&self, seeker: &Seeker, notice: Value) -> Value {
        let cell = match &seeker.kind {
            Kind::Cell => Some(&seeker.id),
            Kind::Block { inside, .. } => inside.as_ref(),
        };
        let notice = with(notice, json!({"need": seeker.need}));
        match cell {
            Some(cell) => self.about_cell(cell, notice),
            None => notice,
        }
    }

    /// Adds a notice's cell.
    fn about_cell(&self, cell: &CellId, notice: Value) -> Value {
        let mut more = json!({"cell": cell});
        if let Some(id) = self.cells.find(cell).and_then(|c| c.cell_id.as_ref()) {
            more["cell_id"] = json!(id);
        }
        with(notice, more)
    }

    /// Tells clients what has changed, after each input.
    pub(super) fn tell_clients(&mut self) {
        if !self.notices.announced.is_empty() {
            let notice = self.notice();
            if notice != self.notices.told {
                let clients = self.notices.announced.iter();
                let clients: Vec<_> = clients.map(|a| (a.header.clone(), a.comm.clone())).collect();
                for (header, comm) in clients {
                    self.tell_comm(&header, &comm, &notice);
                }
                self.notices.told = notice;
            }
        }
        self.tell_text();
    }

    fn tell_comm(&mut self, header: &Bytes, comm: &str, notice: &Value) {
        self.say(header, "comm_msg", &json!({"comm_id": comm, "data": notice}));
    }

    // The text for clients without an announcement.

    /// The cell whose client gets a text, with its header and the text's due time.
    fn text_is_for(&self) -> Option<(&CellId, Bytes, Timestamp)> {
        let (cell, wait) = match (&self.lease, &self.attempts.waiting) {
            (Lease::Asked(seeker, wait), _) => (seeker.as_cell()?, wait),
            (Lease::None, Some(waiting)) => (&waiting.cell, &waiting.wait),
            _ => return None,
        };
        // Text in the middle of a cell could not be taken away again without the outputs before it.
        let cell = self.cells.find(cell)?;
        let header = serde_json::from_slice::<Header>(&cell.header).ok()?;
        let announced = self.notices.announced.iter().any(|a| a.session == header.session);
        let alone = cell.run == Unattended::default() && !announced;
        let due = match &self.notices.shown {
            Some(shown) if shown.cell == cell.id => shown.at + TEXT_AFTER,
            _ => wait.since + TEXT_AFTER,
        };
        alone.then_some((&cell.id, cell.header.clone(), due))
    }

    /// The text for the waiting cell to show now.
    fn text(&self) -> Option<String> {
        match (&self.lease, &self.attempts.waiting) {
            (Lease::Asked(seeker, wait), _) => Some(wording::waits(&seeker.need, &wait.state)),
            (Lease::None, Some(waiting)) => Some(wording::attempt_waits(&waiting.wait.state)),
            _ => None,
        }
    }

    /// When to show, or to renew, the text at a waiting cell.
    pub(super) fn text_at(&self) -> Option<Timestamp> {
        let (cell, _, due) = self.text_is_for()?;
        let shown = self.notices.shown.as_ref().filter(|s| s.cell == *cell);
        let stale = shown.is_none_or(|s| Some(&s.text) != self.text().as_ref());
        stale.then_some(due)
    }

    fn tell_text(&mut self) {
        if self.text_at().is_none_or(|due| due > self.now) {
            return;
        }
        let (Some((cell, header, _)), Some(text)) = (self.text_is_for(), self.text()) else {
            return;
        };
        let cell = cell.clone();
        let kind = match &self.notices.shown {
            Some(shown) if shown.cell == cell => "update_display_data",
            _ => "display_data",
        };
        let display = format!("gresshopper-{cell}");
        let content = json!({
            "data": {"text/plain": text}, "metadata": {}, "transient": {"display_id": display},
        });
        self.say(&header, kind, &content);
        self.notices.shown = Some(Shown {
            cell,
            header,
            text,
            at: self.now,
        });
    }

    /// Takes the text away again, before the cell begins or is answered.
    pub(super) fn hide_text(&mut self, cell: &CellId) {
        if let Some(shown) = self.notices.shown.take_if(|s| s.cell == *cell) {
            self.say(&shown.header, "clear_output", &json!({"wait": false}));
        }
    }

    /// Invariants of what clients were told.
    pub(super) fn check_notices(&self) {
        let notices = &self.notices;
        assert!(notices.announced.len() <= ANNOUNCED_MAX);
        if let Some(shown) = &notices.shown {
            let waiting = self.attempts.waiting.as_ref().map(|w| &w.cell);
            assert!(
                [self.cells.seeking(), waiting].contains(&Some(&shown.cell)),
                "a text is shown at a cell that waits"
            );
            assert_ne!(shown.header, no_header());
        }
        if let Some(lingering) = &notices.lingering {
            let granted = self.lease.granted().map(|(lease, _)| lease);
            assert_ne!(granted, Some(lingering.lease), "a lease in use doesn't linger");
        }
    }
}

/// How a cell waits.
fn of_wait(wait: &Wait) -> Value {
    with(wait.state.clone(), json!({"since": seconds(wait.since)}))
}

/// How a cell stands that holds a lease, or whose lease was taken away.
fn of_holder(holder: &Holder) -> Value {
    if let Some(Revoked { reason, at }) = &holder.revoked {
        return json!({"state": "revoked", "lease": holder.lease, "reason": reason, "since": seconds(*at)});
    }
    let since = json!({"state": "granted", "since": seconds(holder.started)});
    with(holder.described.clone(), with(since, until(holder.parks_from)))
}

/// The key of a time, if the time is known.
fn until(at: Option<Timestamp>) -> Value {
    at.map_or_else(|| json!({}), |at| json!({"until": seconds(at)}))
}

/// One JSON object with another's keys added.
fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

/// Seconds since the epoch.
fn seconds(at: Timestamp) -> f64 {
    at.0 as f64 / 1e6
}
