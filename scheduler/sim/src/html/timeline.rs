//! The run over time: waiting cells, and the GPUs of each node that cells have.

use super::{HEIGHT, LEFT, Scale, Series, WIDTH, escape, plot};
use crate::metrics::{PolicyResult, Summary};
use crate::trace::Trace;
use std::fmt::Write as _;

/// Points of a line, and columns of the map of nodes.
const POINTS: usize = 240;
/// Rows of the map: with more nodes several share one.
const ROWS: usize = 120;
/// Shades of a node whose GPUs are taken in part: up to a quarter, a half, three quarters, all.
const SHADES: [&str; 4] = ["#cfe3f3", "#8fbfe0", "#3f8fc6", "#0b4f86"];

/// How many cells wait, under each policy that isn't an ablation.
pub(super) fn waiting(page: &mut String, results: &[PolicyResult], trace: &Trace) {
    let end = trace.end();
    let day = end.0 as f64 / 8.64e10 / POINTS as f64;
    let shown = results
        .iter()
        .filter(|r| !r.policy.contains("-no-") && !r.waiting.changes.is_empty());
    let series: Vec<Series> = shown
        .map(|r| {
            let means = r.waiting.means(end, POINTS).into_iter().enumerate();
            let points = means.map(|(i, y)| (i as f64 * day, y.max(0.0)));
            (r.policy.clone(), points.collect())
        })
        .collect();
    plot(
        page,
        "Cells that wait (mean of each stretch of time)",
        "days",
        &series,
        Scale::Linear,
        Scale::Linear,
    );
}

/// The first of our own policies: which part of each node's GPUs cells have, from submission's grant to reply.
pub(super) fn nodes(page: &mut String, results: &[PolicyResult], summary: &Summary) {
    let Some(ours) = results.iter().find(|r| r.policy.starts_with("ours")) else {
        return;
    };
    let cells = || ours.cells.iter().filter(|c| c.gpus > 0 && c.node != u32::MAX);
    let (Some(last), Some(end)) = (cells().map(|c| c.node).max(), cells().map(|c| c.end.0).max()) else {
        return;
    };
    let nodes = last as usize + 1;
    let per_row = nodes.div_ceil(ROWS);
    let rows = nodes.div_ceil(per_row);
    let mut taken = vec![[0f64; POINTS]; rows];
    let bin = end.div_ceil(POINTS as u64).max(1);
    for c in cells() {
        let row = &mut taken[c.node as usize / per_row];
        for (i, part) in row
            .iter_mut()
            .enumerate()
            .take((c.end.0 / bin) as usize + 1)
            .skip((c.granted.0 / bin) as usize)
        {
            let from = c.granted.0.max(i as u64 * bin);
            let to = c.end.0.min((i as u64 + 1) * bin);
            *part += f64::from(c.gpus) * to.saturating_sub(from) as f64 / bin as f64;
        }
    }
    let gpus = per_row as f64 * f64::from(summary.gpus) / f64::from(summary.nodes.max(1));
    draw(page, &ours.policy, &taken, gpus, per_row, end as f64 / 8.64e10);
}

fn shade(part: f64) -> Option<usize> {
    (part > 0.005).then(|| ((part * 4.0).ceil() as usize).clamp(1, 4) - 1)
}

fn draw(page: &mut String, policy: &str, taken: &[[f64; POINTS]], gpus: f64, per_row: usize, days: f64) {
    let tall = (HEIGHT / taken.len() as f64).clamp(2.0, 10.0);
    let wide = (WIDTH - LEFT - 10.0) / POINTS as f64;
    let base = tall * taken.len() as f64;
    let of = match per_row {
        1 => "each row a node".to_owned(),
        n => format!("each row {n} nodes"),
    };
    let _ = write!(
        page,
        "<h2>GPUs that cells have, by node, {}</h2><p>{of}, the darker the more of its GPUs: up to a quarter, a half, three \
         quarters, all.</p><svg width=\"{WIDTH}\" height=\"{:.0}\">",
        escape(policy),
        base + 34.0
    );
    let mut paths = [const { String::new() }; 4];
    for (r, row) in taken.iter().enumerate() {
        let mut from = 0;
        while from < POINTS {
            let here = shade(row[from] / gpus);
            let same = row[from..]
                .iter()
                .take_while(|v| shade(**v / gpus) == here)
                .count();
            if let Some(shade) = here {
                let (x, y) = (LEFT + from as f64 * wide, r as f64 * tall);
                let long = same as f64 * wide;
                let _ = write!(paths[shade], "M{x:.1} {y:.1}h{long:.1}v{tall:.1}h-{long:.1}z");
            }
            from += same;
        }
    }
    for (path, colour) in paths.iter().zip(SHADES) {
        let _ = write!(page, "<path d=\"{path}\" fill=\"{colour}\"/>");
    }
    let nodes = taken.len() * per_row;
    for (y, text) in [(10.0, 0), (base, nodes - 1)] {
        let _ = write!(
            page,
            "<text x=\"{:.0}\" y=\"{y:.0}\" font-size=\"11\" text-anchor=\"end\">node {text}</text>",
            LEFT - 6.0
        );
    }
    for i in 0..=4 {
        let part = f64::from(i) / 4.0;
        let _ = write!(
            page,
            "<text x=\"{:.0}\" y=\"{:.0}\" font-size=\"11\" text-anchor=\"middle\">{}</text>",
            LEFT + part * (WIDTH - LEFT - 10.0),
            base + 16.0,
            super::number(part * days)
        );
    }
    let _ = write!(
        page,
        "<text x=\"{:.0}\" y=\"{:.0}\" font-size=\"11\" text-anchor=\"end\">days</text></svg>",
        WIDTH - 10.0,
        base + 30.0
    );
}

#[cfg(test)]
mod tests {
    use super::shade;

    #[test]
    fn a_node_is_darker_the_more_of_it_is_taken() {
        let shades: Vec<Option<usize>> = [0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.2].map(shade).to_vec();
        assert_eq!(
            shades,
            [None, Some(0), Some(0), Some(1), Some(2), Some(3), Some(3)]
        );
    }
}
