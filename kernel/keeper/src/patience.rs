//! How long a group's task waits.

use std::time::Duration;

/// Times after which a group's task gives up waiting.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// A member whose others have all gone leaves then: its kernel runs elsewhere, from the store, or is over.
    pub abandoned: Duration,
    /// Time after which a member still far from the log's end is replaced: its seat doesn't take the log.
    pub lags: Duration,
    /// After so long without a leader in sight, and as long after each look, the host looks whether the group is over.
    pub leaderless: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            abandoned: Duration::from_secs(600),
            lags: Duration::from_secs(60),
            leaderless: Duration::from_secs(30),
        }
    }
}
