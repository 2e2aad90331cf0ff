//! The plugin's arguments in plugstack.conf: `NAME=VALUE`, each in its own word.
//!
//! ```text
//! optional /opt/gresshopper/lib/gresshopper.so service_user=gresshopper agent_dir=/var/lib/gresshopper/agent
//! ```

use std::path::PathBuf;

/// What plugstack.conf says, with the defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The service account, by name or uid.
    pub service_user: String,
    /// Folder of the records; must be local to the node and gone after a reboot.
    pub run_dir: PathBuf,
    /// The agents' `state_dir`: `AGENT_DIR/NODE/agent.PILOT.sock` hears of a token that was not believed.
    pub agent_dir: PathBuf,
    /// munged's socket, where slurm.conf's AuthInfo doesn't name it.
    pub munge_socket: Option<PathBuf>,
    /// Programs outside all jobs that may hold GPUs after a take-back, absolute paths.
    pub ignore_holders: Vec<String>,
    pub isolation: Isolation,
    /// End nobody after a lease; say who would be, and leave the device blocked.
    pub dry_run: bool,
}

/// The least that the site accepts between two kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Lend where Linux counts the open files of a lent device, and nowhere else.
    Counted,
    /// Count where Linux can; elsewhere hold the kernel still and look at all processes once.
    Scanned,
}

/// An argument that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("plugstack.conf: {0:?} is no argument of gresshopper.so")]
pub struct BadArgument(String);

impl Default for Options {
    fn default() -> Self {
        Self {
            service_user: "gresshopper".to_owned(),
            run_dir: "/run/gresshopper".into(),
            agent_dir: "/var/lib/gresshopper/agent".into(),
            munge_socket: None,
            ignore_holders: Vec::new(),
            isolation: Isolation::Counted,
            dry_run: false,
        }
    }
}

impl Options {
    /// # Errors
    /// The first argument that is not known.
    pub fn parse<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<Self, BadArgument> {
        let mut options = Self::default();
        for argument in arguments {
            if argument == "dry_run" {
                options.dry_run = true;
                continue;
            }
            let (name, value) = argument
                .split_once('=')
                .ok_or_else(|| BadArgument(argument.to_owned()))?;
            match (name, value) {
                ("service_user", _) => options.service_user = value.to_owned(),
                ("run_dir", _) => options.run_dir = value.into(),
                ("agent_dir", _) => options.agent_dir = value.into(),
                ("munge_socket", _) => options.munge_socket = Some(value.into()),
                ("ignore_holders", _) => {
                    options.ignore_holders.extend(value.split(',').map(str::to_owned));
                }
                ("isolation", "counted") => options.isolation = Isolation::Counted,
                ("isolation", "scanned") => options.isolation = Isolation::Scanned,
                _ => return Err(BadArgument(argument.to_owned())),
            }
        }
        Ok(options)
    }
}

/// munged's socket as slurm.conf's `AuthInfo` names it.
pub fn munge_socket_of(slurm_conf: &str) -> Option<PathBuf> {
    let value = slurm_conf
        .lines()
        .filter_map(|line| line.split('#').next()?.trim().split_once('='))
        .find(|(key, _)| key.trim().eq_ignore_ascii_case("AuthInfo"))?
        .1;
    value
        .trim()
        .trim_matches('"')
        .split(',')
        .find_map(|part| part.strip_prefix("socket="))
        .map(PathBuf::from)
}

/// The GPU indices in Slurm's `SLURM_STEP_GPUS`: "0,1" or "0-1".
pub fn step_gpus(text: &str) -> Option<Vec<hop_words::id::GpuIndex>> {
    let set: crate::cpuset::CpuSet = text.parse().ok()?;
    set.iter()
        .map(|i| u16::try_from(i).ok().map(hop_words::id::GpuIndex))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_words::id::GpuIndex;

    #[test]
    fn arguments_override_the_defaults() {
        let options = Options::parse([
            "service_user=hop",
            "ignore_holders=/usr/bin/a,/usr/bin/b",
            "ignore_holders=/usr/bin/c",
            "isolation=scanned",
            "dry_run",
        ])
        .unwrap();
        assert_eq!(options.service_user, "hop");
        assert_eq!(options.ignore_holders, ["/usr/bin/a", "/usr/bin/b", "/usr/bin/c"]);
        assert_eq!(options.isolation, Isolation::Scanned);
        assert!(options.dry_run);
        assert_eq!(options.run_dir, Options::default().run_dir);
    }

    #[test]
    fn an_unknown_argument_is_told() {
        for bad in ["whatever=1", "isolation=some", "service_user"] {
            assert_eq!(Options::parse([bad]), Err(BadArgument(bad.to_owned())));
        }
    }

    #[test]
    fn the_socket_is_found_in_auth_info() {
        let conf = "# AuthInfo=socket=/no\nauthinfo = cred_expire=60,socket=/srv/m.socket # here\n";
        assert_eq!(munge_socket_of(conf), Some("/srv/m.socket".into()));
        assert_eq!(munge_socket_of("AuthType=auth/munge\n"), None);
    }

    #[test]
    fn step_gpus_are_indices() {
        assert_eq!(step_gpus("1,0"), Some(vec![GpuIndex(0), GpuIndex(1)]));
        assert_eq!(step_gpus("0-1"), Some(vec![GpuIndex(0), GpuIndex(1)]));
        assert_eq!(step_gpus("GPU-abc"), None);
    }
}
