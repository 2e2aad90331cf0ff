//! Seats and their owners: known from Slurm, written down for the next `hopd`, asked for one by one. Pure.
//!
//! A caller's seat is accepted once Slurm has named the seat's owner. Lookups are few at a time, in all and for each
//! user. Several callers for one job share a lookup, and a denied caller isn't looked up again for a while: a caller
//! who names jobs at random keeps slurmctld as idle as before.

use crate::caller::{Caller, ConnId};
use crate::slurm::Owner;
use hop_api::message::{Refusal, Request, ToHopd};
use hop_words::id::{AccountName, JobId, NodeName, ReplicaId, UserName};
use hop_words::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::access;

/// Lookups at a time.
const LOOKUPS: usize = 8;
/// Lookups of one user's at a time.
const LOOKUPS_OF_USER: usize = 2;
/// A caller denied a job by Slurm is refused the job for this time without another look.
const DENIED: Span = Span::from_secs(30);
/// Denials that are remembered.
const DENIALS: usize = 4096;

/// What Slurm said of a seat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seat {
    pub(crate) user: UserName,
    /// Who is charged for the job.
    pub(crate) account: Option<AccountName>,
    pub(crate) qos: Option<String>,
    pub(crate) nodes: Vec<NodeName>,
}

/// Next step for a caller who names a seat.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// The seat is the caller's.
    Theirs,
    Refused(Refusal),
    /// Slurm has to be asked, or is asked already.
    Waits,
}

/// A caller who waits for Slurm's word.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) conn: ConnId,
    pub(super) caller: Caller,
    pub(super) message: ToHopd,
}

#[derive(Debug, Default)]
pub(super) struct Seats {
    known: HashMap<JobId, Seat>,
    waiting: HashMap<JobId, Vec<Waiting>>,
    /// Jobs to be looked up, with the uid of who asked first.
    queue: VecDeque<(u32, JobId)>,
    /// Lookups under way.
    running: HashMap<JobId, u32>,
    denied: HashMap<(u32, JobId), (Timestamp, Refusal)>,
}

impl Seats {
    pub(super) fn restore(&mut self, job: JobId, seat: Seat) {
        self.known.insert(job, seat);
    }

    pub(super) fn get(&self, job: JobId) -> Option<&Seat> {
        self.known.get(&job)
    }

    /// The users who have seats.
    pub(super) fn users(&self) -> BTreeSet<UserName> {
        self.known.values().map(|seat| seat.user.clone()).collect()
    }

    pub(super) fn forget(&mut self, job: JobId) {
        self.known.remove(&job);
    }

    /// Known seats missing among these jobs.
    pub(super) fn missing_from(&self, alive: &[JobId]) -> Vec<JobId> {
        let alive: BTreeSet<JobId> = alive.iter().copied().collect();
        self.known
            .keys()
            .copied()
            .filter(|job| !alive.contains(job))
            .collect()
    }

    /// Whether the seat is the caller's.
    pub(super) fn ask(&mut self, caller: &Caller, job: JobId, now: Timestamp) -> Ask {
        match self.known.get(&job) {
            Some(seat) if seat.user == caller.user => return Ask::Theirs,
            Some(_) => return Ask::Refused(access::not_your_seat(job)),
            None => {}
        }
        match self.denied.get(&(caller.uid, job)) {
            Some((until, refusal)) if *until > now => Ask::Refused(refusal.clone()),
            _ => Ask::Waits,
        }
    }

    /// Keeps a message until the job's owner is known.
    pub(super) fn wait(&mut self, job: JobId, waiting: Waiting) {
        let uid = waiting.caller.uid;
        let already = self.waiting.entry(job).or_default();
        if already.is_empty() {
            self.queue.push_back((uid, job));
        }
        already.push(waiting);
    }

    /// The next job to look up, unless too many lookups are open.
    pub(super) fn next_lookup(&mut self) -> Option<JobId> {
        if self.running.len() >= LOOKUPS {
            return None;
        }
        let theirs = |uid: u32| self.running.values().filter(|u| **u == uid).count();
        let next = self
            .queue
            .iter()
            .position(|(uid, _)| theirs(*uid) < LOOKUPS_OF_USER)?;
        let (uid, job) = self.queue.remove(next)?;
        self.running.insert(job, uid);
        Some(job)
    }

    /// Slurm has answered, or can't be asked. Returns the waiting callers, each with the result. Without Slurm's
    /// answer the caller is believed, or kernels could not come back while slurmctld is away. The plugin asks Slurm
    /// itself on the node before any handover, so a false claim gains nothing.
    pub(super) fn answered(
        &mut self,
        job: JobId,
        answer: &Result<Option<Owner>, String>,
        hides_jobs: bool,
        now: Timestamp,
    ) -> Vec<(Waiting, Result<Seat, Refusal>)> {
        self.running.remove(&job);
        let waiting = self.waiting.remove(&job).unwrap_or_default();
        let mut judged = Vec::new();
        for waiting in waiting {
            let seat = match answer {
                Ok(None) if hides_jobs => Err(access::hidden_seat(job)),
                _ => seat_of(&waiting.caller, job, answer),
            };
            if let Err(refusal @ (Refusal::Forbidden { .. } | Refusal::Unavailable { .. })) = &seat {
                self.deny(waiting.caller.uid, job, refusal.clone(), now);
            }
            judged.push((waiting, seat));
        }
        judged
    }

    fn deny(&mut self, uid: u32, job: JobId, refusal: Refusal, now: Timestamp) {
        if self.denied.len() >= DENIALS {
            self.denied.retain(|_, (until, _)| *until > now);
        }
        if self.denied.len() < DENIALS {
            self.denied.insert((uid, job), (now + DENIED, refusal));
        }
    }

    /// Whether the replica has reported and waits for Slurm's word on its seat.
    pub(super) fn is_waiting(&self, replica: &ReplicaId) -> bool {
        let reports = self.waiting.values().flatten();
        reports.into_iter().any(|w| match &w.message.body {
            Request::ReplicaUp(up) => up.kernel == replica.kernel && up.incarnation == replica.incarnation,
            _ => false,
        })
    }
}

/// The seat claimed by a caller, checked against Slurm's answer if any.
fn seat_of(caller: &Caller, job: JobId, answer: &Result<Option<Owner>, String>) -> Result<Seat, Refusal> {
    let seat = |account, qos, nodes| Seat {
        user: caller.user.clone(),
        account,
        qos,
        nodes,
    };
    match answer {
        Ok(Some(owner)) if owner.uid == caller.uid && owner.lives => Ok(seat(
            owner.account.clone(),
            owner.qos.clone(),
            owner.nodes.clone(),
        )),
        Ok(Some(owner)) if owner.uid == caller.uid => Err(Refusal::Invalid {
            reason: format!("Slurm job {job} is over, it can be no seat"),
        }),
        Ok(_) => Err(access::not_your_seat(job)),
        Err(_) => Ok(seat(None, None, Vec::new())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_api::message::Role;

    fn caller(user: &str) -> Caller {
        Caller {
            uid: user.len() as u32,
            user: user.into(),
            groups: [].into(),
            operator: false,
            role: Role::Seat,
        }
    }

    fn waits(seats: &mut Seats, conn: u64, user: &str, job: u32) {
        let (caller, job) = (caller(user), JobId(job));
        assert_eq!(seats.ask(&caller, job, Timestamp(0)), Ask::Waits);
        let message = ToHopd {
            id: conn,
            body: Request::Ping,
        };
        let conn = ConnId(conn);
        seats.wait(
            job,
            Waiting {
                conn,
                caller,
                message,
            },
        );
    }

    fn lookups(seats: &mut Seats) -> Vec<u32> {
        std::iter::from_fn(|| seats.next_lookup())
            .map(|job| job.0)
            .collect()
    }

    fn owner(user: &str) -> Result<Option<Owner>, String> {
        Ok(Some(Owner {
            uid: user.len() as u32,
            account: None,
            qos: None,
            nodes: vec![],
            lives: true,
        }))
    }

    #[test]
    fn one_user_has_two_lookups_and_leaves_room_for_others() {
        let mut seats = Seats::default();
        for job in 1..=20 {
            waits(&mut seats, job.into(), "mallory", job);
        }
        waits(&mut seats, 30, "bob", 30);
        assert_eq!(lookups(&mut seats), [1, 2, 30]);
        seats.answered(JobId(1), &owner("mallory"), false, Timestamp(0));
        assert_eq!(lookups(&mut seats), [3]);
    }

    #[test]
    fn all_users_together_have_eight_lookups() {
        let mut seats = Seats::default();
        for (n, user) in ["a", "bb", "ccc", "dddd", "eeeee"].into_iter().enumerate() {
            for job in 0..3 {
                let job = n as u32 * 10 + job;
                waits(&mut seats, job.into(), user, job);
            }
        }
        assert_eq!(lookups(&mut seats), [0, 1, 10, 11, 20, 21, 30, 31]);
    }

    #[test]
    fn those_who_wait_for_one_job_share_its_lookup() {
        let mut seats = Seats::default();
        waits(&mut seats, 1, "ada", 7);
        waits(&mut seats, 2, "bobby", 7);
        waits(&mut seats, 3, "ada", 7);
        assert_eq!(lookups(&mut seats), [7]);
        let judged = seats.answered(JobId(7), &owner("ada"), false, Timestamp(0));
        let fine: Vec<_> = judged.iter().map(|(w, s)| (w.conn.0, s.is_ok())).collect();
        assert_eq!(fine, [(1, true), (2, false), (3, true)]);
    }

    #[test]
    fn of_a_job_that_slurm_hides_the_caller_reads_so_and_not_that_it_is_anothers() {
        let mut seats = Seats::default();
        waits(&mut seats, 1, "ada", 7);
        lookups(&mut seats);
        let judged = seats.answered(JobId(7), &Ok(None), true, Timestamp(0));
        let hidden = |refusal: &Refusal| {
            let said = matches!(refusal, Refusal::Unavailable { reason } if reason.contains("PrivateData"));
            assert!(said, "{refusal}");
        };
        hidden(judged[0].1.as_ref().unwrap_err());
        match seats.ask(&caller("ada"), JobId(7), Timestamp(1)) {
            Ask::Refused(refusal) => hidden(&refusal),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_denied_job_is_not_looked_up_again_for_a_while() {
        let mut seats = Seats::default();
        waits(&mut seats, 1, "mallory", 7);
        lookups(&mut seats);
        seats.answered(JobId(7), &owner("ada"), false, Timestamp(0));
        let ask = |seats: &mut Seats, user, at| seats.ask(&caller(user), JobId(7), at);
        let soon = Timestamp(0) + Span::from_secs(29);
        assert!(matches!(ask(&mut seats, "mallory", soon), Ask::Refused(_)));
        assert_eq!(ask(&mut seats, "ada", soon), Ask::Waits);
        assert_eq!(ask(&mut seats, "mallory", soon + Span::from_secs(1)), Ask::Waits);
    }
}
