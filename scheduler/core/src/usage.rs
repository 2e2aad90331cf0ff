//! Usage: GPU-seconds of a user, an account or a kernel, decaying with a half-life as in Slurm's multifactor
//! priority. A lease counts from its first moment, with no timer for the sum.
//!
//! Usage has two parts. Leases are counted here. Slurm counts the jobs that people submit themselves, and says the
//! whole sum at each reading. Pilots are the service account's jobs, so no GPU-second is in both parts.

use hop_words::time::{Span, Timestamp};

/// How usage fades.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decay {
    /// Usage is stored as if all GPU-seconds had been used at this time: the order of two users changes only when one
    /// of them uses GPUs.
    pub origin: Timestamp,
    pub half_life: Span,
}

impl Decay {
    fn half_lives(&self, at: Timestamp) -> f64 {
        at.since(self.origin).as_secs_f64() / self.half_life.as_secs_f64().max(1.0)
    }

    /// GPU-seconds used at `at`, as if used at the origin.
    pub(crate) fn inflate(&self, gpu_seconds: f64, at: Timestamp) -> f64 {
        gpu_seconds * self.half_lives(at).exp2()
    }

    /// Usage left at `now`, in GPU-seconds.
    pub(crate) fn deflate(&self, inflated: f64, now: Timestamp) -> f64 {
        inflated * (-self.half_lives(now)).exp2()
    }

    /// Usage in GPU-seconds that was decayed to `at`, decayed further to `now`.
    pub(crate) fn aged(&self, gpu_seconds: f64, at: Timestamp, now: Timestamp) -> f64 {
        let half_lives = now.since(at).as_secs_f64() / self.half_life.as_secs_f64().max(1.0);
        gpu_seconds * (-half_lives).exp2()
    }

    /// The inflated usage of a GPU held from `from` to `to`: the integral of 2^t.
    fn of_one_gpu(&self, from: Timestamp, to: Timestamp) -> f64 {
        let scale = self.half_life.as_secs_f64().max(1.0) / std::f64::consts::LN_2;
        scale * (self.half_lives(to).exp2() - self.half_lives(from).exp2())
    }
}

/// GPU-seconds of somebody who holds GPUs now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    /// What leases used up to `since`, inflated.
    settled: f64,
    since: Timestamp,
    /// GPUs held since then.
    held: u32,
    /// Usage of Slurm's own jobs by its last report, inflated.
    elsewhere: f64,
    /// The share in fair share, relative to others.
    pub weight: f64,
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            settled: 0.0,
            since: Timestamp(0),
            held: 0,
            elsewhere: 0.0,
            weight: 1.0,
        }
    }
}

impl Usage {
    /// Usage up to now, inflated.
    pub(crate) fn inflated(&self, decay: &Decay, now: Timestamp) -> f64 {
        self.of_leases(decay, now) + self.elsewhere
    }

    /// The leases' part of it.
    pub(crate) fn of_leases(&self, decay: &Decay, now: Timestamp) -> f64 {
        self.settled + f64::from(self.held) * decay.of_one_gpu(self.since, now)
    }

    /// From now on so many GPUs more are held, or fewer.
    pub(crate) fn hold(&mut self, gpus: i32, decay: &Decay, now: Timestamp) {
        self.settled = self.of_leases(decay, now);
        self.since = now;
        self.held = self.held.saturating_add_signed(gpus);
    }

    /// Takes over the usage noted at `at`, inflated.
    pub(crate) fn restore(&mut self, inflated: f64, at: Timestamp) {
        self.settled = inflated;
        self.since = at;
    }

    /// Adds a lease's use since its order, as far as newer than the last note.
    pub(crate) fn add_unnoted(&mut self, gpus: u16, ordered: Timestamp, decay: &Decay, now: Timestamp) {
        let seconds = now.since(ordered.max(self.since)).as_secs_f64();
        self.settled += decay.inflate(seconds * f64::from(gpus), now);
    }

    /// Takes over Slurm's weight and its own jobs' usage, inflated, in the place of Slurm's last report.
    pub(crate) fn told(&mut self, weight: f64, elsewhere: f64) {
        self.weight = weight;
        self.elsewhere = elsewhere;
    }

    /// Whether both parts are amounts, and the weight divides.
    pub(crate) fn is_sane(&self) -> bool {
        let amount = |x: f64| x.is_finite() && x >= 0.0;
        amount(self.settled) && amount(self.elsewhere) && self.weight.is_finite() && self.weight > 0.0
    }

    pub(crate) fn held(&self) -> u32 {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_counts_as_if_it_were_added_up_all_the_time() {
        let decay = Decay {
            origin: Timestamp(0),
            half_life: Span::from_secs(1000),
        };
        let at = |s: u64| Timestamp(s * 1_000_000);
        let mut held = Usage::default();
        held.hold(2, &decay, at(100));
        let mut added = 0.0;
        for tenth in 1000..30_000u64 {
            added += 2.0 * decay.inflate(0.1, Timestamp(tenth * 100_000 + 50_000));
        }
        let now = at(3000);
        let (held, added) = (held.inflated(&decay, now), added);
        assert!((held / added - 1.0).abs() < 1e-6, "{held} {added}");
        // Half of it is left after the half-life, and nothing is added when nothing is held.
        let mut idle = Usage::default();
        idle.restore(decay.inflate(80.0, at(0)), at(0));
        assert!((decay.deflate(idle.inflated(&decay, at(2000)), at(2000)) - 20.0).abs() < 1e-9);
    }
}
