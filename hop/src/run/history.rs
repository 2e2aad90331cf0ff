//! Run times of cells in earlier runs: one line of JSON for each, in a file of the user's own.
//!
//! `$XDG_STATE_HOME/gresshopper/run-history.jsonl` (0600). Lines are only added, each with one write: concurrent runs
//! don't disturb each other. Unreadable lines are skipped. Too long a file is cut to its newer half at the next
//! reading.

use hop_words::line;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Beyond this the older half goes.
const LONGEST: usize = 8 << 20;
/// So many of the newest runs of a cell are looked at.
const NEWEST: usize = 8;

/// Identity of a cell: the text without surrounding blanks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Print(String);

impl Print {
    pub(crate) fn of(text: &str) -> Self {
        Self(hex::encode(&blake3::hash(text.trim().as_bytes()).as_bytes()[..8]))
    }
}

/// One cell that ran well.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ran {
    pub(crate) print: Print,
    /// Of the run's parameters.
    pub(crate) params: Print,
    pub(crate) gpus: u16,
    /// Of running, and of waiting before it.
    pub(crate) seconds: f64,
    pub(crate) waited: f64,
}

/// What is known, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct History {
    cells: HashMap<Print, Vec<Ran>>,
    waits: Vec<f64>,
}

impl History {
    pub(crate) fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        if text.len() > LONGEST {
            shorten(path, &text);
        }
        Self::of(text.lines().filter_map(|line| serde_json::from_str(line).ok()))
    }

    pub(crate) fn of(all: impl IntoIterator<Item = Ran>) -> Self {
        let mut history = Self::default();
        for ran in all {
            if ran.gpus > 0 {
                history.waits.push(ran.waited);
            }
            history.cells.entry(ran.print.clone()).or_default().push(ran);
        }
        history
    }

    /// The newest runs of a cell: runs with the same parameters, or all without any such run.
    pub(crate) fn runs(&self, print: &Print, params: &Print) -> Vec<&Ran> {
        let Some(all) = self.cells.get(print) else {
            return Vec::new();
        };
        let same: Vec<&Ran> = all.iter().filter(|r| r.params == *params).collect();
        let chosen = if same.is_empty() {
            all.iter().collect()
        } else {
            same
        };
        chosen[chosen.len().saturating_sub(4 * NEWEST)..].to_vec()
    }

    /// How long cells with GPUs usually waited of late; none were seen: nothing.
    pub(crate) fn usual_wait(&self) -> Option<f64> {
        median(&self.waits[self.waits.len().saturating_sub(32)..])
    }
}

/// The middle of some lengths of time.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// Where the user's history lies.
pub(crate) fn place(env: fn(&str) -> Option<String>) -> Option<PathBuf> {
    let base = match env("XDG_STATE_HOME").filter(|v| v.starts_with('/')) {
        Some(state) => PathBuf::from(state),
        None => PathBuf::from(env("HOME")?).join(".local/state"),
    };
    Some(base.join("gresshopper/run-history.jsonl"))
}

pub(crate) fn add(path: &Path, ran: &Ran) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let line = line::encode(ran)?;
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(&line)
}

/// A run added at this moment may be lost: a single run among tens of thousands.
fn shorten(path: &Path, text: &str) {
    let from = text[text.len() / 2..]
        .find('\n')
        .map_or(0, |n| text.len() / 2 + n + 1);
    let new = path.with_extension("new");
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)
        .and_then(|mut file| file.write_all(&text.as_bytes()[from..]));
    if written.is_ok() {
        // Not renamed: it stays long, and is read all the same.
        let _ = fs::rename(&new, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(text: &str, params: &str, seconds: f64) -> Ran {
        Ran {
            print: Print::of(text),
            params: Print::of(params),
            gpus: 1,
            seconds,
            waited: 0.5,
        }
    }

    #[test]
    fn what_was_added_is_read_again_and_what_cannot_be_read_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b.jsonl");
        add(&path, &ran("x", "", 1.0)).unwrap();
        fs::write(&path, fs::read_to_string(&path).unwrap() + "{\"half a li\n").unwrap();
        add(&path, &ran(" x\n", "", 3.0)).unwrap();
        let history = History::read(&path);
        let seconds: Vec<f64> = history
            .runs(&Print::of("x"), &Print::of(""))
            .iter()
            .map(|r| r.seconds)
            .collect();
        assert_eq!(seconds, [1.0, 3.0]);
        assert_eq!(history.usual_wait(), Some(0.5));
        assert!(history.runs(&Print::of("y"), &Print::of("")).is_empty());
    }

    #[test]
    fn runs_with_the_same_parameters_say_more() {
        let history = History::of([ran("x", "epochs=1", 1.0), ran("x", "epochs=9", 9.0)]);
        let of = |params| history.runs(&Print::of("x"), &Print::of(params)).len();
        assert_eq!((of("epochs=9"), of("epochs=2")), (1, 2));
    }

    #[test]
    fn a_long_file_loses_its_older_half() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("h.jsonl");
        let line = serde_json::to_string(&ran("x", "", 1.0)).unwrap() + "\n";
        fs::write(&path, line.repeat(LONGEST / line.len() + 2)).unwrap();
        History::read(&path);
        let left = fs::read_to_string(&path).unwrap();
        assert!(left.len() < LONGEST && left.starts_with('{'));
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
    }
}
