//! A seat in Slurm's queue: what squeue says of it, and for how long it is waited for. The calls of Slurm are left to
//! `launch.rs`.

use hop_slurm::span::TimeLimit;
use hop_slurm::{WaitingJob, hostlist};
use hop_words::id::NodeName;
use hop_words::time::Timestamp;
use std::time::Duration;

/// Time for which a seat waits for an unreachable node, before another node is tried.
const NODE_AWAY: Duration = Duration::from_secs(10);

/// How long a seat is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    Endless,
    /// Until it is sure that Slurm can't reach the node asked for.
    Node,
    /// A move's new seat: until it is sure that the node isn't to be had.
    Move,
    /// A seat that has run, by `hopd`'s word. Slurm puts it back into its queue if an administrator requeues it, and
    /// may hold it there for good.
    Running,
}

impl Patience {
    /// Whether a seat that has waited for this long is waited for no longer. A busy node is waited for.
    pub(crate) fn is_over(self, seen: &SeenSeat, waited: Duration) -> bool {
        let is_pending = seen.state == "PENDING";
        let is_late = waited > NODE_AWAY;
        match self {
            Self::Endless => false,
            Self::Node => is_late && is_pending && is_out_of_reach(&seen.reason, &seen.asked),
            Self::Move => is_late && is_pending && seen.reason.starts_with("ReqNodeNotAvail"),
            Self::Running => is_late || is_pending,
        }
    }
}

/// Whether Slurm names one of these nodes among those that it can't use. The same reason without such a list is a
/// reservation's: the node is up.
fn is_out_of_reach(reason: &str, asked: &[NodeName]) -> bool {
    let Some((_, list)) = reason.split_once("UnavailableNodes:") else {
        return false;
    };
    let list = list.split([' ', '(', ')']).next().unwrap_or_default();
    let away = hostlist::expand(list).unwrap_or_default();
    asked
        .iter()
        .any(|node| away.iter().any(|name| name == node.as_str()))
}

/// A seat in Slurm's queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SeenSeat {
    pub(crate) state: String,
    pub(crate) node: String,
    pub(crate) reason: String,
    pub(crate) start: Option<Timestamp>,
    /// Nodes that it asks for; empty: any.
    asked: Vec<NodeName>,
    limit: TimeLimit,
    is_in_reservation: bool,
    pub(crate) comment: String,
}

impl SeenSeat {
    /// For squeue, with `SLURM_TIME_FORMAT=%s`. The comment may have any character.
    pub(crate) const FORMAT: &str = "%T|%N|%r|%S|%n|%l|%v|%k";

    /// Reads a line of squeue's; `None` means that Slurm doesn't know the job.
    pub(crate) fn read(line: &str) -> Option<Self> {
        let mut fields = line.splitn(8, '|');
        let mut field = || fields.next().unwrap_or_default().to_owned();
        let (state, node, reason, start) = (field(), field(), field(), field());
        let (asked, limit, reservation, comment) = (field(), field(), field(), field());
        let asked = hostlist::expand(&asked).unwrap_or_default();
        (!state.is_empty()).then(|| Self {
            state,
            node,
            reason,
            start: start.parse().ok().map(|s: u64| Timestamp(s * 1_000_000)),
            asked: asked.into_iter().map(NodeName::from).collect(),
            limit: TimeLimit::parse(&limit).unwrap_or(TimeLimit::Unset),
            is_in_reservation: !["", "(null)", "N/A"].contains(&reservation.as_str()),
            comment,
        })
    }

    /// The seat in the queue, if a reservation may hold it up. A seat in a reservation is its users'.
    pub(crate) fn held_up(&self) -> Option<WaitingJob> {
        let job = WaitingJob {
            nodes: self.asked.clone(),
            limit: self.limit,
            reason: self.reason.clone(),
        };
        let is_held_up = self.state == "PENDING" && !self.is_in_reservation && job.may_be_held_up();
        is_held_up.then_some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_words::time::Span;

    fn seen(line: &str) -> SeenSeat {
        SeenSeat::read(line).unwrap()
    }

    #[test]
    fn a_node_is_given_up_only_if_slurm_names_it_as_unavailable() {
        let late = NODE_AWAY * 2;
        let given_up = |patience: Patience, reason: &str| {
            let seen = seen(&format!("PENDING||{reason}|N/A|n3|UNLIMITED|(null)|(null)"));
            patience.is_over(&seen, late)
        };
        assert!(given_up(
            Patience::Node,
            "ReqNodeNotAvail, UnavailableNodes:n[1-3]"
        ));
        for up in [
            "ReqNodeNotAvail, Reserved for maintenance",
            "ReqNodeNotAvail, May be reserved for other job",
            "ReqNodeNotAvail, UnavailableNodes:n[4-9]",
            "Resources",
        ] {
            assert!(!given_up(Patience::Node, up), "{up}");
        }
        assert!(!given_up(
            Patience::Endless,
            "ReqNodeNotAvail, UnavailableNodes:n3"
        ));
        assert!(given_up(
            Patience::Move,
            "ReqNodeNotAvail, Reserved for maintenance"
        ));
        assert!(!given_up(Patience::Move, "Resources"));
    }

    #[test]
    fn a_seat_that_slurm_has_put_back_into_its_queue_is_left_at_once() {
        let ends = |state: &str, waited| {
            let seen = seen(&format!("{state}||BeginTime|N/A|n3|UNLIMITED|(null)|(null)"));
            Patience::Running.is_over(&seen, waited)
        };
        assert!(ends("PENDING", Duration::ZERO));
        assert!(!ends("CONFIGURING", Duration::ZERO) && ends("CONFIGURING", NODE_AWAY * 2));
    }

    #[test]
    fn a_seat_that_a_reservation_holds_up_can_end_before_it() {
        let told = "ReqNodeNotAvail, Reserved for maintenance";
        let held_up = |line: &str| seen(line).held_up();
        let job = held_up(&format!("PENDING||{told}|N/A|n3|1-00:00:00|(null)|a|b")).unwrap();
        let day = TimeLimit::At(Span::from_secs(86_400));
        assert_eq!((job.limit, &job.nodes[..]), (day, &["n3".into()][..]));
        assert!(held_up(&format!("PENDING||{told}|N/A||UNLIMITED|(null)|")).is_some());
        assert!(held_up(&format!("PENDING||{told}|N/A||UNLIMITED|course|")).is_none());
        assert!(held_up("PENDING||JobHeldUser|N/A||UNLIMITED|(null)|").is_none());
        assert!(held_up("RUNNING|n3|None|1|n3|UNLIMITED|(null)|").is_none());
        assert_eq!(SeenSeat::read(""), None);
    }
}
