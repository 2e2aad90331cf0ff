//! Histograms of durations over powers of the square root of two. Old observations decay.

use hop_words::time::Span;
use serde::{Deserialize, Serialize};

/// Buckets: bucket `i` holds lengths from 2^(i/2) to 2^((i+1)/2) times 62.5 ms; the last is open.
const BUCKETS: usize = 48;
/// Factor by which each observation lowers the weight of earlier observations: 24 observations halve the weight.
const DECAY: f32 = 0.971_5;
/// The same for observations of many kernels: 2,000 observations halve the weight.
const DECAY_OF_MANY: f32 = 0.999_65;
const UNIT: f64 = 0.0625;
/// Classes of [`streak_class`].
pub(crate) const STREAKS: usize = 8;

/// How long something usually takes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Habit {
    /// Empty until the first observation.
    weights: Vec<f32>,
    total: f32,
    /// Observations ever.
    pub count: u32,
}

fn bucket(span: Span) -> usize {
    let x = (span.as_secs_f64() / UNIT).max(1.0);
    ((2.0 * x.log2()) as usize).min(BUCKETS - 1)
}

/// The middle of a bucket, in seconds.
fn middle(i: usize) -> f64 {
    UNIT * 2f64.powf((i as f64 + 0.5) / 2.0)
}

/// Upper edges of the buckets, in seconds. The innermost loops of the forecasts read them.
static UPPER: [f64; BUCKETS] = uppers();

const fn uppers() -> [f64; BUCKETS] {
    let mut uppers = [0.0; BUCKETS];
    let mut edge = UNIT;
    let mut i = 0;
    while i < BUCKETS {
        // Every second edge is a power of two, exactly.
        uppers[i] = if i % 2 == 0 {
            edge * std::f64::consts::SQRT_2
        } else {
            edge * 2.0
        };
        if i % 2 == 1 {
            edge *= 2.0;
        }
        i += 1;
    }
    uppers
}

/// The upper edge of a bucket, in seconds.
fn upper(i: usize) -> f64 {
    UPPER[i]
}

impl Habit {
    /// Nothing seen.
    pub(crate) const fn new() -> Self {
        Self {
            weights: Vec::new(),
            total: 0.0,
            count: 0,
        }
    }

    pub fn observe(&mut self, span: Span) {
        self.observe_with(span, DECAY);
    }

    /// Like [`Self::observe`], for what many have in common: the rare is remembered for thousands of observations.
    pub fn observe_of_many(&mut self, span: Span) {
        self.observe_with(span, DECAY_OF_MANY);
    }

    fn observe_with(&mut self, span: Span, decay: f32) {
        if self.weights.is_empty() {
            self.weights = vec![0.0; BUCKETS];
        }
        for w in &mut self.weights {
            *w *= decay;
        }
        self.weights[bucket(span)] += 1.0;
        self.total = self.total * decay + 1.0;
        self.count = self.count.saturating_add(1);
    }

    /// Weight of each bucket in the own past; `other`'s is blended in as if it were `n` observations.
    fn blend<'a>(&'a self, other: &'a Self, n: f32) -> impl Fn(usize) -> f32 + 'a {
        let scale = if other.total > 0.0 { n / other.total } else { 0.0 };
        let of = |habit: &'a Self, i: usize| habit.weights.get(i).copied().unwrap_or(0.0);
        move |i| of(self, i) + of(other, i) * scale
    }

    /// Part of bucket `i` left after `gone` seconds, a time in bucket `from`.
    fn part(i: usize, from: usize, gone: f64) -> f64 {
        if gone == 0.0 || i > from || i == 0 {
            return 1.0;
        }
        let low = upper(i) / std::f64::consts::SQRT_2;
        ((upper(i) - gone) / (upper(i) - low)).clamp(0.0, 1.0)
    }

    /// How many observations were at least this long, old ones counted less.
    pub(crate) fn longer_than(&self, elapsed: Span) -> f32 {
        let from = bucket(elapsed);
        self.weights.iter().skip(from).sum()
    }

    /// The quantile `q` of the time left after `elapsed`, in the blend of the own past with `other`'s as `n`
    /// observations. `None` means that neither has seen a time as long as `elapsed`.
    pub fn remaining(&self, other: &Self, n: f32, elapsed: Span, q: f64) -> Option<Span> {
        let from = bucket(elapsed);
        let gone = elapsed.as_secs_f64();
        let share = self.blend(other, n);
        let weight = |i: usize| f64::from(share(i)) * Self::part(i, from, gone);
        let mass: f64 = (from..BUCKETS).map(weight).sum();
        if mass <= 0.0 {
            return None;
        }
        let mut left = mass * q;
        let last = BUCKETS - 1;
        let i = (from..BUCKETS)
            .find(|&i| {
                left -= weight(i);
                left <= 0.0
            })
            .unwrap_or(last);
        let until = Self::likely_end(i, from, gone);
        Some(Span(((until - gone).max(UNIT) * 1e6) as u64))
    }

    /// The mean of the time left after `elapsed`, in the same blend. `None` means that neither has seen a time as long.
    pub fn mean_left(&self, other: &Self, n: f32, elapsed: Span) -> Option<Span> {
        let from = bucket(elapsed);
        let gone = elapsed.as_secs_f64();
        let share = self.blend(other, n);
        let (mut mass, mut sum) = (0.0, 0.0);
        for i in from..BUCKETS {
            let weight = f64::from(share(i)) * Self::part(i, from, gone);
            mass += weight;
            sum += weight * (Self::likely_end(i, from, gone) - gone).max(UNIT);
        }
        (mass > 0.0).then(|| Span((sum / mass * 1e6) as u64))
    }

    /// The likely length, in seconds, of a time in bucket `i` after `gone` seconds, a time in bucket `from`.
    fn likely_end(i: usize, from: usize, gone: f64) -> f64 {
        match i == from && gone > 0.0 {
            true => (gone + upper(i)) / 2.0,
            false => middle(i),
        }
    }

    /// The chance of an end within `more` after `elapsed`, in the blend with `other`.
    pub fn chance_within(&self, other: &Self, n: f32, elapsed: Span, more: Span) -> f64 {
        let from = bucket(elapsed);
        let to = bucket(Span(elapsed.0.saturating_add(more.0)));
        let share = self.blend(other, n);
        let (mut within, mut mass) = (0.0f32, 0.0f32);
        for i in from..BUCKETS {
            let w = share(i);
            mass += w;
            if i <= to {
                within += w;
            }
        }
        if mass > 0.0 { f64::from(within / mass) } else { 0.0 }
    }

    /// Weight of each bucket left after `gone` seconds, a time in bucket `from`: zero before that bucket.
    fn weights_left(&self, other: &Self, n: f32, from: usize, gone: f64) -> [f64; BUCKETS] {
        let scale = if other.total > 0.0 { n / other.total } else { 0.0 };
        let mut weights = [0.0; BUCKETS];
        let (own, theirs) = (self.all_weights(), other.all_weights());
        for (weight, (own, theirs)) in weights.iter_mut().zip(own.iter().zip(theirs)) {
            *weight = f64::from(own + theirs * scale);
        }
        weights[..from].fill(0.0);
        weights[from] *= Self::part(from, from, gone);
        weights
    }

    fn all_weights(&self) -> [f32; BUCKETS] {
        let mut all = [0.0; BUCKETS];
        for (weight, seen) in all.iter_mut().zip(&self.weights) {
            *weight = *seen;
        }
        all
    }

    /// Rate of ends, per second, for the most favourable length of wait. It is the greatest ratio, over all spans, of
    /// the chance of an end within the span to the time waited (Gittins's index).
    ///
    /// Forecasts ask for little else, so the terms independent of the bucket before are reckoned for all buckets at
    /// once.
    pub fn index(&self, other: &Self, n: f32, elapsed: Span) -> f64 {
        let gone = elapsed.as_secs_f64();
        let from = bucket(elapsed);
        let mut chances = self.weights_left(other, n, from, gone);
        let mass: f64 = chances[from..].iter().sum();
        if mass <= 0.0 {
            return 0.0;
        }
        for chance in &mut chances {
            *chance /= mass;
        }
        let (mut best, mut back, mut spent, mut last) = (0.0f64, 0.0, 0.0, gone);
        for (&p, &upper) in chances[from..].iter().zip(&UPPER[from..]) {
            spent += (1.0 - back - p / 2.0) * (upper - last);
            back += p;
            last = upper;
            best = best.max(back / spent.max(UNIT));
        }
        best
    }

    /// How much longer to hold on, `elapsed` after the last end, for the greatest expected gain. A return within the
    /// hold gains `gain`, each second of holding costs `cost`. The hold ends at most `max` after the end; zero means
    /// that holding on doesn't pay.
    pub fn best_hold(&self, other: &Self, n: f32, elapsed: Span, gain: f64, cost: f64, max: Span) -> Span {
        let gone = elapsed.as_secs_f64();
        let from = bucket(elapsed);
        let share = self.blend(other, n);
        let weight = |i: usize| f64::from(share(i)) * Self::part(i, from, gone);
        let mass: f64 = (from..BUCKETS).map(weight).sum();
        if mass <= 0.0 {
            return Span::ZERO;
        }
        let (mut best, mut best_value) = (0.0, 0.0);
        // `back`: chance of a return by now; `spent`: expected seconds held so far.
        let (mut back, mut spent, mut last) = (0.0, 0.0, gone);
        for i in from..BUCKETS {
            let edge = upper(i);
            if edge > max.as_secs_f64() {
                break;
            }
            let p = weight(i) / mass;
            let half = (edge - last) / 2.0;
            spent += (1.0 - back - p) * (edge - last) + p * half;
            back += p;
            last = edge;
            let value = back * gain - spent * cost;
            if value > best_value {
                (best, best_value) = (edge - gone, value);
            }
        }
        Span((best * 1e6) as u64)
    }
}

/// The class of a kernel by its cells since it was last away: 0, 1, 2 and 3, 4 to 7, ... A user who has worked long
/// without a break is likely to go on; a user who has just begun may have come for one cell.
pub(crate) fn streak_class(streak: u32) -> usize {
    (streak.checked_ilog2().map_or(0, |l| l + 1) as usize).min(STREAKS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn habit(seconds: &[u64]) -> Habit {
        let mut h = Habit::default();
        for &s in seconds {
            h.observe(Span::from_secs(s));
        }
        h
    }

    #[test]
    fn the_median_is_within_a_bucket_of_what_was_seen() {
        let h = habit(&[60; 20]);
        let m = h
            .remaining(&Habit::default(), 0.0, Span::ZERO, 0.5)
            .unwrap()
            .as_secs_f64();
        assert!((42.0..86.0).contains(&m), "{m}");
    }

    #[test]
    fn what_ran_long_already_is_judged_by_the_long_ones() {
        let h = habit(&[10, 10, 10, 10, 10, 10, 10, 1000]);
        let none = Habit::default();
        let rest = h.remaining(&none, 0.0, Span::from_secs(100), 0.5).unwrap();
        assert!(rest.as_secs_f64() > 500.0, "{rest:?}");
        assert_eq!(h.remaining(&none, 0.0, Span::from_secs(1_000_000), 0.5), None);
    }

    #[test]
    fn holding_pays_only_as_long_as_the_next_one_is_likely_soon() {
        let none = Habit::default();
        let quick = habit(&[5; 30]);
        let slow = habit(&[5000; 30]);
        let max = Span::from_secs(600);
        let q = quick
            .best_hold(&none, 0.0, Span::ZERO, 2.0, 0.01, max)
            .as_secs_f64();
        assert!((5.0..12.0).contains(&q), "{q}");
        assert_eq!(slow.best_hold(&none, 0.0, Span::ZERO, 2.0, 0.01, max), Span::ZERO);
        assert_eq!(none.best_hold(&none, 0.0, Span::ZERO, 2.0, 0.01, max), Span::ZERO);
    }

    #[test]
    fn without_own_history_others_stand_in() {
        let others = habit(&[100; 10]);
        let m = Habit::default().remaining(&others, 3.0, Span::ZERO, 0.5).unwrap();
        assert!((70.0..145.0).contains(&m.as_secs_f64()));
    }

    /// The index, bucket by bucket.
    fn index_by_bucket(own: &Habit, other: &Habit, n: f32, elapsed: Span) -> f64 {
        let gone = elapsed.as_secs_f64();
        let from = bucket(elapsed);
        let share = own.blend(other, n);
        let weight = |i: usize| f64::from(share(i)) * Habit::part(i, from, gone);
        let mass: f64 = (from..BUCKETS).map(weight).sum();
        if mass <= 0.0 {
            return 0.0;
        }
        let (mut best, mut back, mut spent, mut last) = (0.0f64, 0.0, 0.0, gone);
        for i in from..BUCKETS {
            let p = weight(i) / mass;
            spent += (1.0 - back - p / 2.0) * (upper(i) - last);
            back += p;
            last = upper(i);
            best = best.max(back / spent.max(UNIT));
        }
        best
    }

    #[test]
    fn the_index_of_all_buckets_at_once_is_that_of_each_in_turn_to_the_last_bit() {
        let habits = [
            Habit::default(),
            habit(&[5; 30]),
            habit(&[1, 20, 300, 4000, 50_000, 600_000, 7_000_000]),
            habit(&[0, 0, 3600, 90]),
        ];
        for own in &habits {
            for other in &habits {
                for elapsed in (0..400u32).map(|i| Span((1.05f64.powi(i as i32) * 1e4) as u64 - 10_000)) {
                    let (quick, slow) = (
                        own.index(other, 10.0, elapsed),
                        index_by_bucket(own, other, 10.0, elapsed),
                    );
                    assert_eq!(quick.to_bits(), slow.to_bits(), "{own:?} {other:?} {elapsed:?}");
                }
            }
        }
    }

    #[test]
    fn streaks_are_classed_by_powers_of_two() {
        let classes: Vec<usize> = [0, 1, 2, 3, 4, 7, 8, 1000].map(streak_class).to_vec();
        assert_eq!(classes, [0, 1, 2, 2, 3, 3, 4, STREAKS - 1]);
    }
}
