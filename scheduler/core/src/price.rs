//! The price of sparing one cell the wait for a pilot, in idle GPU-seconds.
//!
//! The site sets the share of cells spared any wait for a pilot, and the highest cost of such a wait. The core finds
//! the price below that bound: a cell's wait raises the price, and a start without a wait lowers the price a little.
//! The two balance where the share is the site's. The price depends on people's pace, unknown to any site beforehand.
//! `forecast.rs` weighs idle pilots by the price, `leases.rs` the linger.

use crate::config::Scale;

/// Change of the price's logarithm between a cell after a wait and a cell without.
const STEP: f64 = 0.25;
/// Least price: no idle pilot is kept beyond its least time.
const LEAST: f64 = 1.0;
/// The price's beginning, as a part of the logarithm of the most. Too low a price is mended by a few dozen cells with a
/// wait; too high a price, by a thousand cells without.
const START: f64 = 0.25;

/// Idle GPU-seconds for one wait spared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Price {
    ln: f64,
}

impl Price {
    pub fn new(scale: &Scale) -> Self {
        Self {
            ln: most(scale) * START,
        }
    }

    pub fn get(self) -> f64 {
        self.ln.exp()
    }

    /// A cell came. `waited` says whether the cell needed the start of a pilot.
    pub fn observe(&mut self, scale: &Scale, waited: bool) {
        let allowed = 1.0 - scale.immediate;
        let by = f64::from(u8::from(waited)) - allowed;
        self.ln = (self.ln + STEP * by).clamp(LEAST.ln(), most(scale));
    }
}

/// Logarithm of the greatest price.
fn most(scale: &Scale) -> f64 {
    scale.most_per_wait.max(LEAST).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a cell waits at this price: of people whose pace makes `fair` the price, one cell in ten does. The
    /// higher the price, the fewer cells wait.
    fn waits(price: f64, fair: f64, draw: u64) -> bool {
        let chance = (0.1 * fair / price).min(1.0);
        (draw as f64) < chance * 1000.0
    }

    #[test]
    fn the_share_of_those_who_wait_is_the_sites_at_every_pace() {
        let scale = Scale::default();
        for fair in [10.0, 100.0, 1_000.0] {
            let mut price = Price::new(&scale);
            let (mut waited, mut draw) = (0, 1u64);
            for _ in 0..20_000 {
                draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let w = waits(price.get(), fair, (draw >> 33) % 1000);
                waited += u32::from(w);
                price.observe(&scale, w);
            }
            // The steps add up to the price's way, which is bounded.
            let off = (f64::from(waited) / 20_000.0 - (1.0 - scale.immediate)).abs();
            assert!(
                off <= scale.most_per_wait.ln() / (STEP * 20_000.0),
                "{fair}: {off}"
            );
        }
    }

    #[test]
    fn no_price_is_beyond_the_sites_bound() {
        let scale = Scale::default();
        let after = |waited| {
            let mut price = Price::new(&scale);
            (0..5_000).for_each(|_| price.observe(&scale, waited));
            price.get()
        };
        assert!((after(true) - scale.most_per_wait).abs() < 1e-6);
        assert!((after(false) - LEAST).abs() < 1e-6);
        let none = Scale {
            most_per_wait: 0.0,
            ..scale.clone()
        };
        assert_eq!(Price::new(&none).get(), LEAST);
        let all = Scale {
            immediate: 1.0,
            ..scale
        };
        let mut price = Price::new(&all);
        price.observe(&all, false);
        assert_eq!(
            price,
            Price::new(&all),
            "a share that can't be passed never lowers it"
        );
    }
}
