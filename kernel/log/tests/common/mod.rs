//! A log of one kernel for tests: every entry is applied with its outcome asserted, and the state checked afterwards.

#![allow(
    unreachable_pub,
    missing_debug_implementations,
    clippy::unwrap_used,
    reason = "one program of tests"
)]

use bytes::Bytes;
use hop_log::{
    Act, CellNumber, Effect, Entry, Index, Payload, Record, RecordNumber, Refusal, Sequence, Settled, State,
};
use hop_words::id::{Incarnation, JobId, Tenure};
use hop_words::lease::Outcome;

pub struct Log {
    pub state: State,
    last: Option<Entry>,
}

impl Log {
    pub fn new() -> Self {
        Self::from(State::new())
    }

    pub fn from(state: State) -> Self {
        Self { state, last: None }
    }

    /// Three members, of which replica 1 executes in tenure 1.
    pub fn of_three() -> Self {
        let mut log = Self::new();
        for incarnation in 1..=3 {
            log.does(&join(incarnation));
        }
        log.does(&tenure(1, 1));
        log
    }

    fn apply(&mut self, entry: &Entry) -> Result<Effect, Refusal> {
        let next = Index(self.state.applied().0 + 1);
        let result = self.state.apply(next, entry);
        self.state.sanity_check().unwrap();
        result
    }

    /// The entry, an act with the next sequence.
    fn place(&mut self, entry: &Entry) -> Entry {
        let mut entry = entry.clone();
        if let Entry::Act { sequence, .. } = &mut entry
            && *sequence == Sequence(0)
        {
            *sequence = self.state.sequence().next();
        }
        self.last = Some(entry.clone());
        entry
    }

    pub fn does(&mut self, entry: &Entry) -> Effect {
        let entry = self.place(entry);
        let effect = self.apply(&entry).unwrap();
        assert_ne!(effect, Effect::Again, "{entry:?}");
        effect
    }

    /// The last entry comes once more, late or doubled: nothing changes.
    pub fn repeats(&mut self) {
        let entry = self.last.clone().unwrap();
        let before = self.state.clone();
        let result = self.apply(&entry);
        assert!(
            matches!(result, Ok(Effect::Again) | Err(_)),
            "{entry:?}: {result:?}"
        );
        self.same_but_place(before);
    }

    /// The entry has had its effect: nothing changes.
    pub fn again(&mut self, entry: &Entry) {
        let entry = self.place(entry);
        let before = self.state.clone();
        assert_eq!(self.apply(&entry), Ok(Effect::Again), "{entry:?}");
        self.same_but_place(before);
    }

    /// The entry is refused: nothing changes.
    pub fn refuses(&mut self, entry: &Entry) -> Refusal {
        let entry = self.place(entry);
        let before = self.state.clone();
        let refusal = self.apply(&entry).expect_err("refused");
        self.same_but_place(before);
        refusal
    }

    fn same_but_place(&self, before: State) {
        // The index and the act's sequence move, and have no setter: the states are compared as text without them.
        let text = |s: &State| {
            let mut json = serde_json::to_value(s).unwrap();
            json["applied"].take();
            json["office"]["sequence"].take();
            json
        };
        assert_eq!(text(&self.state), text(&before));
    }
}

pub fn join(incarnation: u32) -> Entry {
    Entry::Join {
        incarnation: Incarnation(incarnation),
        seat: JobId(100 + incarnation),
        node: format!("n{incarnation}").as_str().into(),
        hot: false,
    }
}

pub fn left(incarnation: u32) -> Entry {
    Entry::Left {
        incarnation: Incarnation(incarnation),
    }
}

pub fn tenure(tenure: u64, executor: u32) -> Entry {
    Entry::Tenure {
        tenure: Tenure(tenure),
        executor: Incarnation(executor),
    }
}

/// An act of a tenure. [`Log`] gives it the next sequence.
pub fn act(tenure: u64, act: Act) -> Entry {
    Entry::Act {
        tenure: Tenure(tenure),
        sequence: Sequence(0),
        act,
    }
}

pub fn at(place: u64, mut entry: Entry) -> Entry {
    if let Entry::Act { sequence, .. } = &mut entry {
        *sequence = Sequence(place);
    }
    entry
}

pub fn moved(tenure: u64, to: u32) -> Entry {
    act(tenure, Act::Moved { to: Incarnation(to) })
}

fn end(tenure: u64, number: u64, record: Option<Record>) -> Entry {
    act(
        tenure,
        Act::Ended {
            cell: cell(number),
            outcome: Outcome::Ok,
            reply: Bytes::from(format!("reply {number}")),
            last_output: 2,
            record,
        },
    )
}

/// The cell ended, and its record follows later.
pub fn ended(tenure: u64, number: u64) -> Entry {
    end(tenure, number, None)
}

/// The cell ended, with its record.
pub fn ended_with(tenure: u64, number: u64, record: Record) -> Entry {
    end(tenure, number, Some(record))
}

pub fn inline(number: u64) -> Record {
    Record {
        number: RecordNumber(number),
        payload: Payload::Inline {
            text: Bytes::from(format!("record {number}")),
            body: Bytes::from_static(b"\0\xff"),
        },
    }
}

pub fn in_folder(number: u64) -> Record {
    Record {
        number: RecordNumber(number),
        payload: Payload::Folder,
    }
}

/// A record that completes the cells up to this one.
pub fn record(tenure: u64, record: Record, through: u64) -> Entry {
    let through = Some(cell(through));
    act(tenure, Act::Record { record, through })
}

pub fn lost(tenure: u64, number: u64) -> Entry {
    act(
        tenure,
        Act::Lost {
            cell: cell(number),
            why: "node n1 is gone".into(),
        },
    )
}

pub fn settled(tenure: u64, upto: u64) -> Entry {
    Entry::Settled {
        settled: Settled {
            tenure: Tenure(tenure),
            part: 0,
            upto: RecordNumber(upto),
            length: 100 * upto,
            mac: format!("{upto:02x}"),
        },
    }
}

pub fn fresh(tenure: u64) -> Entry {
    act(tenure, Act::Fresh)
}

pub fn hibernated(tenure: u64) -> Entry {
    act(tenure, Act::Hibernated)
}

pub fn heard(cells: u64, losses: u64) -> Entry {
    Entry::Heard {
        cells: CellNumber(cells),
        losses: Tenure(losses),
    }
}

pub fn cell(number: u64) -> hop_words::id::CellId {
    format!("cell {number}").as_str().into()
}
