//! Addresses that killed seats have left in the user's home. Each command of the user's would dial them.

use crate::slurm::slurm;
use hop_keeper::{Book, unanswering};
use hop_words::id::JobId;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::timeout;

/// How long Slurm may take to answer. Nobody waits for it.
const ANSWERS: Duration = Duration::from_secs(60);

/// Strikes the addresses of seats that have ended. `me` is this seat.
pub(super) async fn strike(book: Book, me: JobId) {
    let silent = match unanswering(&book).await {
        Ok(silent) if silent.is_empty() => return,
        Ok(silent) => silent,
        Err(error) => return tracing::debug!(%error, "the addresses of seats can't be read"),
    };
    let Some(jobs) = jobs().await else {
        return;
    };
    for (seat, address) in ended(silent, &jobs, me) {
        tracing::info!(%seat, "the address of a seat that has ended is struck");
        book.strike_address(seat, address);
    }
}

/// The seats of these that have ended. A seat out of reach for a moment has a job. Slurm's word counts only if it knows
/// this seat's own job.
fn ended(
    silent: Vec<(JobId, SocketAddr)>,
    jobs: &BTreeSet<JobId>,
    me: JobId,
) -> impl Iterator<Item = (JobId, SocketAddr)> {
    let counts = jobs.contains(&me);
    silent
        .into_iter()
        .filter(move |(seat, _)| counts && !jobs.contains(seat))
}

/// The user's jobs that haven't ended, in all partitions. `None` means that Slurm doesn't answer.
async fn jobs() -> Option<BTreeSet<JobId>> {
    let mut squeue = slurm("squeue");
    squeue.args(["--me", "--all", "--noheader", "--format=%A"]);
    let said = timeout(ANSWERS, squeue.output()).await.ok()?.ok()?;
    said.status
        .success()
        .then(|| parse(&String::from_utf8_lossy(&said.stdout)))
}

fn parse(squeue: &str) -> BTreeSet<JobId> {
    let lines = squeue.lines();
    lines
        .filter_map(|line| line.trim().parse().ok().map(JobId))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_has_ended_if_slurm_knows_this_job_and_not_that_one() {
        let address: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let silent = || [7, 8].map(|job| (JobId(job), address)).to_vec();
        let of = |squeue| ended(silent(), &parse(squeue), JobId(9)).collect::<Vec<_>>();
        assert_eq!(of("9\n  8\n"), [(JobId(7), address)]);
        assert_eq!(of("7\n8\n9\n"), []);
        assert_eq!(of(""), [], "this seat's own job isn't there");
        assert_eq!(of("8\n"), [], "it is another cluster's Slurm");
    }
}
