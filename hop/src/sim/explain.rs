//! `hop sim --explain SESSION[/CELL]`: why cells waited.

use super::{Args, write};
use crate::context::Context;
use crate::failure::Failure;
use hop_sim::{CellResult, PolicyResult, Trace};
use serde::Serialize;
use std::path::Path;

/// One cell under one policy.
#[derive(Debug, Serialize)]
struct Explained<'a> {
    policy: &'a str,
    session: &'a str,
    cell: u32,
    gpus: u16,
    submit_s: f64,
    wait_s: f64,
    /// GPU memory read from another node, and brought back onto the GPUs.
    fetch_s: f64,
    unpark_s: f64,
    immediate: bool,
    migrated: bool,
    node: u32,
    /// Reasons of the wait, as the scheduler told them; empty for the baselines, which tell none.
    reasons: Vec<Told<'a>>,
}

#[derive(Debug, Serialize)]
struct Told<'a> {
    after_s: f64,
    reason: &'a str,
    says: &'a str,
}

/// The session of this index, and the cell if named. A session's name may hold a slash itself.
pub(super) fn find(trace: &Trace, name: &str) -> Result<(u32, Option<u32>), Failure> {
    let session = |name: &str| trace.sessions.iter().position(|s| s.id == name);
    if let Some(s) = session(name) {
        return Ok((s as u32, None));
    }
    let split = name.rsplit_once('/').and_then(|(s, c)| Some((session(s)?, c)));
    let Some((s, cell)) = split else {
        let some: Vec<&str> = trace.sessions.iter().take(3).map(|s| s.id.as_str()).collect();
        let some = some.join(", ");
        return Err(Failure::Failed(format!(
            "the trace has no session {name}; it has {some}, .. (write SESSION or SESSION/CELL)"
        )));
    };
    let cells = trace.sessions[s].cells.len();
    match cell.parse::<u32>() {
        Ok(c) if (c as usize) < cells => Ok((s as u32, Some(c))),
        _ => Err(Failure::Failed(format!(
            "session {} has cells 0 to {}, and no cell {cell}",
            trace.sessions[s].id,
            cells.saturating_sub(1)
        ))),
    }
}

pub(super) fn show(
    args: &Args,
    (session, cell): (u32, Option<u32>),
    results: &[PolicyResult],
    trace: &Trace,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    let asked = |c: &&CellResult| {
        c.session == session && cell.map_or(c.gpus > 0 && !c.immediate, |asked| c.cell == asked)
    };
    let mut cells: Vec<Explained<'_>> = Vec::new();
    for r in results {
        cells.extend(r.cells.iter().filter(asked).map(|c| explained(r, c, trace)));
    }
    if args.json.as_deref() != Some(Path::new("-")) {
        if cells.is_empty() {
            writeln!(context.err, "no cell of this session waited")?;
        }
        cells.iter().try_for_each(|c| sentences(c, context))?;
    }
    let Some(path) = &args.json else { return Ok(()) };
    let mut text = serde_json::to_string_pretty(&cells).map_err(|e| Failure::of(&e))?;
    text.push('\n');
    write(path, &text, context)
}

fn explained<'a>(result: &'a PolicyResult, c: &CellResult, trace: &'a Trace) -> Explained<'a> {
    let of_cell = result
        .whys
        .iter()
        .filter(|w| (w.session, w.cell) == (c.session, c.cell));
    Explained {
        policy: &result.policy,
        session: &trace.sessions[c.session as usize].id,
        cell: c.cell,
        gpus: c.gpus,
        submit_s: c.submit.0 as f64 / 1e6,
        wait_s: c.wait().as_secs_f64(),
        fetch_s: c.fetch.as_secs_f64(),
        unpark_s: c.unpark.as_secs_f64(),
        immediate: c.immediate,
        migrated: c.migrated,
        node: c.node,
        reasons: of_cell
            .map(|w| Told {
                after_s: w.at.since(c.submit).as_secs_f64(),
                reason: w.word,
                says: &w.says,
            })
            .collect(),
    }
}

fn sentences(c: &Explained<'_>, context: &mut Context<'_>) -> Result<(), Failure> {
    let waited = match c.immediate {
        true => "had its GPUs at once".to_owned(),
        false => format!("waited {:.3} s", c.wait_s),
    };
    let moved = if c.migrated { ", after a move" } else { "" };
    writeln!(
        context.out,
        "{} {}/{}: {} GPUs, submitted at {:.3} s, {waited} on node {}{moved}; memory took {:.3} s",
        c.policy,
        c.session,
        c.cell,
        c.gpus,
        c.submit_s,
        c.node,
        c.fetch_s + c.unpark_s
    )?;
    for told in &c.reasons {
        writeln!(context.out, "  after {:.3} s: {}", told.after_s, told.says)?;
    }
    Ok(())
}
