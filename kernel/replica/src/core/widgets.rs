//! Messages of widgets to the kernel's process, until an audit has looked for what their callbacks changed.
//!
//! No cell's text names what a callback changes. The agent tells after each audit which message came last before it
//! (`state.audited`, docs/agent-wire.md). If the process is lost before, its user is told. Left to others: a kernel that
//! goes on in another replica, which doesn't know of the messages.

use super::{Core, wording};
use hop_words::time::Timestamp;
use serde_json::Value;
use std::collections::VecDeque;

/// Most messages that are told apart. A slider sends some fifty in a second.
const SENT_MAX: usize = 256;

/// Messages that no audit followed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Widgets {
    /// When the oldest was sent.
    since: Option<Timestamp>,
    /// The newest, the oldest of them first.
    sent: VecDeque<(String, Timestamp)>,
}

impl Widgets {
    fn sent(&mut self, message: &str, now: Timestamp) {
        if self.sent.len() == SENT_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back((message.to_owned(), now));
        self.since.get_or_insert(now);
    }

    /// An audit followed this message. A message that isn't known any more was sent long before the newest.
    fn audited(&mut self, message: &str) {
        if let Some(at) = self.sent.iter().rposition(|(sent, _)| sent == message) {
            self.sent.drain(..=at);
            self.since = self.sent.front().map(|(_, sent)| *sent);
        }
    }

    /// The process is gone. Returns since when changes may be lost.
    fn lost(&mut self) -> Option<Timestamp> {
        std::mem::take(self).since
    }
}

impl Core {
    /// The process gets a message of this type.
    pub(super) fn widget_sends(&mut self, msg_type: &str, message: &str) {
        let now = self.now;
        if let Some(durable) = &mut self.durable
            && matches!(msg_type, "comm_open" | "comm_msg" | "comm_close")
        {
            durable.widgets.sent(message, now);
        }
    }

    /// The agent has looked at all variables, and its record, if anything had changed, came before.
    pub(super) fn audited(&mut self, said: &Value) {
        if let (Some(durable), Some(message)) = (&mut self.durable, said["after"].as_str())
            // A broken store lacks the record.
            && durable.broken.is_none()
        {
            durable.widgets.audited(message);
        }
    }

    /// The kernel's process has died.
    pub(super) fn tell_lost_widgets(&mut self) {
        let now = self.now;
        if let Some(durable) = &mut self.durable
            && let Some(since) = durable.widgets.lost()
        {
            let notice = wording::widgets_may_be_lost(now.since(since));
            durable.notices.push(notice);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_words::time::Span;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(0) + Span::from_secs(seconds)
    }

    /// Messages are numbers, sent in that second; an audit is the message before it, with a minus.
    fn lost_since(events: &[i64]) -> Option<u64> {
        let mut widgets = Widgets::default();
        for event in events {
            match u64::try_from(*event) {
                Ok(sent) => widgets.sent(&sent.to_string(), at(sent)),
                Err(_) => widgets.audited(&(-event).to_string()),
            }
        }
        widgets.lost().map(|since| since.0 / 1_000_000)
    }

    #[test]
    fn what_widgets_sent_since_the_last_audit_may_be_lost() {
        for (events, since, why) in [
            (&[][..], None, "no widget"),
            (&[3], Some(3), "no audit"),
            (&[3, 4, 5], Some(3), "from the first on"),
            (&[3, -3], None, "all is saved"),
            (&[3, 4, 5, -4], Some(5), "the last came after the audit began"),
            (&[3, -3, 6], Some(6), "and so on"),
            (&[3, -9, 6], Some(3), "of an earlier process"),
            (&[3, -3, -3, 6], Some(6), "an audit that no message preceded"),
        ] {
            assert_eq!(lost_since(events), since, "{why}: {events:?}");
        }
    }

    #[test]
    fn the_messages_of_a_slider_are_bounded() {
        let sent: Vec<i64> = (1..=1000).collect();
        assert_eq!(lost_since(&sent), Some(1));
        assert_eq!(
            lost_since(&[&sent[..], &[-5]].concat()),
            Some(1),
            "it may be early"
        );
        assert_eq!(lost_since(&[&sent[..], &[-999]].concat()), Some(1000));
        assert_eq!(lost_since(&[&sent[..], &[-1000]].concat()), None);
    }
}
