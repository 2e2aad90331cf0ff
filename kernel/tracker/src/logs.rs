//! Logs of states that the interpreter writes itself, by number: `hop_state::log` does the writing. The lock of the
//! interpreter isn't held meanwhile, so calls on one log wait for each other.

use hop_state::log::{Compress, Key, Log, WriteError};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

#[derive(Default)]
struct Logs {
    last: i64,
    open: HashMap<i64, Arc<Mutex<Log>>>,
}

fn logs() -> &'static Mutex<Logs> {
    static LOGS: OnceLock<Mutex<Logs>> = OnceLock::new();
    LOGS.get_or_init(Mutex::default)
}

/// How a log is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Empty, in place of an existing one once it is committed.
    Anew,
    /// After the last record that counts.
    Resumed,
}

/// Opens the log in a folder; returns its number, which is positive.
///
/// # Errors
/// As [`Log::beside`] and [`Log::resume`].
pub fn open(folder: &Path, key: [u8; 32], how: How) -> Result<i64, WriteError> {
    let key = Key::new(key);
    let log = match how {
        How::Anew => Log::beside(folder, &key),
        How::Resumed => Log::resume(folder, &key),
    }?;
    let mut logs = logs().lock().expect("no holder of this lock panics");
    logs.last += 1;
    let number = logs.last;
    logs.open.insert(number, Arc::new(Mutex::new(log)));
    Ok(number)
}

fn with<T>(number: i64, work: impl FnOnce(&mut Log) -> Result<T, WriteError>) -> Result<T, WriteError> {
    let found = {
        let logs = logs().lock().expect("no holder of this lock panics");
        logs.open.get(&number).map(Arc::clone)
    };
    let failed = |why: &'static str| WriteError::Io {
        path: Path::new("log").to_owned(),
        source: io::Error::other(why),
    };
    let log = found.ok_or_else(|| failed("the log isn't open"))?;
    let mut log = log.lock().map_err(|_| failed("an earlier call failed"))?;
    work(&mut log)
}

/// As [`Log::append`].
///
/// # Errors
/// As [`Log::append`]; no log has this number.
pub fn add(number: i64, text: &[u8], body: &[u8], compress: bool) -> Result<u64, WriteError> {
    let compress = if compress {
        Compress::Both
    } else {
        Compress::Nothing
    };
    with(number, |log| log.append(text, body, compress))
}

/// As [`Log::commit`].
///
/// # Errors
/// As [`Log::commit`]; no log has this number.
pub fn commit(number: i64, durable: bool) -> Result<(), WriteError> {
    with(number, |log| log.commit(durable))
}

/// Closes a log; what wasn't committed doesn't count.
pub fn close(number: i64) {
    let mut logs = logs().lock().expect("no holder of this lock panics");
    logs.open.remove(&number);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_serves_until_its_log_is_closed() {
        let tmp = tempfile::tempdir().unwrap();
        let text = br#"{"at": 1.0, "units": [], "gone": [], "process": {}}"#;
        let number = open(tmp.path(), [7; 32], How::Anew).unwrap();
        let other = open(tmp.path(), [7; 32], How::Anew).unwrap();
        assert!(number > 0 && other != number);
        assert!(add(number, text, b"body", false).unwrap() > 0);
        commit(number, false).unwrap();
        close(number);
        close(other);
        assert!(commit(number, false).is_err() && add(other, text, b"", false).is_err());
        let number = open(tmp.path(), [7; 32], How::Resumed).unwrap();
        add(number, text, b"", true).unwrap();
        commit(number, true).unwrap();
        close(number);
        let names = std::fs::read_dir(tmp.path())
            .unwrap()
            .map(|e| e.unwrap().file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        assert_eq!(names, ["head", "log"], "nothing is left of what wasn't committed");
        let uid = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(tmp.path()).unwrap());
        assert_eq!(
            hop_state::form::read(tmp.path(), &[7; 32], uid).unwrap().records,
            2
        );
        assert!(open(tmp.path(), [8; 32], How::Resumed).is_err());
    }
}
