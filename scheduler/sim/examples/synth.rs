//! What the synthetic traces look like, in the terms in which the real ones were described. `synth [TRACE]`: a trace
//! file beside them.

use hop_sim::{Synth, Trace};

/// Quantiles of minutes (or of numbers), in percent.
fn quantiles(mut v: Vec<f64>, percents: &[u32]) -> String {
    v.sort_unstable_by(f64::total_cmp);
    let q = |p: &u32| v[((v.len() - 1) * *p as usize) / 100];
    let shown: Vec<String> = percents.iter().map(|p| format!("{:.1}", q(p))).collect();
    format!("p{percents:?} {}", shown.join(" / "))
}

fn show(name: &str, t: &Trace) {
    let minutes = |us: u64| us as f64 / 6e7;
    let (mut runs, mut gaps, mut apart, mut medians, mut counts, mut spans) =
        (vec![], vec![], vec![], vec![], vec![], vec![]);
    for s in t.sessions.iter().filter(|s| !s.cells.is_empty()) {
        runs.extend(s.cells.iter().map(|c| minutes(c.run.0)));
        let pairs = || s.cells.windows(2);
        gaps.extend(pairs().map(|p| minutes(p[1].submit.since(p[0].submit + p[0].run).0)));
        let mut own: Vec<f64> = pairs()
            .map(|p| minutes(p[1].submit.since(p[0].submit).0))
            .collect();
        own.sort_unstable_by(f64::total_cmp);
        medians.extend(own.get(own.len() / 2).copied());
        apart.extend(own);
        counts.push(s.cells.len() as f64);
        spans.push(minutes(s.close.since(s.cells[0].submit).0) / 60.0);
    }
    let share = |g: u16| {
        let cells = t.sessions.iter().flat_map(|s| &s.cells);
        100.0 * cells.filter(|c| c.gpus == g).count() as f64 / t.cells() as f64
    };
    let long = |m: f64| 100.0 * gaps.iter().filter(|g| **g > m).count() as f64 / gaps.len() as f64;
    let mean = runs.iter().sum::<f64>() / runs.len() as f64;
    let (used, held) = (t.gpu_hours_used(), hop_sim::metrics::reserved_hours(t));
    println!("{name}: {} sessions, {} cells", counts.len(), t.cells());
    println!(
        "  GPUs 1/4/8: {:.0} / {:.0} / {:.0} %",
        share(1),
        share(4),
        share(8)
    );
    let long = (long(60.0), long(240.0));
    println!(
        "  run, min: {}, mean {mean:.1}",
        quantiles(runs, &[25, 50, 75, 90, 95, 99])
    );
    println!(
        "  end to next, min: {}",
        quantiles(gaps, &[25, 50, 75, 90, 95, 99])
    );
    println!("  over 60, 240 min: {:.1}, {:.1} %", long.0, long.1);
    println!(
        "  start to start, min: {}",
        quantiles(apart, &[5, 25, 50, 75, 90, 95, 99])
    );
    println!(
        "  its median by session: {}",
        quantiles(medians, &[5, 25, 50, 75, 95])
    );
    println!(
        "  cells of a session: {}",
        quantiles(counts, &[10, 25, 50, 75, 90, 99])
    );
    println!("  span, h: {}", quantiles(spans, &[25, 50, 75]));
    println!(
        "  GPU-hours used {used:.0}, reserved {held:.0}: {:.3}",
        used / held
    );
}

fn main() {
    for path in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&path).expect("the trace can be read");
        show(&path, &Trace::parse(&path, &text, 1).expect("the trace is one"));
    }
    for text in ["synth:a", "synth:b", "synth:june"] {
        for seed in 1..=3 {
            let t = text.parse::<Synth>().expect("it describes a trace").trace(seed);
            show(&format!("{text} seed {seed}"), &t);
        }
    }
}
