//! Three keepers in one process, with links over loopback and a log on disk each.

#![allow(clippy::unwrap_used, reason = "a test's helpers")]

use bytes::Bytes;
use hop_keeper::{Book, Event, Keeper, Kernel, Need, Patience, Settings, Wire};
use hop_log::{Act, Entry, Index, Payload, Record, RecordNumber, Sequence, State};
use hop_raft::{Feed, Group, Member, News};
use hop_wal::Options;
use hop_words::id::{CellId, Incarnation, JobId, NodeName, Tenure};
use hop_words::lease::Outcome;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(60);
const GROUP: &str = "kernel.0";

fn seat(id: u32) -> JobId {
    JobId(100 + id)
}

fn join(id: u32) -> Entry {
    Entry::Join {
        incarnation: Incarnation(id),
        seat: seat(id),
        node: NodeName::from(format!("n{id}")),
        hot: false,
    }
}

/// A kernel that ran with one replica until now.
fn first_state() -> State {
    let mut state = State::new();
    state.apply(Index(1), &join(1)).unwrap();
    let tenure = Entry::Tenure {
        tenure: Tenure(1),
        executor: Incarnation(1),
    };
    state.apply(Index(2), &tenure).unwrap();
    state
}

struct Host {
    keeper: Keeper,
    events: mpsc::UnboundedReceiver<Event>,
    member: Arc<Member<Wire>>,
    feed: Feed,
    state: Option<State>,
}

fn kernel(id: u32) -> Kernel {
    Kernel {
        group: GROUP.to_owned(),
        me: Incarnation(id),
        wanted: 3,
    }
}

/// A seat without groups.
async fn seated(dir: &Path, id: u32) -> (Keeper, mpsc::UnboundedReceiver<Event>) {
    let log = dir.join(format!("log-{id}"));
    let settings = Settings {
        me: seat(id),
        listen: "127.0.0.1".parse().unwrap(),
        ports: None,
        log: &log,
        wal: Options::default(),
        book: Book::open(&dir.join("seats")).unwrap(),
        patience: Patience {
            abandoned: Duration::from_millis(300),
            lags: Duration::from_secs(2),
            leaderless: Duration::from_millis(600),
        },
    };
    Keeper::start(settings).await.unwrap()
}

async fn host(dir: &Path, id: u32) -> Host {
    let (keeper, events) = seated(dir, id).await;
    let member = match id {
        1 => keeper.found(kernel(1), &first_state()).await.unwrap(),
        _ => keeper.join(kernel(id)).await.unwrap(),
    };
    let feed = member.subscribe();
    Host {
        keeper,
        events,
        member,
        state: feed.state.clone(),
        feed,
    }
}

impl Host {
    /// Follows the log until the state is as wanted.
    async fn wait(&mut self, what: &str, wanted: impl Fn(&State) -> bool) {
        while !self.state.as_ref().is_some_and(&wanted) {
            let news = timeout(LONG, self.feed.news.recv()).await;
            let news =
                news.unwrap_or_else(|_| panic!("{what}: {:?} {:?}", self.member.standing(), self.state));
            match news.unwrap() {
                News::State(state) => self.state = Some(*state),
                News::Applied { index, entry, effect } => {
                    let own = self.state.as_mut().unwrap().apply(index, &entry);
                    assert_eq!(own, effect);
                }
            }
        }
    }

    async fn wait_voters(&self, count: usize) {
        let all = async {
            loop {
                let standing = self.member.standing();
                if standing.voters.len() == count && !standing.is_changing() {
                    return;
                }
                self.member.standing_changed(&standing).await;
            }
        };
        timeout(LONG, all).await.unwrap();
    }

    /// The next need that the keeper tells and doesn't withdraw, with these members gone.
    async fn need(&mut self, gone: &[u32]) -> Need {
        loop {
            if let Event::Need(need) = timeout(LONG, self.events.recv()).await.unwrap().unwrap()
                && need.replicas > 0
                && need.gone.iter().map(|m| m.0).eq(gone.iter().copied())
            {
                return need;
            }
        }
    }

    /// Waits until the keeper says that the group is over here.
    async fn closed(&mut self) {
        self.told(|event| matches!(event, Event::Closed { group } if group == GROUP))
            .await;
    }

    /// Waits until the keeper says that no leader is in sight.
    async fn leaderless(&mut self) {
        self.told(|event| matches!(event, Event::Leaderless { group } if group == GROUP))
            .await;
    }

    async fn told(&mut self, wanted: impl Fn(&Event) -> bool) {
        while !wanted(&timeout(LONG, self.events.recv()).await.unwrap().unwrap()) {}
    }

    /// Runs a cell: proposes its end until it is applied here.
    async fn cell(&mut self, name: &str) {
        self.cell_of(name, 1000).await;
    }

    /// Runs a cell whose record has so many bytes.
    async fn cell_of(&mut self, name: &str, bytes: usize) {
        let entry = self.end_of(name, bytes).await;
        let proposed = async { while self.member.propose(entry.clone()).await.is_err() {} };
        timeout(LONG, proposed).await.unwrap();
        let name = CellId::from(name);
        self.wait("a cell", |s| s.answer(&name).is_some()).await;
    }

    /// The end of a cell whose record has so many bytes.
    async fn end_of(&mut self, name: &str, bytes: usize) -> Entry {
        self.wait("a state", |_| true).await;
        let state = self.state.clone().unwrap();
        let record = Record {
            number: RecordNumber(state.records().0 + 1),
            payload: Payload::Inline {
                text: Bytes::from_static(b"{}"),
                body: Bytes::from(vec![7; bytes]),
            },
        };
        Entry::Act {
            tenure: state.tenure(),
            sequence: Sequence(state.sequence().0 + 1),
            act: Act::Ended {
                cell: CellId::from(name),
                outcome: Outcome::Ok,
                reply: Bytes::from_static(b"reply"),
                last_output: 0,
                record: Some(record),
            },
        }
    }
}

/// A kernel with three replicas, grown from one.
async fn grown(dir: &Path) -> [Host; 3] {
    let mut first = host(dir, 1).await;
    first.cell("alone").await;
    let need = first.need(&[]).await;
    assert_eq!((need.group.as_str(), need.replicas), (GROUP, 2));
    let others = [host(dir, 2).await, host(dir, 3).await];
    for id in [2, 3] {
        first.member.propose(join(id)).await.unwrap();
    }
    first.wait_voters(3).await;
    let [second, third] = others;
    [first, second, third]
}

/// A seat asks at once whether its replica executes the kernel.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_founder_knows_the_kernels_state_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let host = host(dir.path(), 1).await;
    for n in 0..100 {
        let kernel = Kernel {
            group: format!("kernel-{n}.0"),
            ..kernel(1)
        };
        let member = host.keeper.found(kernel, &first_state()).await.unwrap();
        assert_eq!(member.subscribe().state, Some(first_state()), "kernel {n}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kernel_grows_and_each_member_has_all_cells() {
    let dir = tempfile::tempdir().unwrap();
    let mut hosts = grown(dir.path()).await;
    for n in 0..20 {
        hosts[0].cell(&format!("cell-{n}")).await;
    }
    let last = CellId::from("cell-19");
    for host in &mut hosts {
        host.wait("the last cell", |s| s.answer(&last).is_some()).await;
    }
    let states: Vec<_> = hosts.iter().map(|h| h.state.clone().unwrap()).collect();
    assert_eq!(states[0].cells(), states[1].cells());
    assert_eq!(states[0].executor(), Some(Incarnation(1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_others_go_on_where_the_executor_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let [mut first, mut second, mut third] = grown(dir.path()).await;
    first.cell("before").await;
    let lost = Instant::now();
    drop(first);
    for host in [&mut second, &mut third] {
        host.wait("another executor", |s| {
            s.executor().is_some_and(|e| e != Incarnation(1))
        })
        .await;
    }
    let executor = second.state.as_ref().and_then(State::executor).unwrap();
    let elected = lost.elapsed();
    let (next, other) = if executor == Incarnation(2) {
        (&mut second, &mut third)
    } else {
        (&mut third, &mut second)
    };
    assert!(
        next.state
            .as_ref()
            .unwrap()
            .answer(&CellId::from("before"))
            .is_some(),
        "an answered cell is lost"
    );
    next.cell("after").await;
    println!("executor after {elected:?}, next cell after {:?}", lost.elapsed());
    other
        .wait("the next cell", |s| s.answer(&CellId::from("after")).is_some())
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_member_is_replaced_under_a_new_incarnation() {
    let dir = tempfile::tempdir().unwrap();
    let [mut first, second, _third] = grown(dir.path()).await;
    drop(second);
    let need = first.need(&[2]).await;
    assert_eq!(need.replicas, 1);
    let fourth = host(dir.path(), 4).await;
    first.member.propose(join(4)).await.unwrap();
    let now = [1, 3, 4].map(Incarnation);
    first
        .wait("the new member", |s| s.members().keys().copied().eq(now))
        .await;
    first.wait_voters(3).await;
    assert!(first.member.standing().voters.into_iter().eq(now));
    first.cell("after").await;
    first
        .told(|event| matches!(event, Event::Need(need) if need.replicas == 0))
        .await;
    drop(fourth);
}

/// Runs cells through the first host until this one's log, on a full disk, takes no more.
async fn fill(dir: &Path, hosts: &mut [Host; 3], full: usize) {
    // No further segment can be made.
    std::fs::remove_dir_all(dir.join(format!("log-{}", full + 1))).unwrap();
    let member = Arc::clone(&hosts[full].member);
    for n in 0.. {
        let name = format!("filling-{n}");
        tokio::select! {
            () = hosts[0].cell_of(&name, 100_000) => {}
            () = stopped(&member) => return,
        }
    }
}

async fn stopped(member: &Member<Wire>) {
    loop {
        let standing = member.standing();
        if standing.stopped.is_some() {
            return;
        }
        member.standing_changed(&standing).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_disk_is_full_is_followed_by_another_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let mut hosts = grown(dir.path()).await;
    fill(dir.path(), &mut hosts, 0).await;
    let [mut first, second, third] = hosts;
    let mut others = [second, third];
    let mut next = None;
    for host in &mut others {
        let other = |s: &State| s.executor().is_some_and(|e| e != Incarnation(1));
        host.wait("another executor", other).await;
        next = host.state.as_ref().and_then(State::executor);
    }
    let next = &mut others[next.unwrap().0 as usize - 2];
    let need = next.need(&[]).await;
    assert_eq!(need.replicas, 1, "the seat is not gone");
    assert_eq!(need.failed, [Incarnation(1)].into());
    next.cell("after").await;
    let fourth = host(dir.path(), 4).await;
    next.member.propose(join(4)).await.unwrap();
    next.wait("the end of the failed member", |s| s.has_left(Incarnation(1)))
        .await;
    first.closed().await;
    drop(fourth);
}

/// A folder on a disk of its own, which can be made to fail as a thin volume without room: writing works, syncing
/// doesn't. `None`: this user, or this machine, can't mount one.
struct ThinDisk {
    pool: PathBuf,
    mounted: PathBuf,
}

impl ThinDisk {
    fn new(dir: &Path, name: &str) -> Option<Self> {
        let disk = Self {
            pool: dir.join(format!("pool-{name}")),
            mounted: dir.join(name),
        };
        for made in [&disk.pool, &disk.mounted] {
            std::fs::create_dir(made).unwrap();
        }
        let (pool, image) = (disk.pool.display(), disk.pool.join("image"));
        let (image, mounted) = (image.display(), disk.mounted.display());
        let made = ran(&format!("mount -t tmpfs -o size=64m none {pool}"))
            && ran(&format!("truncate -s 48M {image}"))
            && ran(&format!("mkfs.ext4 -qF -O ^has_journal {image}"))
            && ran(&format!("mount -o loop {image} {mounted}"));
        made.then_some(disk)
    }

    fn fail(&self) {
        let (pool, image) = (self.pool.display(), self.pool.join("image"));
        assert!(ran(&format!("fallocate -p -o 0 -l 48M {}", image.display())));
        ran(&format!("dd if=/dev/zero of={pool}/all bs=64k status=none"));
    }
}

impl Drop for ThinDisk {
    fn drop(&mut self) {
        for mounted in [&self.mounted, &self.pool] {
            ran(&format!("umount -l {}", mounted.display()));
        }
    }
}

fn ran(line: &str) -> bool {
    let (program, arguments) = line.split_once(' ').unwrap();
    let status = std::process::Command::new(program)
        .args(arguments.split(' '))
        .stderr(std::process::Stdio::null())
        .status();
    status.is_ok_and(|s| s.success())
}

/// Openraft takes a leader's entry for stored before it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_disk_syncs_no_more_is_followed_by_another() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = ThinDisk::new(dir.path(), "log-1") else {
        eprintln!("skipped: no file system can be mounted here");
        return;
    };
    let [mut first, mut second, mut third] = grown(dir.path()).await;
    // Large enough to need room that the disk hasn't kept.
    let entry = first.end_of("lost", 1 << 20).await;
    disk.fail();
    // Once: the WAL would refuse the next one, which openraft hears of.
    assert!(
        first.member.propose(entry).await.is_err(),
        "it is on no disk here"
    );
    timeout(LONG, stopped(&first.member)).await.unwrap();
    for host in [&mut second, &mut third] {
        let other = |s: &State| s.executor().is_some_and(|e| e != Incarnation(1));
        host.wait("another executor", other).await;
    }
    drop(first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_whose_disk_is_full_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let mut hosts = grown(dir.path()).await;
    fill(dir.path(), &mut hosts, 2).await;
    let [mut first, second, mut third] = hosts;
    assert_eq!(first.need(&[]).await.replicas, 1);
    let fourth = host(dir.path(), 4).await;
    first.member.propose(join(4)).await.unwrap();
    let now = [1, 2, 4].map(Incarnation);
    first
        .wait("the new member", |s| s.members().keys().copied().eq(now))
        .await;
    third.closed().await;
    assert_eq!(
        first.state.as_ref().and_then(State::executor),
        Some(Incarnation(1))
    );
    drop((second, fourth));
}

/// As a seat that was silent for so long that the others replaced its member, and then speaks again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_replaced_hears_so_and_its_seat_takes_another() {
    let dir = tempfile::tempdir().unwrap();
    let [first, mut second, third] = grown(dir.path()).await;
    let incarnation = Incarnation(2);
    first.member.propose(Entry::Left { incarnation }).await.unwrap();
    let fourth = host(dir.path(), 4).await;
    first.member.propose(join(4)).await.unwrap();
    second.closed().await;
    assert!(first.member.has_left(Incarnation(2)) && !first.member.has_left(Incarnation(3)));
    assert!(!first.member.has_left(Incarnation(9)), "it may come yet");
    second.keeper.leave(GROUP).await;
    // The seat's next member is another one.
    let fifth = second.keeper.join(kernel(5)).await.unwrap();
    assert!(fifth.subscribe().state.is_none());
    drop((third, fourth));
}

/// As a seat that is up, but can't read how the kernel was started.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_member_whose_seat_does_not_take_it_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = host(dir.path(), 1).await;
    first.need(&[]).await;
    let (second, third) = (host(dir.path(), 2).await, seated(dir.path(), 3).await);
    for id in [2, 3] {
        first.member.propose(join(id)).await.unwrap();
    }
    first
        .wait("the end of patience", |s| s.has_left(Incarnation(3)))
        .await;
    assert_eq!(first.need(&[]).await.replicas, 1, "the seat is not gone");
    let fourth = host(dir.path(), 4).await;
    first.member.propose(join(4)).await.unwrap();
    first.wait_voters(3).await;
    assert!(
        first
            .member
            .standing()
            .voters
            .into_iter()
            .eq([1, 2, 4].map(Incarnation))
    );
    drop((second, third, fourth));
}

/// As a seat that stood still while the others ended their part of the group, of which nobody tells it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_never_elected_has_its_host_look() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second, mut third] = grown(dir.path()).await;
    second.keeper.leave(GROUP).await;
    drop(first);
    third.leaderless().await;
    drop(second);
}

/// As a standby that leads beside an executor: its group can't go on, and its kernel may have begun anew elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_hears_too_few_has_its_host_look_again_and_again() {
    let dir = tempfile::tempdir().unwrap();
    let [mut first, second, third] = grown(dir.path()).await;
    drop((second, third));
    first.leaderless().await;
    assert_eq!(first.member.standing().leader, Some(Incarnation(1)));
    first.leaderless().await;
}

/// As a seat whose link was down at the moment of the kernel's end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kernels_end_is_told_again_and_again() {
    let dir = tempfile::tempdir().unwrap();
    let [first, _second, mut third] = grown(dir.path()).await;
    first.keeper.close(GROUP);
    third.closed().await;
    first.keeper.leave(GROUP).await;
    third.closed().await;
}

/// As a seat that took a new member's place, and whose leader was lost before the member's first entry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_never_had_a_leader_has_its_host_look_again_and_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut second = host(dir.path(), 2).await;
    second.leaderless().await;
    second.leaderless().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_others_have_gone_leaves() {
    let dir = tempfile::tempdir().unwrap();
    let [mut first, second, third] = grown(dir.path()).await;
    drop(second);
    assert_eq!(first.need(&[2]).await.replicas, 1, "two of three go on");
    drop(third);
    first.closed().await;
}

/// Bench `replica`'s `sync_*`: commit of a cell with three WALs on one disk, beside one fdatasync of 4 KiB there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn commit_time() {
    let dir =
        tempfile::tempdir_in(std::env::var_os("HOP_BENCH_DIR").unwrap_or_else(|| "/tmp".into())).unwrap();
    let mut hosts = grown(dir.path()).await;
    let mut file = std::fs::File::create(dir.path().join("4k")).unwrap();
    let (mut commits, mut syncs) = (Vec::new(), Vec::new());
    for n in 0..500 {
        let began = Instant::now();
        hosts[0].cell(&format!("cell-{n}")).await;
        commits.push(began.elapsed());
        let began = Instant::now();
        std::io::Write::write_all(&mut file, &[1; 4096]).unwrap();
        file.sync_data().unwrap();
        syncs.push(began.elapsed());
    }
    commits.sort();
    syncs.sort();
    for percent in [50, 90, 99] {
        let at = |times: &[Duration]| times[times.len() * percent / 100].as_secs_f64() * 1e3;
        let (ours, peer) = (at(&commits), Some(("fdatasync_4k", at(&syncs))));
        measured(&format!("sync_p{percent}"), ours, peer, "ms", commits.len());
    }
}

/// Prints a measured line of bench `replica` (see `hop-bench`), on a line of its own beside libtest's.
fn measured(case: &str, ours: f64, peer: Option<(&str, f64)>, unit: &str, n: usize) {
    let line = serde_json::json!({
        "bench": "replica",
        "case": case,
        "ours": ours,
        "peer": peer.map(|(name, _)| name),
        "peer_value": peer.map(|(_, value)| value),
        "unit": unit,
        "n": n,
    });
    println!("\n{line}");
}

/// Bench `replica`'s `idle_300_*`: memory and time of three keepers in one process whose 300 groups are quiet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn quiet_groups() {
    const GROUPS: u32 = 300;
    const QUIET: Duration = Duration::from_secs(60);
    let dir = tempfile::tempdir().unwrap();
    let hosts = grown(dir.path()).await;
    let (kib, mut members) = (resident_kib(), Vec::new());
    for n in 1..=GROUPS {
        let kernel = |id| Kernel {
            group: format!("kernel-{n}.0"),
            ..kernel(id)
        };
        let first = hosts[0].keeper.found(kernel(1), &first_state()).await.unwrap();
        for id in [2, 3] {
            members.push(hosts[id as usize - 1].keeper.join(kernel(id)).await.unwrap());
            first.propose(join(id)).await.unwrap();
        }
        while first.standing().voters.len() < 3 || first.standing().is_changing() {
            first.standing_changed(&first.standing()).await;
        }
        members.push(first);
    }
    let more = resident_kib() - kib;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = cpu_time();
    tokio::time::sleep(QUIET).await;
    let share = (cpu_time() - before).as_secs_f64() / QUIET.as_secs_f64();
    let groups = GROUPS as usize;
    measured("idle_300_cores", share, None, "cores", groups);
    measured("idle_300_mib", more as f64 / 1024.0, None, "MiB", groups);
    let members = 3 * groups;
    measured(
        "standby_warm_kib",
        more as f64 / members as f64,
        None,
        "KiB",
        members,
    );
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// CPU time of the threads that run.
fn cpu_time() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let of = |t: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(t.path().join("schedstat")).unwrap_or_default();
        stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
    };
    Duration::from_nanos(threads.map(of).sum())
}

/// Connections to a seat's port that never show the user's key, as anybody on the network can make them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_take_few_of_a_seats_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let (keeper, _events) = seated(dir.path(), 1).await;
    let address = Book::open(&dir.path().join("seats"))
        .unwrap()
        .address(seat(1))
        .unwrap()
        .unwrap();
    let is_open = |stream: &std::net::TcpStream| {
        let read = std::io::Read::read(&mut &*stream, &mut [0]);
        matches!(read, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    };
    for _ in 0..20 {
        let began = Instant::now();
        let strangers: Vec<_> = (0..300)
            .map(|_| std::net::TcpStream::connect(address).unwrap())
            .inspect(|stream| stream.set_nonblocking(true).unwrap())
            .collect();
        tokio::time::sleep(Duration::from_millis(200)).await;
        let (first, last) = strangers.split_at(200);
        let seen = (first.iter().any(is_open), last.iter().any(is_open));
        // Each has a second to show the key. On a busy machine the first ones have gone for that.
        if began.elapsed() < Duration::from_millis(900) {
            assert_eq!(seen, (false, true), "all of them are open at a time");
            return;
        }
    }
    eprintln!("SKIPPED: this machine is too busy for it");
    drop(keeper);
}
