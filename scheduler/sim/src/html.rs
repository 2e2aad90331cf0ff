//! The report: a single page with its plots inside, without anything to load.

mod study;
mod timeline;

use crate::metrics::{CellResult, PolicyResult, PolicySummary, Summary};
use crate::trace::Trace;
use std::fmt::Write as _;

pub use study::study_report;

const COLOURS: [&str; 12] = [
    "#1b6ca8", "#c0392b", "#27864a", "#8e5ea2", "#b9770e", "#117a79", "#7f3b08", "#5d6d7e", "#d81b60",
    "#3f51b5", "#6b8e23", "#444444",
];
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const BOTTOM: f64 = 40.0;

/// A point of the frontier: a number of GPUs and the result with them.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct FrontierPoint {
    pub policy: String,
    pub gpus: u32,
    pub delay_p95_s: f64,
    pub held_saving_share: Option<f64>,
    pub provisioned_saving_share: Option<f64>,
    pub immediate_fraction: f64,
}

/// ANTT and STP of one policy with a number of GPUs, with people's think time or without.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Turnaround {
    pub policy: String,
    pub gpus: u32,
    pub think: bool,
    pub antt: f64,
    pub stp: f64,
}

/// The page. `frontier` and `turnarounds`: runs on smaller clusters and without think time, if any were made.
pub fn report(
    summary: &Summary,
    results: &[PolicyResult],
    trace: &Trace,
    frontier: &[FrontierPoint],
    turnarounds: &[Turnaround],
) -> String {
    let mut page = String::from(HEAD);
    let _ = write!(
        page,
        "<h1>Gresshopper simulation</h1><p>Trace <b>{}</b>: {} sessions, {} cells, {:.0} GPU-hours used, {:.0} reserved. \
         Cluster: {} nodes, {} GPUs. Seed {}, configuration {}.</p>",
        escape(&summary.trace),
        summary.sessions,
        summary.cells,
        trace.gpu_hours_used(),
        summary.gpu_hours_reserved,
        summary.nodes,
        summary.gpus,
        summary.seed,
        escape(&summary.config_hash)
    );
    table(&mut page, summary);
    over_time(&mut page, results, trace);
    timeline::waiting(&mut page, results, trace);
    timeline::nodes(&mut page, results, summary);
    cdf(
        &mut page,
        "Interactivity delay (submission to code running with its GPU)",
        results,
        &|c| c.delay().as_secs_f64(),
    );
    cdf(
        &mut page,
        "Task completion time (submission to reply)",
        results,
        &|c| c.end.since(c.submit).as_secs_f64(),
    );
    if !frontier.is_empty() {
        frontier_plot(&mut page, frontier);
    }
    let all = |f: &dyn Fn(&PolicySummary) -> f64| -> Vec<(String, f64)> {
        summary
            .policies
            .iter()
            .map(|p| (p.policy.clone(), f(p)))
            .collect()
    };
    antt_bars(&mut page, "ANTT", &all(&|p| p.antt));
    bars(&mut page, "STP (higher is better)", &all(&|p| p.stp));
    if !turnarounds.is_empty() {
        turnaround(&mut page, turnarounds);
    }
    let hits: Vec<(String, f64)> = summary
        .policies
        .iter()
        .filter_map(|p| p.deadline_hit_fraction.map(|h| (p.policy.clone(), h)))
        .collect();
    if !hits.is_empty() {
        bars(&mut page, "Deadlines met", &hits);
    }
    page.push_str("</body></html>\n");
    page
}

const HEAD: &str = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Gresshopper simulation</title>\
<style>body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:920px;color:#222}\
table{border-collapse:collapse;font-size:12px}td,th{padding:3px 7px;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child{text-align:left}svg{display:block;margin:.4em 0 1.4em}h2{font-size:16px;margin:1.4em 0 .2em}\
</style></head><body>\n";

fn escape(s: &str) -> String {
    let s = s.replace('&', "&amp;").replace('<', "&lt;");
    s.replace('>', "&gt;").replace('"', "&quot;")
}

/// In percent; a dash where there is nothing to have a share of.
fn share(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |s| format!("{:.1} %", 100.0 * s))
}

fn table(page: &mut String, summary: &Summary) {
    page.push_str(
        "<table><tr><th>policy</th><th>held h</th><th>saving kept</th><th>provisioned h</th><th>saving kept</th>\
         <th>delay p50</th><th>p95</th><th>p99</th><th>max</th><th>immediate</th><th>same executor</th><th>moves</th>\
         <th>ANTT</th><th>STP</th></tr>\n",
    );
    for p in &summary.policies {
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{:.0}</td><td>{}</td><td>{:.0}</td><td>{}</td><td>{:.3}</td><td>{:.3}</td>\
             <td>{:.2}</td><td>{:.0}</td><td>{:.1} %</td><td>{:.1} %</td><td>{}</td><td>{:.3}</td><td>{:.1}</td></tr>",
            p.policy,
            p.gpu_hours_held,
            share(p.held_saving_share),
            p.gpu_hours_provisioned,
            share(p.provisioned_saving_share),
            p.delay_s.p50,
            p.delay_s.p95,
            p.delay_s.p99,
            p.delay_s.max,
            100.0 * p.immediate_fraction,
            100.0 * p.executor_reuse_fraction,
            p.migrations,
            p.antt,
            p.stp
        );
    }
    page.push_str(
        "</table><p>Delays in seconds, from submission to the code running, all costs counted.</p>\n",
    );
}

type Series = (String, Vec<(f64, f64)>);

/// How an axis shows its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scale {
    Linear,
    /// By their logarithms; nothing is below a thousandth.
    Log,
}

impl Scale {
    fn of(self, x: f64) -> f64 {
        match self {
            Self::Linear => x,
            Self::Log => x.max(1e-3).log10(),
        }
    }

    fn back(self, x: f64) -> f64 {
        match self {
            Self::Linear => x,
            Self::Log => 10f64.powf(x),
        }
    }
}

/// An axis: the scale, and the ends on that scale.
#[derive(Debug, Clone, Copy)]
struct Axis {
    scale: Scale,
    from: f64,
    to: f64,
}

impl Axis {
    fn over(scale: Scale, values: impl Iterator<Item = f64> + Clone) -> Self {
        let of = values.map(|v| scale.of(v));
        let from = of.clone().fold(f64::MAX, f64::min);
        let to = of.fold(f64::MIN, f64::max);
        Self { scale, from, to }
    }

    /// Position of the value on the axis, from 0 to 1.
    fn part(&self, x: f64) -> f64 {
        (self.scale.of(x) - self.from) / (self.to - self.from).max(1e-9)
    }

    /// The value at a part of the axis.
    fn at(&self, part: f64) -> f64 {
        self.scale.back(self.from + part * (self.to - self.from))
    }
}

/// A range at each point of a line: x, from, to.
type Band = Vec<(f64, f64, f64)>;

/// Lines over a frame with axes.
fn plot(page: &mut String, title: &str, x_label: &str, series: &[Series], x: Scale, y: Scale) {
    plot_with_bands(page, title, x_label, series, &[], x, y);
}

/// The same, with the range of each line behind it: as many bands as lines, or none.
fn plot_with_bands(
    page: &mut String,
    title: &str,
    x_label: &str,
    series: &[Series],
    bands: &[Band],
    x: Scale,
    y: Scale,
) {
    let all = || series.iter().flat_map(|(_, p)| p.iter());
    if all().next().is_none() {
        return;
    }
    let x = Axis::over(x, all().map(|p| p.0));
    let ranges = bands.iter().flatten().flat_map(|&(_, from, to)| [from, to]);
    let mut y = Axis::over(y, all().map(|p| p.1).chain(ranges));
    if y.scale == Scale::Linear {
        // Heights and shares begin at zero.
        (y.from, y.to) = (0.0, y.to.max(1e-9));
    }
    let title = escape(title);
    let sx = |v: f64| LEFT + x.part(v) * (WIDTH - LEFT - 10.0);
    let sy = |v: f64| HEIGHT - BOTTOM - y.part(v) * (HEIGHT - BOTTOM - 14.0);
    let _ = write!(
        page,
        "<h2>{title}</h2><svg role=\"img\" aria-label=\"{title}\" width=\"{WIDTH}\" height=\"{:.0}\">",
        HEIGHT + 18.0 * (series.len() as f64 / 5.0).ceil()
    );
    axes(page, x, y, x_label);
    for (i, band) in bands.iter().enumerate() {
        let there = band.iter().map(|&(x, from, _)| (x, from));
        let back = band.iter().rev().map(|&(x, _, to)| (x, to));
        let path: Vec<String> = there
            .chain(back)
            .map(|(x, y)| format!("{:.1},{:.1}", sx(x), sy(y)))
            .collect();
        let _ = write!(
            page,
            "<polygon fill=\"{}\" fill-opacity=\"0.15\" points=\"{}\"/>",
            COLOURS[i % COLOURS.len()],
            path.join(" ")
        );
    }
    for (i, (name, points)) in series.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let path: Vec<String> = points
            .iter()
            .map(|&(x, y)| format!("{:.1},{:.1}", sx(x), sy(y)))
            .collect();
        let _ = write!(
            page,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{}\"/>",
            path.join(" ")
        );
        let (column, row) = (i % 5, i / 5);
        let (x, y) = (LEFT + column as f64 * 158.0, HEIGHT + 8.0 + 18.0 * row as f64);
        let _ = write!(
            page,
            "<rect x=\"{x:.0}\" y=\"{:.0}\" width=\"10\" height=\"10\" fill=\"{colour}\"/><text x=\"{:.0}\" y=\"{y:.0}\" font-size=\"11\">{}</text>",
            y - 9.0,
            x + 14.0,
            escape(name)
        );
    }
    page.push_str("</svg>\n");
}

fn axes(page: &mut String, x_axis: Axis, y_axis: Axis, x_label: &str) {
    let (right, base) = (WIDTH - 10.0, HEIGHT - BOTTOM);
    let _ = write!(
        page,
        "<path d=\"M{LEFT} 14V{base}H{right}\" fill=\"none\" stroke=\"#888\"/>\
         <text x=\"{:.0}\" y=\"{:.0}\" font-size=\"11\" text-anchor=\"end\">{}</text>",
        right,
        base + 32.0,
        escape(x_label)
    );
    for i in 0..=4 {
        let part = f64::from(i) / 4.0;
        let y = base - part * (base - 14.0);
        let _ = write!(
            page,
            "<text x=\"{:.0}\" y=\"{:.0}\" font-size=\"11\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            number(y_axis.at(part))
        );
        let x = LEFT + part * (right - LEFT);
        let _ = write!(
            page,
            "<text x=\"{x:.0}\" y=\"{:.0}\" font-size=\"11\" text-anchor=\"middle\">{}</text>",
            base + 16.0,
            number(x_axis.at(part))
        );
    }
}

fn number(x: f64) -> String {
    match x.abs() {
        a if a >= 100.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        a if a >= 1.0 => format!("{x:.3}"),
        0.0 => "0".to_owned(),
        _ => format!("{x:.3}"),
    }
}

fn over_time(page: &mut String, results: &[PolicyResult], trace: &Trace) {
    const POINTS: usize = 360;
    let end = trace.end();
    let line = |means: Vec<f64>| -> Vec<(f64, f64)> {
        let day = end.0 as f64 / 8.64e10 / POINTS as f64;
        means
            .into_iter()
            .enumerate()
            .map(|(i, y)| (i as f64 * day, y))
            .collect()
    };
    for r in results
        .iter()
        .filter(|r| r.policy == "ours" || r.policy == "notebookos")
    {
        let mut used = crate::metrics::Steps::default();
        for c in &r.cells {
            let run = trace.sessions[c.session as usize].cells[c.cell as usize].run;
            let start = hop_words::time::Timestamp(c.end.0.saturating_sub(run.0));
            used.span(start, c.end, i64::from(c.gpus));
        }
        let series = vec![
            ("provisioned".to_owned(), line(r.provisioned.means(end, POINTS))),
            ("leased".to_owned(), line(r.held.means(end, POINTS))),
            ("used".to_owned(), line(used.means(end, POINTS))),
        ];
        plot(
            page,
            &format!("GPUs over time, {}", r.policy),
            "days",
            &series,
            Scale::Linear,
            Scale::Linear,
        );
    }
}

fn cdf(page: &mut String, title: &str, results: &[PolicyResult], value: &dyn Fn(&CellResult) -> f64) {
    const POINTS: usize = 200;
    let series: Vec<Series> = results
        .iter()
        .filter(|r| !r.policy.contains("-no-"))
        .map(|r| {
            let mut v: Vec<f64> = r.cells.iter().filter(|c| c.gpus > 0).map(value).collect();
            v.sort_unstable_by(f64::total_cmp);
            let last = v.len().saturating_sub(1);
            let points = (0..=POINTS)
                .filter(|_| !v.is_empty())
                .map(|i| (v[last * i / POINTS], i as f64 / POINTS as f64))
                .collect();
            (r.policy.clone(), points)
        })
        .collect();
    plot(page, title, "seconds", &series, Scale::Log, Scale::Linear);
}

fn frontier_plot(page: &mut String, frontier: &[FrontierPoint]) {
    let mut names: Vec<&str> = frontier.iter().map(|p| p.policy.as_str()).collect();
    names.dedup();
    let mut line = |title: &str, scale: Scale, y: &dyn Fn(&FrontierPoint) -> f64| {
        let series: Vec<Series> = names
            .iter()
            .map(|n| {
                let of = frontier.iter().filter(|p| p.policy == *n);
                ((*n).to_owned(), of.map(|p| (f64::from(p.gpus), y(p))).collect())
            })
            .collect();
        plot(page, title, "GPUs in the cluster", &series, Scale::Linear, scale);
    };
    line(
        "Fewer GPUs: 95th percentile of delay, seconds",
        Scale::Log,
        &|p| p.delay_p95_s,
    );
    line(
        "Fewer GPUs: share of grants that are immediate",
        Scale::Linear,
        &|p| p.immediate_fraction,
    );
    line(
        "Fewer GPUs: share of the saving that pilots keep",
        Scale::Linear,
        &|p| p.provisioned_saving_share.unwrap_or_default().max(0.0),
    );
}

/// A table of all, and bars for the smallest cluster.
fn turnaround(page: &mut String, points: &[Turnaround]) {
    let mut columns: Vec<(u32, bool)> = points.iter().map(|p| (p.gpus, p.think)).collect();
    columns.sort_by_key(|&(gpus, think)| (std::cmp::Reverse(gpus), !think));
    columns.dedup();
    let mut names: Vec<&str> = Vec::new();
    for p in points {
        if !names.contains(&p.policy.as_str()) {
            names.push(&p.policy);
        }
    }
    let think = |think: bool| if think { "with" } else { "without" };
    page.push_str(
        "<h2>ANTT / STP, with think time and without, as GPUs get fewer</h2><table><tr><th>policy</th>",
    );
    for &(gpus, t) in &columns {
        let _ = write!(page, "<th>{gpus} GPUs, {} think</th>", think(t));
    }
    page.push_str("</tr>\n");
    let find = |name: &str, column: (u32, bool)| {
        let at = |p: &&Turnaround| p.policy == name && (p.gpus, p.think) == column;
        points.iter().find(at)
    };
    for name in &names {
        let _ = write!(page, "<tr><td>{}</td>", escape(name));
        for &column in &columns {
            match find(name, column) {
                Some(p) => {
                    let _ = write!(page, "<td>{:.3} / {:.1}</td>", p.antt, p.stp);
                }
                None => page.push_str("<td></td>"),
            }
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
    let Some(&(least, _)) = columns.last() else { return };
    for t in [true, false] {
        let of = |f: &dyn Fn(&Turnaround) -> f64| -> Vec<(String, f64)> {
            let here = names.iter().filter_map(|n| find(n, (least, t)));
            here.map(|p| (p.policy.clone(), f(p))).collect()
        };
        let on = format!("{least} GPUs, {} think time", think(t));
        antt_bars(page, &format!("ANTT, {on}"), &of(&|p| p.antt));
        bars(page, &format!("STP (higher is better), {on}"), &of(&|p| p.stp));
    }
}

/// By the logarithm of what exceeds 1, or the worst would hide all others.
fn antt_bars(page: &mut String, title: &str, values: &[(String, f64)]) {
    let title = format!("{title} (lower is better; bars by the logarithm of what exceeds 1)");
    bars_by(page, &title, values, |v| {
        ((v - 1.0).max(0.0) * 1000.0 + 1.0).log10()
    });
}

fn bars(page: &mut String, title: &str, values: &[(String, f64)]) {
    bars_by(page, title, values, |v| v);
}

fn bars_by(page: &mut String, title: &str, values: &[(String, f64)], length: fn(f64) -> f64) {
    let rows = values.len() as f64;
    let most = values.iter().map(|(_, v)| length(*v)).fold(1e-9, f64::max);
    let _ = write!(
        page,
        "<h2>{}</h2><svg width=\"{WIDTH}\" height=\"{:.0}\">",
        escape(title),
        rows * 20.0 + 6.0
    );
    for (i, (name, v)) in values.iter().enumerate() {
        let (y, v) = (i as f64 * 20.0, *v);
        let width = length(v) / most * (WIDTH - 260.0);
        let _ = write!(
            page,
            "<text x=\"170\" y=\"{:.0}\" font-size=\"11\" text-anchor=\"end\">{}</text>\
             <rect x=\"178\" y=\"{:.0}\" width=\"{width:.1}\" height=\"14\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{:.0}\" font-size=\"11\">{}</text>",
            y + 13.0,
            escape(name),
            y + 2.0,
            COLOURS[i % COLOURS.len()],
            184.0 + width,
            y + 13.0,
            number(v)
        );
    }
    page.push_str("</svg>\n");
}
