//! News of the user's store: a tenure's folder is open, records and states are on disk, or nothing can be written.

use super::durable::{Mending, SyncNumber};
use super::mending::TRY_AGAIN;
use super::{Core, Output, wording};
use hop_log::{CellNumber, Entry, Settled};
use hop_protocol::message::Note;
use hop_words::id::Tenure;

impl Core {
    /// The log in a tenure's folder is on disk up to there. In a later tenure the log refuses the news.
    pub(super) fn synced(&mut self, settled: Settled) {
        self.propose(Entry::Settled { settled });
        self.go_if_settled();
    }

    /// Has the store write all records that came so far.
    pub(super) fn sync(&mut self) -> SyncNumber {
        let number = self.durable.as_mut().map_or(SyncNumber(0), |durable| {
            durable.last_sync.0 += 1;
            durable.last_sync
        });
        self.out.push(Output::Sync(number));
        number
    }

    /// All records that came before this order are on disk.
    pub(super) fn in_sync(&mut self, number: SyncNumber) {
        if self.durable.as_ref().is_some_and(|d| d.reopens == Some(number)) {
            self.reopen();
        }
        self.go_if_settled();
    }

    /// No record of a dead kernel is on its way to the disk: the next tenure misses none.
    fn reopen(&mut self) {
        let reopens = self
            .durable
            .as_mut()
            .is_some_and(|d| d.reopens.take().is_some() && !d.journal.has_proposed_tenure());
        if reopens {
            let tenure = Tenure(self.office().1.0 + 1);
            let executor = self.identity.incarnation;
            self.propose(Entry::Tenure { tenure, executor });
        }
    }

    /// Puts the state beside the log.
    pub(super) fn write_state(&mut self) {
        if let Some(durable) = &mut self.durable {
            let state = durable.journal.state();
            let bytes = hop_log::Form::encode(&state.at_rest());
            durable.resting.push_back(state.settled_through());
            self.out.push(Output::WriteState { state: bytes });
        }
    }

    /// The first of the states on their way is beside the log on disk. A later one may have settled further cells.
    pub(super) fn rested(&mut self) {
        let Some(through) = self.durable.as_mut().and_then(|d| d.resting.pop_front()) else {
            return;
        };
        self.note(Note::Settled { through: through.0 });
        self.send_held(through);
        self.go_if_settled();
    }

    /// Sends the held replies of cells that are durable in the group's log: the log has each record whole. Without a
    /// group the replies wait for the store ([`Core::rested`]).
    pub(super) fn send_durable(&mut self) {
        let grouped = self.durable.as_ref().filter(|d| d.is_grouped());
        if let Some(through) = grouped.map(|d| d.journal.state().durable_through()) {
            self.send_held(through);
        }
    }

    fn send_held(&mut self, through: CellNumber) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        let ready = durable
            .held_replies
            .iter()
            .take_while(|held| held.number <= through || !held.has_effects)
            .count();
        let ready: Vec<_> = durable.held_replies.drain(..ready).collect();
        for held in ready {
            self.send_answer(held.number, held.cell, held.answer);
        }
    }

    /// The tenure's folder is open, and takes all further captures. The next one may be under way already.
    pub(super) fn tenure_opened(&mut self, tenure: Tenure) {
        if let Some(durable) = self.durable.as_mut().filter(|d| d.tenure() == tenure) {
            durable.opening = false;
            self.tell_tenure();
            self.register();
            self.tell_saved();
            self.carry_over();
            self.open_store_if_ready();
        }
    }

    /// Has the front know the tenure, and the user the cells whose effects it lacks.
    fn tell_tenure(&mut self) {
        if let Some(durable) = &mut self.durable {
            let (tenure, lost) = (durable.tenure(), std::mem::take(&mut durable.lost));
            self.note(Note::Tenure { tenure, lost });
        }
    }

    /// Has `hopd` and the user, at the next cell, know whether the kernel is saved, if that has changed.
    pub(super) fn tell_saved(&mut self) {
        self.tell_hopd_saved();
        let Some(durable) = &mut self.durable else {
            return;
        };
        if durable.user_reads_unsaved && durable.told_unsaved.is_none() {
            durable.user_reads_unsaved = false;
            durable.notices.push(wording::captured_again());
        }
    }

    /// The same, where nothing proves yet that the kernel is saved again: the next process has not opened its folder.
    pub(super) fn tell_hopd_saved(&mut self) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        let unsaved = durable.unsaved();
        if durable.told_unsaved == unsaved {
            return;
        }
        if let (None, Some(now)) = (&durable.told_unsaved, &unsaved) {
            durable.user_reads_unsaved = true;
            durable.notices.push(wording::not_captured(&now.why, now.since));
        }
        durable.told_unsaved = unsaved;
        self.register();
    }

    /// Nothing can be written to the store: the user is told once, and the kernel goes on without it for now.
    pub(super) fn store_failed(&mut self, why: String) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        durable.broken.get_or_insert_with(|| why.clone());
        // A try under way has an answer of its own. A way back that had got further begins anew.
        let begins_anew = matches!(durable.mending, Mending::Possible | Mending::Asked(_));
        durable.tries_after = self.now + TRY_AGAIN;
        if std::mem::take(&mut durable.opening) {
            self.tell_tenure();
        }
        let Some(durable) = &mut self.durable else {
            return;
        };
        let held = std::mem::take(&mut durable.held_replies);
        self.tell_saved();
        for held in held {
            self.send_answer(held.number, held.cell, held.answer);
        }
        if self.may_stay() {
            self.stay("nothing can be written to its user's store");
        }
        if begins_anew {
            self.give_up_mending(&why);
        }
        // It drops what it hasn't written.
        self.reopen();
        self.go_if_settled();
        self.open_store_if_ready();
    }
}
