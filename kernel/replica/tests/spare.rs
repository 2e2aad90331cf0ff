//! A spare interpreter becomes a kernel, as a freshly started one would be; what keeps it from it costs no kernel. Needs
//! `HOP_TEST_PYTHON` with ipykernel.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod world;

use hop_protocol::file::FrontFile;
use hop_protocol::link::Item;
use hop_protocol::message::Note;
use hop_replica::spare::Spare;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::path::Path;
use world::{Answer, World, with_spare};

/// What a program can see of the process in which it runs.
const ALL: &str = "
import os, re, signal, sys, threading, warnings
# Those of the state engine, and of a history, come with a kernel that keeps its state.
others = ('_pydev', 'gresshopper', 'cloudpickle', 'sqlite3', '_sqlite3', 'gc', 'resource')
modules = sorted(m for m in sys.modules if not m.startswith(others))
seen = dict(
    argv=sys.argv, orig=getattr(sys, 'orig_argv', None), flags=str(sys.flags), path=sys.path, cwd=os.getcwd(),
    environ=sorted(os.environ.items()), modules=modules, threads=sorted(t.name for t in threading.enumerate()),
    main=sorted(vars(sys.modules['__main__'])), cmdline=open('/proc/self/cmdline').read(),
    stdin=os.readlink('/proc/self/fd/0'), signals=[str(signal.getsignal(n)) for n in range(1, 30)],
    group=os.getpgid(0) == os.getpid(), parent=os.getppid(), adj=open('/proc/self/oom_score_adj').read(),
    recursion=sys.getrecursionlimit(), meta=[str(type(f)) for f in sys.meta_path],
)
for name, value in seen.items():
    text = re.sub(r\"/[^ ']*/\\d+-\\d+\\.\\d+/\", 'SCRATCH/', str(value))
    print(name, re.sub(r'Thread-\\d+|0x[0-9a-f]+|at \\w+', 'N', text))
";

/// A Python with ipykernel, where there is one. Kernels find our package by this process's environment.
fn python() -> Option<String> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
    set("GRESSHOPPER_PYTHON", &package.canonicalize().unwrap());
    world::python()
}

#[allow(
    unsafe_code,
    clippy::disallowed_methods,
    reason = "each test has a process of its own"
)]
fn set(name: &str, value: &Path) {
    // SAFETY: no other thread reads the environment yet.
    unsafe { std::env::set_var(name, value) };
}

async fn spare_of(file: &FrontFile) -> Spare {
    let program = Path::new(env!("CARGO_BIN_EXE_hop-replica"));
    Spare::start(program, file, true).await.unwrap()
}

fn printed(answer: &Answer) -> String {
    assert_eq!(answer.content["status"], "ok", "{:?}", answer.content);
    let streams = answer.heard.iter().filter(|h| h.2["name"] == "stdout");
    let text: Vec<&str> = streams.map(|h| h.2["text"].as_str().unwrap()).collect();
    text.concat()
}

async fn run(world: &mut World, code: &str) -> String {
    let cell = world.run(code, 0).await;
    printed(&world.reply(&cell).await)
}

/// A kernel that may be a spare's, until the scenario has been played.
async fn play(
    python: &str,
    spare: impl AsyncFnOnce(&FrontFile) -> Option<Spare>,
    scenario: impl AsyncFnOnce(&mut World),
) {
    with_spare(python, spare, async |world| {
        scenario(world).await;
        world.note(Note::End).await;
        while !matches!(world.item().await, Item::Note(Note::KernelOver { .. })) {}
    })
    .await;
}

/// The pids of this process's children.
fn children() -> Vec<Pid> {
    let mut found = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(
            list.split_whitespace()
                .filter_map(|p| Pid::from_raw(p.parse().ok()?)),
        );
    }
    found
}

#[tokio::test]
async fn a_spare_becomes_the_kernel_that_a_fresh_start_would_be() {
    let Some(python) = python() else { return };
    // As the front and the seat start a replica of the test's kernel.
    set("GRESSHOPPER_KERNEL", Path::new("k"));
    let mut seen = Vec::new();
    play(
        &python,
        async |_| None,
        async |world| seen.push(run(world, ALL).await),
    )
    .await;
    let mut waited = Vec::new();
    let spare = async |file: &FrontFile| {
        let spare = spare_of(file).await;
        waited = children();
        Some(spare)
    };
    let mut pid = String::new();
    play(&python, spare, async |world| {
        seen.push(run(world, ALL).await);
        pid = run(world, "print(os.getpid())").await;
    })
    .await;
    let waited: Vec<String> = waited.iter().map(|p| format!("{}\n", p.as_raw_pid())).collect();
    assert!(waited.contains(&pid), "{pid} is one of {waited:?}");
    for (fresh, spare) in seen[0].lines().zip(seen[1].lines()) {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<BTreeSet<_>>();
        let (fresh, spare) = (words(fresh), words(spare));
        let differ: Vec<_> = fresh.symmetric_difference(&spare).collect();
        assert!(differ.is_empty(), "{differ:?} of {fresh:?}");
    }
}

#[tokio::test]
async fn a_spare_that_was_killed_or_is_stopped_costs_no_kernel() {
    let Some(python) = python() else { return };
    // The supervisor has the environment of the kernel for which it was started.
    set("GRESSHOPPER_KERNEL", Path::new("spare-1-1"));
    set("JPY_SESSION_NAME", Path::new("/home/another.ipynb"));
    let own = "import os; print(os.environ['GRESSHOPPER_KERNEL'], os.environ.get('JPY_SESSION_NAME'))";
    for signal in [Signal::KILL, Signal::STOP] {
        let spare = async |file: &FrontFile| {
            let before = children();
            let spare = spare_of(file).await;
            for child in children().into_iter().filter(|c| !before.contains(c)) {
                kill_process(child, signal).unwrap();
            }
            Some(spare)
        };
        play(&python, spare, async |world| {
            assert_eq!(run(world, own).await, "k None\n", "{signal:?}");
        })
        .await;
    }
}

#[tokio::test]
async fn a_spare_of_before_an_installation_is_not_used() {
    let Some(python) = python() else { return };
    let site = tempfile::tempdir().unwrap();
    set("PYTHONPATH", site.path());
    let mut waited = Vec::new();
    let spare = async |file: &FrontFile| {
        let spare = spare_of(file).await;
        waited = children();
        std::fs::write(site.path().join("installed_since.py"), "x = 1").unwrap();
        Some(spare)
    };
    let mut pid = String::new();
    play(&python, spare, async |world| {
        pid = run(world, "import os; print(os.getpid())").await;
    })
    .await;
    let waited: Vec<String> = waited.iter().map(|p| format!("{}\n", p.as_raw_pid())).collect();
    assert!(!waited.contains(&pid), "{pid} is none of {waited:?}");
}

#[tokio::test]
async fn an_environment_without_ipykernel_has_no_spare() {
    let Some(python) = python() else { return };
    let spare = async |file: &FrontFile| {
        let mut file = file.clone();
        file.launch.argv[0] = "/bin/false".into();
        let program = Path::new(env!("CARGO_BIN_EXE_hop-replica"));
        assert!(Spare::start(program, &file, true).await.is_err());
        None
    };
    play(&python, spare, async |world| {
        assert_eq!(run(world, "print(1)").await, "1\n");
    })
    .await;
}
