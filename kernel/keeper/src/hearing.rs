//! Live seats, as heard by this seat: a single failure detector for a pair of seats, however many groups the pair
//! shares.
//!
//! A peer is up while both directions work: this seat hears the peer, and the peer confirms hearing this seat. A link
//! with one working direction can't carry a log.

use crate::wire::Says;
use hop_words::id::{Incarnation, JobId, Tenure};
use hop_words::time::{Span, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// The time between two pings.
pub const PING_EVERY: Span = Span::from_millis(100);
/// Silence after which a peer is suspected.
pub const SUSPECTED_AFTER: Span = Span::from_millis(400);
/// Silence after which a peer never comes back: its members are replaced.
pub const GONE_AFTER: Span = Span::from_secs(30);

/// Time without a link after which a seat and its executor are lost. A shorter cut costs no running cell.
pub const LOST_AFTER_RESET: Span = Span::from_secs(1);
/// Consecutive refused dials after which the seat is lost: nobody listens at its address any more. A keeper listens all
/// its life, so a refusal is no shorter cut; the second refusal guards against a single odd answer.
pub const LOST_AFTER_REFUSALS: u32 = 2;
/// Time without a link after which a seat never comes back, if nobody listens at its address any more.
pub const GONE_AFTER_REFUSALS: Span = Span::from_secs(3);
/// Silence on a link after which a seat is lost.
pub const LOST_AFTER_SILENCE: Span = Span::from_secs(10);
/// Silence on a link after which the executor of a kernel at rest is lost: another one costs a restore, and no cell.
pub const LOST_AT_REST_AFTER_SILENCE: Span = Span::from_secs(1);

/// Silence on a link after which another link is tried. A cut network may work again long before the system sends again
/// on a connection of before: its pauses double.
const RELINK_AFTER: Span = Span::from_secs(1);

/// Live seats, and the seats that each of them hears.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Heard {
    /// Seats with a link that works in both directions.
    pub up: BTreeSet<JobId>,
    /// Seats heard by each peer that is up, in the peer's own words.
    pub hears: BTreeMap<JobId, BTreeSet<JobId>>,
    /// Seats whose executor must be replaced.
    pub lost: BTreeSet<JobId>,
    /// Silent seats, and the groups whose kernels were at rest there by their last word.
    pub resting: BTreeMap<JobId, BTreeSet<String>>,
    /// Seats that never come back.
    pub gone: BTreeSet<JobId>,
    /// Members that can't go on, by the word of their seats, which are up.
    pub failed: BTreeMap<String, BTreeSet<Incarnation>>,
    /// Seats at whose address nobody listens any more: their process has ended.
    pub closed: BTreeSet<JobId>,
    /// The last tenure of each group whose executor's process has ended in a seat, by that seat's word.
    pub ended: BTreeMap<String, BTreeMap<JobId, Tenure>>,
}

#[derive(Debug, Clone, Default)]
struct Peer {
    /// Time of the peer's last word; before the first word, the time at which this seat began to listen.
    last: Timestamp,
    spoke: bool,
    links: usize,
    /// The newest link came then.
    linked: Timestamp,
    /// The last link broke then; before the first one, as `last`.
    unlinked: Timestamp,
    /// Dials that were refused since then.
    refusals: u32,
    hears: BTreeSet<JobId>,
    /// Groups with kernels at rest, in the peer's own words.
    rests: BTreeSet<String>,
    /// Groups whose member there can't go on, in the peer's own words.
    failed: BTreeMap<String, Incarnation>,
    /// Groups whose executor's process there has ended, in the peer's own words. A process doesn't come back.
    ended: BTreeMap<String, Tenure>,
}

/// The state of the detector.
#[derive(Debug)]
pub struct Hearing {
    me: JobId,
    peers: BTreeMap<JobId, Peer>,
}

impl Hearing {
    pub fn new(me: JobId) -> Self {
        Self {
            me,
            peers: BTreeMap::new(),
        }
    }

    /// Follows exactly the seats with a group in common with this seat.
    pub fn follow(&mut self, seats: &BTreeSet<JobId>, now: Timestamp) {
        self.peers
            .retain(|seat, peer| seats.contains(seat) || peer.links > 0);
        for seat in seats.iter().filter(|s| **s != self.me) {
            self.peers.entry(*seat).or_insert_with(|| Peer {
                last: now,
                unlinked: now,
                ..Peer::default()
            });
        }
    }

    pub fn linked(&mut self, seat: JobId, now: Timestamp) {
        let peer = self.peers.entry(seat).or_insert_with(|| Peer {
            last: now,
            ..Peer::default()
        });
        peer.links += 1;
        peer.linked = now;
        peer.refusals = 0;
    }

    /// The peer's node refused a connection, or a peer that once had a link has struck its address from the book.
    /// Returns whether another dial at once would tell more.
    pub fn refused(&mut self, seat: JobId) -> bool {
        let Some(peer) = self.peers.get_mut(&seat).filter(|p| p.links == 0) else {
            return false;
        };
        peer.refusals = peer.refusals.saturating_add(1);
        peer.refusals < LOST_AFTER_REFUSALS
    }

    /// Whether there was a link with the seat.
    pub fn had_link(&self, seat: JobId) -> bool {
        let peer = self.peers.get(&seat);
        peer.is_some_and(|p| p.linked > Timestamp::default())
    }

    /// A link broke. Without another one the peer is down at once.
    pub fn unlinked(&mut self, seat: JobId, now: Timestamp) {
        if let Some(peer) = self.peers.get_mut(&seat) {
            peer.links = peer.links.saturating_sub(1);
            if peer.links == 0 {
                peer.unlinked = now;
                peer.hears.clear();
                peer.rests.clear();
                peer.failed.clear();
                peer.spoke = false;
            }
        }
    }

    /// A ping came: the peer hears these seats.
    pub fn pinged(&mut self, seat: JobId, hears: BTreeSet<JobId>, now: Timestamp) {
        if let Some(peer) = self.peers.get_mut(&seat) {
            peer.last = now;
            peer.spoke = true;
            peer.hears = hears;
        }
    }

    /// The peer's word on a group.
    pub(crate) fn said(&mut self, seat: JobId, group: String, says: Says) {
        let Some(peer) = self.peers.get_mut(&seat) else {
            return;
        };
        match says {
            Says::Rests => drop(peer.rests.insert(group)),
            Says::Works => drop(peer.rests.remove(&group)),
            // A later member of the group in this seat is another.
            Says::Failed(member) => drop(peer.failed.insert(group, member)),
            Says::Ended(tenure) => {
                let last = peer.ended.entry(group).or_default();
                *last = tenure.max(*last);
            }
        }
    }

    /// The next ping: the seats heard by this one.
    pub fn ping(&self, now: Timestamp) -> BTreeSet<JobId> {
        let heard = self.peers.iter().filter(|(_, peer)| peer.is_heard(now));
        heard.map(|(seat, _)| *seat).collect()
    }

    /// Followed seats to dial: without a link, or with silent ones.
    pub fn to_dial(&self, now: Timestamp) -> impl Iterator<Item = JobId> {
        let unlinked = self.peers.iter().filter(move |(_, peer)| peer.wants_link(now));
        unlinked.map(|(seat, _)| *seat)
    }

    pub fn has_peers(&self) -> bool {
        !self.peers.is_empty()
    }

    pub fn heard(&self, now: Timestamp) -> Heard {
        let up = |(seat, peer): (&JobId, &Peer)| {
            let both = peer.is_heard(now) && peer.hears.contains(&self.me);
            both.then(|| (*seat, peer.hears.clone()))
        };
        let hears: BTreeMap<_, _> = self.peers.iter().filter_map(up).collect();
        let gone = self.peers.iter().filter(|(_, p)| p.is_gone(now));
        let gone: BTreeSet<JobId> = gone.map(|(seat, _)| *seat).collect();
        let lost = self.peers.iter().filter(|(_, p)| p.is_lost(now));
        let silent = self.peers.iter().filter(|(_, p)| p.loses_resting(now));
        let mut failed = BTreeMap::<String, BTreeSet<Incarnation>>::new();
        for (group, member) in self.peers.values().flat_map(|peer| &peer.failed) {
            failed.entry(group.clone()).or_default().insert(*member);
        }
        let mut ended = BTreeMap::<String, BTreeMap<JobId, Tenure>>::new();
        for (seat, peer) in &self.peers {
            for (group, tenure) in &peer.ended {
                ended.entry(group.clone()).or_default().insert(*seat, *tenure);
            }
        }
        let closed = self.peers.iter().filter(|(_, p)| p.is_closed());
        Heard {
            closed: closed.map(|(seat, _)| *seat).collect(),
            ended,
            resting: silent.map(|(seat, peer)| (*seat, peer.rests.clone())).collect(),
            up: hears.keys().copied().collect(),
            hears,
            lost: lost.map(|(seat, _)| *seat).chain(gone.iter().copied()).collect(),
            gone,
            failed,
        }
    }
}

impl Peer {
    fn is_heard(&self, now: Timestamp) -> bool {
        self.links > 0 && self.spoke && now.since(self.last) <= SUSPECTED_AFTER
    }

    fn wants_link(&self, now: Timestamp) -> bool {
        self.links == 0 || now.since(self.last.max(self.linked)) >= RELINK_AFTER
    }

    /// Nobody listens at its address.
    fn is_closed(&self) -> bool {
        self.links == 0 && self.refusals >= LOST_AFTER_REFUSALS
    }

    fn is_gone(&self, now: Timestamp) -> bool {
        let closed = self.is_closed() && now.since(self.unlinked) >= GONE_AFTER_REFUSALS;
        closed || now.since(self.last) > GONE_AFTER
    }

    fn loses_resting(&self, now: Timestamp) -> bool {
        !self.rests.is_empty() && now.since(self.last) >= LOST_AT_REST_AFTER_SILENCE
    }

    fn is_lost(&self, now: Timestamp) -> bool {
        let reset = self.links == 0 && now.since(self.unlinked) >= LOST_AFTER_RESET;
        self.is_closed() || reset || now.since(self.last) >= LOST_AFTER_SILENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: JobId = JobId(1);
    const B: JobId = JobId(2);

    fn at(ms: u64) -> Timestamp {
        Timestamp(ms * 1000)
    }

    fn linked() -> Hearing {
        let mut hearing = Hearing::new(A);
        hearing.follow(&BTreeSet::from([A, B]), at(0));
        hearing.linked(B, at(0));
        hearing
    }

    #[test]
    fn a_peer_is_up_while_both_directions_work() {
        let mut hearing = linked();
        assert!(hearing.heard(at(0)).up.is_empty(), "nothing was said yet");
        hearing.pinged(B, BTreeSet::new(), at(10));
        assert!(hearing.heard(at(10)).up.is_empty(), "the peer doesn't hear us");
        assert_eq!(hearing.ping(at(10)), BTreeSet::from([B]), "we hear it");
        hearing.pinged(B, BTreeSet::from([A]), at(20));
        assert_eq!(hearing.heard(at(20)).up, BTreeSet::from([B]));
        assert!(hearing.heard(at(421)).up.is_empty(), "silent for too long");
        assert!(hearing.heard(at(421)).gone.is_empty());
        assert_eq!(hearing.heard(at(30_021)).gone, BTreeSet::from([B]));
    }

    #[test]
    fn a_broken_link_is_noticed_at_once() {
        let mut hearing = linked();
        hearing.linked(B, at(5));
        hearing.pinged(B, BTreeSet::from([A]), at(10));
        hearing.unlinked(B, at(11));
        assert_eq!(
            hearing.heard(at(11)).up,
            BTreeSet::from([B]),
            "another link is left"
        );
        hearing.unlinked(B, at(11));
        assert!(hearing.heard(at(11)).up.is_empty());
        assert!(
            hearing.heard(at(1010)).lost.is_empty(),
            "the executor there goes on for a second"
        );
        assert_eq!(hearing.heard(at(1011)).lost, BTreeSet::from([B]));
        assert_eq!(hearing.to_dial(at(11)).collect::<Vec<_>>(), [B]);
    }

    #[test]
    fn a_silent_link_is_not_waited_for() {
        let mut hearing = linked();
        hearing.pinged(B, BTreeSet::from([A]), at(10));
        assert_eq!(hearing.to_dial(at(1009)).count(), 0);
        assert_eq!(hearing.to_dial(at(1010)).collect::<Vec<_>>(), [B]);
        hearing.linked(B, at(1020));
        assert_eq!(hearing.to_dial(at(1021)).count(), 0, "the new one has its time");
        assert_eq!(hearing.to_dial(at(2020)).count(), 1);
        assert!(
            hearing.heard(at(10_009)).lost.is_empty(),
            "a cut of some seconds loses nobody"
        );
    }

    #[test]
    fn a_seat_at_whose_address_nobody_listens_is_lost_at_once() {
        let mut hearing = linked();
        hearing.pinged(B, BTreeSet::from([A]), at(10));
        assert!(!hearing.refused(B));
        assert!(!hearing.refused(B));
        hearing.unlinked(B, at(11));
        assert!(hearing.heard(at(12)).lost.is_empty(), "it was linked then");
        assert!(hearing.refused(B), "it is asked again");
        assert!(hearing.heard(at(12)).lost.is_empty(), "once is no proof");
        assert!(!hearing.refused(B), "there is no haste any more");
        let heard = hearing.heard(at(13));
        assert_eq!(
            (heard.lost, heard.closed),
            (BTreeSet::from([B]), BTreeSet::from([B]))
        );
        assert!(
            hearing.heard(at(3010)).gone.is_empty(),
            "its member is replaced later"
        );
        assert_eq!(hearing.heard(at(3011)).gone, BTreeSet::from([B]));
        hearing.linked(B, at(3014));
        let heard = hearing.heard(at(3015));
        assert!(heard.lost.is_empty() && heard.gone.is_empty(), "it is back");
    }

    #[test]
    fn a_kernel_at_rest_leaves_a_silent_seat_sooner() {
        let mut hearing = linked();
        let at_rest =
            |hearing: &Hearing, ms| hearing.heard(at(ms)).resting.get(&B).cloned().unwrap_or_default();
        hearing.pinged(B, BTreeSet::from([A]), at(10));
        hearing.said(B, "rests".into(), Says::Rests);
        hearing.said(B, "runs".into(), Says::Rests);
        hearing.said(B, "runs".into(), Says::Works);
        assert!(at_rest(&hearing, 1009).is_empty(), "a pause");
        assert_eq!(at_rest(&hearing, 1010), BTreeSet::from(["rests".to_owned()]));
        assert!(
            hearing.heard(at(1010)).lost.is_empty(),
            "a running cell is waited for"
        );
        hearing.pinged(B, BTreeSet::from([A]), at(1011));
        assert!(at_rest(&hearing, 1012).is_empty(), "it is heard again");
        hearing.unlinked(B, at(1020));
        hearing.linked(B, at(1030));
        hearing.pinged(B, BTreeSet::from([A]), at(1030));
        assert!(
            at_rest(&hearing, 3000).is_empty(),
            "a new link begins without word"
        );
    }

    #[test]
    fn a_process_that_has_ended_stays_so_whatever_comes_of_the_link() {
        let mut hearing = linked();
        hearing.said(B, "g".into(), Says::Ended(Tenure(3)));
        hearing.said(B, "g".into(), Says::Ended(Tenure(2)));
        hearing.unlinked(B, at(5));
        let ended = hearing.heard(at(6)).ended;
        assert_eq!(ended, [("g".to_owned(), [(B, Tenure(3))].into())].into());
    }

    #[test]
    fn a_seat_without_shared_groups_is_forgotten() {
        let mut hearing = linked();
        hearing.unlinked(B, at(5));
        hearing.follow(&BTreeSet::from([A]), at(10));
        assert!(!hearing.has_peers());
    }
}
