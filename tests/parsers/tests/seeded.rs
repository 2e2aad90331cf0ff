//! Every parser on its corpus and on seeded changes of it: a short run of what `fuzz/run` does for longer, on any toolchain.

#![allow(clippy::unwrap_used, reason = "a test that fails to prepare has failed")]

use hop_parsers::PARSERS;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Inputs for each parser, unless the variable of this name says how many.
const CASES: u32 = 20_000;
const ASKED: &str = "HOP_PARSERS_CASES";
const LONGEST: usize = 4096;
/// Bytes with a meaning in one form or another: lengths, ends, brackets, signs.
const TELLING: &[u8] = b"\0\x01\x02\x04\x7f\x80\xff\n\r \"\\{}[]:,=-.#09aeu";

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = corpora().join(name);
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    files.sort();
    files.iter().map(|f| std::fs::read(f).unwrap()).collect()
}

/// A generator of its own: the same inputs on every machine, for ever.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ mixed >> 31) % end.max(1) as u64).unwrap()
    }

    fn byte(&mut self) -> u8 {
        match self.below(2) {
            0 => TELLING[self.below(TELLING.len())],
            _ => u8::try_from(self.below(256)).unwrap(),
        }
    }

    /// One change, of a kind that reaches other states of a parser than a single flipped bit does.
    fn change(&mut self, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
        let at = self.below(bytes.len() + 1);
        let end = at + self.below(bytes.len() + 1 - at).min(16);
        match self.below(6) {
            0 => bytes.insert(at, self.byte()),
            1 if at < bytes.len() => bytes[at] = self.byte(),
            2 => drop(bytes.drain(at..end)),
            3 => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            4 => bytes.truncate(at),
            _ => {
                let other = &others[self.below(others.len())];
                let from = self.below(other.len());
                bytes.splice(at.., other[from..].iter().copied());
            }
        }
        bytes.truncate(LONGEST);
    }
}

#[test]
fn no_parser_panics_or_takes_bytes_for_what_they_are_not() {
    let asked = std::env::var(ASKED).ok().and_then(|n| n.parse().ok());
    let cases: u32 = asked.unwrap_or(CASES);
    for (name, parse) in PARSERS {
        let corpus = corpus(name);
        assert!(!corpus.is_empty(), "{name} has no corpus");
        corpus.iter().for_each(|bytes| parse(bytes));
        let mut chance = Chance(0);
        for case in 0..cases {
            let mut bytes = corpus[chance.below(corpus.len())].clone();
            for _ in 0..=chance.below(8) {
                chance.change(&mut bytes, &corpus);
            }
            let survived = catch_unwind(AssertUnwindSafe(|| parse(&bytes))).is_ok();
            assert!(survived, "{name}, case {case}: {}", bytes.escape_ascii());
        }
    }
}

#[test]
fn every_corpus_and_every_target_of_fuzzing_has_its_parser() {
    let names = |folder: PathBuf| -> BTreeSet<String> {
        let stem = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
        std::fs::read_dir(folder)
            .unwrap()
            .map(|e| stem(e.unwrap().path()))
            .collect()
    };
    let known: BTreeSet<String> = PARSERS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names(corpora()), known);
    assert_eq!(names(corpora().join("../fuzz_targets")), known);
}
