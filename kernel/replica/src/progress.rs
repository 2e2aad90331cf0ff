//! Tells the log, for each cell, how long its end was held up, and whether its effects were durable before its reply.
//! Bench `replica` reads these lines, with `GRESSHOPPER_LOG=hop_replica::progress=debug`.

use crate::core::{Core, Input, Output};
use hop_door::wire::Parcel;
use hop_log::CellNumber;
use hop_protocol::link::Item;
use hop_protocol::message::Note;
use hop_words::id::CellId;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};
use tracing::{debug, enabled};

/// Cells that are kept at most: a cell without a reply is never answered.
const CELLS_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// When the code of cells without a reply ended.
    ended: HashMap<CellId, Instant>,
    /// Cells that were answered and aren't durable, the oldest first, with the time of the reply.
    owed: VecDeque<(CellNumber, Instant)>,
}

impl Progress {
    pub(crate) fn before(&mut self, input: &Input) {
        if let Input::Agent(parcel) = input
            && enabled!(tracing::Level::DEBUG)
        {
            self.cell_over(parcel);
        }
    }

    /// The capture ran between the end of the cell's code and this message.
    fn cell_over(&mut self, parcel: &Parcel) {
        if parcel.wire.op.as_deref() != Some("state.cell") || self.ended.len() >= CELLS_MAX {
            return;
        }
        let body = &parcel.wire.body;
        let took = Duration::try_from_secs_f64(body["took_ms"].as_f64().unwrap_or(0.0) / 1e3);
        let since = took.ok().and_then(|took| Instant::now().checked_sub(took));
        let cell = serde_json::from_value(body["msg_id"].clone());
        if let (Ok(cell), Some(since)) = (cell, since) {
            self.ended.insert(cell, since);
        }
    }

    pub(crate) fn carries_out(&mut self, output: &Output, core: &Core) {
        if let Output::ToFront(Item::Note(Note::Answered { cell, number, .. })) = output
            && let Some(since) = self.ended.remove(cell)
        {
            let number = CellNumber(*number);
            let durable = core.durable_through() >= number;
            debug!(%cell, held_us = micros(since), durable, "a cell is answered");
            if !durable && self.owed.len() < CELLS_MAX {
                self.owed.push_back((number, Instant::now()));
            }
        }
    }

    pub(crate) fn after(&mut self, core: &Core) {
        while let Some((number, answered)) = self.owed.front()
            && core.durable_through() >= *number
        {
            debug!(lag_us = micros(*answered), "a cell is durable");
            self.owed.pop_front();
        }
    }
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}
