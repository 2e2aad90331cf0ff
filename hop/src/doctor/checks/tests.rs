//! One set-up that is right, and each way of breaking it: the doctor names the one thing that is wrong.

use super::*;
use crate::doctor::Outcome;
use crate::doctor::facts::{HomeSeen, PROGRAMS};
use hop_api::message::InfoReport;
use hop_slurm::gres::{Gres, Tres};
use hop_slurm::span::TimeLimit;
use hop_slurm::state::NodeState;
use hop_slurm::{Admits, Association, LimitScope, Limits, Node, Partition};
use std::collections::BTreeMap;
use std::path::PathBuf;

const CONFIG: &str = r#"
[pool.main]
partition = "notebook"
account = "pool"
gpus_per_pilot = 2
cpus_per_pilot = 8
min_pilots = 1
max_pilots = 1
"#;
const LINE: [&str; 3] = [
    "/opt/gresshopper/lib/gresshopper.so",
    "service_user=gresshopper",
    "agent_dir=/var/lib/gresshopper/agent",
];

fn seen(uid: u32, mode: u32, is_dir: bool) -> Option<Seen> {
    Some(Seen {
        uid,
        mode,
        is_dir,
        kind: Kind::Local,
    })
}

fn slurm() -> SlurmSeen {
    let settings = WANTED
        .iter()
        .map(|(_, key, wanted, _)| ((*key).to_owned(), (*wanted).to_owned()));
    let none = || Tres(BTreeMap::new());
    let scope = LimitScope::User {
        account: "pool".into(),
        user: "gresshopper".into(),
        partition: None,
    };
    SlurmSeen {
        version: Version::parse("22.05.8"),
        settings: settings
            .chain([(
                "AccountingStorageType".to_owned(),
                "accounting_storage/slurmdbd".to_owned(),
            )])
            .collect(),
        partitions: vec![Partition {
            name: "notebook".into(),
            state: "UP".into(),
            nodes: vec!["n1".into()],
            is_default: true,
            max_time: TimeLimit::Unlimited,
            default_time: TimeLimit::Unset,
            oversubscribe: "NO".into(),
            exclusive_user: false,
            preempt_mode: "OFF".into(),
            admits: Admits::default(),
            qos: None,
        }],
        nodes: vec![Node {
            name: "n1".into(),
            state: NodeState::parse("IDLE"),
            reason: None,
            cpus: 8,
            cpus_allocated: 0,
            threads_per_core: 1,
            mem_mib: 1000,
            mem_allocated_mib: 0,
            gres: Gres::parse_list("gpu:2"),
            gres_unread: Vec::new(),
            gres_used: Vec::new(),
            features: Vec::new(),
            partitions: vec!["notebook".into()],
            version: Some("22.05.8".into()),
        }],
        associations: Ok(vec![Association {
            account: "pool".into(),
            parent: None,
            user: Some("gresshopper".into()),
            partition: None,
            qos: Vec::new(),
            default_qos: None,
            limits: Limits {
                scope,
                group: none(),
                group_minutes: none(),
                per_user: none(),
                per_account: none(),
                per_job: none(),
            },
        }]),
        hidden: Ok(Vec::new()),
    }
}

/// `hopd` of this release, with one pilot that is up.
fn report() -> InfoReport {
    let mut report = crate::transcripts::info();
    report.version = env!("CARGO_PKG_VERSION").into();
    report.nodes.truncate(1);
    report.problems.clear();
    report
}

/// A host where all is right.
fn right() -> Facts {
    let installed = PROGRAMS
        .iter()
        .map(|name| (format!("bin/{name}"), seen(0, 0o755, false)))
        .collect();
    Facts {
        config_path: "/etc/gresshopper/gresshopper.toml".into(),
        config_file: seen(0, 0o644, false),
        config: Ok(Config::parse(CONFIG, Path::new("test")).unwrap()),
        service_uid: Some(900),
        installed,
        munge: Ok(()),
        carried: Some(Ok(())),
        credential: None,
        slurm: Ok(slurm()),
        plugin: PluginSeen {
            plugstack: "/etc/slurm/plugstack.conf".into(),
            line: Some(LINE.map(str::to_owned).to_vec()),
            file: seen(0, 0o755, false),
            version: Ok(Version::parse("22.05.3")),
        },
        node: Some(NodeSeen {
            name: "n1".into(),
            gpus: 2,
            devices: Ok(["/dev/a", "/dev/b"]
                .map(|path| (PathBuf::from(path), true))
                .to_vec()),
            autodetect: false,
            several_files: false,
            state_dir: seen(900, 0o755, true),
            log_dir: seen(0, 0o1777, true),
        }),
        asked_node: None,
        hopd_state: seen(900, 0o700, true),
        hopd: Ok(report()),
        home: Some(HomeSeen {
            folder: "/home/a".into(),
            kind: Kind::Network("NFS"),
            lock: Ok(()),
        }),
        stores: seen(0, 0o755, true),
    }
}

fn config(facts: &mut Facts) -> &mut Config {
    facts.config.as_mut().unwrap()
}

fn slurm_of(facts: &mut Facts) -> &mut SlurmSeen {
    facts.slurm.as_mut().unwrap()
}

fn set(facts: &mut Facts, key: &str, value: &str) {
    slurm_of(facts).settings.insert(key.into(), value.into());
}

type Break = fn(&mut Facts);

/// The check that must fail, a word of what it must say, and the break.
const BROKEN: &[(&str, &str, Break)] = &[
    ("node", "knows no node n9", |f| {
        f.node = None;
        f.asked_node = Some("n9".into());
    }),
    ("configuration", "unknown key", |f| {
        f.config = Err("unknown key".into())
    }),
    ("configuration", "not everybody may read", |f| {
        f.config_file = seen(0, 0o600, false)
    }),
    ("account", "knows no user gresshopper", |f| f.service_uid = None),
    ("programs", "lacks bin/hop-replica", |f| {
        f.installed.insert("bin/hop-replica".into(), None);
    }),
    ("programs", "others than root", |f| {
        f.installed.insert("bin/hopd".into(), seen(1000, 0o755, false));
    }),
    ("programs", "users can't read", |f| {
        f.installed.insert("bin/hop-front".into(), seen(0, 0o750, false));
    }),
    ("munge", "munged does not answer", |f| {
        f.munge = Err("munged does not answer".into())
    }),
    ("store", "/scratch (seat.store) is no folder here", |f| {
        config(f).seat.store = Some("/scratch/{user}/gresshopper".into());
        f.stores = None;
    }),
    ("store", "/scratch (seat.store) is no folder here", |f| {
        config(f).seat.store = Some("/scratch/{user}/gresshopper".into());
        f.stores = seen(0, 0o755, false);
    }),
    (
        "store",
        "in /scratch (seat.store) anybody may replace anybody's folder (mode 777)",
        |f| {
            config(f).seat.store = Some("/scratch/{user}".into());
            f.stores = seen(0, 0o777, true);
        },
    ),
    ("locks", "/home/a (NFS) has no file locks (No locks", |f| {
        f.home.as_mut().unwrap().lock = Err("No locks available".into())
    }),
    ("slurm", "can't be reached", |f| {
        f.slurm = Err("slurmctld can't be reached".into())
    }),
    ("slurm", "21.08", |f| {
        slurm_of(f).version = Version::parse("21.08.1")
    }),
    ("select-type", "cons_tres", |f| {
        set(f, "SelectType", "select/linear")
    }),
    ("gres-types", "no GPUs", |f| set(f, "GresTypes", "(null)")),
    ("tres", "gres/gpu", |f| set(f, "AccountingStorageTRES", "cpu,mem")),
    ("prolog-flags", "Contain", |f| set(f, "PrologFlags", "Alloc")),
    ("proctrack", "proctrack/cgroup", |f| {
        set(f, "ProctrackType", "proctrack/linuxproc")
    }),
    ("task-plugin", "task/cgroup", |f| {
        set(f, "TaskPlugin", "task/affinity")
    }),
    ("constrain", "every process opens every GPU", |f| {
        set(f, "ConstrainDevices", "no")
    }),
    ("plugstack", "no line", |f| f.plugin.line = None),
    ("plugstack", "no argument", |f| {
        f.plugin.line = Some(vec!["/a/gresshopper.so".into(), "typo=1".into()])
    }),
    ("plugstack", "believes tokens of nobody", |f| {
        f.plugin.line = Some(vec!["/a/gresshopper.so".into(), "service_user=nobody".into()]);
    }),
    ("plugstack", "looks for agents in /else", |f| {
        f.plugin.line = Some(vec!["/a/gresshopper.so".into(), "agent_dir=/else".into()]);
    }),
    ("plugin", "isn't there", |f| f.plugin.file = None),
    ("plugin", "others than root", |f| {
        f.plugin.file = seen(0, 0o777, false)
    }),
    ("plugin", "built for Slurm 24.11", |f| {
        f.plugin.version = Ok(Version::parse("24.11.5"))
    }),
    ("plugin", "no plugin of Slurm's", |f| {
        f.plugin.version = Err("no plugin of Slurm's".into())
    }),
    ("slurmdbd", "no accounting", |f| {
        set(f, "AccountingStorageType", "accounting_storage/none")
    }),
    ("slurmdbd", "connection refused", |f| {
        slurm_of(f).associations = Err("connection refused".into())
    }),
    ("private-data", "doesn't know whose job a kernel runs in", |f| {
        slurm_of(f).hidden = Ok(vec!["jobs".into(), "users".into()])
    }),
    ("private-data", "doesn't know users' limits", |f| {
        slurm_of(f).hidden = Ok(vec!["usage".into()])
    }),
    ("association", "no association in pool", |f| {
        slurm_of(f).associations = Ok(Vec::new())
    }),
    ("partition", "no partition notebook", |f| {
        slurm_of(f).partitions.clear();
        config(f).seat.partition = "notebook".into();
    }),
    ("partition", "may be suspended", |f| {
        slurm_of(f).partitions[0].preempt_mode = "SUSPEND,GANG".into()
    }),
    ("partition", "is DOWN", |f| {
        slurm_of(f).partitions[0].state = "DOWN".into()
    }),
    ("partition", "no node of notebook has more than 0", |f| {
        slurm_of(f).nodes[0].gres.clear()
    }),
    (
        "partition",
        "2 leases of one GPU take 12 CPUs, and a pilot has 10",
        |f| {
            slurm_of(f).nodes[0].threads_per_core = 2;
            let pool = config(f).pool.values_mut().next().unwrap();
            pool.cpus_per_pilot = 10;
        },
    ),
    ("partition", "GPUs of type t4 on a node, and no node", |f| {
        let pool = config(f).pool.values_mut().next().unwrap();
        pool.gpu_type = Some("t4".into());
    }),
    ("seats", "no partition cpu", |f| {
        config(f).seat.partition = "cpu".into()
    }),
    ("seats", "notebook has OverSubscribe=EXCLUSIVE", |f| {
        slurm_of(f).partitions[0].oversubscribe = "EXCLUSIVE".into()
    }),
    ("seats", "notebook has ExclusiveUser=YES", |f| {
        slurm_of(f).partitions[0].exclusive_user = true
    }),
    ("seats", "cpu of the seats has no node of notebook", |f| {
        let mut cpu = slurm_of(f).partitions[0].clone();
        (cpu.name, cpu.nodes) = ("cpu".into(), vec!["c1".into()]);
        slurm_of(f).partitions.push(cpu);
        config(f).seat.partition = "cpu".into();
    }),
    ("gres", "gives each GPU several files (MIG)", |f| {
        f.node.as_mut().unwrap().several_files = true
    }),
    ("gres", "/dev/b, which n1 doesn't have", |f| {
        f.node.as_mut().unwrap().devices.as_mut().unwrap()[1].1 = false;
    }),
    ("gres", "gres.conf names 0", |f| {
        f.node.as_mut().unwrap().devices = Ok(Vec::new())
    }),
    ("agent-state", "belongs to uid 0", |f| {
        f.node.as_mut().unwrap().state_dir = seen(0, 0o755, true)
    }),
    ("seat-log", "/tmp is no folder", |f| {
        f.node.as_mut().unwrap().log_dir = None
    }),
    ("seat-log", "/tmp is no folder", |f| {
        f.node.as_mut().unwrap().log_dir = seen(0, 0o1777, false)
    }),
    ("seat-log", "users can't write in /tmp", |f| {
        f.node.as_mut().unwrap().log_dir = seen(0, 0o755, true)
    }),
    ("seat-log", "users can't write in /tmp (mode 1776)", |f| {
        f.node.as_mut().unwrap().log_dir = seen(0, 0o1776, true)
    }),
    ("seat-log", "/scratch anybody may remove", |f| {
        config(f).seat.log_dir = Some("/scratch".into());
        f.node.as_mut().unwrap().log_dir = seen(0, 0o777, true)
    }),
    ("seat-log", "is on NFS: seats", |f| {
        f.node.as_mut().unwrap().log_dir.as_mut().unwrap().kind = Kind::Network("NFS")
    }),
    ("hopd-state", "open to others", |f| {
        f.hopd_state = seen(900, 0o755, true)
    }),
    ("hopd", "can't be reached", |f| {
        f.hopd = Err("hopd can't be reached".into())
    }),
    ("pilots", "0 of 1 pilots", |f| {
        f.hopd.as_mut().unwrap().nodes.clear()
    }),
];

fn failed(found: &[Finding]) -> Vec<&Finding> {
    found.iter().filter(|row| row.result == Outcome::Failed).collect()
}

#[test]
fn leases_of_whole_cores_that_fit_are_right() {
    let mut facts = right();
    slurm_of(&mut facts).nodes[0].threads_per_core = 2;
    assert_eq!(failed(&of_host(&facts)), Vec::<&Finding>::new());
}

#[test]
fn where_all_is_right_nothing_is_named() {
    assert_eq!(failed(&of_host(&right())), Vec::<&Finding>::new());
    assert_eq!(failed(&of_node(&right())), Vec::<&Finding>::new());
}

#[test]
fn each_broken_set_up_is_named_with_its_mend() {
    for &(check, says, break_it) in BROKEN {
        let mut facts = right();
        break_it(&mut facts);
        let found = of_host(&facts);
        let failed = failed(&found);
        let named = failed
            .iter()
            .any(|row| row.check == check && row.says.contains(says));
        assert!(named, "{check}: {says}: {failed:#?}");
        assert!(failed.iter().all(|row| !row.mend.is_empty()), "{failed:#?}");
        // A partition that isn't there is missed by pool and seats alike.
        assert!(failed.len() <= 2, "{check}: {says}: {failed:#?}");
    }
}

#[test]
fn a_log_in_memory_is_told_and_no_failure() {
    let mut facts = right();
    facts.node.as_mut().unwrap().log_dir.as_mut().unwrap().kind = Kind::Memory;
    let found = of_host(&facts);
    let row = found.iter().find(|row| row.check == "seat-log").unwrap();
    assert!(
        row.result == Outcome::Ok && row.says == "/tmp, in memory",
        "{row:?}"
    );
}

#[test]
fn stores_that_users_cannot_make_themselves_are_told() {
    let found = |store: &str, mode| {
        let mut facts = right();
        config(&mut facts).seat.store = Some(store.into());
        facts.stores = seen(0, mode, true);
        let found = of_host(&facts);
        let row = found.into_iter().find(|row| row.check == "store").unwrap();
        (row.result, row.says)
    };
    for (store, mode, result, says) in [
        (
            "/scratch/{user}",
            0o755,
            Outcome::Unknown,
            "only if the site has made its user's folder there",
        ),
        (
            "/scratch/{user}",
            0o1776,
            Outcome::Unknown,
            "users can't make folders in /scratch",
        ),
        ("/scratch/{user}", 0o1777, Outcome::Ok, "/scratch is there"),
        (
            "/scratch/u-{user}",
            0o2777,
            Outcome::Failed,
            "(mode 2777): kernels are not saved",
        ),
        (
            "/scratch/{user}/gresshopper",
            0o755,
            Outcome::Ok,
            "/scratch is there",
        ),
    ] {
        let (was, said) = found(store, mode);
        assert!(
            was == result && said.contains(says),
            "{store} {mode:o}: {was:?} {said}"
        );
    }
}

#[test]
fn a_gres_that_cannot_be_read_is_told_and_nothing_else_fails() {
    let mut facts = right();
    slurm_of(&mut facts).nodes[0].gres_unread = vec!["odd:a:b:1".into()];
    let found = of_host(&facts);
    assert_eq!(failed(&found), Vec::<&Finding>::new());
    let told: Vec<&Finding> = found
        .iter()
        .filter(|row| row.result == Outcome::Unknown)
        .collect();
    assert!(
        told.len() == 1 && told[0].says.contains("\"odd:a:b:1\" of n1"),
        "{told:#?}"
    );
}

#[test]
fn a_credential_of_another_key_is_named_by_the_node() {
    let mut facts = right();
    facts.carried = Some(Err("not a valid credential".into()));
    let found = of_node(&facts);
    assert_eq!(failed(&found)[0].check, "munge-here");
}

#[test]
fn a_state_folder_on_a_shared_file_system_is_named() {
    let mut facts = right();
    facts.node.as_mut().unwrap().state_dir.as_mut().unwrap().kind = Kind::Network("NFS");
    let found = of_host(&facts);
    assert!(failed(&found)[0].says.contains("is on NFS"), "{found:#?}");
}
