//! `hop sim`: what another policy would have done with a trace.

mod explain;
mod study;

use crate::context::Context;
use crate::failure::Failure;
use crate::files;
use hop_sim::{Cluster, FrontierPoint, Policy, PolicyResult, Summary, Synth, Trace, Turnaround};
use hop_words::time::{Span, Timestamp};
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  hop sim --trace adobe-june-2021.csv --policy ours --policy reservation
  hop sim --trace synth:b,sessions=100,days=7 --policy all --seed 3 --html report.html
  hop sim --trace month.csv --policy ours --seeds 1..10 --sweep nodes=20..40..5
  hop sim --trace month.csv --sweep nodes=37,42,50,72,143 --html frontier.html
  hop sim --trace month.csv --policy ours --explain s0017/3
  sacct -a -X -P -S 2026-10-01 -o JobID,User,Account,Submit,ElapsedRaw,AllocTRES | hop sim --trace -
  hop sim --trace Venus/cluster_log.csv --window 0,168 --policy ours --policy reservation
  hop sim --trace month.jsonl --cluster mine.toml --json - | jq '.policies[].gpu_hours_held'

A trace is JSON lines as `hop trace export` writes them, a table as in shared/data, batch jobs (Slurm's sacct -P, SWF, or
the public traces Helios, Philly, openb), or synth:a, synth:b, synth:june. Of batch jobs each becomes a cell, and jobs of
one user that follow each other become a session. docs/trace-format.md describes the forms, docs/simulation/ the results.";

/// Simulate policies on a trace of notebook cells.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A trace file (`-`: standard input), or synth:FAMILY
    #[arg(long, value_name = "FILE")]
    trace: String,
    /// A policy; may be given often; `all` is every one, `main` all but the ablations
    #[arg(long = "policy", value_name = "NAME", default_value = "main")]
    policies: Vec<String>,
    /// The cluster; without it: as many nodes as reservation needs
    #[arg(long, value_name = "TOML")]
    cluster: Option<PathBuf>,
    /// Seed of all chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Median and range over these seeds, as in 1..10; synth: makes a trace for each
    #[arg(long, value_name = "FIRST..LAST", value_parser = study::seeds, conflicts_with_all = ["seed", "csv"])]
    seeds: Option<study::Seeds>,
    /// Once for each value of a number in the cluster file: nodes=20..40..5
    #[arg(long, value_name = "KEY=FROM..TO..STEP", value_parser = study::sweep, conflicts_with = "csv")]
    sweep: Option<study::Sweep>,
    /// Say why cells of this session waited, or what became of one cell
    #[arg(long, value_name = "SESSION[/CELL]", conflicts_with_all = ["csv", "html", "seeds", "sweep"])]
    explain: Option<String>,
    /// Write the summary as JSON (`-`: to standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write one row per cell and policy
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a report with plots, which needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Processors that stand for one GPU, in a trace in SWF
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    procs_per_gpu: u32,
    /// Leave out sessions, by seed, until those open at once ask for at most so many GPUs
    #[arg(long, value_name = "GPUS")]
    thin: Option<u32>,
    /// Only so many hours from an hour of the trace on
    #[arg(long, value_name = "FROM,HOURS", value_parser = window)]
    window: Option<(f64, f64)>,
    /// Each cell is submitted with the reply to the one before
    #[arg(long)]
    no_think: bool,
    /// The same people at so many times the speed
    #[arg(long, value_name = "FACTOR")]
    compress: Option<f64>,
}

/// Ten years.
const MOST_HOURS: f64 = 87_840.0;

fn window(text: &str) -> Result<(f64, f64), String> {
    let parts = text
        .split_once(',')
        .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    match parts {
        Some((from, hours)) if (0.0..=MOST_HOURS).contains(&from) && (1e-3..=MOST_HOURS).contains(&hours) => {
            Ok((from, hours))
        }
        _ => Err("write FROM,HOURS, as in 100,17.5, within ten years".to_owned()),
    }
}

/// The command to unpack a file to standard output; `None` means an uncompressed file.
fn unpacked_by(bytes: &[u8]) -> Option<&'static str> {
    const FORMS: [(&[u8], &str); 6] = [
        (b"\x1f\x8b", "gunzip -c"),
        (b"\x1f\x9d", "gunzip -c"),
        (b"BZh", "bunzip2 -c"),
        (b"\xfd7zXZ\0", "xz -dc"),
        (b"\x28\xb5\x2f\xfd", "zstd -dc"),
        (b"PK\x03\x04", "unzip -p"),
    ];
    let form = FORMS.iter().find(|(magic, _)| bytes.starts_with(magic));
    form.map(|(_, how)| *how)
}

/// No real trace is larger, but an endless input is.
const MOST: u64 = 1 << 30;

/// The largest description of a cluster.
const MOST_CLUSTER: u64 = 1 << 24;

/// A trace's text; `-`: standard input.
fn read_trace(path: &Path) -> Result<String, Failure> {
    let read = match path.to_str() {
        Some("-") => files::bounded(std::io::stdin().lock(), MOST),
        _ => std::fs::File::open(path).and_then(|f| files::bounded(f, MOST)),
    };
    let bad =
        |why: &dyn std::fmt::Display| Failure::Failed(format!("could not read {}: {why}", path.display()));
    let bytes = read.map_err(|e| bad(&e))?;
    if let Some(how) = unpacked_by(&bytes) {
        return Err(bad(&format!(
            "it is compressed; unpack it first: {how} FILE | hop sim --trace -"
        )));
    }
    String::from_utf8(bytes).map_err(|e| {
        let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|b| **b == b'\n').count();
        bad(&format!("line {line} is not UTF-8 text"))
    })
}

/// Reads a file that the user named.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    std::fs::File::open(path)
        .and_then(|file| files::bounded(file, MOST_CLUSTER))
        .and_then(|bytes| String::from_utf8(bytes).map_err(|_| std::io::Error::other("it is not UTF-8 text")))
        .map_err(|e| Failure::Failed(format!("could not read {}: {e}", path.display())))
}

/// Checks before a long run whether its result can be written. An existing file stays unchanged.
fn writable(path: &Path) -> Result<(), Failure> {
    if path == Path::new("-") {
        return Ok(());
    }
    let there = path.exists();
    if there && !path.is_file() && !path.is_dir() {
        // An open and close would end the pipe for its reader.
        return Ok(());
    }
    std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .map_err(|e| cannot_write(path, &e))?;
    if !there && let Ok(file) = files::behind_links(path) {
        // If the run fails later, no file is left.
        let _ = std::fs::remove_file(file);
    }
    Ok(())
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Failed(format!("could not write {}: {error}", path.display()))
}

fn write(path: &Path, text: &str, context: &mut Context<'_>) -> Result<(), Failure> {
    if path == Path::new("-") {
        context.out.write_all(text.as_bytes())?;
        return Ok(());
    }
    std::fs::write(path, text).map_err(|e| cannot_write(path, &e))
}

pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    let policies = policies(&args.policies)?;
    for path in [&args.json, &args.csv, &args.html].into_iter().flatten() {
        writable(path)?;
    }
    if args.seeds.is_some() || args.sweep.is_some() {
        return study::run(args, &policies, context);
    }
    let trace = trace(args, read_text(args)?.as_deref(), args.seed)?;
    tell_left_out(&trace, context)?;
    let cluster = args.cluster()?.sized_for(&trace);
    let explained = args.explain.as_ref().map(|name| explain::find(&trace, name));
    let explained = explained.transpose()?;
    cluster.fits(&trace).map_err(|e| Failure::of(&e))?;
    let bar = bar("policies", policies.len());
    // In sequence: `wall_s` is then the time of a single core.
    let results: Vec<PolicyResult> = policies
        .iter()
        .map(|&p| timed(p, &trace, &cluster, args.seed, &bar))
        .collect();
    bar.finish_and_clear();
    if let Some(cells) = explained {
        return explain::show(args, cells, &results, &trace, context);
    }
    let summary = Summary::new(&results, &trace, &cluster, args.seed);
    let to_stdout = args.json.as_deref() == Some(Path::new("-"));
    if !to_stdout {
        table(&summary, context)?;
    }
    if let Some(path) = &args.json {
        let mut text = serde_json::to_string_pretty(&summary).map_err(|e| Failure::of(&e))?;
        text.push('\n');
        write(path, &text, context)?;
    }
    if let Some(path) = &args.csv {
        write(
            path,
            &hop_sim::csv(&results, &trace, args.seed, &summary.config_hash),
            context,
        )?;
    }
    if let Some(path) = &args.html {
        let (frontier, turnarounds) = smaller_clusters(&policies, &trace, &cluster, args.seed);
        write(
            path,
            &hop_sim::report(&summary, &results, &trace, &frontier, &turnarounds),
            context,
        )?;
    }
    Ok(())
}

fn policies(names: &[String]) -> Result<Vec<Policy>, Failure> {
    let mut policies: Vec<Policy> = Vec::new();
    for name in names {
        let more = match name.as_str() {
            "all" => Policy::all(),
            "main" => Policy::main(),
            name => vec![
                name.parse()
                    .map_err(|e: hop_sim::policy::UnknownPolicy| Failure::Usage(e.to_string()))?,
            ],
        };
        for p in more {
            if !policies.contains(&p) {
                policies.push(p);
            }
        }
    }
    Ok(policies)
}

impl Args {
    /// The cluster file's cluster.
    fn cluster(&self) -> Result<Cluster, Failure> {
        match &self.cluster {
            Some(path) => Cluster::parse(&read(path)?).map_err(|e| Failure::of(&e)),
            None => Ok(Cluster::default()),
        }
    }
}

/// Says which jobs of a trace of batch jobs are not simulated.
fn tell_left_out(trace: &Trace, context: &mut Context<'_>) -> Result<(), Failure> {
    if trace.left_out.all() > 0 {
        writeln!(context.err, "left out of {}: {}", trace.name, trace.left_out)?;
    }
    Ok(())
}

/// The trace file's text; none where the trace is made up.
fn read_text(args: &Args) -> Result<Option<String>, Failure> {
    let file = !args.trace.starts_with("synth:");
    file.then(|| read_trace(Path::new(&args.trace))).transpose()
}

/// `text`: what [`read_text`] gave.
fn trace(args: &Args, text: Option<&str>, seed: u64) -> Result<Trace, Failure> {
    let mut trace = if let Some(text) = text {
        let path = Path::new(&args.trace);
        let name = path
            .file_name()
            .map_or_else(|| args.trace.clone(), |n| n.to_string_lossy().into_owned());
        Trace::parse_with(&name, text, seed, args.procs_per_gpu)
            .map_err(|e| Failure::Failed(format!("{} is no trace: {}", path.display(), Failure::of(&e))))?
    } else {
        let synth: Synth = args
            .trace
            .parse()
            .map_err(|e: hop_sim::synth::UnknownSynth| Failure::Usage(e.to_string()))?;
        synth.trace(seed)
    };
    if let Some(gpus) = args.thin {
        trace = trace.thinned(gpus, seed);
    }
    if let Some((from, hours)) = args.window {
        trace = trace.window(Timestamp((from * 3.6e9) as u64), Span((hours * 3.6e9) as u64));
    }
    if args.no_think {
        trace = trace.without_think();
    }
    if let Some(factor) = args.compress {
        if !(1e-3..=1e6).contains(&factor) {
            return Err(Failure::Usage(
                "--compress takes a factor from 0.001 to 1000000".to_owned(),
            ));
        }
        trace = trace.compressed(factor);
    }
    if trace.cells() == 0 {
        return Err(Failure::Failed("no cell of the trace is left".to_owned()));
    }
    Ok(trace)
}

fn timed(policy: Policy, trace: &Trace, cluster: &Cluster, seed: u64, bar: &ProgressBar) -> PolicyResult {
    bar.set_message(policy.to_string());
    let start = Instant::now();
    let mut result = hop_sim::run(policy, trace, cluster, seed);
    result.wall_s = start.elapsed().as_secs_f64();
    bar.inc(1);
    result
}

fn bar(what: &str, length: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{prefix} {pos}/{len} {bar:20} {elapsed} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(length as u64).with_style(style);
    bar.set_prefix(what.to_owned());
    bar
}

fn with_share_of_nodes(cluster: &Cluster, percent: u32) -> Cluster {
    Cluster {
        nodes: (cluster.nodes * percent / 100).max(u32::from(cluster.replicas)),
        ..cluster.clone()
    }
}

/// Sizes of a report's smaller clusters, in percent, and the sizes that are also run without think times.
const SIZES: [u32; 6] = [100, 50, 40, 35, 30, 26];
const WITHOUT_THINK: [u32; 4] = [100, 35, 30, 26];

/// All but the ablations on clusters with fewer and fewer nodes, with people's think time and without.
fn smaller_clusters(
    policies: &[Policy],
    trace: &Trace,
    cluster: &Cluster,
    seed: u64,
) -> (Vec<FrontierPoint>, Vec<Turnaround>) {
    let main = Policy::main();
    let quick = trace.clone().without_think();
    let mut runs = Vec::new();
    for &policy in policies.iter().filter(|p| main.contains(p)) {
        let with = |think: bool| move |percent| (policy, with_share_of_nodes(cluster, percent), think);
        runs.extend(SIZES.map(with(true)));
        runs.extend(WITHOUT_THINK.map(with(false)));
    }
    let bar = bar("smaller clusters", runs.len());
    let points = runs.par_iter().map(|(policy, smaller, think)| {
        let trace = if *think { trace } else { &quick };
        let result = hop_sim::run(*policy, trace, smaller, seed);
        bar.inc(1);
        let (policy, gpus) = (policy.to_string(), smaller.gpus());
        let (antt, stp) = result.antt_stp(trace, false);
        let turnaround = Turnaround {
            policy: policy.clone(),
            gpus,
            think: *think,
            antt,
            stp,
        };
        let s = result.summary(trace);
        let frontier = think.then(|| FrontierPoint {
            policy,
            gpus,
            delay_p95_s: s.delay_s.p95,
            held_saving_share: s.held_saving_share,
            provisioned_saving_share: s.provisioned_saving_share,
            immediate_fraction: s.immediate_fraction,
        });
        (frontier, turnaround)
    });
    let points: Vec<(Option<FrontierPoint>, Turnaround)> = points.collect();
    bar.finish_and_clear();
    let (frontier, turnarounds): (Vec<_>, Vec<_>) = points.into_iter().unzip();
    let sizes = WITHOUT_THINK.map(|percent| with_share_of_nodes(cluster, percent).gpus());
    let turnarounds = turnarounds.into_iter().filter(|t| sizes.contains(&t.gpus));
    (frontier.into_iter().flatten().collect(), turnarounds.collect())
}

/// A share in percent; a dash where there is nothing to have a share of.
fn percent(share: Option<f64>) -> String {
    // No "-0.0".
    let tenths = |s: f64| (1000.0 * s).round() / 10.0 + 0.0;
    share.map_or_else(|| "-".to_owned(), |s| format!("{:.1}", tenths(s)))
}

fn table(summary: &Summary, context: &mut Context<'_>) -> Result<(), Failure> {
    writeln!(
        context.out,
        "{:<22} {:>9} {:>7} {:>9} {:>7} {:>9} {:>9} {:>9} {:>7} {:>7} {:>6} {:>7} {:>7}",
        "POLICY",
        "HELD_H",
        "SAVED%",
        "PROV_H",
        "SAVED%",
        "DELAY_P50",
        "P95",
        "P99",
        "IMMED%",
        "SAME%",
        "MOVES",
        "ANTT",
        "STP"
    )?;
    for p in &summary.policies {
        writeln!(
            context.out,
            "{:<22} {:>9.0} {:>7} {:>9.0} {:>7} {:>9.3} {:>9.3} {:>9.2} {:>7.2} {:>7.2} {:>6} {:>7.3} {:>7.1}",
            p.policy,
            p.gpu_hours_held,
            percent(p.held_saving_share),
            p.gpu_hours_provisioned,
            percent(p.provisioned_saving_share),
            p.delay_s.p50,
            p.delay_s.p95,
            p.delay_s.p99,
            100.0 * p.immediate_fraction,
            100.0 * p.executor_reuse_fraction,
            p.migrations,
            p.antt,
            p.stp
        )?;
    }
    for (p, batch) in summary.policies.iter().filter_map(|p| Some((p, p.batch?))) {
        writeln!(
            context.out,
            "{}: batch jobs beside it did {:.0} GPU-hours, and {:.0} in vain: {} of {} jobs were stopped for pilots",
            p.policy, batch.gpu_hours_done, batch.gpu_hours_lost, batch.requeued, batch.jobs
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn sim(line: &str) -> Result<String, String> {
        let words = std::iter::once("sim").chain(line.split_whitespace());
        let args = Line::try_parse_from(words).map_err(|e| e.to_string())?.args;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        run(&args, &mut Context::of_process(&mut out, &mut err)).map_err(|e| e.to_string())?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_compressed_trace_says_what_unpacks_it() {
        let folder = tempfile::tempdir().unwrap();
        for (begins, how) in [
            (&b"\x1f\x8b\x08"[..], "gunzip -c"),
            (b"BZh91AY", "bunzip2 -c"),
            (b"\xfd7zXZ\x00\x00", "xz -dc"),
            (b"\x28\xb5\x2f\xfd\x04", "zstd -dc"),
            (b"PK\x03\x04\x14", "unzip -p"),
        ] {
            let trace = folder.path().join("trace");
            std::fs::write(&trace, begins).unwrap();
            let said = sim(&format!("--trace {}", trace.display())).unwrap_err();
            let mend = format!("it is compressed; unpack it first: {how} FILE | hop sim --trace -");
            assert!(said.ends_with(&mend), "{said}");
        }
    }

    #[test]
    fn several_seeds_and_clusters_give_medians_and_ranges() {
        let line = "--trace synth:june,sessions=3,days=0.1 --policy ours --seeds 1..3 --sweep nodes=2,3";
        let table = sim(line).unwrap();
        let rows: Vec<&str> = table.lines().collect();
        assert_eq!(rows.len(), 3, "{table}");
        assert!(
            rows[0].starts_with("POLICY") && rows[0].contains("NODES"),
            "{table}"
        );
        assert!(
            rows[1].contains(" to ") && rows[1].split_whitespace().nth(1) == Some("2"),
            "{table}"
        );
        let json: serde_json::Value =
            serde_json::from_str(&sim(&format!("{line} --json -")).unwrap()).unwrap();
        let points = json["points"].as_array().unwrap();
        assert_eq!(points.len(), 2);
        let antt = &points[1]["figures"]["antt"];
        assert!(antt["least"].as_f64() <= antt["median"].as_f64(), "{antt}");
        assert_eq!(points[1]["gpus"], 24);
    }

    #[test]
    fn a_study_has_a_page_with_a_curve_for_each_policy() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("frontier.html");
        let trace = "--trace synth:june,sessions=3,days=0.1 --policy ours --policy reservation";
        let line = format!(
            "{trace} --seeds 1..2 --sweep nodes=2,3,4 --html {}",
            page.display()
        );
        sim(&line).unwrap();
        let page = std::fs::read_to_string(page).unwrap();
        let first = page.split("<svg").nth(1).unwrap();
        assert_eq!(first.matches("<polyline").count(), 2, "{first}");
        assert!(first.contains("95th percentile of delay") && first.contains("GPUs in the cluster"));
        assert!(
            page.contains("<td>reservation</td><td>3</td><td>24</td>"),
            "{page}"
        );
    }

    #[test]
    fn a_report_shows_the_nodes_and_the_waiting_cells_over_time() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("report.html");
        let trace = "--trace synth:june,sessions=3,days=0.1 --policy ours --policy reservation";
        sim(&format!("{trace} --html {}", page.display())).unwrap();
        let page = std::fs::read_to_string(page).unwrap();
        for says in [
            "Cells that wait",
            "GPUs that cells have, by node, ours",
            "Fewer GPUs: 95th percentile of delay",
        ] {
            assert!(page.contains(says), "{says}");
        }
    }

    #[test]
    fn jobs_that_are_left_out_of_a_trace_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("jobs.swf");
        let job =
            |id: u32, procs: u32| format!("{id} {id} 0 60 {procs} -1 -1 {procs} -1 -1 1 9 1 -1 1 -1 -1 -1\n");
        std::fs::write(&file, [job(1, 4), job(2, 16)].concat()).unwrap();
        let line = format!("sim --trace {} --policy ours", file.display());
        let args = Line::try_parse_from(line.split_whitespace()).unwrap().args;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        run(&args, &mut Context::of_process(&mut out, &mut err)).unwrap();
        assert_eq!(
            String::from_utf8(err).unwrap(),
            "left out of jobs.swf: 0 jobs without a GPU, 1 of more than 8 GPUs, 0 that never ran\n"
        );
        assert!(
            sim(&format!(
                "--trace {} --policy ours --procs-per-gpu 0",
                file.display()
            ))
            .is_err()
        );
    }

    #[test]
    fn a_waiting_cell_is_explained() {
        let trace = "--trace synth:june,sessions=3,days=0.1 --policy ours";
        let cells = sim(&format!("{trace} --explain s0001")).unwrap();
        let first = cells.lines().next().unwrap();
        assert!(
            first.starts_with("ours s0001/") && first.contains("waited"),
            "{cells}"
        );
        assert!(cells.contains("  after 0.000 s: "), "{cells}");
        let one = sim(&format!("{trace} --explain s0001/0 --json -")).unwrap();
        let one: serde_json::Value = serde_json::from_str(&one).unwrap();
        assert_eq!(one[0]["cell"], 0);
    }

    #[test]
    fn what_a_study_can_not_do_is_told() {
        let trace = "--trace synth:june,sessions=3,days=0.1 --policy ours";
        for (more, says) in [
            ("--explain s0009", "has no session s0009"),
            ("--explain s0001/99999", "no cell 99999"),
            ("--sweep nodez=1,2", "no number nodez"),
            ("--sweep nodes=1.5", "whole number"),
            ("--sweep policy.scale.immediate=2", "must be from 0 to 1"),
            ("--seeds 3..1", "FIRST..LAST"),
            ("--seeds 1..2 --explain s0001", "cannot be used with"),
        ] {
            let told = sim(&format!("{trace} {more}")).unwrap_err();
            assert!(told.contains(says), "{more}: {told}");
        }
    }

    #[test]
    fn what_can_not_be_written_is_noticed_before_the_run_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let there = folder.path().join("there");
        std::fs::write(&there, "kept").unwrap();
        assert!(writable(&there).is_ok());
        assert_eq!(std::fs::read_to_string(&there).unwrap(), "kept");
        let new = folder.path().join("new");
        assert!(writable(&new).is_ok() && !new.exists());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("new", &link).unwrap();
        assert!(writable(&link).is_ok() && link.is_symlink() && !new.exists());
        let lost = folder.path().join("none/new");
        let told = writable(&lost).map_err(|e| e.to_string()).unwrap_err();
        assert!(
            told.starts_with("could not write ") && told.contains("none/new"),
            "{told}"
        );
        assert!(writable(folder.path()).is_err());
    }
}
