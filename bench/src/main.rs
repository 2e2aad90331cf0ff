//! `hop-bench`: the one place where a measured figure becomes a line of `bench/results.jsonl`.
//!
//! A benchmark is any program with a JSON object a line on its output, a [`Measured`]. `hop-bench record` reads those,
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
    /// The folder that holds results.jsonl, NOTES.md and RESULTS.md.
    #[arg(long, default_value = "bench", global = true)]
    dir: PathBuf,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Fail unless the working tree is a commit: figures name the commit that they were measured on.
    Check,
    /// Read measured lines from standard input and append them, completed, to results.jsonl.
    ///
    /// Nothing is appended unless the working tree is the same commit before and after the benchmark.
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
    // A benchmark may fill these in itself.
    #[serde(default)]
    ratio: Option<f64>,
    #[serde(default)]
    date: Option<String>,
    #[serde(default)]
    commit: Option<String>,
    #[serde(default)]
    machine: Option<String>,
}

/// A line of results.jsonl. `ratio` is ours over the peer's, measured in the same run; null without a peer.
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
    fn here(dir: &Path) -> Result<Self> {
        Ok(Self {
            date: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            commit: clean_commit(dir)?,
            machine: machine(),
        })
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    match args.verb {
        Verb::Check => clean_commit(&args.dir).map(drop),
        Verb::Record => record(&args.dir),
        Verb::Render => render_file(&args.dir),
    }
}

fn record(dir: &Path) -> Result<()> {
    let origin = Origin::here(dir)?;
    let mut lines = String::new();
    let mut count = 0;
    for text in std::io::stdin().lock().lines() {
        let text = text.context("cannot read standard input")?;
        // Benchmarks may chat; only objects are figures.
        if !text.starts_with('{') {
            continue;
        }
        let measured: Measured =
            serde_json::from_str(&text).with_context(|| format!("not a measured line: {text}"))?;
        lines += &serde_json::to_string(&complete(measured, &origin))?;
        lines.push('\n');
        count += 1;
    }
    if count == 0 {
        bail!("the benchmark printed no measured line");
    }
    let commit = clean_commit(dir)?;
    if commit != origin.commit {
        bail!(
            "{} was checked out during the benchmark of {}: nothing is recorded; run it again",
            commit,
            origin.commit
        );
    }
    let path = dir.join("results.jsonl");
    fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(lines.as_bytes()))
        .with_context(|| format!("cannot append to {}", path.display()))?;
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

/// Three significant digits: such a measurement carries no more.
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

/// The commit of the working tree around `dir`. A tree with other changes than results is an error.
fn clean_commit(dir: &Path) -> Result<String> {
    // Earlier benchmarks of the same run write these.
    let all_but_results = ["--", ":/", ":!results.jsonl", ":!RESULTS.md"];
    let mut status = vec!["status", "--porcelain"];
    status.extend(all_but_results);
    let changes = git(dir, &status)?;
    if let Some(first) = changes.lines().next() {
        bail!(
            "the working tree has uncommitted changes (first: {first}): figures name the commit that they were \
             measured on; commit or stash, then run the benchmark again"
        );
    }
    git(dir, &["rev-parse", "--short=9", "HEAD"])
}

fn git(dir: &Path, args: &[&str]) -> Result<String> {
    let out = Command::new("git")
        .arg("-C")
        .arg(dir)
        .args(args)
        .output()
        .context("cannot run git, which names the commit that is measured")?;
    if !out.status.success() {
        bail!(
            "git {} failed: {}",
            args.join(" "),
            String::from_utf8_lossy(&out.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
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

    /// A repository with a commit, and `bench/` there.
    fn repository() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("bench")).unwrap();
        fs::write(root.path().join("code"), "as committed").unwrap();
        for args in [
            &["init", "-q"][..],
            &["add", "."],
            &[
                "-c",
                "user.name=t",
                "-c",
                "user.email=t@t",
                "commit",
                "-q",
                "-m",
                "m",
            ],
        ] {
            git(root.path(), args).unwrap();
        }
        root
    }

    #[test]
    fn a_dirty_tree_is_refused() {
        let root = repository();
        let bench = root.path().join("bench");
        assert_eq!(clean_commit(&bench).unwrap().len(), 9);
        fs::write(root.path().join("code"), "changed").unwrap();
        let said = clean_commit(&bench).unwrap_err().to_string();
        assert!(said.contains("first: M code"), "{said}");
    }

    #[test]
    fn untracked_files_are_dirt_and_results_are_none() {
        let root = repository();
        let bench = root.path().join("bench");
        fs::write(bench.join("results.jsonl"), "{}").unwrap();
        fs::write(bench.join("RESULTS.md"), "# Results").unwrap();
        clean_commit(&bench).unwrap();
        fs::write(root.path().join("new.rs"), "").unwrap();
        clean_commit(&bench).unwrap_err();
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
