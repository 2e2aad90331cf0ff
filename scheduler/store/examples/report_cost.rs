//! Measures the sums of `hop report` on an accounting database: `report_cost FILE END_S DAYS..`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "an example")]

use hop_api::message::{SumBy, SumsQuery};
use hop_store::Accounting;
use hop_words::time::{Span, Timestamp};
use std::path::Path;
use std::time::Instant;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let accounting = Accounting::open(Path::new(&words[0])).unwrap();
    let end = Timestamp(words[1].parse::<u64>().unwrap() * 1_000_000);
    for days in words[2..].iter().map(|word| word.parse::<u64>().unwrap()) {
        let began = Instant::now();
        let query = SumsQuery {
            all_users: true,
            since: Timestamp(end.0 - Span::from_secs(days * 86_400).0),
            until: end,
            by: SumBy::Account,
            ..SumsQuery::default()
        };
        let summed = accounting.sums(&query, end, usize::MAX).unwrap();
        let cells: u64 = summed.sums.iter().map(|s| s.cells).sum();
        println!(
            "{days} days, {cells} cells: {:.1} s",
            began.elapsed().as_secs_f64()
        );
    }
}
