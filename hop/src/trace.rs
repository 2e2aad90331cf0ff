//! `hop trace export`: the accounting as a trace for `hop sim`, without names of people.

use crate::acct;
use crate::context::Context;
use crate::failure::Failure;
use crate::time::parse_time;
use hop_api::message::{AcctQuery, AcctRow};
use hop_sim::trace::Line;
use hop_words::id::{CellId, KernelId};
use hop_words::line;
use std::collections::HashMap;

const EXAMPLES: &str = "\
Examples:
  hop trace export --starttime now-30days > month.jsonl
  hop sim --trace month.jsonl --policy ours --policy reservation

Users, accounts and kernels become hashes, under a key drawn for this export and thrown away.
Operators export everybody's cells, others their own. Cells without a lease are not on record.";

/// Export what ran, or work with traces.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Write the cells of leases, one JSON object a line
    Export(Export),
}

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
struct Export {
    /// Cells since then
    #[arg(short = 'S', long = "starttime", value_name = "TIME")]
    since: Option<String>,
    /// Cells until then
    #[arg(short = 'E', long = "endtime", value_name = "TIME")]
    until: Option<String>,
}

pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    let Action::Export(export) = &args.action;
    let time = |text: &Option<String>| match text {
        Some(text) => parse_time(text, context.now, &context.zone)
            .map(Some)
            .map_err(Failure::Usage),
        None => Ok(None),
    };
    let (since, until) = (time(&export.since)?, time(&export.until)?);
    let query = AcctQuery {
        visible: true,
        since,
        until,
        cells: true,
        ..AcctQuery::default()
    };
    let rows = acct::ask(query, context)?;
    let mut key = [0; 32];
    key[..16].copy_from_slice(uuid::Uuid::new_v4().as_bytes());
    key[16..].copy_from_slice(uuid::Uuid::new_v4().as_bytes());
    for line in lines(&rows, &key) {
        context
            .out
            .write_all(&line::encode(&line).map_err(|e| Failure::of(&e))?)?;
    }
    Ok(())
}

/// The cells among the rows, by time, their times counted from the first one's submission.
fn lines(rows: &[AcctRow], key: &[u8; 32]) -> Vec<Line> {
    let word = |kind: &str, name: &str| {
        let hash = blake3::keyed_hash(key, format!("{kind}\0{name}").as_bytes());
        format!("{kind}{}", &hash.to_hex()[..10])
    };
    let mut cells: Vec<&AcctRow> = rows
        .iter()
        .filter(|r| r.cell.is_some() && r.start.is_some())
        .collect();
    cells.sort_by_key(|r| (r.submit, r.lease));
    let first = cells.first().map(|r| r.submit).unwrap_or_default();
    let mut lines: Vec<Line> = Vec::new();
    let mut line_of: HashMap<(&KernelId, Option<&CellId>), usize> = HashMap::new();
    for r in cells {
        // A parked cell has a row for each of its leases: another policy might not have parked it.
        let at = *line_of.entry((&r.kernel, r.cell.as_ref())).or_insert(lines.len());
        if let Some(line) = lines.get_mut(at) {
            line.run += r.held.as_secs_f64();
            continue;
        }
        lines.push(Line {
            v: 1,
            session: word("s", r.kernel.as_str()),
            user: word("u", r.user.as_str()),
            account: r.account.as_ref().map(|a| word("a", a.as_str())),
            submit: r.submit.since(first).as_secs_f64(),
            run: r.held.as_secs_f64(),
            gpus: r.gpus.len() as u16,
            cpus: if r.gpus.is_empty() { r.cpus } else { 0 },
            print: 0,
        });
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_words::id::{GpuIndex, JobId, LeaseId};
    use hop_words::time::{Span, Timestamp};

    fn row(kernel: &str, cell: Option<&str>, submit: u64) -> AcctRow {
        AcctRow {
            lease: LeaseId(1),
            cell: cell.map(Into::into),
            user: "ada".into(),
            account: Some("physics".into()),
            pool: "main".into(),
            kernel: kernel.into(),
            name: "secret.ipynb".to_owned(),
            node: "n0".into(),
            gpus: vec![GpuIndex(0), GpuIndex(1)],
            cpus: 2,
            pilot: JobId(7),
            step: 0,
            state: "COMPLETED".to_owned(),
            submit: Timestamp(submit),
            start: Some(Timestamp(submit + 50_000)),
            end: Some(Timestamp(submit + 2_050_000)),
            wait: Span::from_millis(50),
            held: Span::from_secs(2),
            run: Span::from_secs(2),
            linger: Span::ZERO,
            cells: 1,
            reason: String::new(),
        }
    }

    #[test]
    fn a_cell_that_was_parked_is_one_cell_with_all_its_seconds() {
        let mut rows = [
            row("k1", Some("a"), 10_000_000),
            row("k1", Some("a"), 13_000_000),
            row("k2", Some("a"), 14_000_000),
        ];
        rows[0].state = "PREEMPTED".to_owned();
        let lines = lines(&rows, &[7; 32]);
        let seconds: Vec<_> = lines.iter().map(|l| (l.submit, l.run)).collect();
        assert_eq!(seconds, [(0.0, 4.0), (4.0, 2.0)]);
    }

    #[test]
    fn cells_become_lines_without_names_that_the_simulator_reads() {
        let rows = [
            row("k1", None, 9_000_000),
            row("k1", Some("b"), 12_000_000),
            row("k2", Some("a"), 10_000_000),
        ];
        let lines = lines(&rows, &[7; 32]);
        assert_eq!(lines.len(), 2);
        assert_eq!(
            (lines[0].submit, lines[1].submit, lines[1].run, lines[1].gpus),
            (0.0, 2.0, 2.0, 2)
        );
        assert_eq!(lines[0].user, lines[1].user);
        assert_ne!(lines[0].session, lines[1].session);
        let text: String = lines
            .iter()
            .map(|l| serde_json::to_string(l).unwrap() + "\n")
            .collect();
        for name in ["ada", "physics", "secret", "k1", "k2"] {
            assert!(!text.contains(&format!("\"{name}")), "{text}");
        }
        let trace = hop_sim::Trace::parse("t", &text, 1).unwrap();
        assert_eq!((trace.sessions.len(), trace.cells()), (2, 2));
    }
}
