//! Record of deliveries to clients. The next front asks the replica for the rest: no client misses a message, and none
//! sees a message twice. The record of a killed front is in its owner's memory ([`Memory`]). A file in the kernel's
//! folder has the record for a front of another owner. The file needn't outlive the host, so no sync is needed; it is
//! written aside ([`crate::home`]).

use crate::memory::Memory;
use hop_protocol::retain::Taken;
use hop_words::id::Incarnation;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::Path;

const NAME: &str = "delivered";

#[derive(Debug)]
pub(crate) struct Delivered {
    /// `None` means that the owner has named no memory.
    memory: Option<Memory>,
    incarnation: Incarnation,
    taken: Taken,
    /// Taken, and not yet done.
    in_hand: BTreeSet<u64>,
}

impl Delivered {
    /// Opens the owner's memory, and the file for the record. With `resume`, an earlier front's record is taken up.
    ///
    /// # Errors
    /// The kernel's folder can't be written.
    pub(crate) fn open(
        memory: Option<&Path>,
        dir: &Path,
        incarnation: Incarnation,
        resume: bool,
    ) -> io::Result<(Self, File)> {
        let path = dir.join(NAME);
        let (memory, record) =
            Memory::named(memory, resume, "what was delivered is recorded in the home alone");
        // Without a record in the memory, the front before had another owner.
        let home = || resume.then(|| std::fs::read(&path).ok()).flatten();
        let taken = record
            .and_then(|record| decode(&record, incarnation))
            .or_else(|| decode(&home()?, incarnation));
        let file = File::options()
            .create(true)
            .truncate(!resume)
            .write(true)
            .open(&path)?;
        let mut delivered = Self {
            memory,
            incarnation,
            taken: taken.unwrap_or_default(),
            in_hand: BTreeSet::new(),
        };
        delivered.record();
        Ok((delivered, file))
    }

    /// Begins for another replica. Returns the record for the file.
    pub(crate) fn begin(&mut self, incarnation: Incarnation) -> Vec<u8> {
        self.incarnation = incarnation;
        self.taken = Taken::default();
        self.in_hand.clear();
        self.record()
    }

    /// Whether this item is new. It is in hand from now on.
    pub(crate) fn take(&mut self, seq: u64) -> bool {
        let new = self.taken.take(seq);
        if new {
            self.in_hand.insert(seq);
        }
        new
    }

    /// Nothing is left to do with these. Returns the record for the file.
    pub(crate) fn done(&mut self, seqs: &[u64]) -> Vec<u8> {
        for seq in seqs {
            self.in_hand.remove(seq);
        }
        self.record()
    }

    pub(crate) fn taken(&self) -> &Taken {
        &self.taken
    }

    fn record(&mut self) -> Vec<u8> {
        let again: Vec<u64> = self.in_hand.iter().copied().chain(self.taken.again()).collect();
        let head = [
            u64::from(self.incarnation.0),
            self.taken.upto(),
            again.len() as u64,
        ];
        let bytes: Vec<u8> = head.iter().chain(&again).flat_map(|n| n.to_le_bytes()).collect();
        let written = self.memory.as_mut().map(|memory| memory.replace(&bytes));
        if let Some(Err(error)) = written {
            tracing::warn!(%error, "can't note what was delivered: a new front may deliver it again");
            self.memory = None;
        }
        bytes
    }
}

/// The record of this replica's items. The bytes behind it are of longer, earlier records.
fn decode(bytes: &[u8], incarnation: Incarnation) -> Option<Taken> {
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|c| u64::from_le_bytes(c.try_into().expect("eight bytes")))
        .collect();
    let [of, upto, count, again @ ..] = words.as_slice() else {
        return None;
    };
    let again = again.get(..usize::try_from(*count).ok()?)?;
    (*of == u64::from(incarnation.0)).then(|| Taken::resume(*upto, again.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    const ME: Incarnation = Incarnation(3);

    /// The record is in the owner's memory, and in the home where the latter is written.
    fn goes_on(memory: Option<&Path>, home: bool) {
        let dir = tempfile::tempdir().unwrap();
        let open = |of, resume| Delivered::open(memory, dir.path(), of, resume).unwrap();
        let write = |file: &File, record: Vec<u8>| {
            if home {
                file.write_all_at(&record, 0).unwrap();
            }
        };
        let (mut first, file) = open(ME, false);
        for seq in 1..=5 {
            assert!(first.take(seq));
        }
        write(&file, first.done(&[1, 2, 4]));
        first.take(6);
        drop(first);
        // A successor that is killed before it has asked for them leaves them to the next.
        drop(open(ME, true));
        let (mut second, file) = open(ME, true);
        let news: Vec<u64> = (1..=7).filter(|seq| second.take(*seq)).collect();
        assert_eq!(news, [3, 5, 6, 7]);
        write(&file, second.done(&[3, 5, 6, 7]));
        drop(second);
        assert_eq!(open(ME, true).0.taken(), &Taken::resume(7, []));
        let (mut third, file) = open(ME, true);
        third.take(8);
        write(&file, third.begin(Incarnation(4)));
        assert_eq!(third.taken(), &Taken::default());
        third.take(1);
        write(&file, third.done(&[1]));
        assert_eq!(
            open(Incarnation(4), true).0.taken(),
            &Taken::resume(1, []),
            "the replica that came later"
        );
        assert_eq!(
            third.record(),
            Vec::from_iter([4, 1, 0].iter().flat_map(|n: &u64| n.to_le_bytes()))
        );
        assert_eq!(open(Incarnation(5), true).0.taken(), &Taken::default());
        write(&file, third.record());
        assert_eq!(
            open(Incarnation(4), false).0.taken(),
            &Taken::default(),
            "no front went before"
        );
    }

    #[test]
    fn a_successor_begins_where_the_killed_one_stopped() {
        goes_on(None, true);
    }

    #[test]
    fn a_successor_of_the_same_owner_needs_no_home() {
        let tmp = tempfile::tempdir().unwrap();
        let memory = tmp.path().join("memory");
        File::create(&memory).unwrap();
        goes_on(Some(&memory), false);
    }

    #[test]
    fn a_successor_of_another_owner_reads_the_home() {
        let dir = tempfile::tempdir().unwrap();
        let memory = |name| {
            let path = dir.path().join(name);
            File::create(&path).unwrap();
            path
        };
        let (mut first, file) = Delivered::open(Some(&memory("first")), dir.path(), ME, false).unwrap();
        first.take(1);
        file.write_all_at(&first.done(&[1]), 0).unwrap();
        let memory = memory("next");
        let next = || Delivered::open(Some(&memory), dir.path(), ME, true).unwrap().0;
        assert_eq!(next().taken(), &Taken::resume(1, []));
        std::fs::remove_file(dir.path().join(NAME)).unwrap();
        assert_eq!(
            next().taken(),
            &Taken::resume(1, []),
            "it is in the new owner's memory"
        );
    }
}
