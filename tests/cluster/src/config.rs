//! The cluster's configuration files, rendered from the options and from facts about the host.
//!
//! Pure: nothing is read or written here.

use std::fmt::Write as _;
use std::path::Path;

use crate::cgroups;
use crate::devices;
use crate::host::CgroupSetup;
use crate::layout::Layout;
use crate::options::{Options, Variant};
use crate::process::MARK;
use crate::sandbox::SYSTEM_PATH;
use crate::trixie;

/// What the files depend on besides the options.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub host: String,
    /// Whether `host` stands for 127.0.0.1.
    pub is_localhost: bool,
    pub cores: usize,
    pub cgroups: CgroupSetup,
}

impl Facts {
    fn hides_v1(&self, variant: Variant) -> bool {
        variant.hides_v1(self.cgroups)
    }

    /// Slurm listens on its host name's address or on all. A step's srun is called back on the address that it called
    /// from, 127.0.0.1: so where the name stands for another (Debian: 127.0.1.1), it has to be all.
    fn communication(&self) -> &'static str {
        match self.is_localhost {
            true => "NoAddrCache,NoCtldInAddrAny,NoInAddrAny",
            false => "NoAddrCache",
        }
    }

    /// Whether memory and cpuset are with the cgroup version that the cluster uses.
    fn has_controllers(&self, variant: Variant) -> bool {
        !self.hides_v1(variant)
    }
}

fn yes(b: bool) -> &'static str {
    if b { "yes" } else { "no" }
}

/// slurm.conf.
pub(crate) fn slurm_conf(o: &Options, facts: &Facts) -> String {
    let layout = Layout::new(&o.base);
    let base = o.base.display();
    let host = &facts.host;
    let munge = layout.munge_socket();
    let munge = munge.display();
    let affinity = if o.task_affinity {
        "task/affinity,task/cgroup"
    } else {
        "task/cgroup"
    };
    let gather = if facts.has_controllers(o.variant) {
        "cgroup"
    } else {
        "linux"
    };
    let mut conf = format!(
        "ClusterName={cluster}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
SlurmUser=slurm
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={munge}
CommunicationParameters={communication}
StateSaveLocation={base}/state/ctld
SlurmdSpoolDir={base}/state/spool.%n
SlurmctldPidFile={base}/run/slurmctld.pid
SlurmdPidFile={base}/run/slurmd.%n.pid
SlurmctldLogFile={base}/log/slurmctld.log
SlurmdLogFile={base}/log/slurmd.%n.log
PlugStackConfig={base}/etc/plugstack.conf
ReturnToService=2
MinJobAge=2
KillWait=5
UnkillableStepTimeout=120
ProctrackType=proctrack/cgroup
TaskPlugin={affinity}
JobAcctGatherType=jobacct_gather/{gather}
JobAcctGatherFrequency=task=5
PrologFlags=Contain
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,sched_min_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
PriorityType=priority/multifactor
PriorityWeightFairshare=1000
GresTypes=gpu
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd}
AccountingStoragePass={munge}
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits
",
        cluster = o.cluster_name(),
        communication = facts.communication(),
        ctld = o.ctld_port(),
        dbd = o.dbd_port(),
    );
    nodes_and_partitions(&mut conf, o, facts);
    if !o.conf_extra.is_empty() {
        let _ = writeln!(conf, "{}", o.conf_extra.trim_end());
    }
    conf
}

fn nodes_and_partitions(conf: &mut String, o: &Options, facts: &Facts) {
    let cores = if o.real_cores { facts.cores } else { 32 };
    let nodes = o.node_names();
    let burst = o.burst_names();
    let base = o.base.display();
    // Writing into a String can't fail.
    let _ = writeln!(
        conf,
        "NodeName=DEFAULT CPUs={cores} Sockets=1 CoresPerSocket={cores} ThreadsPerCore=1 RealMemory=65536{gres} State=UNKNOWN",
        gres = match nodes.first().map_or(0, |node| devices::paths(o, node).len()) {
            0 => String::new(),
            gpus => format!(" Gres=gpu:{gpus}"),
        },
    );
    for (place, name) in o.all_nodes().iter().enumerate() {
        let cloud = if burst.contains(name) { " State=CLOUD" } else { "" };
        let port = o.slurmd_port(place);
        let _ = writeln!(
            conf,
            "NodeName={name} NodeHostname={} NodeAddr=127.0.0.1 Port={port}{cloud}",
            facts.host
        );
    }
    let _ = write!(
        conf,
        "PartitionName=DEFAULT State=UP MaxTime=INFINITE DefMemPerCPU=64 OverSubscribe=NO
PartitionName=notebook Nodes={} Default=YES
",
        nodes.join(",")
    );
    if !burst.is_empty() {
        let _ = write!(
            conf,
            "PartitionName=burst Nodes={}
ResumeProgram={base}/etc/resume.sh
SuspendProgram={base}/etc/suspend.sh
SuspendTime=8
SuspendTimeout=5
ResumeTimeout=60
SuspendExcNodes={}
SlurmctldParameters=power_save_interval=1,power_save_min_interval=0,idle_on_node_suspend
",
            burst.join(","),
            nodes.join(",")
        );
    }
}

/// gres.conf.
pub(crate) fn gres_conf(o: &Options) -> String {
    let mut conf = "AutoDetect=off\n".to_owned();
    for node in o.all_nodes() {
        for file in devices::paths(o, &node) {
            let _ = writeln!(conf, "NodeName={node} Name=gpu File={}", file.display());
        }
    }
    conf
}

/// cgroup.conf.
pub(crate) fn cgroup_conf(o: &Options, facts: &Facts) -> String {
    let controllers = facts.has_controllers(o.variant);
    let mut conf = match o.variant {
        Variant::V1 => {
            "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nCgroupAutomount=no\n".to_owned()
        }
        Variant::V2 | Variant::Trixie => "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n".to_owned(),
    };
    let _ = write!(
        conf,
        "ConstrainDevices=yes\nConstrainRAMSpace={}\nConstrainCores={}\n",
        yes(controllers),
        yes(controllers && o.real_cores)
    );
    conf
}

/// slurmdbd.conf.
pub(crate) fn slurmdbd_conf(o: &Options, facts: &Facts) -> String {
    let layout = Layout::new(&o.base);
    let base = o.base.display();
    format!(
        "AuthType=auth/munge
AuthInfo=socket={munge}
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=slurm
LogFile={base}/log/slurmdbd.log
PidFile={base}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
",
        munge = layout.munge_socket().display(),
        host = facts.host,
        port = o.dbd_port(),
    )
}

/// plugstack.conf.
pub(crate) fn plugstack_conf(o: &Options) -> String {
    o.plugstack
        .as_ref()
        .map(|line| format!("{line}\n"))
        .unwrap_or_default()
}

/// ResumeProgram or SuspendProgram: passes the wish on to the keeper.
pub(crate) fn power_script(o: &Options, verb: &str) -> String {
    let layout = Layout::new(&o.base);
    format!(
        "#!/bin/sh
export SLURM_CONF={conf} PATH={SYSTEM_PATH}
for node in $(scontrol show hostnames \"$1\"); do
    echo \"{verb} $node\" >{fifo}
done
",
        conf = layout.slurm_conf().display(),
        fifo = layout.power_fifo().display(),
    )
}

/// The script that starts one slurmd: `slurmd.sh NODE [slurmd's options]`.
pub(crate) fn slurmd_script(o: &Options, facts: &Facts) -> String {
    let layout = Layout::new(&o.base);
    let preload = if facts.hides_v1(o.variant) {
        format!(" LD_PRELOAD={}", layout.shim().display())
    } else {
        String::new()
    };
    format!(
        "#!/bin/sh
node=$1
shift
exec env -i PATH={SYSTEM_PATH} LANG=C.UTF-8 SLURM_CONF={conf} {MARK}={base}{preload} slurmd -N \"$node\" \"$@\"
",
        conf = layout.slurm_conf().display(),
        base = o.base.display(),
    )
}

/// The keeper: holds the mount namespace, if there is one, and starts and ends CLOUD nodes' slurmd.
pub(crate) fn keeper_script(o: &Options, facts: &Facts) -> String {
    let layout = Layout::new(&o.base);
    let base = o.base.display();
    let mut script = format!("#!/bin/sh\nset -e\nexport PATH={SYSTEM_PATH} {MARK}={base}\n");
    let root = match o.variant {
        Variant::Trixie => {
            script.push_str(&chroot_mounts(o, &layout));
            layout.chroot().display().to_string()
        }
        Variant::V1 | Variant::V2 => String::new(),
    };
    if facts.hides_v1(o.variant) {
        let _ = writeln!(script, "mount -t cgroup2 none {root}/sys/fs/cgroup");
    }
    if o.variant != Variant::V1 {
        let _ = writeln!(script, "mkdir -p {root}/sys/fs/cgroup/system.slice");
    }
    if facts.cgroups == CgroupSetup::V2 {
        // systemd hands down to its slices only what its own units ask for.
        let _ = writeln!(
            script,
            "for dir in /sys/fs/cgroup /sys/fs/cgroup/system.slice; do
    echo '{}' >$dir/cgroup.subtree_control
done",
            cgroups::CONTROLLERS.map(|c| format!("+{c}")).join(" ")
        );
    }
    let enter = if root.is_empty() {
        String::new()
    } else {
        format!("chroot {root} ")
    };
    let _ = write!(
        script,
        "cd /
exec 3<>{fifo}
echo $$ >{pid}.new
mv {pid}.new {pid}
set +e
while read -r verb node <&3; do
    pid=$(cat {run}/slurmd.\"$node\".pid 2>/dev/null)
    case $verb in
    resume) {enter}{slurmd} \"$node\" -b ;;
    suspend) [ \"$(cat /proc/\"$pid\"/comm)\" = slurmd ] && kill \"$pid\" ;;
    esac
    echo \"$(date +%T) $verb $node\"
done
",
        fifo = layout.power_fifo().display(),
        pid = layout.pid_file("keeper").display(),
        run = layout.run().display(),
        slurmd = layout.slurmd_script().display(),
    );
    script
}

fn chroot_mounts(o: &Options, layout: &Layout) -> String {
    let dir = layout.state().join("chroot");
    let (dir, root, etc) = (dir.display(), layout.chroot(), layout.etc());
    let (root, etc) = (root.display(), etc.display());
    let lower = Path::new(trixie::CACHE).display();
    let mut script = format!(
        "rm -rf {dir}
mkdir -p {dir}/upper {dir}/work {root}
mount -t overlay overlay -o lowerdir={lower},upperdir={dir}/upper,workdir={dir}/work {root}
for d in proc sys dev; do mount --rbind /$d {root}/$d; done
cat {etc}/passwd.users >>{root}/etc/passwd
cat {etc}/group.users >>{root}/etc/group
cp /etc/hosts {root}/etc/hosts
hostname >{root}/etc/hostname
"
    );
    for bind in [o.base.as_path(), Path::new("/tmp")]
        .into_iter()
        .chain(o.binds.iter().map(|b| b.as_path()))
    {
        let _ = write!(
            script,
            "mkdir -p {root}{0}\nmount --bind {0} {root}{0}\n",
            bind.display()
        );
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::sample;

    fn facts(cgroups: CgroupSetup) -> Facts {
        Facts {
            host: "host".into(),
            is_localhost: true,
            cores: 2,
            cgroups,
        }
    }

    #[test]
    fn the_usual_cluster() {
        let (o, f) = (sample(), facts(CgroupSetup::Hybrid));
        insta::assert_snapshot!("slurm_conf", slurm_conf(&o, &f));
        insta::assert_snapshot!("gres_conf", gres_conf(&o));
        insta::assert_snapshot!("cgroup_conf", cgroup_conf(&o, &f));
        insta::assert_snapshot!("keeper_v1", keeper_script(&o, &f));
        insta::assert_snapshot!("slurmd_script", slurmd_script(&o, &f));
    }

    #[test]
    fn real_gpus_take_the_place_of_fake_ones() {
        let o = Options {
            nodes: 1,
            burst_nodes: 0,
            gpu_files: vec!["/dev/nvidia0".into()],
            ..sample()
        };
        o.check().expect("one node may hold them");
        assert_eq!(
            gres_conf(&o),
            "AutoDetect=off\nNodeName=n1 Name=gpu File=/dev/nvidia0\n"
        );
        let conf = slurm_conf(&o, &facts(CgroupSetup::Hybrid));
        assert!(conf.contains(" Gres=gpu:1 State=UNKNOWN"), "{conf}");
        Options { nodes: 2, ..o }
            .check()
            .expect_err("a device has one node");
    }

    #[test]
    fn the_chroot_of_another_series() {
        let o = Options {
            variant: Variant::Trixie,
            binds: vec!["/opt/x".into()],
            ..sample()
        };
        insta::assert_snapshot!("keeper_trixie", keeper_script(&o, &facts(CgroupSetup::Hybrid)));
    }

    #[test]
    fn a_host_with_v2_alone_hands_slurm_its_controllers() {
        let o = Options {
            variant: Variant::V2,
            ..sample()
        };
        let enable = "echo '+cpu +cpuset +memory +pids' >$dir/cgroup.subtree_control";
        assert!(keeper_script(&o, &facts(CgroupSetup::V2)).contains(enable));
        assert!(!keeper_script(&o, &facts(CgroupSetup::Hybrid)).contains(enable));
    }

    #[test]
    fn v2_constrains_memory_and_cores_only_where_it_has_their_controllers() {
        let o = Options {
            variant: Variant::V2,
            real_cores: true,
            ..sample()
        };
        let hybrid = cgroup_conf(&o, &facts(CgroupSetup::Hybrid));
        assert!(
            hybrid.contains("ConstrainRAMSpace=no") && hybrid.contains("ConstrainCores=no"),
            "{hybrid}"
        );
        let pure = cgroup_conf(&o, &facts(CgroupSetup::V2));
        assert!(
            pure.contains("ConstrainRAMSpace=yes") && pure.contains("ConstrainCores=yes"),
            "{pure}"
        );
        assert!(hybrid.contains("ConstrainDevices=yes") && pure.contains("ConstrainDevices=yes"));
    }

    #[test]
    fn listens_on_loopback_alone_where_the_host_name_allows_it() {
        let here = facts(CgroupSetup::V1);
        assert!(slurm_conf(&sample(), &here).contains("NoCtldInAddrAny,NoInAddrAny"));
        let debian = Facts {
            is_localhost: false,
            ..here
        };
        assert!(!slurm_conf(&sample(), &debian).contains("InAddrAny"));
    }

    #[test]
    fn only_a_host_with_both_versions_needs_the_shim() {
        let o = Options {
            variant: Variant::V2,
            ..sample()
        };
        assert!(slurmd_script(&o, &facts(CgroupSetup::Hybrid)).contains("LD_PRELOAD="));
        assert!(!slurmd_script(&o, &facts(CgroupSetup::V2)).contains("LD_PRELOAD="));
        assert!(!slurmd_script(&sample(), &facts(CgroupSetup::Hybrid)).contains("LD_PRELOAD="));
    }

    #[test]
    fn options_show_in_the_configuration() {
        let o = Options {
            real_cores: true,
            task_affinity: true,
            burst_nodes: 0,
            conf_extra: "MaxJobCount=7\n".into(),
            plugstack: Some("optional /x.so".into()),
            ..sample()
        };
        let conf = slurm_conf(&o, &facts(CgroupSetup::Hybrid));
        assert!(conf.contains("CPUs=2 Sockets=1 CoresPerSocket=2 "), "{conf}");
        assert!(conf.contains("TaskPlugin=task/affinity,task/cgroup\n"));
        assert!(conf.ends_with("MaxJobCount=7\n"));
        assert!(!conf.contains("burst") && !conf.contains("ResumeProgram"));
        assert_eq!(plugstack_conf(&o), "optional /x.so\n");
        assert_eq!(plugstack_conf(&sample()), "");
    }
}
