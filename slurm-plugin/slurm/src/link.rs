//! The helper process `hop-slurm-link`, which links libslurm, and the conversation with the helper.
//!
//! Requests and answers alternate, a JSON value a line. libslurm ends its process on fatal errors; here only the helper
//! ends. The client starts the helper on first use, and again after a pause that doubles up to a minute. Meanwhile the
//! client's answer is `None`, on which [`crate::Slurm`] uses the commands.

use crate::config::Version;
use crate::jobs::{Job, JobGres};
use crate::nodes::{Node, Partition};
use crate::run::Runner;
use hop_words::id::JobId;
use hop_words::line::LineError;
use hop_words::line::tokio::{Lines, write as write_line};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::BufReader;
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Version of this protocol, in the helper's first line.
pub const PROTOCOL: u32 = 1;
/// The longest line, in bytes: an answer of all jobs has some hundred bytes a job.
pub const MAX_LINE: usize = 256 << 20;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// An answer is read whole again after this long: slurmctld leaves the time of its nodes as it was on some changes, such
/// as `scontrol reboot`, and would say that nothing changed.
const WHOLE: Duration = Duration::from_secs(10);
/// Time limit of the helper, where the commands' limit isn't shorter: the commands are asked after the helper.
const PATIENCE: Duration = Duration::from_secs(5);

/// The helper's first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub protocol: u32,
    /// Slurm release of the build; `None` means a build without Slurm, which is of no use.
    pub built: Option<Version>,
    /// Number of libslurm (38 for 22.05): of the library linked with, and of the loaded one.
    pub api: Option<(u32, u32)>,
}

impl Hello {
    /// The library has the structs of the helper's build: the number rises with every series.
    pub fn fits(&self) -> bool {
        self.built.is_some() && self.api.is_some_and(|(built, running)| built == running)
    }
}

/// What the helper is asked. `since`: the `update_time` of the last answer; 0 asks for all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Ask {
    Jobs {
        since: i64,
    },
    Nodes {
        since: i64,
    },
    Partitions {
        since: i64,
    },
    JobGres {
        job: JobId,
    },
    /// Allocate now or not at all.
    Allocate {
        partition: Option<String>,
        account: Option<String>,
        gres: Option<String>,
        cpus: u32,
        mem_mib: Option<u64>,
        time_limit_min: Option<u32>,
        name: String,
    },
    Cancel {
        job: JobId,
    },
}

/// What it answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    /// Nothing changed since `since`.
    Unchanged,
    Jobs {
        time: i64,
        jobs: Vec<Job>,
    },
    Nodes {
        time: i64,
        nodes: Vec<Node>,
    },
    Partitions {
        time: i64,
        partitions: Vec<Partition>,
    },
    JobGres {
        gres: Vec<JobGres>,
    },
    Allocated {
        job: JobId,
    },
    Done,
    /// libslurm returned an error; the helper goes on.
    Error {
        code: i32,
        message: String,
    },
}

/// Why the helper gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("could not start {program}")]
    Start {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("it ended, as libslurm makes it do on errors that it takes for fatal")]
    Ended,
    #[error("it gave no answer in time")]
    Timeout,
    #[error("it said something that could not be read")]
    Garbled(#[source] LineError),
    #[error("it speaks protocol {0}, we {PROTOCOL}")]
    Protocol(u32),
    #[error("{}", .0.built.map_or_else(|| "it was built without Slurm's headers".to_owned(), |built| format!("it was built for Slurm {built} and finds the library of another series: build it again")))]
    Slurm(Hello),
    #[error("it failed a moment ago and is left alone")]
    Resting,
    #[error("libslurm: {message} ({code})")]
    Library { code: i32, message: String },
}

/// A client of the helper. Cheap to clone; all clones share one process.
#[derive(Debug, Clone)]
pub struct Link {
    program: PathBuf,
    runner: Arc<Runner>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    process: Option<Process>,
    rest_until: Option<Instant>,
    pause: Duration,
    jobs: Cached<Job>,
    nodes: Cached<Node>,
    partitions: Cached<Partition>,
}

#[derive(Debug)]
struct Process {
    child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

/// The last full answer, valid for [`WHOLE`] as long as slurmctld says that nothing changed.
#[derive(Debug)]
struct Cached<T> {
    time: i64,
    /// When it was asked for. `None` means that there is no answer yet.
    asked: Option<Instant>,
    rows: Arc<[T]>,
}

impl<T> Default for Cached<T> {
    fn default() -> Self {
        Self {
            time: 0,
            asked: None,
            rows: Arc::from([]),
        }
    }
}

impl<T> Cached<T> {
    /// Takes in an answer asked for at `now`.
    fn put(&mut self, time: i64, rows: Vec<T>, now: Instant) {
        *self = Self {
            time,
            asked: Some(now),
            rows: rows.into(),
        };
    }

    /// The time to ask with: 0 if all is to be read.
    fn since(&self, now: Instant) -> i64 {
        let fresh = |asked: Instant| now.saturating_duration_since(asked) < WHOLE;
        if self.asked.is_some_and(fresh) {
            self.time
        } else {
            0
        }
    }
}

/// A kind of rows that the helper is asked for whole, and that is kept.
trait Row: Sized {
    fn ask(since: i64) -> Ask;

    /// The rows of an answer, or the answer if it is another.
    fn rows(answer: Answer) -> Result<(i64, Vec<Self>), Answer>;

    fn cache(state: &mut State) -> &mut Cached<Self>;
}

impl Row for Job {
    fn ask(since: i64) -> Ask {
        Ask::Jobs { since }
    }

    fn rows(answer: Answer) -> Result<(i64, Vec<Self>), Answer> {
        match answer {
            Answer::Jobs { time, jobs } => Ok((time, jobs)),
            other => Err(other),
        }
    }

    fn cache(state: &mut State) -> &mut Cached<Self> {
        &mut state.jobs
    }
}

impl Row for Node {
    fn ask(since: i64) -> Ask {
        Ask::Nodes { since }
    }

    fn rows(answer: Answer) -> Result<(i64, Vec<Self>), Answer> {
        match answer {
            Answer::Nodes { time, nodes } => Ok((time, nodes)),
            other => Err(other),
        }
    }

    fn cache(state: &mut State) -> &mut Cached<Self> {
        &mut state.nodes
    }
}

impl Row for Partition {
    fn ask(since: i64) -> Ask {
        Ask::Partitions { since }
    }

    fn rows(answer: Answer) -> Result<(i64, Vec<Self>), Answer> {
        match answer {
            Answer::Partitions { time, partitions } => Ok((time, partitions)),
            other => Err(other),
        }
    }

    fn cache(state: &mut State) -> &mut Cached<Self> {
        &mut state.partitions
    }
}

impl Link {
    pub(crate) fn new(program: PathBuf, runner: Arc<Runner>) -> Self {
        Self {
            program,
            runner,
            state: Arc::new(Mutex::new(State {
                process: None,
                rest_until: None,
                pause: FIRST_PAUSE,
                jobs: Cached::default(),
                nodes: Cached::default(),
                partitions: Cached::default(),
            })),
        }
    }

    pub(crate) async fn jobs(&self) -> Option<Arc<[Job]>> {
        self.cached(Instant::now()).await
    }

    pub(crate) async fn nodes(&self) -> Option<Arc<[Node]>> {
        self.cached(Instant::now()).await
    }

    pub(crate) async fn partitions(&self) -> Option<Arc<[Partition]>> {
        self.cached(Instant::now()).await
    }

    /// All rows of one kind: the last answer's, if nothing changed since.
    async fn cached<T: Row>(&self, now: Instant) -> Option<Arc<[T]>> {
        let mut state = self.state.lock().await;
        let since = T::cache(&mut state).since(now);
        let ask = T::ask(since);
        let rows = match self.ask(&mut state, &ask).await {
            Ok(Answer::Unchanged) if since > 0 => None,
            Ok(answer) => match T::rows(answer) {
                Ok(rows) => Some(rows),
                Err(other) => return self.give_up(&ask, Ok(other)),
            },
            Err(error) => return self.give_up(&ask, Err(error)),
        };
        let cache = T::cache(&mut state);
        if let Some((time, rows)) = rows {
            cache.put(time, rows, now);
        }
        Some(cache.rows.clone())
    }

    pub(crate) async fn job_gres(&self, job: JobId) -> Option<Vec<JobGres>> {
        let mut state = self.state.lock().await;
        let ask = Ask::JobGres { job };
        match self.ask(&mut state, &ask).await {
            Ok(Answer::JobGres { gres }) => Some(gres),
            other => self.give_up(&ask, other),
        }
    }

    /// Asks the helper directly, without falling back.
    pub async fn request(&self, ask: &Ask) -> Result<Answer, LinkError> {
        let mut state = self.state.lock().await;
        match self.ask(&mut state, ask).await? {
            Answer::Error { code, message } => Err(LinkError::Library { code, message }),
            answer => Ok(answer),
        }
    }

    fn give_up<T>(&self, ask: &Ask, result: Result<Answer, LinkError>) -> Option<T> {
        match result {
            Err(LinkError::Resting) => {}
            Err(error) => {
                tracing::warn!(program = %self.program.display(), %error, "the libslurm helper failed, using Slurm's commands")
            }
            Ok(answer) => tracing::debug!(
                ?ask,
                ?answer,
                "the libslurm helper could not say, using Slurm's commands"
            ),
        }
        None
    }

    fn patience(&self) -> Duration {
        PATIENCE.min(self.runner.timeout)
    }

    async fn ask(&self, state: &mut State, ask: &Ask) -> Result<Answer, LinkError> {
        if state.process.is_none() {
            self.start(state).await?;
        }
        // A caller that stops waiting takes the helper along: the next question would get this one's answer.
        let mut process = state.process.take().ok_or(LinkError::Ended)?;
        let result = match tokio::time::timeout(self.patience(), exchange(&mut process, ask)).await {
            Ok(result) => result,
            Err(_) => Err(LinkError::Timeout),
        };
        state.process = Some(process);
        match &result {
            Ok(_) => state.pause = FIRST_PAUSE,
            Err(_) => state.failed().await,
        }
        result
    }

    async fn start(&self, state: &mut State) -> Result<(), LinkError> {
        if state.rest_until.is_some_and(|until| Instant::now() < until) {
            return Err(LinkError::Resting);
        }
        let started = tokio::time::timeout(self.patience(), self.spawn()).await;
        match started.unwrap_or(Err(LinkError::Timeout)) {
            Ok(process) => {
                state.process = Some(process);
                Ok(())
            }
            Err(error) => {
                state.failed().await;
                Err(error)
            }
        }
    }

    async fn spawn(&self) -> Result<Process, LinkError> {
        let start = |source| LinkError::Start {
            program: self.program.clone(),
            source,
        };
        let mut child = self
            .runner
            .command(&self.program.to_string_lossy())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // libslurm's complaints are dropped: the commands repeat them.
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(start)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (Some(stdin), Some(stdout)) = (stdin, stdout) else {
            return Err(LinkError::Ended);
        };
        let mut process = Process {
            child,
            stdin,
            stdout: Lines::new(BufReader::new(stdout), MAX_LINE),
        };
        let hello: Hello = read_line(&mut process).await?;
        if hello.protocol != PROTOCOL {
            return Err(LinkError::Protocol(hello.protocol));
        }
        match hello.fits() {
            true => Ok(process),
            false => Err(LinkError::Slurm(hello)),
        }
    }
}

impl State {
    /// The helper is ended and left alone for a while; what it had said may be old by then.
    async fn failed(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.child.kill().await;
        }
        (self.jobs, self.nodes, self.partitions) = Default::default();
        self.rest_until = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}

async fn exchange(process: &mut Process, ask: &Ask) -> Result<Answer, LinkError> {
    write_line(&mut process.stdin, ask).await.map_err(failed)?;
    read_line(process).await
}

async fn read_line<T: DeserializeOwned>(process: &mut Process) -> Result<T, LinkError> {
    process
        .stdout
        .read()
        .await
        .map_err(failed)?
        .ok_or(LinkError::Ended)
}

fn failed(error: LineError) -> LinkError {
    match error {
        LineError::Io(_) => LinkError::Ended,
        error => LinkError::Garbled(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    /// A helper in the shell: the script answers one question after the other.
    fn helper(dir: &Path, answers: &str) -> Link {
        helper_that_says(dir, &hello(), answers)
    }

    fn hello() -> Hello {
        Hello {
            protocol: PROTOCOL,
            built: Version::parse("22.05.8"),
            api: Some((38, 38)),
        }
    }

    fn helper_that_says(dir: &Path, hello: &Hello, answers: &str) -> Link {
        let hello = serde_json::to_string(hello).unwrap();
        let program = dir.join("helper");
        let script = format!(
            "#!/bin/sh\necho >>{program}.starts\necho '{hello}'\nwhile read -r asked; do\n{answers}\ndone\n",
            program = program.display()
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let runner = Runner {
            bin: None,
            conf: None,
            env: vec![],
            run_as: None,
            timeout: PATIENCE,
        };
        Link::new(program, Arc::new(runner))
    }

    #[tokio::test]
    async fn an_answer_that_nobody_waited_for_is_not_the_next_ones() {
        let dir = tempfile::tempdir().unwrap();
        let asked = dir.path().join("asked");
        let answers = format!(
            r#"case $asked in
                *partitions*) echo >{asked}; sleep 0.2; echo '{{"answer":"unchanged"}}';;
                *) echo '{{"answer":"nodes","time":5,"nodes":[]}}';;
            esac"#,
            asked = asked.display()
        );
        let link = helper(dir.path(), &answers);
        let is_asked = async {
            while !asked.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            said = link.partitions() => panic!("{said:?}"),
            () = is_asked => {}
        }
        let said = link.request(&Ask::Nodes { since: 0 }).await.unwrap();
        assert_eq!(
            said,
            Answer::Nodes {
                time: 5,
                nodes: vec![]
            }
        );
    }

    /// As slurmctld does on `scontrol reboot`: the change moves no time.
    #[tokio::test]
    async fn a_change_that_slurm_does_not_date_is_read_in_ten_seconds() {
        let dir = tempfile::tempdir().unwrap();
        let partition = Partition {
            name: "p".into(),
            state: "UP".into(),
            nodes: vec![],
            is_default: false,
            max_time: crate::span::TimeLimit::Unlimited,
            default_time: crate::span::TimeLimit::Unset,
            oversubscribe: "NO".into(),
            exclusive_user: false,
            preempt_mode: "OFF".into(),
            admits: crate::nodes::Admits::default(),
            qos: None,
        };
        let partition = serde_json::to_string(&partition).unwrap();
        let (changed, asked) = (dir.path().join("changed"), dir.path().join("asked"));
        let answers = format!(
            r#"case $asked in
                *'"since":0'*)
                    word=${{asked#*'"ask":"'}}; word=${{word%%\"*}}; echo "$word" >>{asked}
                    rows=; [ -e {changed} ] && [ "$word" = partitions ] && rows='{partition}'
                    echo "{{\"answer\":\"$word\",\"time\":5,\"$word\":[$rows]}}";;
                *) echo '{{"answer":"unchanged"}}';;
            esac"#,
            changed = changed.display(),
            asked = asked.display(),
        );
        let link = helper(dir.path(), &answers);
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let partitions = async |s: u64| link.cached::<Partition>(at(s)).await.map(|all| all.len());
        assert_eq!(partitions(0).await, Some(0));
        std::fs::write(&changed, "").unwrap();
        assert_eq!(partitions(9).await, Some(0));
        assert_eq!(partitions(10).await, Some(1));
        assert_eq!(partitions(19).await, Some(1));
        for s in [0, 9, 10] {
            assert!(link.cached::<Job>(at(s)).await.is_some());
            assert!(link.cached::<Node>(at(s)).await.is_some());
        }
        let whole = std::fs::read_to_string(&asked).unwrap();
        let times = |word: &str| whole.lines().filter(|said| *said == word).count();
        assert_eq!([times("partitions"), times("jobs"), times("nodes")], [2, 2, 2]);
    }

    #[tokio::test]
    async fn nothing_is_unchanged_before_the_first_answer() {
        let dir = tempfile::tempdir().unwrap();
        let link = helper(dir.path(), r#"echo '{"answer":"unchanged"}'"#);
        assert_eq!(link.nodes().await, None);
        assert_eq!(link.partitions().await, None);
        assert_eq!(link.jobs().await, None);
    }

    #[tokio::test]
    async fn an_unchanged_answer_is_the_last_one() {
        let dir = tempfile::tempdir().unwrap();
        let answers = format!(
            r#"case $asked in
                *'"since":0'*) mkdir {asked} && echo '{{"answer":"nodes","time":5,"nodes":[]}}' || echo '{{"answer":"done"}}';;
                *'"since":5'*) echo '{{"answer":"unchanged"}}';;
            esac"#,
            asked = dir.path().join("asked").display()
        );
        let link = helper(dir.path(), &answers);
        for _ in 0..2 {
            assert_eq!(link.nodes().await.as_deref(), Some(&[][..]));
        }
    }

    #[tokio::test]
    async fn a_helper_that_failed_is_left_alone_ever_longer_and_its_answers_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let answers = r#"case $asked in
                *nodes*) echo '{"answer":"nodes","time":5,"nodes":[]}';;
                *) exit 1;;
            esac"#;
        let link = helper(dir.path(), answers);
        assert!(link.nodes().await.is_some());
        assert_eq!(link.jobs().await, None);
        let ask = Ask::Nodes { since: 0 };
        assert!(matches!(link.request(&ask).await, Err(LinkError::Resting)));
        let starts = std::fs::read_to_string(dir.path().join("helper.starts")).unwrap();
        assert_eq!(starts.lines().count(), 1);
        let mut state = link.state.lock().await;
        assert_eq!((state.nodes.time, state.pause), (0, 2 * FIRST_PAUSE));
        for _ in 0..9 {
            state.failed().await;
        }
        assert_eq!(state.pause, LONGEST_PAUSE);
    }

    #[tokio::test]
    async fn a_helper_of_another_protocol_or_series_is_not_asked() {
        let dir = tempfile::tempdir().unwrap();
        let ask = Ask::Nodes { since: 0 };
        let answer = r#"echo '{"answer":"unchanged"}'"#;
        let other = Hello {
            protocol: PROTOCOL + 1,
            ..hello()
        };
        let said = helper_that_says(dir.path(), &other, answer).request(&ask).await;
        assert!(matches!(said, Err(LinkError::Protocol(_))), "{said:?}");
        for (built, api) in [
            (hello().built, Some((38, 39))),
            (hello().built, None),
            (None, Some((38, 38))),
        ] {
            let other = Hello {
                built,
                api,
                ..hello()
            };
            let said = helper_that_says(dir.path(), &other, answer).request(&ask).await;
            assert!(matches!(said, Err(LinkError::Slurm(_))), "{said:?}");
        }
    }
}
