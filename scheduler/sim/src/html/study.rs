//! The page of a study: each policy over several seeds, and over the values of a number of the cluster.

use super::{Band, HEAD, Scale, Series, escape, plot_with_bands};
use crate::study::{Point, Spread};
use std::fmt::Write as _;

/// A figure of the page: title, name in the point, factor, digits, scale.
struct Figure {
    title: &'static str,
    name: &'static str,
    by: f64,
    digits: usize,
    scale: Scale,
}

const fn figure(title: &'static str, name: &'static str, by: f64, digits: usize, scale: Scale) -> Figure {
    Figure {
        title,
        name,
        by,
        digits,
        scale,
    }
}

const FIGURES: [Figure; 7] = [
    figure(
        "95th percentile of delay, seconds",
        "delay_p95_s",
        1.0,
        2,
        Scale::Log,
    ),
    figure(
        "99th percentile of delay, seconds",
        "delay_p99_s",
        1.0,
        1,
        Scale::Log,
    ),
    figure(
        "Starts that are immediate, %",
        "immediate_fraction",
        100.0,
        1,
        Scale::Linear,
    ),
    figure(
        "Saving that pilots keep, %",
        "provisioned_saving_share",
        100.0,
        1,
        Scale::Linear,
    ),
    figure("ANTT", "antt", 1.0, 3, Scale::Log),
    figure("Longest wait, hours", "longest_wait_h", 1.0, 1, Scale::Linear),
    figure(
        "Later cells that overtook one, at most",
        "overtaken_most",
        1.0,
        0,
        Scale::Linear,
    ),
];

/// The page of these points. Without a sweep the page has no plots, as all points are of one cluster.
pub fn study_report(trace: &str, sessions: usize, points: &[Point]) -> String {
    let mut page = String::from(HEAD);
    let seeds = points.first().map_or(0, |p| p.seeds.len());
    let key = points.first().and_then(|p| p.at.keys().next().cloned());
    let _ = write!(
        page,
        "<h1>Gresshopper simulation</h1><p>Trace <b>{}</b>: {sessions} sessions. Median of {seeds} seeds, in brackets the \
         least and the most; shaded in the plots.</p>",
        escape(trace)
    );
    if let Some(key) = &key {
        for f in &FIGURES {
            curves(&mut page, f, key, points);
        }
    }
    table(&mut page, key.as_deref(), points);
    page.push_str("</body></html>\n");
    page
}

/// The swept number on the x-axis. Of nodes their GPUs are shown.
fn x(point: &Point, key: &str) -> f64 {
    match key {
        "nodes" => point.gpus.into(),
        key => point.at.get(key).copied().unwrap_or_default(),
    }
}

fn curves(page: &mut String, figure: &Figure, key: &str, points: &[Point]) {
    let mut names: Vec<&str> = Vec::new();
    for p in points {
        if !names.contains(&p.policy.as_str()) {
            names.push(&p.policy);
        }
    }
    let (mut series, mut bands): (Vec<Series>, Vec<Band>) = (Vec::new(), Vec::new());
    for name in names {
        let of = points.iter().filter(|p| p.policy == name);
        let mut at: Vec<(f64, Spread)> = of
            .filter_map(|p| Some((x(p, key), p.figure(figure.name)?)))
            .collect();
        at.sort_by(|a, b| a.0.total_cmp(&b.0));
        let line = at.iter().map(|&(x, s)| (x, s.median * figure.by));
        series.push((name.to_owned(), line.collect()));
        let band = at
            .iter()
            .map(|&(x, s)| (x, s.least * figure.by, s.most * figure.by));
        bands.push(band.collect());
    }
    let label = match key {
        "nodes" => "GPUs in the cluster",
        key => key,
    };
    plot_with_bands(
        page,
        figure.title,
        label,
        &series,
        &bands,
        Scale::Linear,
        figure.scale,
    );
}

fn table(page: &mut String, key: Option<&str>, points: &[Point]) {
    page.push_str("<table><tr><th>policy</th>");
    for heading in key
        .into_iter()
        .chain(["GPUs"])
        .chain(FIGURES.iter().map(|f| f.title))
    {
        let _ = write!(page, "<th>{}</th>", escape(heading));
    }
    page.push_str("</tr>\n");
    for p in points {
        let _ = write!(page, "<tr><td>{}</td>", escape(&p.policy));
        if let Some(value) = key.and_then(|k| p.at.get(k)) {
            let _ = write!(page, "<td>{value}</td>");
        }
        let _ = write!(page, "<td>{}</td>", p.gpus);
        for f in &FIGURES {
            let shown = p.figure(f.name).map_or_else(|| "-".to_owned(), |s| spread(s, f));
            let _ = write!(page, "<td>{shown}</td>");
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
}

fn spread(s: Spread, f: &Figure) -> String {
    // No "-0".
    let one = |v: f64| format!("{:.*}", f.digits, v * f.by + 0.0);
    let (median, least, most) = (one(s.median), one(s.least), one(s.most));
    match least == most {
        true => median,
        false => format!("{median} ({least} to {most})"),
    }
}
