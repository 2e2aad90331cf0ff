//! Subscribers coming back to a killed front's successor, one after the other.
//!
//! A Jupyter server has several subscriptions to a kernel's outputs: the server's own, and another for each page.
//! An output between the return of the first subscriber and of the last is lost to the others. Outputs therefore
//! wait until as many subscribers are here as at the earlier front, for a second at most: some may have gone for
//! good.

use super::unseen::Change;
use super::{Front, Wire};
use hop_words::time::{Span, Timestamp as Time};

/// How long outputs wait for the others once the first subscriber is here. A client of ZeroMQ tries again after 0.1 to
/// 0.2 s.
const GRACE: Span = Span::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Audience {
    here: usize,
    /// The front before had so many. Zero: nobody is waited for.
    awaited: usize,
    until: Option<Time>,
}

impl Audience {
    /// Whether outputs wait for more subscribers.
    pub(super) fn is_awaited(&self) -> bool {
        self.awaited > 0
    }

    pub(super) fn awaits(&mut self, count: usize) {
        self.awaited = count;
    }

    /// For the kernel's next front: the number of present or awaited subscribers.
    pub(super) fn record(&self) -> Change {
        Change::Audience(self.here.max(self.awaited))
    }
}

impl Front {
    /// A subscriber has come or gone.
    pub fn audience_changes(&mut self, at: Time, wire: &mut impl Wire) {
        let count = wire.subscribers();
        let audience = &mut self.audience;
        if std::mem::replace(&mut audience.here, count) == count {
            return;
        }
        if count > 0 && audience.is_awaited() {
            audience.until.get_or_insert(at + GRACE);
        }
        if count >= audience.awaited {
            self.awaits_nobody(wire);
        }
        self.unseen.note(Some(self.audience.record()));
    }

    /// Outputs wait no longer for missing subscribers.
    pub fn look_at_audience(&mut self, at: Time, wire: &mut impl Wire) {
        if self.audience.until.is_some_and(|until| until <= at) {
            self.awaits_nobody(wire);
            self.unseen.note(Some(self.audience.record()));
        }
    }

    fn awaits_nobody(&mut self, wire: &mut impl Wire) {
        (self.audience.awaited, self.audience.until) = (0, None);
        self.flush(wire);
    }
}
