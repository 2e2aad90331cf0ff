//! The time between Slurm's signal for a seat's end and the kill: Slurm's `KillWait`.

use crate::slurm::slurm;
use hop_words::time::Span;
use std::time::Duration;
use tokio::time::timeout;

/// Without Slurm's word: less than any site sets.
const AT_LEAST: Span = Span::from_secs(5);

/// How long Slurm may take to answer: the kernel waits meanwhile.
const ANSWERS: Duration = Duration::from_secs(1);

/// The grace of the ending seat.
pub(crate) async fn of_the_seat() -> Span {
    if std::env::var_os("SLURM_JOB_ID").is_none() {
        return AT_LEAST;
    }
    let mut scontrol = slurm("scontrol");
    match timeout(ANSWERS, scontrol.args(["show", "config"]).output()).await {
        Ok(Ok(output)) => kill_wait(&String::from_utf8_lossy(&output.stdout)).unwrap_or(AT_LEAST),
        // slurmctld is away, or scontrol is missing.
        _ => AT_LEAST,
    }
}

/// `KillWait                = 30 sec`
fn kill_wait(config: &str) -> Option<Span> {
    let mut values = config.lines().filter_map(|line| line.split_once('='));
    let (_, value) = values.find(|(key, _)| key.trim() == "KillWait")?;
    let seconds = value.split_whitespace().next()?.parse().ok()?;
    Some(Span::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grace_is_read_as_scontrol_writes_it() {
        let config = "KillOnBadExit           = 0\nKillWait                = 30 sec\n";
        assert_eq!(kill_wait(config), Some(Span::from_secs(30)));
        assert_eq!(kill_wait("slurm_load_ctl_conf error"), None);
        assert_eq!(kill_wait("KillWait = soon"), None);
    }
}
