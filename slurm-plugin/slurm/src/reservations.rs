//! Reservations, and the time limit with which a waiting job ends before they begin.
//!
//! Slurm starts no job on a node that a reservation would take before the job's time limit. `--time-min` would be Slurm's
//! own means, but with it a job has no more than that minimum, however far the reservation is.

use crate::handle::Slurm;
use crate::record::{ParseError, node_names, value_of};
use crate::run::{Call, QueryError, RunError};
use crate::span::{TimeLimit, parse_time};
use hop_words::id::{JobId, NodeName};
use hop_words::time::{Span, Timestamp};

/// Arguments of the `scontrol` that [`parse_reservations`] reads, with `SLURM_TIME_FORMAT=%s` in its environment.
pub const SHOW_RESERVATIONS: [&str; 3] = ["--oneliner", "show", "reservations"];

/// Between a job's end and the reservation's begin at least, for the job's start.
const SPARE: Span = Span::from_secs(60);

/// Nodes set aside for a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    pub start: Timestamp,
    pub nodes: Vec<NodeName>,
    /// Whether it has all nodes of the cluster.
    pub has_all: bool,
}

/// A job in Slurm's queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingJob {
    /// Nodes that it asks for; empty: any.
    pub nodes: Vec<NodeName>,
    pub limit: TimeLimit,
    /// Slurm's word for why it waits.
    pub reason: String,
}

impl WaitingJob {
    /// Whether a reservation may be what holds it up. Behind others in the queue, Slurm's reason is theirs.
    pub fn may_be_held_up(&self) -> bool {
        self.is_told() || ["Priority", "Resources"].contains(&self.reason.as_str())
    }

    fn is_told(&self) -> bool {
        ["Reserved for maintenance", "May be reserved for other job"]
            .iter()
            .any(|words| self.reason.contains(words))
    }

    /// The limit in minutes with which it ends before the next reservation of its nodes begins. `None` means that its
    /// limit is right, or that fewer than `least` are left.
    pub fn limit_before(&self, reservations: &[Reservation], now: Timestamp, least: Span) -> Option<u32> {
        if !self.may_be_held_up() {
            return None;
        }
        let is_in_the_way = |r: &&Reservation| {
            let is_there = match &self.nodes[..] {
                [] => r.has_all || self.is_told(),
                nodes => nodes.iter().any(|node| r.nodes.contains(node)),
            };
            r.start > now && is_there
        };
        let next = reservations.iter().filter(is_in_the_way).map(|r| r.start).min()?;
        let left = Span(next.since(now).0.saturating_sub(SPARE.0));
        let is_longer = match self.limit {
            TimeLimit::At(limit) => limit > left,
            TimeLimit::Unlimited => true,
            TimeLimit::Unset => self.is_told(),
        };
        let minutes = u32::try_from(left.0 / 60_000_000).ok()?;
        (is_longer && left >= least && minutes > 0).then_some(minutes)
    }
}

/// Reads the output of `scontrol` with [`SHOW_RESERVATIONS`].
///
/// # Errors
/// A line isn't a reservation's.
pub fn parse_reservations(output: &str) -> Result<Vec<Reservation>, ParseError> {
    let lines = output.lines().filter(|line| line.starts_with("ReservationName="));
    let read = |line: &str| {
        let of = |key: &'static str| value_of(line, key).ok_or(ParseError::Missing(key));
        let start = parse_time(of("StartTime")?).ok_or(ParseError::Missing("StartTime"))?;
        Ok(Reservation {
            start,
            nodes: node_names(of("Nodes")?)?,
            has_all: of("Flags")?.split(',').any(|flag| flag == "ALL_NODES"),
        })
    };
    lines.map(read).collect()
}

/// Arguments of the `scontrol` that gives a waiting job of the caller's another time limit.
pub fn shorten_args(job: JobId, minutes: u32) -> [String; 3] {
    let limit = format!("TimeLimit={minutes}");
    ["update".to_owned(), format!("JobId={job}"), limit]
}

impl Slurm {
    /// All reservations that Slurm shows us.
    pub async fn reservations(&self) -> Result<Vec<Reservation>, QueryError> {
        let call = Call::new("scontrol", SHOW_RESERVATIONS);
        self.runner.query(&call, parse_reservations).await
    }

    /// Lowers the time limit of a job of the caller's.
    pub async fn shorten(&self, job: JobId, minutes: u32) -> Result<(), RunError> {
        let call = Call::new("scontrol", shorten_args(job, minutes));
        self.runner.run(&call).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;
    const NOW: Timestamp = Timestamp(1_796_059_278_000_000);

    fn reserved(nodes: &[&str], after_s: u64, has_all: bool) -> Reservation {
        Reservation {
            start: NOW + Span::from_secs(after_s),
            nodes: nodes.iter().map(|n| NodeName::from(*n)).collect(),
            has_all,
        }
    }

    fn waiting(node: Option<&str>, limit: TimeLimit, reason: &str) -> WaitingJob {
        WaitingJob {
            nodes: node.into_iter().map(NodeName::from).collect(),
            limit,
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn reservations_are_read() {
        let text = "ReservationName=m StartTime=1796062878 EndTime=1796098878 Duration=10:00:00 Nodes=c8n[1-2] NodeCnt=2 \
                    CoreCnt=128 Features=(null) PartitionName=(null) Flags=MAINT,IGNORE_JOBS,SPEC_NODES,ALL_NODES \
                    TRES=cpu=128 Users=root Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE \
                    BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)\n\
                    ReservationName=l StartTime=1796062879 EndTime=1796098878 Duration=10:00:00 Nodes=(null) NodeCnt=0 \
                    CoreCnt=0 Features=(null) PartitionName=(null) Flags=ANY_NODES TRES=(null) Users=root\n";
        let read = parse_reservations(text).unwrap();
        let first = reserved(&["c8n1", "c8n2"], HOUR, true);
        assert_eq!(read, [first, reserved(&[], HOUR + 1, false)]);
        assert_eq!(parse_reservations("No reservations in the system\n").unwrap(), []);
    }

    #[test]
    fn a_job_ends_before_the_next_reservation_of_its_node() {
        let all = [
            reserved(&["n1", "n2"], 2 * HOUR, true),
            reserved(&["n2"], HOUR, false),
            reserved(&["n1", "n2"], 0, true),
        ];
        let (ten, endless) = (Span::from_secs(600), TimeLimit::Unlimited);
        let told = "ReqNodeNotAvail, Reserved for maintenance";
        let limit = |job: WaitingJob| job.limit_before(&all, NOW, ten);
        let day = TimeLimit::At(Span::from_secs(24 * HOUR));
        for reason in [told, "ReqNodeNotAvail, May be reserved for other job", "Priority"] {
            for long in [endless, day] {
                assert_eq!(limit(waiting(Some("n1"), long, reason)), Some(119));
                assert_eq!(limit(waiting(Some("n2"), long, reason)), Some(59));
            }
        }
        assert_eq!(limit(waiting(None, endless, told)), Some(59));
        assert_eq!(
            limit(waiting(None, endless, "Priority")),
            Some(119),
            "n1 is there till then"
        );
        let fits = TimeLimit::At(Span::from_secs(59 * 60));
        assert_eq!(limit(waiting(Some("n2"), fits, told)), None);
        assert_eq!(limit(waiting(Some("n3"), endless, told)), None);
        for other in [
            "AssocGrpGRES",
            "JobHeldAdmin",
            "ReqNodeNotAvail, UnavailableNodes:n1",
        ] {
            assert_eq!(limit(waiting(Some("n1"), endless, other)), None, "{other}");
        }
        let soon = [reserved(&["n1"], 600, true)];
        assert_eq!(
            waiting(Some("n1"), endless, told).limit_before(&soon, NOW, ten),
            None
        );
    }
}
