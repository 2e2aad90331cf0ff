//! Whether a process of an earlier executor may still run, as this seat knows (docs/replication.md, "A former attempt").
//! [`crate::core`] has a cell with `%%retry` wait for it. Pure; [`super::tend`] hears the news.

use hop_keeper::hearing::Heard;
use hop_words::id::{JobId, Tenure};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// After so long from the election of another executor, a former one has ended its process by itself.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// An executor of the past, whose process may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Former {
    tenure: Tenure,
    seat: JobId,
    until: Instant,
}

/// The processes that executed, or execute, in this seat.
#[derive(Debug, Default)]
struct Own {
    /// Their connections to the seat: a process without one has ended.
    visits: BTreeSet<u64>,
    /// The last tenure of this seat's member.
    last: Option<Tenure>,
}

/// The executors of the past.
#[derive(Debug)]
pub(super) struct Formers {
    me: JobId,
    formers: Vec<Former>,
    own: Own,
    /// A state without its entries may hide an election.
    unknown_until: Option<Instant>,
    /// The executor here has asked, and has no answer yet.
    asked: bool,
}

impl Formers {
    pub(super) fn new(me: JobId, founds: bool, now: Instant) -> Self {
        Self {
            me,
            formers: Vec::new(),
            own: Own::default(),
            unknown_until: (!founds).then_some(now + ENDS_WITHIN),
            asked: false,
        }
    }

    /// The log's state came without its entries.
    pub(super) fn skipped(&mut self, now: Instant) {
        self.unknown_until = Some(now + ENDS_WITHIN);
    }

    /// The log has this executor's tenure.
    pub(super) fn holds(&mut self, tenure: Tenure, seat: JobId) {
        if seat == self.me {
            self.own.last = Some(tenure);
        }
    }

    /// The executor of this tenure is out of office.
    pub(super) fn deposed(&mut self, tenure: Tenure, seat: JobId, now: Instant) {
        let until = now + ENDS_WITHIN;
        self.formers.retain(|former| former.until > now);
        self.formers.push(Former { tenure, seat, until });
    }

    /// A process executes here.
    pub(super) fn attached(&mut self, visit: u64) {
        self.own.visits.insert(visit);
        self.asked = false;
    }

    /// A process of this seat has ended. Returns the last of its tenures, if it executed and no other process here may
    /// be one of those tenures.
    pub(super) fn detached(&mut self, visit: u64) -> Option<Tenure> {
        let executed = self.own.visits.remove(&visit);
        self.own.last.filter(|_| executed && self.own.visits.is_empty())
    }

    pub(super) fn ask(&mut self) {
        self.asked = true;
    }

    /// Takes in the news. Returns whether the executor of `visit` is to hear that all earlier processes have ended.
    pub(super) fn answers(&mut self, visit: u64, group: &str, heard: &Heard, now: Instant) -> bool {
        self.unknown_until.take_if(|until| *until <= now);
        let ended = heard.ended.get(group);
        let others_here = self.own.visits.iter().any(|v| *v != visit);
        self.formers.retain(|former| {
            let here = former.seat == self.me;
            let said = ended.and_then(|seats| seats.get(&former.seat));
            let runs = match here {
                true => others_here,
                false => !heard.closed.contains(&former.seat) && said.is_none_or(|t| *t < former.tenure),
            };
            runs && former.until > now
        });
        let gone = self.formers.is_empty() && self.unknown_until.is_none();
        gone && std::mem::take(&mut self.asked)
    }

    /// When time alone is the answer.
    pub(super) fn due(&self) -> Option<Instant> {
        let times = self.formers.iter().map(|f| f.until).chain(self.unknown_until);
        times.max().filter(|_| self.asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: JobId = JobId(1);
    const OTHER: JobId = JobId(2);
    const VISIT: u64 = 7;

    /// The other seat's executor was deposed, and a process here has taken office and asks.
    fn asked(now: Instant) -> Formers {
        let mut formers = Formers::new(ME, true, now);
        formers.holds(Tenure(1), OTHER);
        formers.deposed(Tenure(1), OTHER, now);
        formers.holds(Tenure(2), ME);
        formers.attached(VISIT);
        formers.ask();
        formers
    }

    fn answers(formers: &mut Formers, heard: &Heard, now: Instant) -> bool {
        formers.answers(VISIT, "g", heard, now)
    }

    fn ended(tenure: u64) -> Heard {
        let seats = [(OTHER, Tenure(tenure))].into();
        Heard {
            ended: [("g".to_owned(), seats)].into(),
            ..Heard::default()
        }
    }

    #[test]
    fn without_any_word_the_time_is_the_answer() {
        let now = Instant::now();
        let mut formers = asked(now);
        assert!(!answers(&mut formers, &Heard::default(), now));
        assert_eq!(formers.due(), Some(now + ENDS_WITHIN));
        assert!(answers(&mut formers, &Heard::default(), now + ENDS_WITHIN));
        assert_eq!(formers.due(), None);
        assert!(
            !answers(&mut formers, &Heard::default(), now + ENDS_WITHIN),
            "once"
        );
    }

    #[test]
    fn the_former_seats_word_counts_for_its_tenure() {
        let now = Instant::now();
        let mut formers = asked(now);
        assert!(!answers(&mut formers, &ended(0), now), "an earlier process ended");
        let seats = [(OTHER, Tenure(1))].into();
        let of_another_kernel = Heard {
            ended: [("another".to_owned(), seats)].into(),
            ..Heard::default()
        };
        assert!(!answers(&mut formers, &of_another_kernel, now));
        assert!(answers(&mut formers, &ended(1), now));
    }

    #[test]
    fn a_seat_at_whose_address_nobody_listens_has_no_process() {
        let now = Instant::now();
        let closed = Heard {
            closed: [OTHER].into(),
            ..Heard::default()
        };
        assert!(answers(&mut asked(now), &closed, now));
    }

    #[test]
    fn the_last_but_one_executor_counts_as_well() {
        let now = Instant::now();
        let mut formers = asked(now);
        let later = now + Duration::from_secs(1);
        formers.deposed(Tenure(2), JobId(3), later);
        assert_eq!(formers.due(), Some(later + ENDS_WITHIN), "of the last");
        let closed = Heard {
            closed: [JobId(3)].into(),
            ..Heard::default()
        };
        let mut other_way = asked(now);
        other_way.deposed(Tenure(2), JobId(3), later);
        assert!(!answers(&mut other_way, &closed, now), "the first may run");
        assert!(!answers(&mut formers, &ended(1), now));
        assert!(answers(&mut formers, &closed, now), "what was heard stays known");
    }

    #[test]
    fn a_process_of_this_seat_has_ended_with_its_connection() {
        let now = Instant::now();
        let mut formers = Formers::new(ME, true, now);
        formers.holds(Tenure(1), ME);
        formers.attached(5);
        formers.deposed(Tenure(1), ME, now);
        formers.holds(Tenure(2), ME);
        formers.attached(VISIT);
        assert_eq!(formers.due(), None, "nobody asks");
        formers.ask();
        assert!(!answers(&mut formers, &Heard::default(), now));
        formers.holds(Tenure(3), OTHER);
        assert_eq!(formers.detached(5), None, "another process is there");
        assert!(answers(&mut formers, &Heard::default(), now));
        assert_eq!(formers.detached(VISIT), Some(Tenure(2)));
        assert_eq!(formers.detached(8), None, "it never executed");
    }

    #[test]
    fn a_process_hears_no_answer_to_anothers_question() {
        let now = Instant::now();
        let mut formers = asked(now);
        formers.detached(VISIT);
        formers.attached(VISIT + 1);
        assert!(!formers.answers(VISIT + 1, "g", &ended(1), now));
    }

    #[test]
    fn a_member_that_missed_entries_waits_for_the_time() {
        let now = Instant::now();
        let mut formers = Formers::new(ME, false, now);
        formers.attached(VISIT);
        formers.ask();
        assert!(!answers(&mut formers, &Heard::default(), now));
        assert!(answers(&mut formers, &Heard::default(), now + ENDS_WITHIN));
        formers.skipped(now);
        formers.ask();
        assert!(!answers(&mut formers, &Heard::default(), now));
    }
}
