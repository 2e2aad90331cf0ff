//! `hop-bench`: the one place where a measured figure becomes a line of `bench/results.jsonl`.
//!
//! A benchmark is any program that prints one JSON object a line, a [`Measured`]. `hop-bench record` reads those,
//! adds what every line must carry (ratio, date, commit, machine) and appends them; `hop-bench render` writes
//! `bench/RESULTS.md` from the newest line of each case. It measures nothing itself.

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Parser)]
#[command(about = "Record benchmark figures and write bench/RESULTS.md from them")]
struct Args {
    /// The folder that holds results.jsonl, notes.toml and RESULTS.md.
    #[arg(long, default_value = "bench", global = true)]
    dir: PathBuf,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Read measured lines from standard input and append them, completed, to results.jsonl.
    Record,
    /// Write RESULTS.md from results.jsonl and the notes in NOTES.md.
    Render,
}

/// What a benchmark prints.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    bench: String,
    case: String,
    ours: Option<f64>,
    peer: Option<String>,
    peer_value: Option<f64>,
    unit: String,
    n: u64,
    // A benchmark that knows these better than we do may say so.
    #[serde(default)]
    ratio: Option<f64>,
    #[serde(default)]
    date: Option<String>,
    #[serde(default)]
    commit: Option<String>,
    #[serde(default)]
    machine: Option<String>,
}

/// A line of results.jsonl. `ratio` is ours over the peer's, measured in one run; null where there is no peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Line {
    bench: String,
    case: String,
    ours: Option<f64>,
    peer: Option<String>,
    peer_value: Option<f64>,
    ratio: Option<f64>,
    unit: String,
    n: u64,
    date: String,
    commit: String,
    machine: String,
}

/// Where and when a run was made.
struct Origin {
    date: String,
    commit: String,
    machine: String,
}

impl Origin {
    fn here() -> Self {
        Self {
            date: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            commit: git_commit().unwrap_or_else(|| "unknown".to_owned()),
            machine: machine(),
        }
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    match args.verb {
        Verb::Record => record(&args.dir),
        Verb::Render => render_file(&args.dir),
    }
}

fn record(dir: &Path) -> Result<()> {
    let origin = Origin::here();
    let path = dir.join("results.jsonl");
    let mut file = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| format!("cannot append to {}", path.display()))?;
    let mut count = 0;
    for text in std::io::stdin().lock().lines() {
        let text = text.context("cannot read standard input")?;
        // Benchmarks may chat; only objects are figures.
        if !text.starts_with('{') {
            continue;
        }
        let measured: Measured =
            serde_json::from_str(&text).with_context(|| format!("not a measured line: {text}"))?;
        let line = complete(measured, &origin);
        writeln!(file, "{}", serde_json::to_string(&line)?)
            .with_context(|| format!("cannot append to {}", path.display()))?;
        count += 1;
    }
    if count == 0 {
        bail!("the benchmark printed no measured line");
    }
    eprintln!("hop-bench: {count} figures appended to {}", path.display());
    Ok(())
}

fn complete(m: Measured, origin: &Origin) -> Line {
    let ratio = m.ratio.or_else(|| match (m.ours, m.peer_value) {
        (Some(ours), Some(peer)) if peer != 0.0 => Some(ours / peer),
        _ => None,
    });
    Line {
        bench: m.bench,
        case: m.case,
        ours: m.ours,
        peer: m.peer,
        peer_value: m.peer_value,
        ratio,
        unit: m.unit,
        n: m.n,
        date: m.date.unwrap_or_else(|| origin.date.clone()),
        commit: m.commit.unwrap_or_else(|| origin.commit.clone()),
        machine: m.machine.unwrap_or_else(|| origin.machine.clone()),
    }
}

fn render_file(dir: &Path) -> Result<()> {
    let path = dir.join("results.jsonl");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut lines = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        lines.push(
            serde_json::from_str::<Line>(line)
                .with_context(|| format!("{}:{}: not a result line", path.display(), at + 1))?,
        );
    }
    let notes = fs::read_to_string(dir.join("NOTES.md")).unwrap_or_default();
    let out = dir.join("RESULTS.md");
    fs::write(&out, render(&lines, &notes)).with_context(|| format!("cannot write {}", out.display()))
}

/// The newest line of each case, grouped by bench, then the hand-written notes on what bounds them.
fn render(lines: &[Line], notes: &str) -> String {
    let mut newest: BTreeMap<&str, BTreeMap<&str, &Line>> = BTreeMap::new();
    for line in lines {
        newest.entry(&line.bench).or_default().insert(&line.case, line);
    }
    let mut out = String::from(
        "# Results\n\nWritten by `hop-bench render` from `results.jsonl` (the newest run of each case) and `NOTES.md`; \
         don't edit.\n`ratio` is ours over the peer's, measured in one run.\n",
    );
    for (bench, cases) in newest {
        let _ = write!(
            out,
            "\n## {bench}\n\n| case | ours | peer | peer's | ratio | unit | n | date | commit | machine |\n|---|---|---|---|---|---|---|---|---|---|\n"
        );
        for line in cases.values() {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                line.case,
                number(line.ours),
                line.peer.as_deref().unwrap_or("-"),
                number(line.peer_value),
                number(line.ratio),
                line.unit,
                line.n,
                line.date,
                line.commit,
                line.machine,
            );
        }
    }
    if !notes.is_empty() {
        out.push('\n');
        out.push_str(notes);
    }
    out
}

/// Three significant digits are what such a measurement carries.
fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(v) if v.abs() >= 100.0 => format!("{v:.0}"),
        Some(v) if v.abs() >= 10.0 => format!("{v:.1}"),
        Some(v) if v.abs() >= 0.1 => format!("{v:.3}"),
        Some(v) => format!("{v:.2e}"),
    }
}

fn git_commit() -> Option<String> {
    let out = Command::new("git")
        .args(["describe", "--always", "--dirty", "--abbrev=9"])
        .output()
        .ok()?;
    out.status
        .success()
        .then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory_kib = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|t| t.lines().next()?.split_whitespace().nth(1)?.parse::<u64>().ok())
        .unwrap_or(0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{cores} cores, {} GiB, Linux {}",
        memory_kib.div_ceil(1 << 20),
        kernel.trim()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> Origin {
        Origin {
            date: "2026-11-21T12:00:00Z".into(),
            commit: "abc".into(),
            machine: "m".into(),
        }
    }

    fn measured(text: &str) -> Line {
        complete(serde_json::from_str(text).unwrap(), &origin())
    }

    #[test]
    fn the_ratio_is_ours_over_the_peers() {
        let line = measured(
            r#"{"bench":"lease","case":"fresh_p50","ours":60.0,"peer":"srun","peer_value":50.0,"unit":"ms","n":9}"#,
        );
        assert_eq!(line.ratio, Some(1.2));
        assert_eq!(line.commit, "abc");
    }

    #[test]
    fn no_peer_no_ratio() {
        let line = measured(
            r#"{"bench":"core","case":"p99_us","ours":3.0,"peer":null,"peer_value":null,"unit":"us","n":9}"#,
        );
        assert_eq!(line.ratio, None);
    }

    #[test]
    fn the_newest_line_of_a_case_is_shown() {
        let old =
            measured(r#"{"bench":"b","case":"c","ours":1.0,"peer":null,"peer_value":null,"unit":"s","n":1}"#);
        let new = Line {
            ours: Some(2.0),
            ..old.clone()
        };
        let text = render(&[old, new], "## Notes\n");
        assert!(text.contains("| c | 2.000 |"), "{text}");
        assert!(!text.contains("| c | 1.000 |"), "{text}");
        assert!(text.ends_with("## Notes\n"));
    }
}
