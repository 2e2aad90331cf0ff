//! `hop kernels`: all kernels, open or hibernated. Also finds a kernel by id, by an id's beginning, or by notebook
//! name.

use crate::context::Context;
use crate::failure::Failure;
use crate::files;
use crate::filter::{Nodes, States};
use crate::hopd::unexpected;
use crate::output::{Field, Options, Value, View, Whose, field};
use hop_api::message::{KernelRow, KernelState, KernelsQuery, ReplicaRole, ReplicaRow, Request, Response};
use hop_protocol::file::data_dir_by;
use hop_protocol::states::{NOTEBOOK, notebook_name};
use hop_words::id::KernelId;
use hop_words::text;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  hop kernels                 your kernels, and what each does
  hop kernels -a -N n2        everybody's with a process on node n2 (operators)
  hop kernels -t asleep       hibernated kernels
  hop kernels -P -o kernelid,name,node,captured,reason";

/// All kernels, open or hibernated.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    whose: Whose,
    #[command(flatten)]
    nodes: Nodes,
    #[command(flatten)]
    states: States,
    #[command(flatten)]
    output: Options,
}

/// A kernel, and the time since the kernel entered its state.
struct Row {
    kernel: KernelRow,
    time: hop_words::time::Span,
}

static FIELDS: [Field<Row>; 23] = [
    field!("KernelID", -9, "the kernel", |r| Value::text(&r.kernel.kernel)),
    field!("Name", 16, "what the notebook is called", |r| Value::text(
        &r.kernel.name
    )),
    field!("User", 9, "who", |r| Value::text(&r.kernel.user)),
    field!(
        "State",
        9,
        "STARTING, IDLE, WAITING, RUNNING, MOVING, SAVING, ASLEEP, SILENT, LOST, REPLACING",
        |r| Value::text(r.kernel.state.name())
    ),
    field!("Time", 9, "how long in this state", |r| Value::Span(r.time)),
    field!("TimeRaw", 10, "in seconds", |r| Value::Seconds(r.time)),
    field!("Node", -10, "where its executor is", |r| Value::text(node(
        &r.kernel
    ))),
    field!("Nodes", -16, "where its replicas are", |r| Value::text(nodes(
        &r.kernel
    ))),
    field!("Replicas", 8, "processes that keep its state", |r| {
        Value::Number(r.kernel.replicas.len() as u64)
    }),
    field!("Executor", 8, "the number of the one that runs cells", |r| {
        Value::maybe(r.kernel.executor)
    }),
    field!("Hot", -10, "where a hot standby keeps its variables", |r| {
        let hot = |replica: &&ReplicaRow| replica.role == ReplicaRole::Hot;
        Value::maybe(r.kernel.replicas.iter().find(hot).map(|r| &r.node))
    }),
    field!("Leader", -10, "where the leader of its log is", |r| {
        let leads = |replica: &&ReplicaRow| Some(replica.incarnation) == r.kernel.leader;
        Value::maybe(r.kernel.replicas.iter().find(leads).map(|r| &r.node))
    }),
    field!(
        "Behind",
        6,
        "entries of its log that the replica furthest behind lacks",
        |r| behind(&r.kernel).map_or(Value::Absent, Value::Number)
    ),
    field!(
        "Lagging",
        -10,
        "where replicas lack entries of its log",
        |r| match lagging(&r.kernel) {
            nodes if nodes.is_empty() => Value::Absent,
            nodes => Value::text(nodes),
        }
    ),
    field!("CPUs", 4, "cores that its replicas hold", |r| {
        match r.kernel.cpus {
            0 => Value::Absent,
            cpus => Value::Number(cpus.into()),
        }
    }),
    field!(
        "Mem",
        6,
        "memory that its replicas hold",
        |r| match r.kernel.mem_mib {
            0 => Value::Absent,
            mib => Value::Mib(mib),
        }
    ),
    field!("LeaseID", 9, "the lease that it has", |r| Value::maybe(
        r.kernel.lease
    )),
    field!("Pool", 10, "whose GPUs it is lent", |r| Value::text(
        &r.kernel.pool
    )),
    field!("Account", 10, "who is charged", |r| Value::maybe(
        r.kernel.account.as_ref()
    )),
    field!("Tenure", 6, "executors so far, by its own log", |r| Value::text(
        r.kernel.tenure
    )),
    field!("Captured", 8, "whether its state is saved", |r| Value::text(
        if r.kernel.captured { "yes" } else { "no" }
    )),
    field!("To", -10, "where it moves", |r| Value::maybe(
        r.kernel.moving.as_ref().map(|m| &m.to)
    )),
    field!(
        "Reason",
        -20,
        "why it moves, stays where it is, is not saved, or runs no cell",
        |r| { Value::text(reason(&r.kernel)) }
    ),
];

static VIEW: View<Row> = View {
    command: "kernels",
    fields: &FIELDS,
    default: "KernelID,Name,User,State,Time,Node,CPUs,Mem,Reason%-8",
    brief: "KernelID,State,Node",
    variable: "HOP_KERNELS_FORMAT",
};

pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    if args.output.answered(&VIEW, context)? {
        return Ok(());
    }
    args.states.check(&KernelState::ALL.map(KernelState::name))?;
    let query = KernelsQuery {
        visible: false,
        users: args.whose.users(context)?,
        all_users: args.whose.all(context.is_root),
        nodes: args.nodes.names(),
    };
    let now = context.now;
    let mut kernels = rows(query, context)?;
    kernels.retain(|row| args.states.has(row.state.name()));
    kernels.sort_by(|a, b| (&a.user, &a.name, &a.kernel).cmp(&(&b.user, &b.name, &b.kernel)));
    let rows: Vec<Row> = kernels
        .into_iter()
        .map(|kernel| Row {
            time: now.since(kernel.since),
            kernel,
        })
        .collect();
    args.output.write(&VIEW, &rows, context)
}

pub(crate) fn rows(query: KernelsQuery, context: &Context<'_>) -> Result<Vec<KernelRow>, Failure> {
    match context.hopd.ask(Request::Kernels(query))? {
        Response::Kernels { mut rows } => {
            for row in &mut rows {
                if let Some(name) = name_at_home(&row.kernel, context) {
                    row.name = name;
                }
            }
            Ok(rows)
        }
        other => Err(unexpected(&other)),
    }
}

/// The most bytes of the file that names a kernel's notebook.
const NOTEBOOK_MAX: u64 = 1 << 16;

/// The name under which a notebook's opening finds the kernel, by the kernel's folder in the caller's home. `hopd` may
/// know an older name, if it was away at the rename.
fn name_at_home(kernel: &KernelId, context: &Context<'_>) -> Option<String> {
    let file = state_folder(kernel, context)?.join(NOTEBOOK);
    let name = notebook_name(&files::read(&file, NOTEBOOK_MAX).ok()?)?;
    Some(text::name(&name))
}

/// The place of the kernel's saved state in the caller's home, whether or not there is a state. `find` accepts an id
/// unknown to `hopd` only in whole, so the name leads nowhere else.
pub(crate) fn state_folder(kernel: &KernelId, context: &Context<'_>) -> Option<PathBuf> {
    let plain = is_whole(kernel.as_str());
    let states = data_dir_by(context.env)?.join("states");
    plain.then(|| states.join(kernel.as_str()))
}

/// Kernels of which a name may speak: root's are everybody's, as in lists.
fn named(context: &Context<'_>) -> Result<Vec<KernelRow>, Failure> {
    let query = KernelsQuery {
        all_users: context.is_root,
        ..KernelsQuery::default()
    };
    rows(query, context)
}

/// The caller's own kernels.
pub(crate) fn own(context: &Context<'_>) -> Result<Vec<KernelRow>, Failure> {
    rows(KernelsQuery::default(), context)
}

/// Present state of these kernels, without the kernels unknown to `hopd`.
pub(crate) fn of(kernels: &[KernelId], context: &Context<'_>) -> Result<Vec<KernelRow>, Failure> {
    // Only hopd knows which other users' kernels the caller may see.
    let query = KernelsQuery {
        visible: true,
        ..KernelsQuery::default()
    };
    let mut rows = rows(query, context)?;
    rows.retain(|row| kernels.contains(&row.kernel));
    Ok(rows)
}

/// Between two looks at what kernels do.
const LOOK: Duration = Duration::from_millis(500);

/// A kernel without a row in so many looks is closed. After a restart of `hopd` kernels come back one by one.
const GONE: u32 = 4;

/// What came of kernels that were watched.
pub(crate) struct Watched<T> {
    pub(crate) settled: Vec<(KernelId, T)>,
    /// Kernels that were closed meanwhile.
    pub(crate) closed: Vec<KernelId>,
    /// Kernels unfinished in the end, each with the number of last looks without its row.
    left: Vec<(KernelId, u32)>,
}

impl<T> Watched<T> {
    fn new(kernels: &[KernelId]) -> Self {
        Self {
            settled: Vec::new(),
            closed: Vec::new(),
            left: kernels.iter().map(|kernel| (kernel.clone(), 0)).collect(),
        }
    }

    /// Kernels unfinished in the end.
    pub(crate) fn left(&self) -> impl Iterator<Item = &KernelId> {
        self.left.iter().map(|(kernel, _)| kernel)
    }

    /// Takes in one look: all kernels with a row, each with what has come of it.
    fn look(&mut self, rows: Vec<(KernelId, Option<T>)>) {
        for (kernel, missing) in &mut self.left {
            let seen = rows.iter().any(|(row, _)| row == kernel);
            *missing = if seen { 0 } else { *missing + 1 };
        }
        for (kernel, outcome) in rows {
            if let Some(outcome) = outcome {
                self.left.retain(|(left, _)| *left != kernel);
                self.settled.push((kernel, outcome));
            }
        }
        let closed = self.left.extract_if(.., |(_, missing)| *missing >= GONE);
        self.closed.extend(closed.map(|(kernel, _)| kernel));
    }
}

/// Looks at the kernels until `settled` says of each of them what has come of it, or it is closed; for `patience` at
/// most.
pub(crate) fn watch<T>(
    kernels: &[KernelId],
    patience: Duration,
    context: &Context<'_>,
    settled: impl Fn(&KernelRow) -> Option<T>,
) -> Result<Watched<T>, Failure> {
    let mut watched = Watched::new(kernels);
    let began = std::time::Instant::now();
    while !watched.left.is_empty() {
        let left: Vec<KernelId> = watched.left().cloned().collect();
        let rows = of(&left, context)?.into_iter();
        watched.look(rows.map(|row| (row.kernel.clone(), settled(&row))).collect());
        if watched.left.is_empty() || began.elapsed() >= patience {
            break;
        }
        std::thread::sleep(LOOK);
    }
    Ok(watched)
}

/// Where the kernel's executor is; empty if none is known.
pub(crate) fn node(row: &KernelRow) -> String {
    let speaks = |r: &&ReplicaRow| match row.executor {
        Some(executor) => r.incarnation == executor,
        None => r.role == ReplicaRole::Executor,
    };
    let executor = row.replicas.iter().find(speaks);
    executor.map(|r| r.node.to_string()).unwrap_or_default()
}

fn nodes(row: &KernelRow) -> String {
    let names: Vec<String> = row.replicas.iter().map(|r| r.node.to_string()).collect();
    names.join(",")
}

/// The most entries that a replica lacks; 0 only if it is known that none lacks any.
fn behind(row: &KernelRow) -> Option<u64> {
    let most = row.replicas.iter().filter_map(|r| r.behind).max();
    let all_known = row.replicas.iter().all(|r| r.behind.is_some());
    most.filter(|most| *most > 0 || all_known)
}

/// Nodes of replicas that are known to lag. A standby that has not answered a leader beside it lags as well.
fn lagging(row: &KernelRow) -> String {
    let leads = row.leader.is_some() && row.leader == row.executor;
    let lags = |r: &&ReplicaRow| match r.behind {
        Some(entries) => entries > 0,
        None => leads,
    };
    let nodes = row.replicas.iter().filter(lags).map(|r| r.node.to_string());
    nodes.collect::<Vec<_>>().join(",")
}

fn reason(row: &KernelRow) -> String {
    let moves = row.state == KernelState::Moving;
    if let Some(moving) = row.moving.as_ref().filter(|_| moves) {
        return format!("moves to {}: {}", moving.to, moving.cause);
    }
    let mut said = Vec::new();
    said.extend(row.lost.as_ref().map(ToString::to_string));
    said.extend(
        row.move_failed
            .as_ref()
            .map(|f| format!("its move to {} failed: {}", f.to, f.reason)),
    );
    said.extend(row.stayed.as_ref().map(|why| format!("did not hibernate: {why}")));
    said.extend(row.unsaved.as_ref().map(|why| format!("is not saved: {why}")));
    if row.state != KernelState::Asleep {
        said.extend(row.bound.iter().cloned());
    }
    said.join("; ")
}

/// Fewest characters that count as the beginning of an id: a slip of the hand must not mean a user's only kernel.
const BEGINNING: usize = 4;

/// The id of the only kernel meant by `word`. A whole id is returned unchecked.
pub(crate) fn find(word: &str, context: &Context<'_>) -> Result<KernelId, Failure> {
    check(word)?;
    if is_whole(word) {
        return Ok(word.into());
    }
    pick(word, &named(context)?)
}

/// Refuses a word that names nothing, as of a script's variable without a value.
pub(crate) fn check(word: &str) -> Result<(), Failure> {
    if word.trim().is_empty() {
        return Err(Failure::Usage(
            "KERNEL is empty: give a notebook's name, or an id or its beginning (`hop kernels` lists them)"
                .to_owned(),
        ));
    }
    Ok(())
}

pub(crate) fn is_whole(word: &str) -> bool {
    word.len() == 36 && word.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

/// Whether a kernel's id begins with the word, or the word names its notebook, with or without folders. `name` is the
/// notebook's as `hopd` keeps it.
pub(crate) fn is_called(word: &str, id: &str, name: Option<&str>) -> bool {
    let base = Path::new(word).file_name().and_then(|base| base.to_str());
    begins(id, word) || base.is_some_and(|base| name == Some(text::name(base).as_str()))
}

/// Whether the word is enough of the beginning of a kernel's id.
pub(crate) fn begins(id: &str, word: &str) -> bool {
    word.len() >= BEGINNING && id.starts_with(word)
}

fn pick(word: &str, rows: &[KernelRow]) -> Result<KernelId, Failure> {
    let mut found: Vec<&KernelId> = rows
        .iter()
        .filter(|row| is_called(word, row.kernel.as_str(), Some(&row.name)))
        .map(|row| &row.kernel)
        .collect();
    found.sort();
    found.dedup();
    match found[..] {
        [kernel] => Ok(kernel.clone()),
        [] => Err(Failure::Failed(format!(
            "no kernel of yours is called {word:?}, nor does an id begin with it ({BEGINNING} characters at least): `hop kernels` lists \
             them; for another one give its whole id"
        ))),
        _ => Err(Failure::Failed(format!(
            "{word:?} can mean {} kernels: give more of the id",
            found.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_api::message::{LossRow, LossStage, MoveCause, MoveRow};
    use hop_words::id::{Incarnation, JobId};

    fn replicas(leader: Option<u32>, behind: &[Option<u64>]) -> KernelRow {
        let replica = |(n, behind): (u32, &Option<u64>)| ReplicaRow {
            incarnation: Incarnation(n),
            role: ReplicaRole::Warm,
            node: format!("n{n}").as_str().into(),
            seat: JobId(n),
            behind: *behind,
        };
        KernelRow {
            replicas: (1..).zip(behind).map(replica).collect(),
            executor: Some(Incarnation(1)),
            leader: leader.map(Incarnation),
            ..crate::transcripts::kernel_rows().remove(0)
        }
    }

    #[test]
    fn a_watched_kernel_that_is_closed_is_not_waited_for() {
        let ids: [KernelId; 3] = ["a".into(), "b".into(), "c".into()];
        let mut watched = Watched::new(&ids);
        let row = |kernel: &str, outcome| (KernelId::from(kernel), outcome);
        watched.look(vec![row("a", Some(1)), row("b", None)]);
        // A hopd that has restarted hears of its kernels one by one.
        for _ in 2..GONE {
            watched.look(vec![row("b", None)]);
        }
        watched.look(vec![row("c", None)]);
        assert_eq!(watched.closed, []);
        for _ in 0..GONE - 1 {
            watched.look(vec![row("c", None)]);
        }
        assert_eq!(watched.settled, [row("a", Some(1)).0].map(|kernel| (kernel, 1)));
        assert_eq!(watched.closed, ["b".into()]);
        assert!(watched.left().eq([&KernelId::from("c")]));
    }

    #[test]
    fn replicas_that_lag_are_counted_only_as_far_as_it_is_known() {
        let (one, two) = (Some(1), Some(2));
        for (leader, all, most, nodes) in [
            (None, &[None][..], None, ""),
            (None, &[None, None, None], None, ""),
            (one, &[Some(0), Some(0), Some(0)], Some(0), ""),
            (one, &[Some(0), Some(0), Some(1204)], Some(1204), "n3"),
            (one, &[Some(0), None, Some(1204)], Some(1204), "n2,n3"),
            (one, &[Some(0), Some(0), None], None, "n3"),
            (two, &[None, Some(0), None], None, ""),
        ] {
            let row = replicas(leader, all);
            assert_eq!((behind(&row), lagging(&row).as_str()), (most, nodes), "{all:?}");
        }
        let mut unled = replicas(None, &[None, None]);
        unled.executor = None;
        assert_eq!((behind(&unled), lagging(&unled).as_str()), (None, ""));
    }

    #[test]
    fn a_word_without_meaning_means_no_kernel() {
        let only = crate::transcripts::kernel_rows().remove(0);
        let id = only.kernel.to_string();
        for word in ["", &id[..1], &id[..3]] {
            assert!(pick(word, std::slice::from_ref(&only)).is_err(), "{word:?}");
        }
        assert_eq!(pick(&id[..4], std::slice::from_ref(&only)).unwrap(), only.kernel);
        for word in ["", " ", "\t"] {
            assert!(matches!(check(word), Err(Failure::Usage(_))), "{word:?}");
        }
    }

    #[test]
    fn the_reason_names_the_lost_node_and_no_move_that_is_given_up() {
        let lost = |stage| LossRow {
            node: "n1".into(),
            stage,
            since: hop_words::time::Timestamp(1),
        };
        let moving = MoveRow {
            to: "n2".into(),
            cause: MoveCause::Asked,
            since: hop_words::time::Timestamp(1),
        };
        let mut row = crate::transcripts::kernel_rows().remove(0);
        (row.state, row.lost) = (KernelState::Silent, Some(lost(LossStage::Silent)));
        assert!(
            reason(&row).starts_with("its process on n1 does not answer; its move to n3 failed"),
            "{}",
            reason(&row)
        );
        (row.state, row.moving) = (KernelState::Moving, Some(moving));
        assert!(reason(&row).starts_with("moves to n2: "), "{}", reason(&row));
        (row.state, row.lost) = (KernelState::Replacing, Some(lost(LossStage::Replacing)));
        let gone = "its process on n1 is gone, and another one is being started; ";
        assert!(reason(&row).starts_with(gone), "{}", reason(&row));
    }

    #[test]
    fn a_notebook_is_called_by_its_files_own_name() {
        for name in [
            format!("{}.ipynb", "x".repeat(249)),
            format!("{}.ipynb", "名".repeat(80)),
            "new\nline \u{200b}zero.ipynb".to_owned(),
            "\u{202e}gnp.ipynb".to_owned(),
            "\u{1b}[31mred.ipynb".to_owned(),
        ] {
            let kept = text::name(&name);
            assert!(is_called(&name, "id", Some(&kept)), "{name:?}");
            assert!(is_called(&format!("work/{name}"), "id", Some(&kept)), "{name:?}");
            assert!(is_called(&kept, "id", Some(&kept)), "{name:?}");
            assert!(!is_called("other.ipynb", "id", Some(&kept)), "{name:?}");
        }
    }
}
