//! A cell's need, read from the cell's text and metadata, and from the kernelspec's default. Pure: the caller passes
//! the time.

use hop_protocol::jupyter::Envelope;
use hop_words::id::GpuType;
use hop_words::need::{Class, Need};
use hop_words::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The magic of a cell that may run twice.
const RETRY: &str = "%%retry";
const MAGICS: [&str; 3] = [RETRY, "%%gpu", "%%cpu"];

/// More than any node has: `hopd` says how many there are.
const GPUS_MAX: u16 = 1024;
const CPUS_MAX: u16 = 1024;
/// The most characters of a GPU type for `hopd`.
const TYPE_MAX: usize = 200;

const GPU_USAGE: &str = "usage: %%gpu N [--type T] [--mem G] [--cpus C] [--deadline D]";
const CPU_USAGE: &str = "usage: %%cpu [--cpus C]";

/// An unreadable need. `Display` is the text for the user in the cell.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadNeed {
    #[error("%%{magic}: {problem} ({usage})")]
    Magic {
        magic: &'static str,
        problem: String,
        usage: &'static str,
    },
    #[error("the cell's metadata gresshopper.need can't be read: {0}")]
    Metadata(String),
    #[error("the request's metadata gresshopper.run can't be read: {0}")]
    Unattended(String),
}

/// `hop run`'s orders for a cell of a whole notebook: `metadata.gresshopper.run` of the execute request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Unattended {
    pub class: Class,
    /// Time by which the cell should be done, for the notebook to be done in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Replaces the cell's own request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u16>,
}

impl Unattended {
    /// The request's orders; the default, a person's cell, if it has none.
    pub fn of_request(metadata: &[u8]) -> Result<Self, BadNeed> {
        let run = ours(metadata)["run"].take();
        if run.is_null() {
            return Ok(Self::default());
        }
        let read = |run| serde_json::from_value(run).map_err(|e| e.to_string());
        written(run).and_then(read).map_err(BadNeed::Unattended)
    }

    fn count(&self, mut need: Need) -> Need {
        need.gpus = self.gpus.unwrap_or(need.gpus);
        need.cpus = self.cpus.unwrap_or(need.cpus);
        need
    }

    /// The cell's need, completed by the run's orders.
    pub fn apply(&self, need: Need) -> Need {
        self.hurry(self.count(need))
    }

    /// The need of `with gresshopper.gpu():` inside such a cell: the block itself gives the number.
    pub fn hurry(&self, mut need: Need) -> Need {
        if !need.is_none() {
            need.deadline = need.deadline.or(self.deadline);
        }
        need
    }
}

/// The need of a cell: its magic, else its metadata, else the kernelspec's `default` (for cells run by a person, and
/// not for a client's hidden requests).
pub fn of_cell(
    code: &str,
    metadata: &[u8],
    is_hidden: bool,
    default: &Need,
    now: Timestamp,
) -> Result<Need, BadNeed> {
    if let Some(need) = of_magic(code, now)? {
        return Ok(need);
    }
    if let Some(need) = of_metadata(metadata)? {
        return Ok(need);
    }
    Ok(if is_hidden {
        Need::default()
    } else {
        default.clone()
    })
}

/// The queue's class of a need.
pub fn class_of(need: &Need, run: &Unattended) -> Class {
    if need.deadline.is_some() {
        Class::Deadline
    } else {
        run.class
    }
}

/// Whether a cell runs again after a loss in its middle: by `%%retry` in the first line, or by the metadata.
pub fn is_retried(code: &str, metadata: &[u8]) -> bool {
    let first = code_lines(code).next().map(uncommented);
    first == Some(RETRY) || ours(metadata)["retry"] == Value::Bool(true)
}

/// The same of a whole execute request.
pub fn is_retried_request(envelope: &Envelope) -> bool {
    let content: Value = serde_json::from_slice(&envelope.content).unwrap_or_default();
    is_retried(content["code"].as_str().unwrap_or_default(), &envelope.metadata)
}

/// Lines with anything in them but a comment, which may stand above a magic.
fn code_lines(code: &str) -> impl Iterator<Item = &str> {
    let says = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    code.lines().filter(says)
}

/// A magic's line without the comment behind it.
fn uncommented(line: &str) -> &str {
    line.split_once(" #").map_or(line, |(before, _)| before).trim()
}

/// A cell with our magics for a kernel without knowledge of the magics: as read by us, and as received by the kernel.
///
/// A comment may bear the magic (`#%%gpu 1`): other clients then see a plain cell. A bare magic's line is empty for the
/// kernel, to keep the line numbers of errors right.
#[derive(Debug, PartialEq, Eq)]
pub struct Foreign {
    pub read: String,
    pub sent: String,
}

impl Foreign {
    /// The two readings; `None` for code without a magic of ours at its head.
    pub fn of(code: &str) -> Option<Self> {
        let (mut read, mut sent, mut any) = (Vec::new(), Vec::new(), false);
        let mut head = true;
        for line in code.split('\n') {
            let bare = line.trim_start();
            let word = bare.trim_start_matches('#').trim_start();
            let is_magic = head
                && word
                    .split_whitespace()
                    .next()
                    .is_some_and(|w| MAGICS.contains(&w));
            any |= is_magic;
            head &= is_magic || bare.is_empty() || bare.starts_with('#');
            read.push(if is_magic { word } else { line });
            sent.push(if is_magic && !bare.starts_with('#') {
                ""
            } else {
                line
            });
        }
        any.then(|| Self {
            read: read.join("\n"),
            sent: sent.join("\n"),
        })
    }
}

/// The need requested by the first line of a cell, if the line is a magic of ours. `%%retry` may stand above it. A
/// request for help needs nothing: the agent answers.
fn of_magic(code: &str, now: Timestamp) -> Result<Option<Need>, BadNeed> {
    let mut lines = code_lines(code).map(uncommented).peekable();
    lines.next_if(|line| *line == RETRY);
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    let mut words = line.split_whitespace();
    let (magic, usage) = match words.next() {
        Some("%%gpu") => ("gpu", GPU_USAGE),
        Some("%%cpu") => ("cpu", CPU_USAGE),
        _ => return Ok(None),
    };
    let bad = |problem: String| BadNeed::Magic {
        magic,
        problem,
        usage,
    };
    if words.clone().any(|word| matches!(word, "--help" | "-h")) {
        return Ok(Some(Need::default()));
    }
    let need = parse_words(magic == "gpu", words, now).map_err(bad)?;
    Ok(Some(need))
}

fn parse_words<'a>(gpu: bool, words: impl Iterator<Item = &'a str>, now: Timestamp) -> Result<Need, String> {
    let mut need = Need::default();
    let mut count = None;
    let mut words = words.flat_map(split_equals);
    while let Some(word) = words.next() {
        let Some(option) = word.strip_prefix("--") else {
            let n = (gpu && count.is_none()).then(|| parse_count(word, "the number of GPUs", GPUS_MAX));
            count = Some(n.ok_or_else(|| format!("doesn't know what to do with {word:?}"))??);
            continue;
        };
        if !(gpu && matches!(option, "type" | "mem" | "deadline") || option == "cpus") {
            return Err(format!("has no option --{option}"));
        }
        let value = words.next().ok_or_else(|| format!("--{option} needs a value"))?;
        match option {
            "type" => need.gpu_type = Some(parse_type(value)?),
            "mem" => need.gpu_mem_mib = parse_mem(value)?,
            "deadline" => need.deadline = Some(parse_deadline(value, now)?),
            _ => need.cpus = parse_count(value, "--cpus", CPUS_MAX)?,
        }
    }
    if gpu {
        need.gpus = count.unwrap_or(1);
    }
    Ok(need)
}

/// `--a=b` as `--a b`.
fn split_equals(word: &str) -> impl Iterator<Item = &str> {
    let (first, second) = match word.split_once('=') {
        Some((option, value)) if option.starts_with("--") => (option, Some(value)),
        _ => (word, None),
    };
    std::iter::once(first).chain(second)
}

fn parse_count(word: &str, what: &str, max: u16) -> Result<u16, String> {
    let n = word.parse().ok().filter(|n| (1..=max).contains(n));
    n.ok_or_else(|| format!("{what} is a number from 1 to {max}, not {word:?}"))
}

fn parse_type(word: &str) -> Result<GpuType, String> {
    if (1..=TYPE_MAX).contains(&word.len()) && word.chars().all(|c| c.is_ascii_graphic()) {
        Ok(word.into())
    } else {
        Err(format!(
            "a GPU type has 1 to {TYPE_MAX} printable ASCII characters without blanks, not {word:?}"
        ))
    }
}

/// GiB, or with a unit: `40`, `40G`, `512M`.
fn parse_mem(word: &str) -> Result<u64, String> {
    let upper = word.to_ascii_uppercase();
    let (digits, factor) = match upper.trim_end_matches("IB").trim_end_matches('B') {
        s if s.ends_with('M') => (s.trim_end_matches('M').to_owned(), 1.0),
        s => (s.trim_end_matches('G').to_owned(), 1024.0),
    };
    let mib = digits
        .parse::<f64>()
        .ok()
        .map(|n| n * factor)
        .filter(|n| (1.0..1e9).contains(n));
    mib.map(|n| n.ceil() as u64)
        .ok_or_else(|| format!("--mem is a size in GiB such as 40 or 40G, not {word:?}"))
}

/// A span from now (`90s`, `10m`, `2h30m`, `1d`), or a point in time (`2026-11-21T18:00`, with or without a zone).
fn parse_deadline(word: &str, now: Timestamp) -> Result<Timestamp, String> {
    let micros = |t: jiff::Timestamp| u64::try_from(t.as_microsecond()).ok();
    let span = || {
        let span = word.parse::<jiff::SignedDuration>().ok()?;
        let span = u64::try_from(span.as_micros()).ok().filter(|s| *s > 0)?;
        Some(now.0.saturating_add(span))
    };
    let days = || {
        let days = word
            .strip_suffix('d')?
            .parse::<u64>()
            .ok()
            .filter(|d| (1..=365).contains(d))?;
        Some(now.0 + days * 86_400_000_000)
    };
    let local = || {
        let civil: jiff::civil::DateTime = word.parse().ok()?;
        micros(civil.to_zoned(jiff::tz::TimeZone::system()).ok()?.timestamp())
    };
    let zoned = || micros(word.parse().ok()?);
    let at = span().or_else(days).or_else(zoned).or_else(local);
    let at = at.ok_or_else(|| {
        format!("--deadline is a time from now such as 90s, 10m or 2h, or a point in time, not {word:?}")
    })?;
    if at <= now.0 {
        return Err(format!("the deadline {word} is over already"));
    }
    Ok(Timestamp(at))
}

/// `metadata.gresshopper` of an execute request, null where it has nothing of ours.
fn ours(metadata: &[u8]) -> Value {
    // Nearly all cells have no entry of ours there: don't parse for an entry.
    if !metadata.windows(11).any(|w| w == b"gresshopper") {
        return Value::Null;
    }
    let mut value: Value = serde_json::from_slice(metadata).unwrap_or_default();
    match value.get_mut("gresshopper").map(Value::take) {
        Some(ours @ Value::Object(_)) => ours,
        _ => Value::Null,
    }
}

/// `metadata.gresshopper.need` of an execute request.
fn of_metadata(metadata: &[u8]) -> Result<Option<Need>, BadNeed> {
    let need = ours(metadata)["need"].take();
    if need.is_null() {
        return Ok(None);
    }
    of_value(need).map(Some).map_err(BadNeed::Metadata)
}

/// A need that comes as a value.
///
/// # Errors
/// A sentence for the user.
pub fn of_value(value: Value) -> Result<Need, String> {
    let need: Need = serde_json::from_value(written(value)?).map_err(|e| e.to_string())?;
    if need.gpus == 0 && (need.gpu_type.is_some() || need.gpu_mem_mib > 0) {
        return Err("gpus is 0, though gpu_type or gpu_mem_mib says what the GPUs are to be".to_owned());
    }
    if let Some(kind) = &need.gpu_type {
        parse_type(kind.as_str())?;
    }
    Ok(need)
}

/// What a person wrote, if each known key has a value of its kind: serde would name Rust's types. A key with null counts
/// as missing.
fn written(value: Value) -> Result<Value, String> {
    let Value::Object(mut keys) = value else {
        return Err(format!("it is an object such as {{\"gpus\": 1}}, not {value}"));
    };
    keys.retain(|_, value| !value.is_null());
    for (name, most) in [
        ("gpus", u64::from(GPUS_MAX)),
        ("cpus", u64::from(CPUS_MAX)),
        ("gpu_mem_mib", u64::MAX),
        ("deadline", u64::MAX),
    ] {
        keys.get(name).map_or(Ok(()), |value| count(name, value, most))?;
    }
    for name in ["gpu_type", "class"] {
        if let Some(value) = keys.get(name).filter(|value| !value.is_string()) {
            return Err(format!("{name} is a text, not {value}"));
        }
    }
    Ok(Value::Object(keys))
}

/// Refuses a number that isn't a whole one within its bounds, in words for the person who wrote it: serde would name
/// Rust's types.
fn count(name: &str, value: &Value, most: u64) -> Result<(), String> {
    if value.as_u64().is_some_and(|n| n <= most) {
        return Ok(());
    }
    let bounds = match most {
        u64::MAX => "from 0 on".to_owned(),
        most => format!("from 0 to {most}"),
    };
    Err(format!("{name} is a whole number {bounds}, not {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_700_000_000_000_000);

    fn magic(code: &str) -> Result<Need, String> {
        of_cell(code, b"{}", false, &Need::default(), NOW).map_err(|e| e.to_string())
    }

    #[test]
    fn a_magic_is_read() {
        assert_eq!(magic("%%gpu\nx"), Ok(Need::gpus(1)));
        assert_eq!(magic("\n  %%gpu 2\nx"), Ok(Need::gpus(2)));
        let all = Need {
            gpus: 1,
            gpu_type: Some("h200".into()),
            gpu_mem_mib: 40 << 10,
            cpus: 4,
            deadline: Some(Timestamp(NOW.0 + 600_000_000)),
        };
        assert_eq!(
            magic("%%gpu 1 --type h200 --mem=40 --cpus 4 --deadline 10m\n"),
            Ok(all)
        );
        assert_eq!(magic("%%cpu"), Ok(Need::default()));
        assert_eq!(
            magic("%%cpu --cpus 8"),
            Ok(Need {
                cpus: 8,
                ..Need::default()
            })
        );
        assert_eq!(magic("%%gpu --mem 512M").unwrap().gpu_mem_mib, 512);
        assert_eq!(
            magic("%%gpu --deadline 2h30m").unwrap().deadline,
            Some(Timestamp(NOW.0 + 9_000_000_000))
        );
        assert_eq!(
            magic("%%gpu --deadline 2100-01-01T00:00Z").unwrap().deadline,
            Some(Timestamp(4_102_444_800_000_000))
        );
    }

    #[test]
    fn comments_above_and_behind_are_skipped() {
        assert_eq!(
            magic("# trains\n\n  # for long\n%%gpu 2 # both\nx"),
            Ok(Need::gpus(2))
        );
        assert_eq!(magic("# a\n%%retry # b\n# c\n%%gpu # d"), Ok(Need::gpus(1)));
        assert_eq!(magic("%%gpu #"), Ok(Need::gpus(1)));
        assert!(is_retried("# a\n%%retry # b\nx", b"{}"));
        assert!(magic("%%gpu 1 2 # two").is_err());
    }

    #[test]
    fn a_kernel_that_is_not_ipython_gets_no_magic() {
        let of = |code| Foreign::of(code).map(|f| (f.read, f.sent));
        let both = |read: &str, sent: &str| Some((read.to_owned(), sent.to_owned()));
        assert_eq!(
            of("%%gpu 2\nnvidia-smi\n"),
            both("%%gpu 2\nnvidia-smi\n", "\nnvidia-smi\n")
        );
        assert_eq!(
            of("# %%gpu 2\nx <- 1"),
            both("%%gpu 2\nx <- 1", "# %%gpu 2\nx <- 1")
        );
        assert_eq!(
            of("# trains\n\n %%retry\n#%%gpu\nx"),
            both("# trains\n\n%%retry\n%%gpu\nx", "# trains\n\n\n#%%gpu\nx")
        );
        for other in ["", "x", "x\n%%gpu 1", "# %% a part\nx", "%%gpus 1", "%gpu", "#"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn who_asks_for_help_needs_nothing() {
        assert_eq!(magic("%%gpu --help"), Ok(Need::default()));
        assert_eq!(magic("%%cpu -h\nx"), Ok(Need::default()));
    }

    #[test]
    fn other_text_is_no_magic() {
        for code in [
            "",
            "x = 1\n%%gpu 1",
            "%%gpus",
            "# %%gpu",
            "%gpu 1",
            "%%time\n%%gpu",
        ] {
            assert_eq!(magic(code), Ok(Need::default()), "{code}");
        }
    }

    #[test]
    fn a_bad_magic_says_what_is_wrong() {
        let cases = [
            (
                "%%gpu two",
                "the number of GPUs is a number from 1 to 1024, not \"two\"",
            ),
            (
                "%%gpu 1025",
                "the number of GPUs is a number from 1 to 1024, not \"1025\"",
            ),
            (
                "%%gpu 0",
                "the number of GPUs is a number from 1 to 1024, not \"0\"",
            ),
            ("%%gpu 1 2", "doesn't know what to do with \"2\""),
            ("%%gpu --cpu 1", "has no option --cpu"),
            ("%%gpu --cpus", "--cpus needs a value"),
            ("%%cpu 4", "doesn't know what to do with \"4\""),
            ("%%cpu --type x", "has no option --type"),
            ("%%gpu --type h\u{e4}", "a GPU type has 1 to 200 printable ASCII"),
            (
                "%%gpu --mem lots",
                "--mem is a size in GiB such as 40 or 40G, not \"lots\"",
            ),
            (
                "%%gpu --deadline 2020-01-01T00:00Z",
                "the deadline 2020-01-01T00:00Z is over already",
            ),
        ];
        for (code, problem) in cases {
            let said = magic(code).unwrap_err();
            assert!(
                said.contains(problem) && said.contains("usage: %%"),
                "{code}: {said}"
            );
        }
    }

    #[test]
    fn the_magic_wins_over_metadata_and_metadata_over_the_default() {
        let default = Need::gpus(1);
        let metadata = br#"{"gresshopper": {"need": {"gpus": 2}}}"#;
        let of =
            |code: &str, metadata: &[u8], hidden| of_cell(code, metadata, hidden, &default, NOW).unwrap();
        assert_eq!(of("%%gpu 3", metadata, false), Need::gpus(3));
        assert_eq!(of("%%cpu", metadata, false), Need::default());
        assert_eq!(of("x", metadata, false), Need::gpus(2));
        assert_eq!(of("x", b"{}", false), Need::gpus(1));
        assert_eq!(of("x", b"{}", true), Need::default());
        let bad = of_cell(
            "x",
            br#"{"gresshopper": {"need": {"gpu": 2}}}"#,
            false,
            &default,
            NOW,
        );
        assert!(matches!(bad, Err(BadNeed::Metadata(_))));
    }

    #[test]
    fn a_value_of_another_kind_or_out_of_bounds_is_refused_in_words_of_the_user() {
        let told = |key: &str, entry: &str| {
            let metadata = format!(r#"{{"gresshopper": {{"{key}": {entry}}}}}"#);
            match key {
                "run" => Unattended::of_request(metadata.as_bytes()).map(|_| ()),
                _ => of_cell("x", metadata.as_bytes(), false, &Need::default(), NOW).map(|_| ()),
            }
            .map_or_else(|bad| bad.to_string(), |()| String::new())
        };
        let others = ["\"2\"", "true", "[2]", "{\"a\":1}", "-3", "1.5", "1e3"];
        let counts = |key: &'static str| {
            let keys = ["gpus", "cpus", "gpu_mem_mib", "deadline"];
            let keys = keys
                .into_iter()
                .filter(move |name| key == "need" || *name != "gpu_mem_mib");
            keys.flat_map(move |name| others.map(|other| (key, name, other)))
        };
        for (key, name, other) in counts("need").chain(counts("run")) {
            let said = told(key, &format!(r#"{{"{name}": {other}}}"#));
            let shown = other.replace("1e3", "1000.0");
            let words = format!("can't be read: {name} is a whole number from 0 ");
            assert!(
                said.contains(&words) && said.ends_with(&format!(", not {shown}")),
                "{key}: {said}"
            );
            assert_eq!(
                told(key, &format!(r#"{{"{name}": null}}"#)),
                "",
                "null is nothing"
            );
        }
        for (key, entry, words) in [
            (
                "need",
                r#"{"gpus": 99999}"#,
                "gpus is a whole number from 0 to 1024, not 99999",
            ),
            (
                "need",
                r#"{"cpus": 1025}"#,
                "cpus is a whole number from 0 to 1024, not 1025",
            ),
            ("need", r#"{"gpu_type": 200}"#, "gpu_type is a text, not 200"),
            (
                "run",
                r#"{"class": ["batch"]}"#,
                r#"class is a text, not ["batch"]"#,
            ),
            ("need", "2", r#"it is an object such as {"gpus": 1}, not 2"#),
            (
                "run",
                r#"["batch"]"#,
                r#"it is an object such as {"gpus": 1}, not ["batch"]"#,
            ),
        ] {
            assert!(told(key, entry).ends_with(words), "{}", told(key, entry));
        }
    }

    #[test]
    fn a_type_or_memory_without_a_number_means_one_gpu_and_0_contradicts_them() {
        let of = |need: &str| {
            let metadata = format!(r#"{{"gresshopper": {{"need": {need}}}}}"#);
            of_cell("x", metadata.as_bytes(), false, &Need::default(), NOW)
        };
        let typed = |gpus, cpus| Need {
            gpu_type: Some("h200".into()),
            cpus,
            ..Need::gpus(gpus)
        };
        assert_eq!(of(r#"{"gpu_type": "h200"}"#), Ok(typed(1, 0)));
        assert_eq!(of(r#"{"gpu_type": "h200", "cpus": 4}"#), Ok(typed(1, 4)));
        assert_eq!(of(r#"{"gpu_type": "h200", "gpus": 2}"#), Ok(typed(2, 0)));
        assert_eq!(of(r#"{"gpu_mem_mib": 1024}"#).unwrap().gpus, 1);
        for none in [r#"{"gpu_mem_mib": 0}"#, r#"{"cpus": 4}"#, r#"{"gpus": 0}"#, "{}"] {
            assert_eq!(of(none).unwrap().gpus, 0, "{none}");
        }
        for bad in [
            r#"{"gpus": 0, "gpu_type": "h200"}"#,
            r#"{"gpus": 0, "gpu_mem_mib": 1}"#,
        ] {
            let said = of(bad).unwrap_err().to_string();
            assert!(said.contains("gpus is 0, though"), "{said}");
        }
    }

    #[test]
    fn a_run_adds_class_deadline_and_count() {
        let of = |metadata: &str| Unattended::of_request(metadata.as_bytes());
        let run = of(r#"{"gresshopper": {"run": {"class": "deadline", "deadline": 7, "gpus": 2}}}"#).unwrap();
        let want = Need {
            gpus: 2,
            deadline: Some(Timestamp(7)),
            ..Need::default()
        };
        assert_eq!(run.apply(Need::gpus(1)), want);
        assert_eq!(run.hurry(Need::gpus(1)).gpus, 1);
        assert_eq!(run.hurry(Need::default()), Need::default());
        let own = Need {
            deadline: Some(Timestamp(3)),
            ..Need::gpus(1)
        };
        assert_eq!(
            run.apply(own).deadline,
            Some(Timestamp(3)),
            "the cell's own says more"
        );
        let batch = of(r#"{"gresshopper": {"run": {"class": "batch"}}}"#).unwrap();
        assert_eq!(class_of(&batch.apply(Need::gpus(1)), &batch), Class::Batch);
        assert_eq!(class_of(&run.apply(Need::gpus(1)), &run), Class::Deadline);
        assert_eq!(class_of(&Need::gpus(1), &of("{}").unwrap()), Class::Interactive);
        for bad in [
            r#"{"gresshopper": {"run": {"gpu": 1}}}"#,
            r#"{"gresshopper": {"run": {"gpus": 1025}}}"#,
        ] {
            assert!(matches!(of(bad), Err(BadNeed::Unattended(_))), "{bad}");
        }
        assert_eq!(of(r#"{"gresshopper": "x"}"#), Ok(Unattended::default()));
    }
}
