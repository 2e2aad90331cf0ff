//! The effect of each entry.

use crate::entry::{Act, Entry, Settled};
use crate::error::Refusal;
use crate::id::{CellNumber, Index, Sequence};
use crate::record::Record;
use crate::state::{Answer, End, Fresh, Loss, Member, Office, State, Tail, Unsettled};
use hop_words::id::{CellId, Incarnation, Tenure};
use std::collections::VecDeque;

/// Bytes of inline records before their settling. Beyond the limit a record is refused until the store has caught up:
/// a hanging store can't fill the memory of the members. A cell's end is taken without its record then.
pub const TAIL_MAX: usize = 8 << 20;

/// Most incarnations below the highest that may still join.
const SKIPPED_MAX: usize = 16;

/// The effect of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: the same entry was evaluated before, or the cell has its answer.
    Again,
    Joined,
    /// `executor`: the kernel has no executor now.
    Left {
        executor: bool,
    },
    /// A tenure began. `lost`: answered cells without effects, whose answers are gone as well. [`State::losses`] keeps
    /// them until the front has named them.
    Opened {
        tenure: Tenure,
        executor: Incarnation,
        lost: Vec<CellId>,
    },
    /// The cell has its answer. The reply may go to the client now.
    Answered {
        number: CellNumber,
        /// The cell's record is committed. `false`: no record, or a refused record, proposed again by the executor.
        recorded: bool,
    },
    Recorded,
    /// The store has the effects of all cells up to and including this cell.
    Settled {
        through: CellNumber,
    },
    /// The namespace is a new one.
    Fresh,
    /// The kernel's processes may end.
    Asleep,
    Heard,
}

type Applied = Result<Effect, Refusal>;

impl State {
    /// Applies the entry at `index`. A refused entry changes nothing but the index and, of an act, the sequence.
    ///
    /// # Errors
    /// Why the entry has no effect. The refusal is the same on every member.
    ///
    /// # Panics
    /// If `index` is not greater than the index of the entry before: the host repeats its log.
    pub fn apply(&mut self, index: Index, entry: &Entry) -> Applied {
        assert!(index > self.applied, "entry {index} after entry {}", self.applied);
        self.applied = index;
        match entry {
            Entry::Join {
                incarnation,
                seat,
                node,
                hot,
            } => {
                let member = Member {
                    seat: *seat,
                    node: node.clone(),
                    hot: *hot,
                };
                self.join(*incarnation, member)
            }
            Entry::Left { incarnation } => self.leave(*incarnation),
            Entry::Tenure { tenure, executor } => self.open(*tenure, *executor),
            Entry::Act {
                tenure,
                sequence,
                act,
            } => {
                if self.evaluates(*tenure, *sequence)? {
                    self.act(*tenure, act)
                } else {
                    Ok(Effect::Again)
                }
            }
            Entry::Settled { settled } => {
                self.must_be_in_office(settled.tenure)?;
                self.settle(settled)
            }
            Entry::Heard { cells, losses } => self.hear(*cells, *losses),
        }
    }

    /// Takes the act's place among the tenure's acts. `false`: the place was evaluated before.
    fn evaluates(&mut self, tenure: Tenure, named: Sequence) -> Result<bool, Refusal> {
        self.must_be_in_office(tenure)?;
        let Office::Held { sequence, .. } = &mut self.office else {
            return Ok(false);
        };
        let next = sequence.next();
        if named > next {
            return Err(Refusal::OutOfOrder { named, next });
        }
        let new = named == next;
        if new {
            *sequence = next;
        }
        Ok(new)
    }

    fn act(&mut self, tenure: Tenure, act: &Act) -> Applied {
        match act {
            Act::Ended {
                cell,
                outcome,
                reply,
                last_output,
                record,
            } => {
                let end = End::Ended {
                    tenure,
                    outcome: *outcome,
                    reply: reply.clone(),
                    last_output: *last_output,
                };
                self.end_cell(cell, end, record.as_ref())
            }
            Act::Record { record, through } => self.record(record, through.as_ref()),
            Act::Lost { cell, why } => self.lose(cell, why),
            Act::Fresh => self.begin_afresh(),
            Act::Moved { to } => self.hand_over(*to),
            Act::Hibernated => self.hibernate(),
        }
    }

    /// Refuses every tenure but the current one.
    fn must_be_in_office(&self, named: Tenure) -> Result<(), Refusal> {
        let current = self.tenure();
        if named != current {
            return Err(Refusal::OtherTenure { named, current });
        }
        match self.office {
            Office::Held { .. } => Ok(()),
            Office::Vacant { .. } | Office::Asleep { .. } => Err(Refusal::Vacant { current }),
        }
    }

    fn join(&mut self, incarnation: Incarnation, mut member: Member) -> Applied {
        // Elected before its word came: from then on the member has the variables as the executor.
        member.hot &= self.executor() != Some(incarnation);
        match self.members.get_mut(&incarnation) {
            Some(known) if *known == member => return Ok(Effect::Again),
            Some(known) if (known.seat, &known.node) == (member.seat, &member.node) => *known = member,
            None if incarnation > self.highest => {
                let between = (self.highest.0 + 1..incarnation.0).rev().take(SKIPPED_MAX);
                self.skipped.extend(between.map(Incarnation));
                while self.skipped.len() > SKIPPED_MAX {
                    self.skipped.pop_first();
                }
                self.highest = incarnation;
                self.members.insert(incarnation, member);
            }
            None if self.skipped.remove(&incarnation) => {
                self.members.insert(incarnation, member);
            }
            _ => return Err(Refusal::UsedIncarnation(incarnation)),
        }
        Ok(Effect::Joined)
    }

    fn leave(&mut self, incarnation: Incarnation) -> Applied {
        if self.members.remove(&incarnation).is_none() {
            return if incarnation <= self.highest {
                Ok(Effect::Again)
            } else {
                Err(Refusal::NoMember(incarnation))
            };
        }
        let executor = self.executor() == Some(incarnation);
        if executor {
            self.office = Office::Vacant { last: self.tenure() };
        }
        Ok(Effect::Left { executor })
    }

    fn open(&mut self, tenure: Tenure, executor: Incarnation) -> Applied {
        if self.tenure() == tenure && self.executor() == Some(executor) {
            return Ok(Effect::Again);
        }
        self.may_take_office(tenure, executor)?;
        // Unsettled records of the folder can't be proven any more, nor can the records behind them.
        let safe = self.tail.iter().take_while(|t| t.record.is_inline()).count();
        let durable = self.durable_through();
        self.tail.truncate(safe);
        let split = self.unsettled.partition_point(|u| u.number <= durable);
        let lost: Vec<CellId> = self.unsettled.drain(split..).map(|u| u.cell).collect();
        // A client without the reply reads that the cell is lost, and may run it again.
        self.answers.retain(|answer| !lost.contains(&answer.cell));
        if !lost.is_empty() {
            self.losses.push_back(Loss {
                tenure,
                cells: lost.clone(),
            });
        }
        // An executor is no standby: once it is deposed, its process ends.
        if let Some(member) = self.members.get_mut(&executor) {
            member.hot = false;
        }
        self.office = Office::Held {
            tenure,
            executor,
            sequence: Sequence(0),
        };
        Ok(Effect::Opened {
            tenure,
            executor,
            lost,
        })
    }

    fn may_take_office(&self, tenure: Tenure, executor: Incarnation) -> Result<(), Refusal> {
        let current = self.tenure();
        if tenure.0 != current.0 + 1 {
            return Err(Refusal::NotNextTenure {
                named: tenure,
                current,
            });
        }
        if tenure > self.generation.last_tenure() {
            return Err(Refusal::GenerationSpent);
        }
        if !self.members.contains_key(&executor) {
            return Err(Refusal::NoMember(executor));
        }
        Ok(())
    }

    fn hand_over(&mut self, to: Incarnation) -> Applied {
        let next = Tenure(self.tenure().0 + 1);
        self.may_take_office(next, to)?;
        self.must_be_durable()?;
        self.open(next, to)
    }

    fn must_be_durable(&self) -> Result<(), Refusal> {
        match self.cells_at_stake() {
            0 => Ok(()),
            cells => Err(Refusal::NotDurable(cells)),
        }
    }

    fn end_cell(&mut self, cell: &CellId, end: End, record: Option<&Record>) -> Applied {
        if self.answer(cell).is_some() {
            return Ok(Effect::Again);
        }
        let number = self.answer_cell(cell, end);
        self.unsettled.push_back(Unsettled {
            number,
            cell: cell.clone(),
        });
        // The end counts in any case: a record that can't be taken comes again.
        let recorded = record.is_some_and(|r| self.take_record(r, number).is_ok());
        Ok(Effect::Answered { number, recorded })
    }

    fn answer_cell(&mut self, cell: &CellId, end: End) -> CellNumber {
        let number = self.cells.next();
        self.cells = number;
        self.answers.push_back(Answer {
            number,
            cell: cell.clone(),
            end,
        });
        number
    }

    fn lose(&mut self, cell: &CellId, why: &str) -> Applied {
        if self.answer(cell).is_some() {
            return Ok(Effect::Again);
        }
        let number = self.answer_cell(cell, End::Lost { why: why.to_owned() });
        Ok(Effect::Answered {
            number,
            recorded: false,
        })
    }

    fn record(&mut self, record: &Record, through: Option<&CellId>) -> Applied {
        // A cell that is settled already, or that was given up by a restart, is not in the list.
        let completed = through.and_then(|cell| self.unsettled.iter().find(|u| u.cell == *cell));
        let before = self.tail.back().map_or(self.settled_through, |t| t.through);
        let through = completed.map_or(before, |u| u.number.max(before));
        self.take_record(record, through)?;
        Ok(Effect::Recorded)
    }

    fn take_record(&mut self, record: &Record, through: CellNumber) -> Result<(), Refusal> {
        let next = self.records.next();
        if record.number != next {
            return Err(Refusal::NotNextRecord {
                named: record.number,
                next,
            });
        }
        let waiting: usize = self.tail.iter().map(|t| t.record.weight()).sum();
        // A single record of any size goes through, or it never could.
        if waiting > 0 && waiting + record.weight() > TAIL_MAX {
            return Err(Refusal::TailFull(waiting));
        }
        self.records = next;
        self.tail.push_back(Tail {
            record: record.clone(),
            through,
        });
        Ok(())
    }

    fn settle(&mut self, settled: &Settled) -> Applied {
        if settled.upto > self.records {
            return Err(Refusal::SettledAhead {
                upto: settled.upto,
                records: self.records,
            });
        }
        let before = self.settled.as_ref();
        if before.is_some_and(|s| s.order() >= settled.order() || s.upto > settled.upto) {
            return Ok(Effect::Again);
        }
        while let Some(stored) = self.tail.pop_front_if(|t| t.record.number <= settled.upto) {
            self.settled_through = self.settled_through.max(stored.through);
        }
        self.forget_settled_cells();
        self.settled = Some(settled.clone());
        Ok(Effect::Settled {
            through: self.settled_through,
        })
    }

    fn forget_settled_cells(&mut self) {
        let through = self.settled_through;
        while self.unsettled.pop_front_if(|u| u.number <= through).is_some() {}
    }

    fn begin_afresh(&mut self) -> Applied {
        self.fresh = Fresh {
            records: self.records,
        };
        self.tail = VecDeque::new();
        self.unsettled = VecDeque::new();
        self.settled_through = self.cells;
        Ok(Effect::Fresh)
    }

    fn hibernate(&mut self) -> Applied {
        self.must_be_durable()?;
        if !self.tail.is_empty() {
            return Err(Refusal::NotSettled(self.tail.len()));
        }
        self.office = Office::Asleep { last: self.tenure() };
        self.members.clear();
        Ok(Effect::Asleep)
    }

    fn hear(&mut self, cells: CellNumber, losses: Tenure) -> Applied {
        if cells > self.cells || losses > self.tenure() {
            return Err(Refusal::HeardAhead { cells, losses });
        }
        let before = (self.answers.len(), self.losses.len());
        while self.answers.pop_front_if(|a| a.number <= cells).is_some() {}
        while self.losses.pop_front_if(|l| l.tenure <= losses).is_some() {}
        if before == (self.answers.len(), self.losses.len()) {
            return Ok(Effect::Again);
        }
        Ok(Effect::Heard)
    }
}
