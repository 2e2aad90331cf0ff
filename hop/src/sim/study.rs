//! `hop sim --seeds`, `--sweep`: every figure over several seeds, on several clusters, as a table and as a page.

use super::{Args, bar, read_text, trace, write};
use crate::context::Context;
use crate::failure::Failure;
use hop_sim::metrics::PolicySummary;
use hop_sim::{Cluster, Point, Policy, Spread};
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// More seeds than this tell nothing new.
const MOST_SEEDS: u64 = 1000;
/// Values of a sweep.
const MOST_VALUES: usize = 1000;

/// `1..10`: the first and the last seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seeds {
    first: u64,
    last: u64,
}

pub(super) fn seeds(text: &str) -> Result<Seeds, String> {
    let parts = text
        .split_once("..")
        .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    match parts {
        Some((first, last)) if first <= last && last - first < MOST_SEEDS => Ok(Seeds { first, last }),
        _ => Err(format!(
            "write FIRST..LAST, as in 1..10, with at most {MOST_SEEDS} seeds"
        )),
    }
}

/// `nodes=20..40..5`: a number of the cluster file, and its values.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sweep {
    key: String,
    values: Vec<f64>,
}

pub(super) fn sweep(text: &str) -> Result<Sweep, String> {
    let bad = || "write KEY=FROM..TO..STEP, as in nodes=20..40..5, or KEY=VALUE,VALUE".to_owned();
    let (key, values) = text.split_once('=').ok_or_else(bad)?;
    let number = |t: &str| t.parse::<f64>().ok().filter(|v| v.is_finite()).ok_or_else(bad);
    let parts: Vec<&str> = values.split("..").collect();
    let values = match parts[..] {
        [from, to, step] => steps(number(from)?, number(to)?, number(step)?).ok_or_else(bad)?,
        [list] => list.split(',').map(number).collect::<Result<_, _>>()?,
        _ => return Err(bad()),
    };
    if key.is_empty() {
        return Err(bad());
    }
    Ok(Sweep {
        key: key.to_owned(),
        values,
    })
}

/// From one to the other, both included. Each value is a multiple of the step from the first, so that none is off by
/// the sum of many roundings.
fn steps(from: f64, to: f64, step: f64) -> Option<Vec<f64>> {
    let count = ((to - from) / step + 1e-9).floor();
    if !(step > 0.0 && count >= 0.0 && count < MOST_VALUES as f64) {
        return None;
    }
    let round = |v: f64| (v * 1e9).round() / 1e9;
    Some(
        (0..=count as usize)
            .map(|i| round(from + i as f64 * step))
            .collect(),
    )
}

/// What `--json` writes.
#[derive(Debug, Serialize)]
struct Study {
    trace: String,
    sessions: usize,
    points: Vec<Point>,
}

/// GPUs of the cluster, seed, figures.
type Run = (u32, u64, PolicySummary);

pub(super) fn run(args: &Args, policies: &[Policy], context: &mut Context<'_>) -> Result<(), Failure> {
    let clusters = clusters(args)?;
    let seeds = args.seeds.map_or(args.seed..=args.seed, |s| s.first..=s.last);
    let text = read_text(args)?;
    let traces = seeds
        .map(|seed| Ok((seed, trace(args, text.as_deref(), seed)?)))
        .collect::<Result<Vec<_>, Failure>>()?;
    if let Some((_, trace)) = traces.first() {
        super::tell_left_out(trace, context)?;
    }
    let mut jobs = Vec::new();
    for (c, (_, cluster)) in clusters.iter().enumerate() {
        for (seed, trace) in &traces {
            let cluster = cluster.clone().sized_for(trace);
            cluster.fits(trace).map_err(|e| Failure::of(&e))?;
            jobs.extend((0..policies.len()).map(|p| (c, p, *seed, trace, cluster.clone())));
        }
    }
    let bar = bar("runs", jobs.len());
    let runs: Vec<((usize, usize), Run)> = jobs
        .into_par_iter()
        .map(|(c, p, seed, trace, cluster)| {
            let summary = hop_sim::run(policies[p], trace, &cluster, seed).summary(trace);
            bar.inc(1);
            ((c, p), (cluster.gpus(), seed, summary))
        })
        .collect();
    bar.finish_and_clear();
    let mut of: BTreeMap<_, Vec<Run>> = BTreeMap::new();
    for (point, run) in runs {
        of.entry(point).or_default().push(run);
    }
    let points = of.into_iter().map(|((c, p), runs)| {
        // If the trace differs with each seed, a cluster sized for the trace may differ, too.
        let gpus = runs.iter().map(|(gpus, ..)| *gpus).max().unwrap_or(0);
        let runs: Vec<_> = runs.into_iter().map(|(_, seed, s)| (seed, s)).collect();
        Point::new(policies[p].to_string(), clusters[c].0.clone(), gpus, &runs)
    });
    let study = Study {
        trace: args.trace.clone(),
        sessions: traces.first().map_or(0, |(_, t)| t.sessions.len()),
        points: points.collect(),
    };
    show(args, &study, context)
}

type Swept = (BTreeMap<String, f64>, Cluster);

/// The cluster file's cluster, with each value of the sweep.
fn clusters(args: &Args) -> Result<Vec<Swept>, Failure> {
    let cluster = args.cluster()?;
    let Some(sweep) = &args.sweep else {
        return Ok(vec![(BTreeMap::new(), cluster)]);
    };
    let at = |&value: &f64| {
        let cluster = cluster.with(&sweep.key, value);
        let cluster = cluster.map_err(|e| Failure::Usage(format!("--sweep {}: {e}", sweep.key)))?;
        Ok((BTreeMap::from([(sweep.key.clone(), value)]), cluster))
    };
    sweep.values.iter().map(at).collect()
}

fn show(args: &Args, study: &Study, context: &mut Context<'_>) -> Result<(), Failure> {
    if args.json.as_deref() != Some(Path::new("-")) {
        table(&study.points, context)?;
    }
    if let Some(path) = &args.html {
        let page = hop_sim::study_report(&study.trace, study.sessions, &study.points);
        write(path, &page, context)?;
    }
    let Some(path) = &args.json else { return Ok(()) };
    let mut text = serde_json::to_string_pretty(study).map_err(|e| Failure::of(&e))?;
    text.push('\n');
    write(path, &text, context)
}

/// Heading, name of the figure, factor, digits.
const COLUMNS: [(&str, &str, f64, usize); 8] = [
    ("SAVED%", "provisioned_saving_share", 100.0, 1),
    ("IMMED%", "immediate_fraction", 100.0, 1),
    ("P95", "delay_p95_s", 1.0, 2),
    ("P99", "delay_p99_s", 1.0, 1),
    ("ANTT", "antt", 1.0, 3),
    ("MAXWAIT_H", "longest_wait_h", 1.0, 1),
    ("OVERTAKEN", "overtaken_most", 1.0, 0),
    ("SAME%", "executor_reuse_fraction", 100.0, 1),
];

fn table(points: &[Point], context: &mut Context<'_>) -> Result<(), Failure> {
    let key = points.first().and_then(|p| p.at.keys().next().cloned());
    let mut rows = vec![vec!["POLICY".to_owned()]];
    rows[0].extend(key.as_ref().map(|k| k.to_uppercase()));
    rows[0].extend(["GPUS", "SEEDS"].map(str::to_owned));
    rows[0].extend(COLUMNS.map(|(heading, ..)| heading.to_owned()));
    for p in points {
        let mut row = vec![p.policy.clone()];
        row.extend(key.as_ref().and_then(|k| p.at.get(k)).map(f64::to_string));
        row.extend([p.gpus.to_string(), p.seeds.len().to_string()]);
        row.extend(COLUMNS.map(|(_, name, by, digits)| spread(p.figure(name), by, digits)));
        rows.push(row);
    }
    let wide = |i: usize| rows.iter().map(|r| r[i].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(wide).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(i, (cell, &w))| match i {
            0 => format!("{cell:<w$}"),
            _ => format!("{cell:>w$}"),
        });
        writeln!(context.out, "{}", cells.collect::<Vec<_>>().join("  "))?;
    }
    Ok(())
}

/// The median, and from the least to the most where seeds differ.
fn spread(spread: Option<Spread>, by: f64, digits: usize) -> String {
    let Some(s) = spread else { return "-".to_owned() };
    // No "-0".
    let one = |v: f64| format!("{:.digits$}", v * by + 0.0);
    let (median, least, most) = (one(s.median), one(s.least), one(s.most));
    if least == most {
        median
    } else {
        format!("{median} ({least} to {most})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_range_with_both_ends() {
        assert_eq!(seeds("1..10"), Ok(Seeds { first: 1, last: 10 }));
        assert_eq!(seeds("7..7"), Ok(Seeds { first: 7, last: 7 }));
        for bad in ["", "1", "10..1", "1..5000", "a..b", "1..=3"] {
            assert!(seeds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_sweep_is_a_key_with_steps_or_values() {
        let of = |text| sweep(text).map(|s| (s.key, s.values)).ok();
        let key = "nodes".to_owned();
        assert_eq!(
            of("nodes=20..40..10"),
            Some((key.clone(), vec![20.0, 30.0, 40.0]))
        );
        assert_eq!(
            of("nodes=20..44..10"),
            Some((key.clone(), vec![20.0, 30.0, 40.0]))
        );
        assert_eq!(of("nodes=8,4"), Some((key, vec![8.0, 4.0])));
        let tenths = of("p=0.1..0.7..0.1").map(|(_, v)| v);
        assert_eq!(tenths, Some(vec![0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]));
        for bad in [
            "nodes",
            "nodes=",
            "=1",
            "nodes=1..2",
            "nodes=1..2..0",
            "nodes=1..1e9..1",
            "nodes=a",
        ] {
            assert!(sweep(bad).is_err(), "{bad}");
        }
    }
}
