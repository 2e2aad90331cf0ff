//! The consistency of the whole state, checked from scratch after every entry in tests.

use crate::apply::TAIL_MAX;
use crate::state::{Office, State};
use std::collections::BTreeSet;

/// A contradiction within the state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the log's state contradicts itself: {0}")]
pub struct Insane(pub String);

macro_rules! hold {
    ($cond:expr, $($arg:tt)+) => {
        if !$cond {
            return Err(Insane(format!($($arg)+)));
        }
    };
}

fn increases<T: PartialOrd>(items: impl IntoIterator<Item = T>) -> bool {
    let items: Vec<T> = items.into_iter().collect();
    items.windows(2).all(|pair| pair[0] < pair[1])
}

impl State {
    /// Checks the whole state.
    ///
    /// # Errors
    /// The first contradiction, in words.
    pub fn sanity_check(&self) -> Result<(), Insane> {
        self.check_office()?;
        self.check_cells()?;
        self.check_records()
    }

    fn check_office(&self) -> Result<(), Insane> {
        let above = self.members.keys().find(|m| **m > self.highest);
        hold!(
            above.is_none(),
            "member {above:?} is above the highest incarnation {}",
            self.highest
        );
        let twice = self
            .skipped
            .iter()
            .find(|s| self.members.contains_key(s) || **s >= self.highest);
        hold!(twice.is_none(), "incarnation {twice:?} was skipped and joined");
        match &self.office {
            Office::Held { tenure, executor, .. } => {
                hold!(
                    self.members.contains_key(executor),
                    "executor {executor} is no member"
                );
                hold!(
                    *tenure > self.generation.before_first_tenure()
                        && *tenure <= self.generation.last_tenure(),
                    "tenure {tenure} is not of generation {}",
                    self.generation
                );
            }
            Office::Asleep { .. } => hold!(
                self.tail.is_empty() && self.unsettled.is_empty(),
                "the kernel hibernates with {} records and {} cells unsettled",
                self.tail.len(),
                self.unsettled.len()
            ),
            Office::Vacant { .. } => {}
        }
        Ok(())
    }

    fn check_cells(&self) -> Result<(), Insane> {
        let numbers: Vec<_> = self.answers.iter().map(|a| a.number).collect();
        hold!(
            increases(&numbers) && numbers.last() <= Some(&self.cells),
            "answers {numbers:?} of {} cells",
            self.cells
        );
        let cells: BTreeSet<_> = self.answers.iter().map(|a| &a.cell).collect();
        hold!(cells.len() == self.answers.len(), "a cell has two answers");
        let unsettled: Vec<_> = self.unsettled.iter().map(|u| u.number).collect();
        hold!(
            increases(&unsettled)
                && unsettled.first().is_none_or(|n| *n > self.settled_through)
                && unsettled.last().is_none_or(|n| *n <= self.cells),
            "cells {unsettled:?} are unsettled, settled through {}",
            self.settled_through
        );
        let losses: Vec<_> = self.losses.iter().map(|l| l.tenure).collect();
        hold!(
            increases(&losses) && losses.last().is_none_or(|t| *t <= self.tenure()),
            "losses of tenures {losses:?} in tenure {}",
            self.tenure()
        );
        Ok(())
    }

    fn check_records(&self) -> Result<(), Insane> {
        let settled = self.settled.as_ref().map(|s| s.upto).unwrap_or_default();
        hold!(
            settled <= self.records,
            "record {settled} is settled, {} are committed",
            self.records
        );
        let tail: Vec<_> = self.tail.iter().map(|t| t.record.number).collect();
        hold!(
            increases(&tail)
                && tail
                    .first()
                    .is_none_or(|n| *n > settled && *n > self.fresh.records)
                && tail.last().is_none_or(|n| *n <= self.records),
            "the tail is {tail:?} beyond record {settled}"
        );
        let through: Vec<_> = self.tail.iter().map(|t| t.through).collect();
        hold!(through.is_sorted(), "the tail completes cells {through:?}");
        let weight: usize = self.tail.iter().map(|t| t.record.weight()).sum();
        hold!(
            weight <= TAIL_MAX || tail.len() == 1,
            "the tail holds {weight} bytes"
        );
        hold!(
            self.settled_through <= self.cells && self.durable_through() <= self.cells,
            "settled through cell {} of {}",
            self.settled_through,
            self.cells
        );
        Ok(())
    }
}
