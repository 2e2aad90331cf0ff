//! The shared store: folders of tenures. Writes of a folder come in order, as late as they like, and some never.

use super::oracle::{Check, violated};
use hop_log::{RecordNumber, Settled, State};
use hop_words::id::Tenure;
use std::collections::{BTreeMap, VecDeque};

/// A cell's effect in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    pub cell: u32,
    pub tenure: u64,
    /// Part of the effect alone: no record may hold one.
    pub half: bool,
}

/// A record in a folder's log.
#[derive(Debug, Clone)]
pub struct Stored {
    pub number: RecordNumber,
    /// The record replaces all before it.
    pub full: bool,
    pub marks: Vec<Mark>,
}

pub struct Folder {
    pub state: State,
    pub log: Vec<Stored>,
}

#[derive(Debug, Clone)]
pub enum Op {
    Create(State),
    Append(Stored),
    WriteState(State),
}

pub struct Write {
    /// The replica that writes, 0 for the front.
    pub by: u32,
    pub folder: u64,
    pub op: Op,
}

#[derive(Default)]
pub struct Store {
    pub folders: BTreeMap<u64, Folder>,
    /// Writes under way, each folder's in order.
    pub queues: BTreeMap<(u64, u32), VecDeque<Write>>,
    /// Folders by their writers.
    writers: BTreeMap<u64, u32>,
    newest: (u64, Option<Settled>),
}

/// The outcome of a write that took effect.
pub enum Written {
    Created {
        by: u32,
        folder: u64,
        taken: bool,
    },
    Appended {
        by: u32,
        folder: u64,
        number: RecordNumber,
    },
    State {
        by: u32,
        folder: u64,
        state: Box<State>,
    },
}

impl Store {
    pub fn write(&mut self, write: Write) {
        self.queues
            .entry((write.folder, write.by))
            .or_default()
            .push_back(write);
    }

    /// The writes of this writer that have not taken effect never will.
    pub fn lose_writes_of(&mut self, by: u32) {
        self.queues.retain(|(_, writer), _| *writer != by);
    }

    /// The next write of one folder takes effect.
    pub fn land(&mut self, key: (u64, u32)) -> Option<Result<Written, super::oracle::Violation>> {
        let queue = self.queues.get_mut(&key)?;
        let write = queue.pop_front()?;
        if queue.is_empty() {
            self.queues.remove(&key);
        }
        let Write { by, folder, op } = write;
        let written = match op {
            Op::Create(state) => {
                // A name may be free again because its folder was removed: then a higher one is there.
                let taken = self.folders.range(folder..).next().is_some();
                if !taken {
                    let keep = state.settled().map_or(folder, |s| s.tenure.0);
                    // The opener alone removes, and only folders older than the one that its state names.
                    self.folders.retain(|name, _| *name >= keep);
                    self.folders.insert(
                        folder,
                        Folder {
                            state,
                            log: Vec::new(),
                        },
                    );
                }
                Written::Created { by, folder, taken }
            }
            Op::Append(record) => {
                let number = record.number;
                if let Err(violation) = self.one_writer(folder, by) {
                    return Some(Err(violation));
                }
                self.folders.get_mut(&folder)?.log.push(record);
                Written::Appended { by, folder, number }
            }
            Op::WriteState(state) => {
                if let Err(violation) = self.one_writer(folder, by) {
                    return Some(Err(violation));
                }
                self.folders.get_mut(&folder)?.state = state.clone();
                Written::State {
                    by,
                    folder,
                    state: Box::new(state),
                }
            }
        };
        Some(Ok(written))
    }

    fn one_writer(&mut self, folder: u64, by: u32) -> Check {
        let first = *self.writers.entry(folder).or_insert(by);
        if first != by {
            return violated(
                "one_writer",
                format!("folder {folder} is written by {first} and {by}"),
            );
        }
        Ok(())
    }

    /// The newest folder and its state.
    pub fn newest(&self) -> Option<(u64, &State)> {
        self.folders
            .last_key_value()
            .map(|(name, folder)| (*name, &folder.state))
    }

    /// The namespace in a settled state.
    pub fn read(&self, settled: &Settled) -> Result<Vec<Mark>, super::oracle::Violation> {
        let gone = || super::oracle::Violation {
            name: "settled_is_prefix",
            text: format!("the settled state {settled:?} can't be read"),
        };
        let folder = self.folders.get(&settled.tenure.0).ok_or_else(gone)?;
        let length = usize::try_from(settled.length).expect("small");
        let log = folder.log.get(..length).ok_or_else(gone)?;
        let mut namespace = Vec::new();
        for record in log {
            if record.full {
                namespace.clear();
            }
            namespace.extend(&record.marks);
        }
        Ok(namespace)
    }

    /// What readers take for the newest state never goes back.
    pub fn never_goes_back(&mut self) -> Check {
        let Some((folder, state)) = self.newest() else {
            return Ok(());
        };
        let now = (folder, state.settled().cloned());
        let order = |s: &Option<Settled>| s.as_ref().map(|s| (s.tenure, s.upto));
        let back = now.0 < self.newest.0
            || now.0 == self.newest.0 && order(&now.1) < order(&self.newest.1)
            || order(&now.1).map(|o| o.0) > Some(Tenure(now.0));
        if back {
            return violated(
                "one_writer",
                format!("the newest state went from {:?} to {now:?}", self.newest),
            );
        }
        self.newest = now;
        Ok(())
    }
}
