//! Runs of Slurm's commands: environment, identity, timeout and errors.

use crate::record::ParseError;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Variables of a caller's environment that would change the behaviour of Slurm's commands.
const SLURMS_OWN: [&str; 13] = [
    "SLURM_",
    "SLURMD_",
    "SBATCH_",
    "SRUN_",
    "SALLOC_",
    "SQUEUE_",
    "SINFO_",
    "SACCT_",
    "SACCTMGR_",
    "SCANCEL_",
    "SCONTROL_",
    "SSHARE_",
    "SPANK_",
];

/// Somebody else as whom a command runs; only root can ask for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunAs {
    pub uid: u32,
    pub gid: u32,
    /// The login name, for `USER` and `LOGNAME`.
    pub user: String,
    pub home: PathBuf,
}

/// The program and its arguments, as a person would type them. The arguments may name other users: messages for users
/// have [`CommandLine::program`] alone, and the log has it all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine(pub Vec<String>);

impl CommandLine {
    /// The program's name.
    pub fn program(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }
}

impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, word) in self.0.iter().enumerate() {
            let space = if i == 0 { "" } else { " " };
            let plain = !word.is_empty()
                && !word
                    .contains(|c: char| c.is_whitespace() || c.is_control() || "'\"\\$`&|;<>()".contains(c));
            match plain {
                true => write!(f, "{space}{word}")?,
                false => write!(f, "{space}{word:?}")?,
            }
        }
        Ok(())
    }
}

/// A command of Slurm could not be run, did not end, or ended badly.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(
        "{program} is not installed or not in the PATH of this process: install Slurm's client commands, or set the folder they are in"
    )]
    Missing { program: String },
    #[error("could not start `{}`", .command.program())]
    Start {
        command: CommandLine,
        #[source]
        source: io::Error,
    },
    #[error("could not speak with `{}`", .command.program())]
    Pipe {
        command: CommandLine,
        #[source]
        source: io::Error,
    },
    #[error("`{}` gave no answer within {} s: slurmctld may be busy or down", .command.program(), .limit.as_secs_f64())]
    Timeout { command: CommandLine, limit: Duration },
    #[error("slurmctld or slurmdbd can't be reached (`{}`: {stderr})", .command.program())]
    Unreachable { command: CommandLine, stderr: String },
    #[error("`{}` failed ({status}): {stderr}", .command.program())]
    Failed {
        command: CommandLine,
        status: ExitStatus,
        /// The first lines of what it said.
        stderr: String,
    },
}

impl RunError {
    /// Slurm itself is away; the same call may work later.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Timeout { .. })
    }

    /// Output of a command that ran and failed.
    pub(crate) fn said(&self) -> Option<&str> {
        match self {
            Self::Failed { stderr, .. } => Some(stderr),
            _ => None,
        }
    }
}

/// Something could not be read from Slurm.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("the output of `{}` could not be understood", .command.program())]
    Output {
        command: CommandLine,
        #[source]
        source: ParseError,
    },
}

impl QueryError {
    /// Slurm itself is away; the same call may work later.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Run(run) if run.is_unreachable())
    }
}

/// How commands are run; part of [`crate::Settings`].
#[derive(Debug, Clone)]
pub(crate) struct Runner {
    pub(crate) bin: Option<PathBuf>,
    pub(crate) conf: Option<PathBuf>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) run_as: Option<RunAs>,
    pub(crate) timeout: Duration,
}

/// One command to be run.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) program: &'static str,
    pub(crate) args: Vec<String>,
    pub(crate) stdin: Option<Vec<u8>>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) timeout: Option<Duration>,
}

impl Call {
    pub(crate) fn new(program: &'static str, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            program,
            args: args.into_iter().map(Into::into).collect(),
            stdin: None,
            env: Vec::new(),
            timeout: None,
        }
    }

    /// Reads the command's output by `parse`.
    pub(crate) fn read<T>(
        &self,
        output: &str,
        parse: impl FnOnce(&str) -> Result<T, ParseError>,
    ) -> Result<T, QueryError> {
        parse(output).map_err(|source| QueryError::Output {
            command: self.failed(),
            source,
        })
    }

    /// The command for an error. The log has the arguments, which the error's message leaves out.
    pub(crate) fn failed(&self) -> CommandLine {
        let command = self.line();
        tracing::info!(%command, "a command of Slurm's failed");
        command
    }

    pub(crate) fn line(&self) -> CommandLine {
        CommandLine(
            std::iter::once(self.program.to_owned())
                .chain(self.args.iter().cloned())
                .collect(),
        )
    }
}

/// What a command that ended well said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Runner {
    /// A command with the environment and identity set, nothing else.
    pub(crate) fn command(&self, program: &str) -> Command {
        let path = match &self.bin {
            Some(bin) => bin.join(program).into_os_string(),
            None => program.into(),
        };
        let mut command = Command::new(path);
        self.set_environment(&mut command);
        if let Some(user) = &self.run_as {
            command.uid(user.uid).gid(user.gid);
        }
        command
    }

    fn set_environment(&self, command: &mut Command) {
        let conf = self
            .conf
            .clone()
            .map(PathBuf::into_os_string)
            .or_else(|| std::env::var_os("SLURM_CONF"));
        match &self.run_as {
            // Nothing of root's environment is another user's business.
            Some(user) => {
                command.env_clear();
                if let Some(path) = std::env::var_os("PATH") {
                    command.env("PATH", path);
                }
                command
                    .env("USER", &user.user)
                    .env("LOGNAME", &user.user)
                    .env("HOME", &user.home);
            }
            None => {
                for (name, _) in std::env::vars_os().filter(|(name, _)| is_slurms_own(name)) {
                    command.env_remove(name);
                }
            }
        }
        command.env("LC_ALL", "C.UTF-8").env("SLURM_TIME_FORMAT", "%s");
        if let Some(conf) = conf {
            command.env("SLURM_CONF", conf);
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
    }

    /// Runs a command to its end. The command is killed at the end of its time, or when the returned future is dropped.
    pub(crate) async fn run(&self, call: &Call) -> Result<Said, RunError> {
        let limit = call.timeout.unwrap_or(self.timeout);
        match tokio::time::timeout(limit, self.run_unlimited(call)).await {
            Ok(result) => result,
            Err(_) => Err(RunError::Timeout {
                command: call.failed(),
                limit,
            }),
        }
    }

    async fn run_unlimited(&self, call: &Call) -> Result<Said, RunError> {
        let mut child = self
            .command(call.program)
            .args(&call.args)
            .envs(call.env.iter().map(|(name, value)| (name, value)))
            .stdin(if call.stdin.is_some() {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| start_error(call, source))?;
        let pipe = child.stdin.take();
        let feed = async {
            if let (Some(mut pipe), Some(bytes)) = (pipe, &call.stdin) {
                // A command that ends without reading all says on stderr why.
                let _ = pipe.write_all(bytes).await;
            }
        };
        let ((), output) = tokio::join!(feed, child.wait_with_output());
        let output = output.map_err(|source| RunError::Pipe {
            command: call.failed(),
            source,
        })?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
            return Ok(Said { stdout, stderr });
        }
        Err(failure(call, output.status, &stderr))
    }

    /// The same, with the output read by `parse`.
    pub(crate) async fn query<T>(
        &self,
        call: &Call,
        parse: impl FnOnce(&str) -> Result<T, ParseError>,
    ) -> Result<T, QueryError> {
        let said = self.run(call).await?;
        call.read(&said.stdout, parse)
    }
}

fn is_slurms_own(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    SLURMS_OWN.iter().any(|prefix| name.starts_with(prefix))
}

fn start_error(call: &Call, source: io::Error) -> RunError {
    match source.kind() {
        io::ErrorKind::NotFound => RunError::Missing {
            program: call.program.to_owned(),
        },
        _ => RunError::Start {
            command: call.failed(),
            source,
        },
    }
}

fn failure(call: &Call, status: ExitStatus, stderr: &str) -> RunError {
    const AWAY: [&str; 9] = [
        "Unable to contact slurm controller",
        "Unable to contact slurm database",
        "Connection refused",
        "Connection timed out",
        "Socket timed out",
        "Problem talking to the database",
        "unable to contact",
        "Transport endpoint is not connected",
        "Zero Bytes were transmitted",
    ];
    let command = call.failed();
    let away = AWAY.iter().any(|words| stderr.contains(words));
    let stderr = first_lines(stderr);
    match away {
        true => RunError::Unreachable { command, stderr },
        false => RunError::Failed {
            command,
            status,
            stderr,
        },
    }
}

/// At most four lines, in one; control characters would reach somebody's terminal or log.
fn first_lines(stderr: &str) -> String {
    let lines: Vec<String> = stderr
        .lines()
        .map(|line| {
            line.trim()
                .chars()
                .filter(|c| !c.is_control())
                .take(300)
                .collect::<String>()
        })
        .filter(|line| !line.is_empty())
        .take(4)
        .collect();
    match lines.is_empty() {
        true => "it said nothing".to_owned(),
        false => lines.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runner(bin: &str) -> Runner {
        Runner {
            bin: Some(bin.into()),
            conf: Some("/etc/x/slurm.conf".into()),
            env: vec![("SITE".into(), "1".into())],
            run_as: None,
            timeout: Duration::from_secs(5),
        }
    }

    fn call(script: &str) -> Call {
        // `sh` stands in for a command of Slurm at the process boundary.
        Call::new("sh", ["-c", script])
    }

    #[tokio::test]
    async fn stdin_is_fed_and_stdout_read() {
        let mut cat = call("cat");
        cat.stdin = Some(b"hello".to_vec());
        assert_eq!(runner("/bin").run(&cat).await.unwrap().stdout, "hello");
    }

    #[tokio::test]
    async fn a_command_that_does_not_read_its_stdin_is_no_broken_pipe() {
        let mut deaf = call("exit 0");
        deaf.stdin = Some(vec![b'x'; 1 << 20]);
        assert_eq!(runner("/bin").run(&deaf).await.unwrap().stdout, "");
    }

    #[tokio::test]
    async fn the_environment_is_ours() {
        let said = runner("/bin")
            .run(&call("echo $SLURM_CONF $SLURM_TIME_FORMAT $SITE $LC_ALL"))
            .await
            .unwrap();
        assert_eq!(said.stdout.trim(), "/etc/x/slurm.conf %s 1 C.UTF-8");
        assert!(is_slurms_own(OsStr::new("SLURM_JOB_ID")) && is_slurms_own(OsStr::new("SBATCH_ACCOUNT")));
        assert!(!is_slurms_own(OsStr::new("PATH")));
    }

    #[tokio::test]
    async fn failure_carries_program_status_and_words() {
        let error = runner("/bin")
            .run(&call("echo 'sbatch: error: no\u{7}pe' >&2; exit 3"))
            .await
            .unwrap_err();
        let text = error.to_string();
        assert_eq!(text, "`sh` failed (exit status: 3): sbatch: error: nope");
        assert!(!error.is_unreachable());
        let away = "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1";
        assert!(
            runner("/bin")
                .run(&call(away))
                .await
                .unwrap_err()
                .is_unreachable()
        );
    }

    #[tokio::test]
    async fn a_silent_command_is_ended() {
        let mut slow = call("sleep 60");
        slow.timeout = Some(Duration::from_millis(100));
        let error = runner("/bin").run(&slow).await.unwrap_err();
        assert!(matches!(error, RunError::Timeout { .. }) && error.is_unreachable());
        assert!(!error.to_string().contains("sleep"), "{error}");
    }

    #[tokio::test]
    async fn a_missing_program_is_named() {
        let error = runner("/nonexistent").run(&call("true")).await.unwrap_err();
        assert!(matches!(error, RunError::Missing { ref program } if program == "sh"));
    }
}
