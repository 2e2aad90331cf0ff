//! Transcripts of whole commands, as a user sees them: stdout, stderr, status. `hopd` is a table of answers here;
//! everything else is what runs in production.

use crate::context::Context;
use crate::failure::{self, Failure};
use crate::hopd::Hopd;
use crate::{Cli, dispatch};
use clap::Parser;
use hop_api::message::{
    AcctQuery, AcctRow, CancelTarget, Explanation, InfoReport, KernelRow, KernelState, KernelsQuery,
    MoveFailure, NodeInfo, QueueRow, Refusal, ReplicaRole, ReplicaRow, Request, Response, Sums, SumsQuery,
    Told, add_rows,
};
use hop_words::explain::Item;
use hop_words::id::{GpuIndex, Incarnation, JobId, LeaseId, Tenure, Term};
use hop_words::need::Need;
use hop_words::time::{Span, Timestamp};
use jiff::tz::TimeZone;
use std::cell::RefCell;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::LazyLock;

/// 2026-11-21T13:30:00Z.
const NOW: Timestamp = Timestamp(1_795_267_800_000_000);
const KERNEL: &str = "1a2b3c4d-0000-4000-8000-000000000001";
const OTHER: &str = "1a2b9999-0000-4000-8000-000000000002";
const ASLEEP: &str = "7777cccc-0000-4000-8000-000000000003";

/// Seconds before now.
fn ago(seconds: u64) -> Timestamp {
    Timestamp(NOW.0 - seconds * 1_000_000)
}

fn lease(id: u64) -> AcctRow {
    AcctRow {
        lease: LeaseId(id),
        cell: None,
        user: "alice".into(),
        account: Some("lab".into()),
        pool: "main".into(),
        kernel: KERNEL.into(),
        name: "lecture.ipynb".into(),
        node: "n1".into(),
        gpus: vec![GpuIndex(0), GpuIndex(1)],
        cpus: 4,
        pilot: JobId(31),
        step: 2,
        state: "COMPLETED".into(),
        submit: ago(3605),
        start: Some(ago(3604)),
        end: Some(ago(4)),
        wait: Span::from_secs(1),
        held: Span::from_secs(3600),
        run: Span::from_secs(2700),
        linger: Span::from_secs(900),
        cells: 2,
        reason: String::new(),
    }
}

fn acct_rows() -> Vec<AcctRow> {
    let first = lease(12);
    let cell = |name: &str, start: u64, seconds: u64, state: &str| AcctRow {
        cell: Some(name.into()),
        state: state.into(),
        submit: ago(start + 1),
        start: Some(ago(start)),
        end: Some(ago(start - seconds)),
        held: Span::from_secs(seconds),
        run: Span::from_secs(seconds),
        linger: Span::ZERO,
        cells: 0,
        ..first.clone()
    };
    let running = AcctRow {
        lease: LeaseId(13),
        user: "bob".into(),
        account: None,
        name: "eine sehr lange 日本語 Übung.ipynb".into(),
        node: "gpu-node-0017".into(),
        gpus: vec![GpuIndex(3)],
        state: "RUNNING".into(),
        step: 5,
        end: None,
        start: Some(ago(2)),
        held: Span::from_millis(2345),
        run: Span::ZERO,
        linger: Span::ZERO,
        cells: 0,
        reason: String::new(),
        ..lease(13)
    };
    vec![
        cell("cell-b", 1000, 700, "FAILED"),
        cell("cell-a", 3604, 2000, "COMPLETED"),
        first.clone(),
        running,
    ]
}

fn queue_rows() -> Vec<QueueRow> {
    let running = QueueRow {
        kernel: KERNEL.into(),
        cell: Some("cell-a".into()),
        lease: Some(LeaseId(12)),
        user: "alice".into(),
        name: "lecture.ipynb".into(),
        state: "RUNNING".into(),
        need: Need::gpus(2),
        node: Some("n1".into()),
        gpus: vec![GpuIndex(0), GpuIndex(1)],
        submit: ago(75),
        time: Span::from_secs(75),
        position: None,
        estimate: None,
        reason: String::new(),
        why: String::new(),
    };
    let waiting = QueueRow {
        kernel: OTHER.into(),
        cell: Some("cell-z".into()),
        lease: None,
        name: "train|\u{1b}[31m.ipynb".into(),
        state: "PENDING".into(),
        need: Need {
            gpus: 1,
            gpu_type: Some("h100".into()),
            gpu_mem_mib: 40 * 1024,
            ..Need::default()
        },
        node: None,
        gpus: vec![],
        submit: ago(8),
        time: Span::from_millis(8200),
        position: Some(3),
        estimate: Some(Span::from_secs(95)),
        reason: "all GPUs of pool main are lent".into(),
        why: "Resources".into(),
        ..running.clone()
    };
    vec![running, waiting]
}

pub(crate) fn kernel_rows() -> Vec<KernelRow> {
    let replica = |incarnation: u32, node: &str| ReplicaRow {
        incarnation: Incarnation(incarnation),
        role: ReplicaRole::Executor,
        node: node.into(),
        seat: JobId(40),
        behind: None,
    };
    let standby = |incarnation, node, behind| ReplicaRow {
        role: ReplicaRole::Warm,
        behind,
        ..replica(incarnation, node)
    };
    let moved = KernelRow {
        kernel: KERNEL.into(),
        name: "lecture.ipynb".into(),
        user: "alice".into(),
        pool: "main".into(),
        state: KernelState::Running,
        since: ago(75),
        tenure: Tenure(3),
        wanted: 1,
        replicas: vec![replica(2, "n1")],
        lease: Some(LeaseId(12)),
        moving: None,
        move_failed: Some(MoveFailure {
            to: "n3".into(),
            reason: "its seat did not start".into(),
            at: ago(9),
        }),
        captured: true,
        unsaved: None,
        bound: vec!["It holds an open socket.".into()],
        executor: Some(Incarnation(2)),
        leader: None,
        account: Some("lab".into()),
        mem_mib: 4096,
        cpus: 2,
        stayed: Some("a cell runs".into()),
        lost: None,
    };
    let waiting = KernelRow {
        kernel: OTHER.into(),
        name: "train|\u{1b}[31m.ipynb".into(),
        state: KernelState::Waiting,
        since: ago(8),
        lease: None,
        replicas: vec![
            replica(4, "n2"),
            standby(1, "n1", Some(0)),
            standby(5, "n3", Some(1204)),
        ],
        executor: Some(Incarnation(4)),
        leader: Some(Incarnation(1)),
        move_failed: None,
        bound: vec![],
        stayed: None,
        captured: false,
        unsaved: Some("the store is full".into()),
        ..moved.clone()
    };
    let asleep = KernelRow {
        kernel: ASLEEP.into(),
        name: "old.ipynb".into(),
        state: KernelState::Asleep,
        since: ago(86_400),
        replicas: vec![],
        executor: None,
        leader: None,
        mem_mib: 0,
        cpus: 0,
        captured: true,
        unsaved: None,
        ..waiting.clone()
    };
    vec![moved, waiting, asleep]
}

pub(crate) fn info() -> InfoReport {
    let node = NodeInfo {
        node: "n1".into(),
        pool: "main".into(),
        pilot: JobId(31),
        state: "UP".into(),
        gpus: 4,
        gpus_leased: 2,
        gpus_lingering: 1,
        gpus_blocked: 0,
        gpu_types: vec!["h100".into()],
        cpus: 32,
        cpus_leased: 8,
        reason: String::new(),
        quantum: vec![],
        isolation: "counted".into(),
        blocked: vec![],
        asked: None,
    };
    let blocked = NodeInfo {
        node: "n2".into(),
        pilot: JobId(32),
        state: "DRAINING".into(),
        gpus_leased: 0,
        gpus_lingering: 0,
        gpus_blocked: 4,
        blocked: (0..4).map(hop_words::id::GpuIndex).collect(),
        isolation: "scanned".into(),
        reason: "slurmstepd of lease 9 was killed".into(),
        ..node.clone()
    };
    InfoReport {
        version: "0.1.0".into(),
        term: Term(4),
        started: ago(86_400),
        nodes: vec![node, blocked],
        kernels: 7,
        waiting: 1,
        problems: vec!["the journal is not saved: no space is left".into()],
    }
}

/// Answers from tables, and records the questions.
#[derive(Clone, Default)]
struct Table {
    asked: Rc<RefCell<Vec<Request>>>,
    down: bool,
    /// The caller is an operator, and not root.
    operator: bool,
    /// The first cell's lease and the third kernel are being started.
    starts: bool,
    /// Entries that the accounting lacks.
    behind: usize,
}

/// The sums of the rows, of each part of the time if it is parted.
fn sums(query: &SumsQuery) -> Vec<Sums> {
    let sums = query.by_parts(|query| {
        let mut rows = acct_rows();
        rows.retain(|row| (query.since..query.until).contains(&row.submit));
        let mut sums = Vec::new();
        add_rows(&mut sums, query.by, &rows);
        Ok::<_, Infallible>(sums)
    });
    let Ok(sums) = sums;
    sums
}

impl Hopd for Table {
    fn ask(&self, request: Request) -> Result<Response, Failure> {
        self.asked.borrow_mut().push(request.clone());
        if self.down {
            return Err(Failure::Unreachable(
                "hopd does not answer on 127.0.0.1:17900: connection refused".into(),
            ));
        }
        match request {
            Request::Acct(_) => Ok(Response::Acct {
                rows: acct_rows(),
                more: false,
                behind: self.behind,
            }),
            Request::Sums(query) => Ok(Response::Sums {
                rows: sums(&query),
                more: false,
                behind: self.behind,
            }),
            Request::Queue(_) if self.starts => {
                let mut rows = queue_rows();
                rows.truncate(1);
                rows[0].state = "STARTING".into();
                let expected = vec![];
                Ok(Response::Queue { rows, expected })
            }
            Request::Kernels(_) if self.starts => {
                let mut rows = kernel_rows();
                rows[2].state = KernelState::Starting;
                Ok(Response::Kernels { rows })
            }
            Request::Queue(_) => Ok(Response::Queue {
                rows: queue_rows(),
                expected: vec![],
            }),
            Request::Info => Ok(Response::Info(info())),
            Request::Explain { kernel, cell } => Ok(Response::Explanation(Explanation {
                kernel,
                cell,
                sentences: vec![
                    "It is third in the queue.".into(),
                    "All 4 GPUs of pool main are lent.".into(),
                ],
                // The second is of a newer hopd.
                items: vec![
                    Item::Position { ahead: 2 }.into(),
                    Told::Newer(serde_json::json!({"item": "all-lent", "pool": "main"})),
                ],
            })),
            // An operator's own kernel is the second; the others are somebody else's.
            Request::Kernels(query) if self.operator && !query.visible => Ok(Response::Kernels {
                rows: kernel_rows().drain(1..2).collect(),
            }),
            Request::Kernels(_) => Ok(Response::Kernels { rows: kernel_rows() }),
            Request::Migrate { .. } | Request::Wake { .. } | Request::Forget { .. } => Ok(Response::Done),
            Request::Hibernate { .. } => Ok(Response::Asked {
                kernels: vec![KERNEL.into(), ASLEEP.into()],
                refused: vec![(
                    OTHER.into(),
                    format!("kernel {OTHER} can't be hibernated: it has no log"),
                )],
            }),
            Request::Cancel(CancelTarget::Lease { lease: LeaseId(99) }) => {
                let refusal = Refusal::NotFound {
                    what: "lease 99".into(),
                };
                Err(Failure::Failed(refusal.to_string()))
            }
            Request::Cancel(_) => Ok(Response::Done),
            other => panic!("not asked by hop: {other:?}"),
        }
    }
}

struct World {
    hopd: Table,
    env: fn(&str) -> Option<String>,
    is_root: bool,
    columns: Option<usize>,
}

fn user() -> World {
    World {
        hopd: Table::default(),
        env: |_| None,
        is_root: false,
        columns: None,
    }
}

impl World {
    /// The command's text on the terminal.
    fn hop(&self, line: &str) -> String {
        let (out, err) = self.streams(line);
        format!("{out}{err}")
    }

    /// The command's text on stdout, and its text on stderr with the status of a failure.
    fn streams(&self, line: &str) -> (String, String) {
        let words = std::iter::once("hop").chain(line.split_whitespace());
        let cli = match Cli::try_parse_from(words) {
            Ok(cli) => cli,
            Err(error) => {
                let said = format!(
                    "{}\n(clap, status {})",
                    error.to_string().trim_end(),
                    error.exit_code()
                );
                return (String::new(), said);
            }
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut context = Context {
            out: &mut out,
            err: &mut err,
            hopd: Box::new(self.hopd.clone()),
            now: NOW,
            zone: TimeZone::UTC,
            env: self.env,
            is_root: self.is_root,
            user: |name| match name {
                "nosuchuser" => None,
                "1001" => Some("bob".into()),
                name => Some(name.into()),
            },
            config: None,
            columns: self.columns,
        };
        let result = dispatch(&cli.command, &mut context);
        let status = failure::report(result, context.err);
        let (out, err) = (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap());
        let status = if status == std::process::ExitCode::SUCCESS {
            String::new()
        } else {
            format!("{status:?}\n")
        };
        (out, format!("{err}{status}"))
    }

    fn asked(&self) -> Vec<Request> {
        self.hopd.asked.borrow().clone()
    }
}

/// A user's command, and what it writes.
pub(crate) fn as_user(line: &str) -> String {
    user().hop(line)
}

fn acct_query(line: &str) -> AcctQuery {
    let world = user();
    world.hop(line);
    match &world.asked()[..] {
        [Request::Acct(query)] => query.clone(),
        other => panic!("{other:?}"),
    }
}

fn widest(text: &str) -> usize {
    text.lines()
        .map(unicode_width::UnicodeWidthStr::width)
        .max()
        .unwrap_or(0)
}

/// A user's command lines, each with the answer of a `hop` of its own.
fn transcript(lines: &[&str]) -> String {
    let answered: Vec<String> = lines
        .iter()
        .map(|line| format!("$ hop {line}\n{}", user().hop(line)))
        .collect();
    answered.join("\n")
}

#[test]
fn acct_in_all_formats() {
    let all = [
        "acct",
        "acct -X",
        "acct -b",
        "acct -n -X",
        "acct -X -p",
        "acct -X -P --delimiter=;",
        "acct -X --json -o leaseid,name,start,held,gputimeraw,account,end",
    ];
    insta::assert_snapshot!(transcript(&all));
}

#[test]
fn report_and_metrics() {
    let all = [
        "report -S now",
        "report --by user -P -o all -S now",
        "report --by account --json -o group,waitp95,withdrawn -S now",
        "report -S yesterday -b",
        "report -S tomorrow",
        "metrics",
    ];
    insta::assert_snapshot!(transcript(&all));
    let away = World {
        hopd: Table {
            down: true,
            ..Table::default()
        },
        ..user()
    };
    assert!(
        away.hop("metrics")
            .contains("\ngresshopper_up 0\nhop: hopd does not answer")
    );
}

#[test]
fn acct_filters_what_hopd_does_not() {
    let all = [
        "acct -s R",
        "acct -s failed",
        "acct -j 12.2",
        "acct -r other",
        "acct -X -o leaseid%-6,NAME%14,efficiency,slurmjobid",
    ];
    insta::assert_snapshot!(transcript(&all));
}

#[test]
fn kernels_in_all_formats_and_what_is_done_with_them() {
    let all = [
        "kernels",
        "kernels -t asleep,waiting -P -o kernelid,name,nodes,replicas,executor,captured",
        "kernels -t waiting -P -o kernelid,node,nodes,leader,behind,lagging,cpus,mem",
        "kernels -t waiting -P -o captured,reason",
        "kernels -t waiting --json -o leader,behind,lagging,cpus",
        "kernels --json -o kernelid,state,time,mem,reason",
        "migrate lecture.ipynb --to n3",
        "migrate old.ipynb",
        "hibernate --all --node n1",
        "hibernate old.ipynb",
        "wake 7777",
        "forget 7777",
        "hibernate",
        "hibernate --node n1",
    ];
    insta::assert_snapshot!(transcript(&all));
}

/// A home in which two kernels' notebooks have swapped their names, unknown to `hopd`.
static SWAPPED: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let home = tempfile::tempdir().unwrap();
    for (kernel, name) in [(KERNEL, "old.ipynb"), (ASLEEP, "lecture.ipynb")] {
        let folder = swapped(home.path(), kernel);
        std::fs::create_dir_all(&folder).unwrap();
        let note = serde_json::json!({"kernel": kernel, "path": format!("/home/alice/{name}")});
        std::fs::write(folder.join("notebook"), note.to_string()).unwrap();
    }
    home
});

fn swapped(home: &Path, kernel: &str) -> PathBuf {
    home.join(".local/share/gresshopper/states").join(kernel)
}

#[test]
fn a_name_means_the_kernel_that_its_opening_finds() {
    let swaps = World {
        env: |name| (name == "HOME").then(|| SWAPPED.path().to_str().unwrap().to_owned()),
        ..user()
    };
    let listed = swaps.hop("kernels -n -P -o kernelid,name -t asleep,running");
    assert_eq!(listed, format!("{ASLEEP}|lecture.ipynb\n{KERNEL}|old.ipynb\n"));
    let asked = |line: &str| {
        let said = swaps.hop(line);
        (said, swaps.hopd.asked.borrow_mut().pop())
    };
    let (said, woken) = asked("wake old.ipynb");
    assert!(
        matches!(woken, Some(Request::Wake { kernel }) if kernel.as_str() == KERNEL),
        "{said}"
    );
    let (said, forgotten) = asked("forget lecture.ipynb");
    assert!(
        matches!(forgotten, Some(Request::Forget { kernel }) if kernel.as_str() == ASLEEP),
        "{said}"
    );
    let is_there = |kernel| swapped(SWAPPED.path(), kernel).exists();
    assert_eq!((is_there(ASLEEP), is_there(KERNEL)), (false, true));
}

#[test]
fn an_operator_who_is_not_root_sees_what_came_of_others_kernels() {
    let operator = World {
        hopd: Table {
            operator: true,
            ..Table::default()
        },
        ..user()
    };
    let told = operator.hop("hibernate --all --timeout 1");
    assert!(
        told.contains(&format!("kernel {KERNEL} does not hibernate: a cell runs")),
        "{told}"
    );
    assert!(!told.contains("is not saved after"), "{told}");
    let told = operator.hop(&format!("migrate {KERNEL} --timeout 1"));
    assert!(
        told.contains("did not move to n3: its seat did not start; it is on n1"),
        "{told}"
    );
}

#[test]
fn a_wide_terminal_shows_the_whole_reason_and_no_column_more_than_it_needs() {
    let at = |columns| World {
        columns: Some(columns),
        ..user()
    };
    let waiting = |columns, line| at(columns).hop(line).lines().nth(3).unwrap().to_owned();
    let whole = "(3, ~01:35: all GPUs of pool main are lent)";
    let of_200 = waiting(200, "queue");
    assert!(of_200.ends_with(whole), "{of_200}");
    let rule = at(200).hop("queue").lines().nth(1).unwrap().to_owned();
    assert_eq!(rule.len(), of_200.len());
    // As wide as the terminal, and no wider; a view requested by width keeps its width.
    assert_eq!(waiting(90, "queue").len(), 90);
    assert_eq!(waiting(40, "queue").len(), 78);
    assert_eq!(waiting(200, "queue -o nodereason%-12").len(), 12);
}

#[test]
fn queue_info_explain_cancel() {
    let all = [
        "queue",
        "queue -t pending -P -o kernelid,name,gputype,gpumem,estimateraw,reason",
        "queue -t PD --noconvert -n -o gpumem,submit",
        "queue -t all -n -o state",
        "queue --json -o cellid,leaseid",
        "info",
        "info -l -N n1",
        "info --daemon",
        "info -r nowhere -n",
        "explain 1a2b3",
        "explain lecture.ipynb cell-a --json",
        "explain",
        "explain --json",
        "explain -u nosuchuser",
        "explain 1a2b3 --me",
        "cancel -v 12",
        "cancel --kernel 1a2b3",
    ];
    insta::assert_snapshot!(transcript(&all));
}

#[test]
fn mistakes_are_answered_with_what_to_do() {
    let all = [
        "acct -o lease",
        "acct -o leaseid%x",
        "acct -o ,",
        "acct -s sleeping",
        "acct -S soon",
        "acct -S now -E yesterday",
        "acct -j x",
        "acct --json=v9",
        "acct --json=list",
        "queue -a -u bob",
        "queue -u nosuchuser",
        "queue -t sleeping",
        "kernels -t RR",
        "info -N n[1",
        "info -N n[1,3-5],m2 -n",
        "info --node n1 -n",
        "explain 1a2b",
        "explain nobody",
        "cancel 99 12",
        "cancel x",
        "cancel",
        "acct -p -P",
        "plugin status /nonexistent/plugstack.conf",
        "plugin install /tmp/x --plugin relative/gresshopper.so",
    ];
    insta::assert_snapshot!(transcript(&all));
}

#[test]
fn hopd_away_is_status_3() {
    let world = World {
        hopd: Table {
            down: true,
            ..Table::default()
        },
        ..user()
    };
    insta::assert_snapshot!(world.hop("queue"), @r"
    hop: hopd does not answer on 127.0.0.1:17900: connection refused
    ExitCode(unix_exit_status(3))
    ");
}

#[test]
fn what_starts_is_explained_with_what_waits() {
    let world = World {
        hopd: Table {
            starts: true,
            ..Table::default()
        },
        ..user()
    };
    let said = world.hop("explain");
    assert!(said.contains("lecture.ipynb (1a2b3c4d), alice:"), "{said}");
    assert!(said.contains("old.ipynb ("), "{said}");
    assert!(!said.contains("train"), "{said}");
}

#[test]
fn default_views_fit_80_columns() {
    for line in [
        "acct",
        "acct -X",
        "queue",
        "info",
        "info --daemon",
        "acct -b",
        "report",
        "queue -b",
        "info -b",
    ] {
        let text = user().hop(line);
        assert!(widest(&text) <= 80, "{line}: {}\n{text}", widest(&text));
    }
}

#[test]
fn letters_become_the_query() {
    let query = acct_query("acct -u bob,carol -A lab -N n1,n2 -j 12,13.1 -X");
    assert_eq!(
        (query.users, query.all_users),
        (vec!["bob".into(), "carol".into()], false)
    );
    assert_eq!(
        (query.accounts, query.nodes),
        (vec!["lab".into()], vec!["n1".into(), "n2".into()])
    );
    assert_eq!(
        (query.leases, query.cells, query.since),
        (vec![LeaseId(12), LeaseId(13)], false, None)
    );
    let query = acct_query("acct -a -S now-2days -E now-1day");
    assert_eq!((query.all_users, query.cells, query.whole), (true, true, true));
    assert_eq!(
        (query.since, query.until),
        (Some(ago(2 * 86_400)), Some(ago(86_400)))
    );
    let midnight = ago(13 * 3600 + 1800);
    assert_eq!(acct_query("acct").since, Some(midnight));
}

#[test]
fn root_sees_everybody_unless_it_names_somebody() {
    let root = World {
        is_root: true,
        ..user()
    };
    root.hop("acct");
    root.hop("queue -u bob");
    match &root.asked()[..] {
        [Request::Acct(acct), Request::Queue(queue)] => assert!(acct.all_users && !queue.all_users),
        other => panic!("{other:?}"),
    }
}

#[test]
fn names_are_looked_up_but_whole_ids_are_not() {
    let world = user();
    world.hop(&format!("explain {KERNEL}"));
    world.hop("cancel 1a2b9/cell-z");
    match &world.asked()[..] {
        [
            Request::Explain { .. },
            Request::Kernels(KernelsQuery { .. }),
            Request::Cancel(CancelTarget::Cell { kernel, cell }),
        ] => {
            assert_eq!((kernel.as_str(), cell.as_str()), (OTHER, "cell-z"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_environment_sets_the_columns_and_the_option_wins() {
    let world = World {
        env: |name| (name == "HOP_FORMAT").then(|| "leaseid,state".to_owned()),
        ..user()
    };
    assert!(world.hop("acct -X -P").starts_with("LeaseID|State\n"));
    assert!(world.hop("acct -X -P -o user").starts_with("User\n"));
    let wrong = World {
        env: |name| (name == "HOP_FORMAT").then(|| "nothing".to_owned()),
        ..user()
    };
    assert!(
        wrong
            .hop("acct")
            .starts_with("hop: HOP_FORMAT: there is no field")
    );
}

#[test]
fn all_is_every_field_as_with_sacct() {
    let all = user().hop("acct -X -P -o ALL");
    let long = user().hop("acct -X -P -l");
    let header = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    let count = user().hop("acct -e").lines().count();
    assert_eq!(header(&all).split('|').count(), count);
    assert!(
        header(&long)
            .split('|')
            .all(|f| header(&all).split('|').any(|a| a == f))
    );
    assert!(user().hop("queue -o %i").contains("there is no field \"%i\""));
}

#[test]
fn every_field_is_listed_and_unique() {
    for command in ["acct", "report", "queue", "info", "info --daemon"] {
        let text = user().hop(&format!("{command} -e"));
        let mut names: Vec<String> = text
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_lowercase)
            .collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert!(count > 3 && names.len() == count, "{command}: {text}");
    }
}

/// A reader that has seen enough, like `head`.
struct Closed;

impl std::io::Write for Closed {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_broken_pipe_is_silent() {
    let cli = Cli::try_parse_from(["hop", "acct"]).unwrap();
    let mut err = Vec::new();
    let mut context = Context {
        out: &mut Closed,
        err: &mut err,
        hopd: Box::new(Table::default()),
        now: NOW,
        zone: TimeZone::UTC,
        env: |_| None,
        is_root: false,
        user: |name| match name {
            "nosuchuser" => None,
            "1001" => Some("bob".into()),
            name => Some(name.into()),
        },
        config: None,
        columns: None,
    };
    let result = dispatch(&cli.command, &mut context);
    assert!(matches!(result, Err(Failure::BrokenPipe)));
    assert_eq!(
        failure::report(result, context.err),
        std::process::ExitCode::SUCCESS
    );
    assert!(err.is_empty());
}

#[test]
fn a_notebook_that_only_hopd_may_know_needs_hopd() {
    let mut world = user();
    world.env = |name| (name == "HOME").then(|| "/nonexistent".to_owned());
    let known = world.hop("state show nobodys-own.ipynb");
    assert!(known.contains("no kernel or saved state is called"), "{known}");
    world.hopd.down = true;
    for verb in ["show", "save"] {
        let told = world.hop(&format!("state {verb} nobodys-own.ipynb"));
        assert!(
            told.contains("hopd does not answer") && told.contains("unix_exit_status(3)"),
            "{told}"
        );
    }
}

#[test]
fn the_help_has_examples() {
    for command in ["acct", "report", "queue", "info", "explain", "cancel", "plugin"] {
        let help = user().hop(&format!("{command} --help"));
        assert!(help.contains("Examples:"), "{command}: {help}");
    }
}

#[test]
fn an_accounting_that_is_behind_is_told_on_stderr_alone() {
    for line in [
        "acct -a -X -n -P",
        "acct -a --json",
        "report -a -S 2026-11-01 -P",
        "report -a -S 2026-01-01 --json",
    ] {
        let behind = |entries| {
            let hopd = Table {
                behind: entries,
                ..Table::default()
            };
            World { hopd, ..user() }.streams(line)
        };
        let (out, err) = behind(0);
        assert!(!err.contains("behind"), "{line}: {err}");
        let said = "hop: the accounting is behind by 3 entries: what ended last may be missing\n";
        assert_eq!(behind(3), (out, format!("{said}{err}")), "{line}");
    }
}
