//! Record of deliveries to clients, in a file that outlives a killed front. The next front asks the replica for the
//! rest: no client misses a message, and none sees a message twice. The file needn't outlive the host, so no sync is
//! needed.

use hop_protocol::retain::Taken;
use hop_words::id::Incarnation;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const NAME: &str = "delivered";

#[derive(Debug)]
pub struct Delivered {
    file: File,
    incarnation: Incarnation,
    taken: Taken,
    /// Taken, and not yet done.
    in_hand: BTreeSet<u64>,
}

impl Delivered {
    /// Begins for a replica; with `resume`, at the earlier front's position.
    pub fn open(dir: &Path, incarnation: Incarnation, resume: bool) -> io::Result<Self> {
        let path = dir.join(NAME);
        let taken = if resume {
            read(&path, incarnation).unwrap_or_default()
        } else {
            Taken::default()
        };
        let file = File::options()
            .create(true)
            .truncate(!resume)
            .write(true)
            .open(&path)?;
        Ok(Self {
            file,
            incarnation,
            taken,
            in_hand: BTreeSet::new(),
        })
    }

    /// Whether this item is new. It is in hand from now on.
    pub fn take(&mut self, seq: u64) -> bool {
        let new = self.taken.take(seq);
        if new {
            self.in_hand.insert(seq);
        }
        new
    }

    /// Nothing is left to do with these.
    pub fn done(&mut self, seqs: &[u64]) {
        for seq in seqs {
            self.in_hand.remove(seq);
        }
        let again: Vec<u64> = self.in_hand.iter().copied().chain(self.taken.again()).collect();
        let head = [
            u64::from(self.incarnation.0),
            self.taken.upto(),
            again.len() as u64,
        ];
        let bytes: Vec<u8> = head.iter().chain(&again).flat_map(|n| n.to_le_bytes()).collect();
        if let Err(error) = self.file.write_all_at(&bytes, 0) {
            tracing::warn!(%error, "can't note what was delivered: a new front may deliver it again");
        }
    }

    pub fn taken(&self) -> &Taken {
        &self.taken
    }
}

fn read(path: &Path, incarnation: Incarnation) -> Option<Taken> {
    let bytes = std::fs::read(path).ok()?;
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

    #[test]
    fn a_successor_begins_where_the_killed_one_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let me = Incarnation(3);
        let mut first = Delivered::open(dir.path(), me, false).unwrap();
        for seq in 1..=5 {
            assert!(first.take(seq));
        }
        first.done(&[1, 2, 4]);
        first.take(6);
        drop(first);
        let mut second = Delivered::open(dir.path(), me, true).unwrap();
        let news: Vec<u64> = (1..=7).filter(|seq| second.take(*seq)).collect();
        assert_eq!(news, [3, 5, 6, 7]);
        second.done(&[3, 5, 6, 7]);
        drop(second);
        assert_eq!(
            Delivered::open(dir.path(), me, true).unwrap().taken(),
            &Taken::resume(7, [])
        );
        assert_eq!(
            Delivered::open(dir.path(), Incarnation(4), true).unwrap().taken(),
            &Taken::default()
        );
        assert_eq!(
            Delivered::open(dir.path(), me, false).unwrap().taken(),
            &Taken::default()
        );
    }
}
