//! A hopd with pilots on the dev cluster, and replicas to drive.

use devcluster::{Cluster, Options, Variant};
use hop_api::client;
use hop_api::config::Config;
use hop_api::message::{AcctQuery, AcctRow, InfoReport, QueueQuery, Request, Response, Role};
use hop_core::id::{JobId, LeaseId};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const PILOTS: usize = 2;

pub(crate) struct Rig {
    pub(crate) cluster: Cluster,
    base: PathBuf,
    config: PathBuf,
    hopd: Option<Child>,
    runtime: tokio::runtime::Runtime,
    _lock: File,
}

/// What a cell was granted.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) lease: LeaseId,
    pub(crate) pilot: u32,
    pub(crate) step: u32,
    pub(crate) devices: Vec<u16>,
    /// When the replica heard of it, in microseconds since the epoch.
    pub(crate) at: u64,
    /// From the submission to that, in milliseconds.
    pub(crate) waited: f64,
}

pub(crate) fn millis(micros: u64) -> f64 {
    micros as f64 / 1000.0
}

pub(crate) fn wait_until(patience: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < patience, "waited for {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

pub(crate) fn kill(pid: u32) {
    let done = Command::new("kill")
        .args(["-9", &pid.to_string()])
        .status()
        .unwrap();
    assert!(done.success());
}

fn built(name: &str) -> PathBuf {
    let hopd = PathBuf::from(env!("CARGO_BIN_EXE_hopd"));
    let path = hopd.parent().unwrap().join(name);
    assert!(path.exists(), "{} is not built", path.display());
    path
}

impl Rig {
    /// None unless `HOP_E2E` is set.
    pub(crate) fn start() -> Option<Self> {
        std::env::var_os("HOP_E2E")?;
        let base = std::env::var_os("HOP_E2E_BASE").map_or_else(|| "/srv/hop-daemon".into(), PathBuf::from);
        let index = std::env::var("HOP_E2E_INDEX").map_or(4, |n| n.parse().unwrap());
        let lock = File::create(base.with_extension("e2e-lock")).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let cluster = if Cluster::exists(&base) {
            Cluster::open(&base).unwrap()
        } else {
            let variant = match std::env::var("HOP_E2E_VARIANT").as_deref() {
                Ok("v1") => Variant::V1,
                Ok("v2") => Variant::V2,
                Ok("trixie") => Variant::Trixie,
                _ => Variant::of_host().unwrap(),
            };
            Cluster::new(Options {
                base: base.clone(),
                index,
                variant,
                nodes: 4,
                burst_nodes: 0,
                gpus_per_node: 2,
                real_cores: false,
                task_affinity: false,
                conf_extra: String::new(),
                plugstack: None,
                binds: Vec::new(),
            })
            .unwrap()
        };
        cluster.up().unwrap();
        let mut rig = Self {
            config: base.join("etc/gresshopper.toml"),
            cluster,
            base,
            hopd: None,
            runtime: tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .worker_threads(1)
                .build()
                .unwrap(),
            _lock: lock,
        };
        rig.clear();
        rig.install();
        rig.start_hopd();
        rig.wait_pilots();
        Some(rig)
    }

    fn install(&self) {
        let opt = self.base.join("opt");
        for (from, to) in [
            (built("hopd"), "bin/hopd"),
            (built("hop-agent"), "bin/hop-agent"),
            (built("examples/test-replica"), "bin/test-replica"),
            (built("libgresshopper.so"), "lib/gresshopper.so"),
        ] {
            let new = opt.join(format!("{to}.new"));
            std::fs::copy(from, &new).unwrap();
            std::fs::rename(new, opt.join(to)).unwrap();
        }
        let base = self.base.display();
        std::fs::create_dir_all(self.base.join("run/gresshopper")).unwrap();
        std::fs::write(
            self.base.join("etc/plugstack.conf"),
            format!(
                "optional {base}/opt/lib/gresshopper.so service_user=gresshopper agent_dir={base}/hop/agent \
                 run_dir={base}/run/gresshopper\n"
            ),
        )
        .unwrap();
        let port = self.cluster.options().free_port();
        let text = format!(
            r#"
service_user = "gresshopper"
operators = ["root"]
prefix = "{base}/opt"
munge_socket = "{base}/munge/munge.socket"
[hopd]
listen = "127.0.0.1:{port}"
connect = ["127.0.0.1:{port}"]
state_dir = "{base}/hop/hopd"
poll_s = 1
[agent]
state_dir = "{base}/hop/agent"
[seat]
partition = "notebook"
[pool.main]
partition = "notebook"
account = "pool"
gpus_per_pilot = 2
cpus_per_pilot = 8
min_pilots = {PILOTS}
max_pilots = {PILOTS}
linger_ms = 20000
"#
        );
        std::fs::write(&self.config, text).unwrap();
        let hop = self.base.join("hop");
        let _ = std::fs::remove_dir_all(&hop);
        std::fs::create_dir_all(&hop).unwrap();
        let owner = self.command("root", "chown");
        run(owner, &["gresshopper", &hop.display().to_string()]);
    }

    fn command(&self, user: &str, program: &str) -> Command {
        let mut command = self.cluster.command(user, None, program).unwrap();
        command.env("GRESSHOPPER_CONF", &self.config);
        command
    }

    /// Runs one of Slurm's commands and returns what it said.
    pub(crate) fn slurm(&self, user: &str, program: &str, args: &[&str]) -> String {
        run(self.command(user, program), args)
    }

    pub(crate) fn start_hopd(&mut self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.base.join("log/hopd.log"))
            .unwrap();
        let program = self.base.join("opt/bin/hopd").display().to_string();
        let mut command = self.command("gresshopper", &program);
        command
            .env("GRESSHOPPER_LOG", "debug")
            .stderr(log)
            .stdout(Stdio::null());
        self.hopd = Some(command.spawn().unwrap());
    }

    pub(crate) fn kill_hopd(&mut self) {
        let mut child = self.hopd.take().unwrap();
        // The command may be a wrapper: the daemon itself is what has hopd's program.
        let pid = self
            .find("gresshopper", &["opt/bin/hopd"], 0)
            .unwrap_or_else(|| child.id());
        kill(pid);
        child.wait().unwrap();
    }

    /// Ends everything of an earlier test.
    fn clear(&mut self) {
        if let Some(mut child) = self.hopd.take() {
            if let Some(pid) = self.find("gresshopper", &["opt/bin/hopd"], 0) {
                let _ = Command::new("kill").arg(pid.to_string()).status();
            }
            let _ = child.wait();
        }
        while let Some(pid) = self.find("gresshopper", &["opt/bin/hopd"], 0) {
            kill(pid);
            std::thread::sleep(Duration::from_millis(100));
        }
        for user in ["gresshopper", "alice", "bob"] {
            self.slurm("root", "scancel", &["-u", user]);
        }
        wait_until(Duration::from_secs(120), "all jobs to end", || {
            self.slurm("root", "squeue", &["-h", "-o", "%i %j %T"])
                .trim()
                .is_empty()
        });
        let states = self.slurm("root", "sinfo", &["-h", "-N", "-p", "notebook", "-o", "%N %T"]);
        assert!(!states.contains("drain"), "a node was drained: {states}");
    }

    fn options(&self) -> client::Options {
        let config = Config::read(&self.config).unwrap();
        client::Options::from_config(&config, Role::Client).unwrap()
    }

    /// Asks hopd as root, an operator.
    pub(crate) fn ask(&self, request: Request) -> Response {
        self.try_ask(request).unwrap()
    }

    fn try_ask(&self, request: Request) -> Result<Response, client::CallError> {
        self.runtime
            .block_on(client::call(&self.options(), request, Duration::from_secs(10)))
    }

    pub(crate) fn info(&self) -> InfoReport {
        match self.ask(Request::Info) {
            Response::Info(info) => info,
            other => panic!("{other:?}"),
        }
    }

    /// Pilots that are up: job and node.
    pub(crate) fn pilots(&self) -> Vec<(u32, String)> {
        let Ok(Response::Info(info)) = self.try_ask(Request::Info) else {
            return Vec::new();
        };
        let up = info.nodes.iter().filter(|n| n.state == "UP");
        up.map(|n| (n.pilot.0, n.node.to_string())).collect()
    }

    pub(crate) fn wait_pilots(&self) {
        wait_until(PATIENCE, "the pilots", || self.pilots().len() == PILOTS);
    }

    pub(crate) fn pilot_nodes(&self) -> Vec<String> {
        self.pilots().into_iter().map(|(_, node)| node).collect()
    }

    pub(crate) fn device(&self, node: &str, gpu: u16) -> String {
        format!("/dev/fakegpu-{node}-{gpu}")
    }

    pub(crate) fn leases_are(&self, count: usize) {
        let query = || {
            Request::Queue(QueueQuery {
                all_users: true,
                ..QueueQuery::default()
            })
        };
        wait_until(PATIENCE, &format!("{count} leases"), || {
            let Ok(Response::Queue { rows }) = self.try_ask(query()) else {
                return false;
            };
            rows.iter().filter(|r| r.lease.is_some()).count() == count
        });
    }

    /// One row per lease, all over, and no GPU held twice at a time.
    pub(crate) fn accounting_adds_up(&self, leases: usize) -> Vec<AcctRow> {
        let query = AcctQuery {
            all_users: true,
            cells: true,
            ..AcctQuery::default()
        };
        let Response::Acct { rows } = self.ask(Request::Acct(query)) else {
            panic!()
        };
        let (cells, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(|r| r.cell.is_some());
        let started: Vec<AcctRow> = rows.into_iter().filter(|r| r.start.is_some()).collect();
        assert_eq!(started.len(), leases, "{started:#?}");
        let mut by_gpu: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for row in &started {
            let (start, end) = (row.start.unwrap(), row.end.expect("it is over"));
            assert!(row.run.0 + row.linger.0 <= row.held.0, "{row:?}");
            assert!(row.held.0 <= end.since(start).0 + 1000, "{row:?}");
            assert_eq!(
                cells.iter().filter(|c| c.lease == row.lease).count(),
                row.cells as usize,
                "{row:?}"
            );
            for gpu in &row.gpus {
                by_gpu
                    .entry((row.node.clone(), *gpu))
                    .or_default()
                    .push((start, end));
            }
        }
        for (gpu, mut spans) in by_gpu {
            spans.sort();
            assert!(
                spans.windows(2).all(|w| w[0].1 <= w[1].0),
                "{gpu:?} was held twice: {spans:?}"
            );
        }
        started
    }

    /// The process of `user` whose command line holds all `words`, in this cluster, within job `pilot` if not 0.
    pub(crate) fn find(&self, user: &str, words: &[&str], pilot: u32) -> Option<u32> {
        let base = self.base.display().to_string();
        let uid = hop_api::identity::user_id(user)?;
        for entry in std::fs::read_dir("/proc").ok()?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else {
                continue;
            };
            let read = |file: &str| {
                let bytes = std::fs::read(entry.path().join(file)).unwrap_or_default();
                String::from_utf8_lossy(&bytes).replace('\0', " ")
            };
            let owner = std::fs::metadata(entry.path()).map(|m| std::os::unix::fs::MetadataExt::uid(&m));
            if owner.ok() != Some(uid) || read("comm").trim() == "sh" {
                continue;
            }
            let line = read("cmdline");
            let environment = read("environ");
            let ours = line.contains(&base) || environment.contains(&base);
            let job = pilot == 0 || environment.contains(&format!("SLURM_JOB_ID={pilot} "));
            if ours && job && words.iter().all(|w| line.contains(w)) {
                return Some(pid);
            }
        }
        None
    }

    pub(crate) fn process(&self, user: &str, words: &[&str], pilot: u32) -> u32 {
        self.find(user, words, pilot)
            .unwrap_or_else(|| panic!("no process {words:?}"))
    }

    pub(crate) fn has_stepmgr(&self) -> bool {
        self.cluster.options().variant == Variant::Trixie
    }

    /// A seat of the user's on the node, with one replica that hopd knows.
    pub(crate) fn replica(&self, user: &str, node: &str, kernel: &str) -> Replica {
        let mut replica = self.replica_unregistered(user, node, kernel, 0);
        replica.registered();
        replica
    }

    pub(crate) fn replica_unregistered(
        &self,
        user: &str,
        node: &str,
        kernel: &str,
        incarnation: u32,
    ) -> Replica {
        let node_arg = format!("--nodelist={node}");
        let args = [
            "--parsable",
            "-p",
            "notebook",
            "--gres=none",
            "--mem=512",
            "-c2",
            "-o",
            "/dev/null",
            &node_arg,
        ];
        let job = run(
            self.command(user, "sbatch"),
            &[&args[..], &["--wrap", "sleep 1000000"]].concat(),
        );
        let job: u32 = job.trim().parse().unwrap();
        wait_until(PATIENCE, "the seat", || {
            self.slurm(user, "squeue", &["-h", "-j", &job.to_string(), "-o", "%T"])
                .trim()
                == "RUNNING"
        });
        let mut command = self.command(user, "srun");
        command
            .env("GRESSHOPPER_KERNEL", kernel)
            .arg(format!("--jobid={job}"))
            .args([
                "--overlap",
                "--gres=none",
                "-n1",
                "-c1",
                "--mem=256",
                "--unbuffered",
            ])
            .arg("--export=GRESSHOPPER_CONF,GRESSHOPPER_KERNEL,PATH")
            .arg(self.base.join("opt/bin/test-replica"))
            .args([kernel, &incarnation.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (tx, said) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let Ok(value) = serde_json::from_str::<Value>(&line) else {
                    continue;
                };
                if tx.send(value).is_err() {
                    return;
                }
            }
        });
        let mut replica = Replica {
            stdin: child.stdin.take().unwrap(),
            child,
            said,
            pid: 0,
            submitted: 0,
        };
        let hello = replica.wait("connected");
        replica.pid = u32::try_from(hello["pid"].as_u64().unwrap()).unwrap();
        replica
    }

    /// A client of that user: what it was answered, or how many rows.
    pub(crate) fn hop_as(&self, user: &str, words: &[&str]) -> String {
        let program = self.base.join("opt/bin/test-replica").display().to_string();
        run(self.command(user, &program), &[&["as-client"], words].concat())
            .trim()
            .to_owned()
    }

    /// A bare `srun --exact` of the service account with both GPUs on an idle node: until its code runs, in ms.
    pub(crate) fn bare_step(&self, node: &str) -> f64 {
        let pilot = self.pilots().into_iter().find(|(_, n)| n == node).unwrap().0;
        let mut command = self.command("gresshopper", "srun");
        let start = Instant::now();
        let mut child = command
            .arg(format!("--jobid={pilot}"))
            .args([
                "-Q",
                "--exact",
                "-n1",
                "-c2",
                "--mem=0",
                "--gres=gpu:2",
                "--mpi=none",
                "--cpu-bind=none",
            ])
            .args(["--export=PATH", "/bin/echo", "here"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let took = start.elapsed().as_secs_f64() * 1000.0;
        assert!(child.wait().unwrap().success() && line.contains("here"));
        took
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.clear();
        }
    }
}

fn run(mut command: Command, args: &[&str]) -> String {
    let output = command.args(args).stdin(Stdio::null()).output().unwrap();
    assert!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) struct Replica {
    child: Child,
    stdin: ChildStdin,
    said: Receiver<Value>,
    pub(crate) pid: u32,
    submitted: u64,
}

impl Replica {
    fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    fn wait_for(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self
                .said
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                Ok(value) if wanted(&value) => return value,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => panic!("the replica did not say {what}"),
                Err(RecvTimeoutError::Disconnected) => panic!("the replica ended, waited for {what}"),
            }
        }
    }

    pub(crate) fn wait(&mut self, key: &str) -> Value {
        self.wait_for(key, |v| v.get(key).is_some())
    }

    pub(crate) fn wait_event(&mut self, event: &str) -> Value {
        self.wait_for(event, |v| v["event"]["event"] == event)["event"].clone()
    }

    /// hopd has taken the replica in: a question behind its report was answered.
    fn registered(&mut self) {
        self.tell("ask queue");
        self.wait("answer");
    }

    pub(crate) fn submit(&mut self, cell: &str, gpus: u16, cpus: u16) {
        self.tell(&format!("submit {cell} {gpus} {cpus}"));
        self.submitted = self.wait("submitted")["at"].as_u64().unwrap();
    }

    pub(crate) fn wait_granted(&mut self) -> Lease {
        let said = self.wait_for("granted", |v| {
            v["event"]["event"] == "granted" || v["event"]["event"] == "refused"
        });
        let grant = &said["event"]["grant"];
        assert!(grant.is_object(), "{said}");
        let number = |v: &Value| u32::try_from(v.as_u64().unwrap()).unwrap();
        let at = said["at"].as_u64().unwrap();
        Lease {
            lease: LeaseId(grant["lease"].as_u64().unwrap()),
            pilot: JobId(number(&grant["handover"]["pilot"])).0,
            step: number(&grant["handover"]["step"]),
            devices: grant["handover"]["devices"]
                .as_array()
                .unwrap()
                .iter()
                .map(|d| u16::try_from(d["index"].as_u64().unwrap()).unwrap())
                .collect(),
            at,
            waited: millis(at - self.submitted),
        }
    }

    pub(crate) fn run(&mut self, cell: &str, gpus: u16, cpus: u16) -> Lease {
        self.submit(cell, gpus, cpus);
        self.wait_granted()
    }

    /// When it was said, in microseconds since the epoch.
    pub(crate) fn end(&mut self, cell: &str) -> u64 {
        self.tell(&format!("end {cell}"));
        self.wait("ended")["at"].as_u64().unwrap()
    }

    pub(crate) fn release(&mut self) {
        self.tell("release");
    }

    /// "ok", or why the device can't be opened by the replica's process.
    pub(crate) fn open(&mut self, path: &str) -> String {
        assert!(Path::new(path).exists(), "{path}");
        self.tell(&format!("open {path}"));
        self.wait("open")["said"].as_str().unwrap().to_owned()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
