//! A whole life of a cluster in each variant: up, a lease-like step, some accidents, down, and nothing left.
//!
//! Needs root and Slurm, so it runs only when asked for: `cargo nextest run -p devcluster --run-ignored only`.

#![allow(clippy::unwrap_used, reason = "the helpers of a test are test code too")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use devcluster::{Cluster, Options, UpOutcome, Variant};

/// Tries to open each fake GPU of the node and says how that went, in the words of the C library.
const OPEN_ALL: &str = r#"
for f in /dev/fakegpu-"$SLURMD_NODENAME"-*; do
    if dd if="$f" of=/dev/null count=0 iflag=noctty 2>/dev/null; then echo open; else dd if="$f" count=0 2>&1 | sed -n 's/.*: //p'; fi
done"#;

fn options(index: u16, variant: Variant) -> Options {
    Options {
        base: format!("/srv/gresshopper-dev-test-{variant}-{index}").into(),
        index,
        variant,
        nodes: 2,
        burst_nodes: 0,
        gpus_per_node: 2,
        gpu_files: vec![],
        real_cores: false,
        task_affinity: false,
        conf_extra: String::new(),
        plugstack: None,
        binds: vec![],
    }
}

/// A cluster that is purged at the test's end however that comes.
struct Guard(Cluster);

impl Drop for Guard {
    fn drop(&mut self) {
        if Cluster::exists(&self.0.options().base) {
            let _ = self.0.down(true);
        }
    }
}

impl Guard {
    fn run(&self, user: &str, words: &[&str]) -> Output {
        let mut command = self.0.command(user, Some(Path::new("/")), "timeout").unwrap();
        command.arg("60").args(words).output().unwrap()
    }

    fn out(&self, user: &str, words: &[&str]) -> String {
        let output = self.run(user, words);
        assert!(
            output.status.success(),
            "{words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// A step with one GPU opens that one and no other; one without opens none.
    fn devices_are_constrained(&self, node: &str) {
        let with = self.out(
            "alice",
            &["srun", "-w", node, "-n1", "--gres=gpu:1", "sh", "-c", OPEN_ALL],
        );
        assert_eq!(
            with.lines().collect::<Vec<_>>(),
            ["open", "Operation not permitted"]
        );
        let without = self.out("bob", &["srun", "-w", node, "-n1", "sh", "-c", OPEN_ALL]);
        assert_eq!(
            without.lines().collect::<Vec<_>>(),
            ["Operation not permitted"; 2]
        );
    }
}

fn files_with(dir: &str, needle: &str, depth: usize, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().contains(needle) {
            found.push(path.clone());
        }
        if depth > 0 && entry.file_type().is_ok_and(|t| t.is_dir()) {
            files_with(path.to_str().unwrap(), needle, depth - 1, found);
        }
    }
}

/// Everything outside the base directory that a cluster could have left.
fn remains(o: &Options) -> Vec<String> {
    let base = o.base.to_str().unwrap();
    let mut left = vec![];
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let dir = entry.path();
        let read = |name: &str| {
            fs::read(dir.join(name))
                .map(|b| String::from_utf8_lossy(&b).into_owned())
                .unwrap_or_default()
        };
        let zombie = read("stat").contains(") Z ");
        let told = format!("{} {}", read("cmdline"), read("environ"));
        let me = dir.file_name().unwrap().to_str() == Some(&std::process::id().to_string());
        if !zombie && !me && told.contains(base) {
            left.push(format!(
                "process {}: {}",
                dir.display(),
                read("cmdline").replace('\0', " ")
            ));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    left.extend(
        mounts
            .lines()
            .filter(|l| l.contains(base))
            .map(|l| format!("mount {l}")),
    );
    let mut files = vec![];
    for node in o.all_nodes() {
        files_with("/sys/fs/cgroup", &node, 4, &mut files);
        files_with("/dev", &format!("-{node}-"), 0, &mut files);
    }
    left.extend(files.iter().map(|f| format!("file {}", f.display())));
    let registry = fs::read_to_string("/run/gresshopper-dev/clusters.json").unwrap_or_default();
    if registry.contains(base) {
        left.push("an entry in the registry".into());
    }
    if registry.is_empty() {
        // The last cluster of the machine: nothing shared may be left either.
        for file in ["/etc/passwd", "/etc/group", "/etc/subuid"] {
            let text = fs::read_to_string(file).unwrap_or_default();
            left.extend(
                text.lines()
                    .filter(|l| l.starts_with("alice:"))
                    .map(|l| format!("{file}: {l}")),
            );
        }
        if Path::new("/run/gresshopper-dev").exists() {
            left.push("the registry's directory".into());
        }
        if !Path::new("/run/systemd/system").exists() {
            files.clear();
            files_with("/sys/fs/cgroup", "system.slice", 1, &mut files);
            left.extend(files.iter().map(|f| format!("file {}", f.display())));
        }
    }
    left
}

fn whole_life(options: Options) {
    let nodes = options.node_names();
    let cluster = Guard(Cluster::new(options.clone()).unwrap());
    assert_eq!(cluster.0.up().unwrap(), UpOutcome::Started);
    let before = cluster.0.status().unwrap();
    assert!(before.missing.is_empty());
    assert_eq!(cluster.0.up().unwrap(), UpOutcome::AlreadyUp);
    assert_eq!(
        cluster.0.status().unwrap().running,
        before.running,
        "a second up disturbs nothing"
    );
    let other = Cluster::new(Options {
        gpus_per_node: 1,
        ..options.clone()
    })
    .unwrap();
    assert!(
        other
            .up()
            .unwrap_err()
            .to_string()
            .contains("with other options is up")
    );

    cluster.devices_are_constrained(&nodes[0]);

    cluster.0.kill_slurmd(&nodes[1]).unwrap();
    assert_eq!(
        cluster.0.status().unwrap().missing,
        [format!("slurmd.{}", nodes[1])]
    );
    assert_eq!(cluster.0.up().unwrap(), UpOutcome::Mended);
    cluster.0.stop_slurmctld(true).unwrap();
    cluster.0.start_slurmctld().unwrap();
    cluster.devices_are_constrained(&nodes[1]);

    // A job that clings to life: a daemon in a session of its own that ignores polite signals.
    let clinging = "trap '' TERM; setsid sh -c 'trap \"\" TERM HUP; sleep 1000' & sleep 1000";
    cluster.out("carol", &["sbatch", "-w", &nodes[0], "--wrap", clinging]);
    cluster.0.down(false).unwrap();
    assert_eq!(remains(&options), Vec::<String>::new());
    cluster.0.down(true).unwrap();
    assert!(!options.base.exists());
}

#[test]
#[ignore = "needs root and Slurm"]
fn slurm_on_cgroup_v1() {
    whole_life(options(91, Variant::V1));
}

#[test]
#[ignore = "needs root and Slurm"]
fn slurm_on_cgroup_v2() {
    whole_life(options(92, Variant::V2));
}

#[test]
#[ignore = "needs root and the chroot of Debian 13"]
fn slurm_24_11_in_a_chroot() {
    whole_life(options(93, Variant::Trixie));
}

#[test]
#[ignore = "needs root and Slurm"]
fn a_cluster_whose_every_process_was_killed_comes_up_again() {
    let options = options(94, Variant::of_host().unwrap());
    let cluster = Guard(Cluster::new(options.clone()).unwrap());
    cluster.0.up().unwrap();
    cluster.out("alice", &["sbatch", "--wrap", "sleep 1000"]);
    for (_, pid) in cluster.0.status().unwrap().running {
        assert!(
            Command::new("kill")
                .args(["-9", &pid.to_string()])
                .status()
                .unwrap()
                .success()
        );
    }
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(cluster.0.up().unwrap(), UpOutcome::Started);
    cluster.devices_are_constrained(&options.node_names()[0]);
    cluster.0.down(true).unwrap();
    assert_eq!(remains(&options), Vec::<String>::new());
}

#[test]
#[ignore = "needs root and Slurm"]
fn a_daemon_that_cannot_start_is_explained_and_nothing_stays() {
    let options = Options {
        conf_extra: "NoSuchParameter=1".into(),
        ..options(95, Variant::of_host().unwrap())
    };
    let cluster = Guard(Cluster::new(options.clone()).unwrap());
    let error = format!("{:#}", cluster.0.up().unwrap_err());
    assert!(error.contains("NoSuchParameter"), "{error}");
    assert_eq!(remains(&options), Vec::<String>::new());
}
