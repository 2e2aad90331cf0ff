//! The task of one group in a seat. It passes the log between the group and the replica that executes here, and starts
//! the replica when the group elects this seat's member.
//!
//! A process serves a single tenure, except for tenures that the process itself opens. A lost process is therefore
//! followed by a new tenure, and no cell of the process is begun again unseen.

use super::former::Formers;
use super::host::{Command, Host, Member};
use super::hot::{Deed, Hot};
use super::lag::Watch;
use super::propose::propose_in_order;
use super::terminate;
use super::wire::{FromSeat, Hears};
use crate::core::Lack;
use hop_keeper::hearing::Heard;
use hop_log::{Effect, Entry, Office, State};
use hop_protocol::file::{FrontFile, Takeover, kernel_dir};
use hop_protocol::step::{Step, Turn};
use hop_protocol::wait;
use hop_raft::{Feed, Group as _, News, Standing};
use hop_words::id::{Incarnation, JobId, KernelId, Tenure};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::{Child, Command as Program};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// Between the end of a process that never attached, or a start that failed, and the next start.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// Starts in a row without a process that attaches, until another member takes office.
const STILLBORN: u32 = 3;

/// How long the others hear of a member that can't go on: longer than the search for a seat in its place.
const FAILED_FOR: Duration = Duration::from_secs(60);

/// Time in which the others learn that the kernel sleeps.
const LEARN_WITHIN: Duration = Duration::from_millis(500);

/// The standbys that the kernel is to have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    /// Its replicas, with the executor.
    pub(super) replicas: usize,
    pub(super) hot: bool,
}

pub(super) struct Tended {
    pub(super) host: Arc<Host>,
    pub(super) group: String,
    pub(super) kernel: KernelId,
    pub(super) me: Incarnation,
    pub(super) wish: Wish,
    pub(super) member: Member,
    pub(super) commands: mpsc::UnboundedReceiver<Command>,
}

struct Follower {
    visit: u64,
    out: mpsc::UnboundedSender<FromSeat>,
    /// The process follows as the kernel's hot standby, else for a move.
    hot: bool,
}

/// The next step of an elected member without a process.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Start,
    /// The process is lost, or none can be started: a new tenure begins, with this executor.
    Elect(Incarnation),
}

/// The task's memory.
struct Desk {
    state: Option<State>,
    replica: Option<(u64, mpsc::UnboundedSender<FromSeat>)>,
    /// A replica that follows the log, and executes once this member is elected.
    follower: Option<Follower>,
    /// The srun of a replica started here.
    process: Option<Child>,
    hot: Hot,
    /// The srun of a hot standby started here.
    standby: Option<Child>,
    /// The entry by which the log takes this member for warm again is proposed.
    cooled: bool,
    /// Earlier executors whose process may run.
    formers: Formers,
    /// The tenure that a process of this seat serves or has served.
    served: Option<Tenure>,
    /// The tenure after which a new tenure was proposed.
    asked_after: Option<Tenure>,
    stillborn: u32,
    /// A start has failed. Until then nothing follows.
    starts_at: Option<Instant>,
    /// The last report of missing members: each process that executes here hears of it, as far as it still holds.
    need: Option<Lack>,
    wanted: usize,
    /// The group, as the replica knows it.
    watch: Watch,
    over: bool,
}

impl Tended {
    pub(super) async fn run(mut self, first: Option<Command>) {
        let Feed { state, mut news } = self.member.subscribe();
        let (propose, queue) = mpsc::unbounded_channel();
        let proposer = tokio::spawn(propose_in_order(Arc::clone(&self.member), queue));
        let founds = matches!(first, Some(Command::Attach { .. }));
        let formers = Formers::new(self.host.seat.job, founds, Instant::now());
        let mut desk = Desk::new(state, self.wish, formers);
        let mut heard = self.host.keeper.heard();
        let mut standing = self.member.standing();
        if let Some(first) = first {
            self.obey(first, &mut desk, &propose);
        }
        while !desk.over {
            desk.tell_standing(&standing, &self.member);
            let watch_due = desk.watch_due();
            tokio::select! {
                item = news.recv() => match item {
                    Some(item) => {
                        desk.learn(item, self.me);
                        while let Ok(item) = news.try_recv() {
                            desk.learn(item, self.me);
                        }
                    }
                    None => break,
                },
                command = self.commands.recv() => match command {
                    Some(command) => self.obey(command, &mut desk, &propose),
                    None => break,
                },
                changed = self.member.standing_changed(&standing) => match changed {
                    true => standing = self.member.standing(),
                    false => break,
                },
                _ = wait::on(&mut desk.process, Child::wait) => {
                    desk.process = None;
                    if desk.replica.is_none() {
                        desk.stillborn += 1;
                        tokio::time::sleep(RESTART_AFTER).await;
                    }
                }
                _ = wait::on(&mut desk.standby, Child::wait) => {
                    desk.standby = None;
                    desk.hot.gone(Instant::now());
                }
                () = wait::at(desk.hot.due()) => {}
                () = wait::at(watch_due) => {}
                () = wait::at(desk.formers.due()) => {}
                changed = heard.changed() => if changed.is_err() {
                    break;
                },
                () = wait::at(desk.starts_at) => desk.starts_at = None,
            }
            self.look(&mut desk, &propose).await;
            desk.tell_former(&self.group, &heard.borrow_and_update());
        }
        desk.dismiss_hot();
        proposer.abort();
        let fails = !desk.over && self.member.standing().stopped.is_some();
        drop(desk);
        if fails {
            self.be_heard_to_fail().await;
        }
        self.host.left(&self.group).await;
    }

    /// Stays with the group until the others have gone on without this member: once the seat has left, nobody tells
    /// them.
    async fn be_heard_to_fail(&mut self) {
        let until = Instant::now() + FAILED_FOR;
        // At the timeout nobody has replaced the member yet.
        while let Ok(Some(command)) = timeout_at(until, self.commands.recv()).await {
            match command {
                // As at a seat that has left the group.
                Command::Attach { out, .. } => drop(out.send(FromSeat::Alone)),
                Command::Over => return self.host.keeper.close(&self.group),
                Command::Leave => return,
                Command::Detach { .. }
                | Command::Propose(_)
                | Command::Rests(_)
                | Command::AskFormer
                | Command::Need(_) => {}
            }
        }
    }

    /// Lets the others learn the last entry: the executor, for one, leaves by it. After the end of this member only the
    /// word that the kernel is over comes, to those that lag behind.
    async fn be_heard_to_sleep(&self) {
        self.member.remind().await;
        tokio::time::sleep(LEARN_WITHIN).await;
        self.host.keeper.close(&self.group);
    }

    fn obey(&self, command: Command, desk: &mut Desk, propose: &mpsc::UnboundedSender<Entry>) {
        match command {
            Command::Attach { visit, out, hot } => desk.attach(visit, out, hot, self.me),
            Command::Detach { visit } => {
                if let Some(tenure) = desk.formers.detached(visit) {
                    self.host.keeper.ended(&self.group, tenure);
                }
                if desk.replica.take_if(|(v, _)| *v == visit).is_some() {
                    self.host.keeper.rests(&self.group, false);
                }
                desk.follower.take_if(|f| f.visit == visit);
            }
            // The proposer ends with this task.
            Command::Propose(entry) => drop(propose.send(entry)),
            Command::Rests(rests) => self.host.keeper.rests(&self.group, rests),
            Command::AskFormer => desk.formers.ask(),
            Command::Need(lack) => desk.need(lack),
            Command::Over => {
                self.host.keeper.close(&self.group);
                desk.over = true;
            }
            Command::Leave => desk.over = true,
        }
    }

    /// Has the executor run here, where the group wants it here.
    async fn look(&self, desk: &mut Desk, propose: &mpsc::UnboundedSender<Entry>) {
        let Some(state) = &desk.state else { return };
        if matches!(state.office(), Office::Asleep { .. }) {
            self.be_heard_to_sleep().await;
            desk.over = true;
            return;
        }
        if state.has_left(self.me) {
            desk.over = true;
            return;
        }
        let tenure = state.tenure();
        if state.executor() != Some(self.me) {
            self.host.spares.want(&self.group, &self.kernel);
            return self.keep_hot(desk, propose).await;
        }
        desk.hot.took_office();
        if desk.replica.is_some() {
            self.host.spares.unwant(&self.group);
            desk.served = Some(tenure);
            return;
        }
        if desk.process.is_some() {
            return;
        }
        let last = state.generation().last_tenure();
        match desk.next(tenure, self.me, Instant::now()) {
            None => {}
            Some(Next::Elect(executor)) => {
                tracing::info!(group = self.group, %executor, "the executor's process is gone");
                let tenure = Tenure(tenure.0 + 1);
                // The proposer ends with this task.
                let _ = propose.send(Entry::Tenure { tenure, executor });
            }
            Some(Next::Start) => self.start_executor(desk, tenure, last).await,
        }
    }

    async fn start_executor(&self, desk: &mut Desk, tenure: Tenure, last: Tenure) {
        tracing::info!(group = self.group, %tenure, "the executor is started");
        match self.start_replica(last, Turn::Elected).await {
            Ok(Some(process)) => (desk.served, desk.process) = (Some(tenure), Some(process)),
            Ok(None) => {
                self.host.keeper.close(&self.group);
                desk.over = true;
            }
            Err(error) => {
                tracing::warn!(group = self.group, "the executor can't be started: {error:#}");
                desk.not_started(tenure, Instant::now());
            }
        }
    }

    /// Keeps a hot standby here if the log chooses this member, and tells the log when there is none any more.
    async fn keep_hot(&self, desk: &mut Desk, propose: &mpsc::UnboundedSender<Entry>) {
        let Some(state) = &desk.state else { return };
        let Some(member) = state.members().get(&self.me) else {
            return;
        };
        let follows = desk.follower.as_ref().is_some_and(|f| f.hot);
        let cools = member.hot && !follows;
        if cools && !desk.cooled {
            // The proposer ends with this task.
            let _ = propose.send(member.entry(self.me, false));
        }
        desk.cooled = cools;
        let chosen = state.hot_standby() == Some(self.me) && state.restore().settled.is_some();
        let last = state.generation().last_tenure();
        match desk.hot.next(chosen, Instant::now()) {
            Some(Deed::Start) if desk.standby.is_none() => {
                desk.standby = self
                    .start_replica(last, Turn::Follows)
                    .await
                    .unwrap_or_else(|error| {
                        tracing::warn!(group = self.group, "no hot standby can be started: {error:#}");
                        None
                    });
                if desk.standby.is_none() {
                    desk.hot.gone(Instant::now());
                }
            }
            // The one before has not ended yet.
            Some(Deed::Start) => desk.hot.gone(Instant::now()),
            Some(Deed::End) => desk.dismiss_hot(),
            None => {}
        }
    }

    /// Starts a replica in a step of this seat, as the front would. `None` means that nobody wants the group any
    /// more: the front has removed the kernel's folder, or has opened a tenure beyond the group's last tenure.
    async fn start_replica(&self, last: Tenure, turn: Turn) -> anyhow::Result<Option<Child>> {
        let dir = kernel_dir(&self.kernel).ok_or_else(|| anyhow::anyhow!("there is no home folder"))?;
        let read = tokio::task::spawn_blocking(move || read_takeover(dir, last)).await??;
        let Some((file, takeover, dir)) = read else {
            return Ok(None);
        };
        if turn == Turn::Elected
            && let Some(process) = self.host.spares.start(&file, &dir, self.me).await
        {
            return Ok(Some(process));
        }
        let seat = &self.host.seat;
        let step = Step {
            kernel: &self.kernel,
            dir: &dir,
            incarnation: self.me,
            seat: seat.job,
            node: &seat.node,
            size: takeover.size,
            program: &seat.program,
            turn,
        };
        let process = Program::new("srun")
            .args(step.srun_args())
            .env_clear()
            .envs(takeover.environment)
            .env("GRESSHOPPER_KERNEL", self.kernel.as_str())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0)
            .kill_on_drop(false)
            .spawn()?;
        Ok(Some(process))
    }
}

pub(super) fn read_takeover(
    dir: PathBuf,
    last: Tenure,
) -> anyhow::Result<Option<(FrontFile, Takeover, PathBuf)>> {
    if !dir.try_exists()? {
        return Ok(None);
    }
    let file = FrontFile::read(&dir)?;
    if file.state.as_ref().is_some_and(|state| state.tenure > last) {
        return Ok(None);
    }
    let takeover = file
        .takeover
        .clone()
        .ok_or_else(|| anyhow::anyhow!("front.json doesn't say how to start the kernel here"))?;
    Ok(Some((file, takeover, dir)))
}

impl Desk {
    fn new(state: Option<State>, wish: Wish, formers: Formers) -> Self {
        let mut desk = Self {
            state: None,
            replica: None,
            follower: None,
            process: None,
            hot: Hot::new(wish.hot),
            standby: None,
            cooled: false,
            formers,
            served: None,
            asked_after: None,
            stillborn: 0,
            starts_at: None,
            need: None,
            wanted: wish.replicas,
            watch: Watch::default(),
            over: false,
        };
        desk.state = state;
        desk.note_office();
        desk
    }

    /// The executor in office, with its seat.
    fn in_office(&self) -> Option<(Tenure, JobId)> {
        let state = self.state.as_ref()?;
        let member = state.members().get(&state.executor()?)?;
        Some((state.tenure(), member.seat))
    }

    fn note_office(&mut self) {
        if let Some((tenure, seat)) = self.in_office() {
            self.formers.holds(tenure, seat);
        }
    }

    /// Tells an executor that asks for it that no earlier executor's process runs any more.
    fn tell_former(&mut self, group: &str, heard: &Heard) {
        if let Some((visit, _)) = self.replica
            && self.formers.answers(visit, group, heard, Instant::now())
        {
            self.tell(FromSeat::FormerGone);
        }
    }

    /// By the log this member executes, and it has no process.
    fn next(&mut self, tenure: Tenure, me: Incarnation, now: Instant) -> Option<Next> {
        if self.starts_at.is_some_and(|at| now < at) {
            return None;
        }
        if self.served != Some(tenure) {
            return Some(Next::Start);
        }
        let asks = self.asked_after.replace(tenure) != Some(tenure);
        asks.then(|| Next::Elect(self.successor(me)))
    }

    /// No process could be started. Nothing has been served, so the next try is for the same tenure.
    fn not_started(&mut self, tenure: Tenure, now: Instant) {
        self.stillborn += 1;
        self.starts_at = Some(now + RESTART_AFTER);
        if self.stillborn >= STILLBORN {
            self.served = Some(tenure);
        }
    }

    fn learn(&mut self, news: News, me: Incarnation) {
        let elects = match &news {
            News::State(state) => state.executor() == Some(me),
            News::Applied { effect, .. } => {
                matches!(effect, Ok(Effect::Opened { executor, .. }) if *executor == me)
            }
        };
        // A hot standby that still reads would keep the kernel waiting: a fresh process reads less before its first
        // cell. The standby is dismissed before it hears of the election.
        if elects && !self.is_hot(me) {
            self.dismiss_hot();
        }
        match news {
            News::State(state) => {
                self.tell_of_the_log(said(state.clone()));
                self.state = Some(*state);
                self.formers.skipped(Instant::now());
            }
            News::Applied { index, entry, .. } => {
                let before = self.in_office();
                if let Some(state) = &mut self.state {
                    // The refusal is the same at every member, and the replica sees it itself.
                    let _ = state.apply(index, &entry);
                }
                if let Some((tenure, seat)) = before
                    && self.in_office().is_none_or(|(now, _)| now != tenure)
                {
                    self.formers.deposed(tenure, seat, Instant::now());
                }
                self.tell_of_the_log(FromSeat::Applied { index, entry });
            }
        }
        self.note_office();
        let Some(state) = &self.state else { return };
        // A deposed replica leaves by itself. Until then nobody may take it for the executor of a later tenure.
        if state.executor() != Some(me) {
            self.replica = None;
        } else if self.replica.is_none() && self.served != Some(state.tenure()) && self.follower.is_some() {
            // The follower has seen the election as well.
            let tenure = state.tenure();
            tracing::info!(%tenure, "the executor has followed the log");
            (self.served, self.stillborn) = (Some(tenure), 0);
            if self.follower.as_ref().is_some_and(|f| f.hot) {
                self.process = self.standby.take();
            }
            if let Some(follower) = self.follower.take() {
                self.formers.attached(follower.visit);
                self.replica = Some((follower.visit, follower.out));
            }
            self.watch.forget();
            self.tell_need();
        }
    }

    fn tell_standing(&mut self, standing: &Standing, member: &Member) {
        if self.replica.is_none() {
            return;
        }
        let now = Instant::now();
        let progress = member.progress();
        self.watch
            .see(&standing.voters, standing.leader, progress.as_ref(), now);
        if let Some(report) = self.watch.report(now) {
            self.tell(FromSeat::Standing(report));
        }
    }

    /// Without a replica nobody hears of the group.
    fn watch_due(&self) -> Option<Instant> {
        self.replica.as_ref().and_then(|_| self.watch.due())
    }

    /// The group lacks members: its executor has the front look for seats, now or at the executor's arrival.
    fn need(&mut self, lack: Lack) {
        self.need = Some(lack.clone()).filter(|lack| lack.replicas > 0);
        self.tell(FromSeat::Need(lack));
    }

    /// Tells a new executor. The process before may have died with the front's answer.
    fn tell_need(&mut self) {
        let state = self.state.as_ref();
        let need = self.need.take().zip(state);
        self.need = need.and_then(|(need, state)| need.left(state, self.wanted));
        if let Some(need) = self.need.clone() {
            self.tell(FromSeat::Need(need));
        }
    }

    fn tell(&self, word: FromSeat) {
        if let Some((_, out)) = &self.replica {
            // Its leaving is told by a command.
            let _ = out.send(word);
        }
    }

    /// Of the log, a follower hears as much as the executor.
    fn tell_of_the_log(&self, word: FromSeat) {
        if let Some(follower) = &self.follower {
            // As above.
            let _ = follower.out.send(word.clone());
        }
        self.tell(word);
    }

    /// Whether the log knows that a process here has all records.
    fn is_hot(&self, me: Incarnation) -> bool {
        let member = self.state.as_ref().and_then(|s| s.members().get(&me));
        member.is_some_and(|m| m.hot)
    }

    /// Ends the hot standby here, even if its process has not attached yet.
    fn dismiss_hot(&mut self) {
        if let Some(follower) = self.follower.take_if(|f| f.hot) {
            // It may have left.
            let _ = follower.out.send(FromSeat::Alone);
        }
        self.standby.iter().for_each(terminate);
    }

    fn attach(&mut self, visit: u64, out: mpsc::UnboundedSender<FromSeat>, hot: bool, me: Incarnation) {
        let member = self.state.as_ref().filter(|s| s.members().contains_key(&me));
        let (Some(state), None) = (member, &self.replica) else {
            let _ = out.send(FromSeat::Alone);
            return;
        };
        let (executes, tenure) = (state.executor() == Some(me), state.tenure());
        let word = said(Box::new(state.clone()));
        // A move's follower takes the hot standby's place: the kernel is on its way here.
        if !executes && !hot {
            self.dismiss_hot();
        }
        // A hot standby was to be ready before the election.
        let comes_late = if executes { hot } else { self.follower.is_some() };
        if comes_late {
            let _ = out.send(FromSeat::Alone);
            return;
        }
        let _ = out.send(word);
        if !executes {
            self.follower = Some(Follower { visit, out, hot });
            return;
        }
        (self.served, self.stillborn) = (Some(tenure), 0);
        self.replica = Some((visit, out));
        self.formers.attached(visit);
        self.watch.forget();
        self.tell_need();
    }

    /// The next executor after the loss of a process: this member again, until its processes have failed too often.
    fn successor(&self, me: Incarnation) -> Incarnation {
        let other = self
            .state
            .as_ref()
            .and_then(|s| s.members().keys().find(|m| **m != me));
        match other {
            Some(other) if self.stillborn >= STILLBORN => *other,
            _ => me,
        }
    }
}

fn said(state: Box<State>) -> FromSeat {
    FromSeat::State {
        state,
        hears: Hears::ALL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_log::Index;

    /// Two members, of which the first is elected.
    fn desk() -> Desk {
        let mut state = State::new();
        let [one, two] = [1, 2].map(|id| Entry::Join {
            incarnation: Incarnation(id),
            seat: JobId(id),
            node: format!("n{id}").as_str().into(),
            hot: false,
        });
        let (tenure, executor) = (Tenure(1), Incarnation(1));
        for (index, entry) in (1..).zip([one, two, Entry::Tenure { tenure, executor }]) {
            state.apply(Index(index), &entry).unwrap();
        }
        let wish = Wish {
            replicas: 3,
            hot: false,
        };
        let formers = Formers::new(JobId(1), true, Instant::now());
        Desk::new(Some(state), wish, formers)
    }

    #[test]
    fn a_start_that_fails_is_tried_again_after_a_pause() {
        let (mut desk, tenure, me) = (desk(), Tenure(1), Incarnation(1));
        let begin = Instant::now();
        assert_eq!(desk.next(tenure, me, begin), Some(Next::Start));
        desk.not_started(tenure, begin);
        let again = desk.starts_at.expect("the task wakes then");
        assert_eq!(
            desk.next(tenure, me, begin),
            None,
            "news don't cut the pause short"
        );
        assert_eq!(desk.next(tenure, me, again), Some(Next::Start));
    }

    #[test]
    fn a_member_that_starts_nothing_leaves_the_kernel_to_another() {
        let (mut desk, tenure, me) = (desk(), Tenure(1), Incarnation(1));
        let mut now = Instant::now();
        for _ in 0..STILLBORN {
            assert_eq!(desk.next(tenure, me, now), Some(Next::Start));
            desk.not_started(tenure, now);
            now += RESTART_AFTER;
        }
        let other = Incarnation(2);
        assert_eq!(desk.next(tenure, me, now), Some(Next::Elect(other)));
        assert_eq!(desk.next(tenure, me, now), None, "once");
    }

    /// The missing members that a process hears of as it attaches.
    fn needs(desk: &mut Desk, visit: u64) -> Vec<Lack> {
        let (out, mut words) = mpsc::unbounded_channel();
        desk.attach(visit, out, false, Incarnation(1));
        let mut needs = Vec::new();
        while let Ok(word) = words.try_recv() {
            if let FromSeat::Need(lack) = word {
                needs.push(lack);
            }
        }
        needs
    }

    #[test]
    fn each_new_process_hears_which_members_are_still_missing() {
        let mut desk = desk();
        let lack = Lack {
            replicas: 2,
            gone: [Incarnation(2)].into(),
            failed: [].into(),
        };
        desk.need(lack.clone());
        assert_eq!(needs(&mut desk, 1), std::slice::from_ref(&lack));
        desk.replica = None;
        assert_eq!(
            needs(&mut desk, 2),
            std::slice::from_ref(&lack),
            "the first may not have told"
        );
        desk.need(Lack {
            replicas: 0,
            ..lack.clone()
        });
        desk.replica = None;
        assert_eq!(needs(&mut desk, 3), [], "the members are back");
        desk.need(lack);
        for (missing, joins) in [(1, 3), (0, 4)] {
            let state = desk.state.as_mut().unwrap();
            let join = Entry::Join {
                incarnation: Incarnation(joins),
                seat: JobId(joins),
                node: "n".into(),
                hot: false,
            };
            state.apply(state.applied().next(), &join).unwrap();
            desk.replica = None;
            let left: Vec<usize> = needs(&mut desk, 3).iter().map(|l| l.replicas).collect();
            assert_eq!(left.iter().sum::<usize>(), missing);
        }
    }
}
