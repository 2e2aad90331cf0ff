//! What the synthetic traces look like beside what was measured of the real ones. `synth`.

use hop_sim::Synth;

fn main() {
    for text in ["synth:a", "synth:b", "synth:june"] {
        for seed in 1..=3 {
            let t = text.parse::<Synth>().expect("it describes a trace").trace(seed);
            let (used, held) = (t.gpu_hours_used(), hop_sim::metrics::reserved_hours(&t));
            println!(
                "{text} seed {seed}: {} cells, {used:.0} GPU-hours used, {held:.0} reserved: {:.3}",
                t.cells(),
                used / held
            );
        }
    }
}
