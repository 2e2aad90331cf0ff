//! libslurm's calls, made safe: every message is freed, every string is copied, nothing else is kept.

#![allow(unsafe_code, reason = "calls into libslurm, whose functions are C")]
#![allow(
    clippy::useless_conversion,
    reason = "some fields differ in their type from series to series"
)]

use hop_slurm::gres::Gres;
use hop_slurm::hostlist;
use hop_slurm::link::{Answer, Ask};
use hop_slurm::span::TimeLimit;
use hop_slurm::state::{JobState, NodeBase, NodeFlag, NodeState};
use hop_slurm::{Admits, Job, JobGres, Node, Partition, Version};
use hop_slurm_sys as sys;
use hop_words::id::{AccountName, JobId, NodeName, UserName};
use hop_words::time::{Span, Timestamp};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

/// Slurm release of the build, and the numbers of the libslurm linked with and found.
pub(crate) fn versions() -> (Option<Version>, Option<(u32, u32)>) {
    // SAFETY: takes nothing, returns a number.
    let running = unsafe { sys::slurm_api_version() };
    let api = sys::API.parse().ok().zip(u32::try_from(running >> 16).ok());
    (Some(Version::from_number(sys::SLURM_VERSION_NUMBER)), api)
}

/// An initialised libslurm. A single instance exists, in the only thread of this process.
pub(crate) struct Library {
    /// Users' names from NSS, by uid.
    users: RefCell<HashMap<u32, UserName>>,
}

/// What libslurm said went wrong.
struct Wrong(c_int);

impl Library {
    /// Reads slurm.conf. Ends the process if it can't be read.
    pub(crate) fn start() -> Self {
        // SAFETY: null means the default slurm.conf (or SLURM_CONF); called once, before any other call.
        unsafe { sys::slurm_init(ptr::null()) };
        Self {
            users: RefCell::default(),
        }
    }

    pub(crate) fn answer(&self, ask: &Ask) -> Answer {
        let result = match ask {
            Ask::Jobs { since } => self.jobs(*since),
            Ask::Nodes { since } => self.nodes(*since),
            Ask::Partitions { since } => self.partitions(*since),
            Ask::JobGres { job } => self.job_gres(*job),
            Ask::Allocate { .. } => self.allocate(ask),
            Ask::Cancel { job } => self.cancel(*job),
        };
        result.unwrap_or_else(|Wrong(code)| match code.cast_unsigned() {
            sys::HOP_SLURM_NO_CHANGE_IN_DATA => Answer::Unchanged,
            _ => Answer::Error {
                code,
                message: strerror(code),
            },
        })
    }

    fn jobs(&self, since: i64) -> Result<Answer, Wrong> {
        let mut message = ptr::null_mut();
        // SAFETY: `message` is set to a message of libslurm's on success, which is freed below.
        check(unsafe { sys::slurm_load_jobs(since, &mut message, sys::HOP_SHOW_ALL as u16) })?;
        // SAFETY: on success it points to a whole message, whose array has `record_count` records.
        let (time, jobs) = unsafe {
            let (count, first) = ((*message).record_count as usize, (*message).job_array);
            (
                (*message).last_update,
                slice(first, count).iter().map(|job| self.read_job(job)).collect(),
            )
        };
        // SAFETY: nothing of the message is kept.
        unsafe { sys::slurm_free_job_info_msg(message) };
        Ok(Answer::Jobs { time, jobs })
    }

    fn job_gres(&self, job: JobId) -> Result<Answer, Wrong> {
        let mut message = ptr::null_mut();
        let flags = (sys::HOP_SHOW_ALL | sys::HOP_SHOW_DETAIL) as u16;
        // SAFETY: as in `jobs`.
        check(unsafe { sys::slurm_load_job(&mut message, job.0, flags) })?;
        // SAFETY: as in `jobs`.
        let gres = unsafe {
            let records = slice((*message).job_array, (*message).record_count as usize);
            records.iter().flat_map(|job| read_job_gres(job)).collect()
        };
        // SAFETY: nothing of the message is kept.
        unsafe { sys::slurm_free_job_info_msg(message) };
        Ok(Answer::JobGres { gres })
    }

    fn nodes(&self, since: i64) -> Result<Answer, Wrong> {
        let mut message = ptr::null_mut();
        let flags = (sys::HOP_SHOW_ALL | sys::HOP_SHOW_DETAIL | sys::HOP_SHOW_MIXED) as u16;
        // SAFETY: as in `jobs`.
        check(unsafe { sys::slurm_load_node(since, &mut message, flags) })?;
        let partitions = match self.partitions(0)? {
            Answer::Partitions { partitions, .. } => partitions,
            _ => Vec::new(),
        };
        // SAFETY: as in `jobs`.
        let (time, nodes) = unsafe {
            let records = slice((*message).node_array, (*message).record_count as usize);
            // Gaps of the node table are records without a name.
            let named = records.iter().filter(|node| !node.name.is_null());
            (
                (*message).last_update,
                named.map(|node| read_node(node, &partitions)).collect(),
            )
        };
        // SAFETY: nothing of the message is kept.
        unsafe { sys::slurm_free_node_info_msg(message) };
        Ok(Answer::Nodes { time, nodes })
    }

    fn partitions(&self, since: i64) -> Result<Answer, Wrong> {
        let mut message = ptr::null_mut();
        // SAFETY: as in `jobs`.
        check(unsafe { sys::slurm_load_partitions(since, &mut message, sys::HOP_SHOW_ALL as u16) })?;
        let answer = self.cluster_preempt_mode().map(|cluster| {
            // SAFETY: as in `jobs`.
            let (time, partitions) = unsafe {
                let records = slice((*message).partition_array, (*message).record_count as usize);
                let read = records.iter().map(|partition| read_partition(partition, cluster));
                ((*message).last_update, read.collect())
            };
            Answer::Partitions { time, partitions }
        });
        // SAFETY: nothing of the message is kept.
        unsafe { sys::slurm_free_partition_info_msg(message) };
        answer
    }

    /// slurm.conf's `PreemptMode`, which holds for partitions without their own.
    fn cluster_preempt_mode(&self) -> Result<u16, Wrong> {
        let mut settings = ptr::null_mut();
        // SAFETY: as in `jobs`.
        check(unsafe { sys::slurm_load_ctl_conf(0, &mut settings) })?;
        // SAFETY: on success the pointer is to the whole settings, freed at once.
        let mode = unsafe {
            let mode = (*settings).preempt_mode;
            sys::slurm_free_ctl_conf(settings);
            mode
        };
        Ok(mode)
    }

    fn allocate(&self, ask: &Ask) -> Result<Answer, Wrong> {
        let Ask::Allocate {
            partition,
            account,
            gres,
            cpus,
            mem_mib,
            time_limit_min,
            name,
        } = ask
        else {
            return Err(Wrong(-1));
        };
        let text =
            |value: &Option<String>| value.as_ref().and_then(|value| CString::new(value.as_str()).ok());
        let (partition, account, name) = (text(partition), text(account), text(&Some(name.clone())));
        let gres = text(&gres.as_ref().map(|gres| format!("gres:{gres}")));
        let pointer = |value: &Option<CString>| {
            value
                .as_ref()
                .map_or(ptr::null_mut(), |text| text.as_ptr().cast_mut())
        };
        // SAFETY: all-zero is a valid job_desc_msg_t for this call, which fills the struct.
        let mut job: sys::job_desc_msg_t = unsafe { std::mem::zeroed() };
        // SAFETY: `job` is ours to fill.
        unsafe { sys::slurm_init_job_desc_msg(&mut job) };
        job.immediate = 1;
        job.min_nodes = 1;
        job.max_nodes = 1;
        job.num_tasks = 1;
        job.cpus_per_task = u16::try_from(*cpus).unwrap_or(u16::MAX);
        job.min_cpus = *cpus;
        job.name = pointer(&name);
        job.partition = pointer(&partition);
        job.account = pointer(&account);
        job.tres_per_node = pointer(&gres);
        // SAFETY: these take nothing and can't fail.
        (job.user_id, job.group_id) = unsafe { (libc::getuid(), libc::getgid()) };
        if let Some(mib) = mem_mib {
            job.pn_min_memory = *mib;
        }
        if let Some(minutes) = time_limit_min {
            job.time_limit = *minutes;
        }
        let mut response = ptr::null_mut();
        // SAFETY: the strings live until the end of this function; `response` is set on success and freed below.
        check(unsafe { sys::slurm_allocate_resources(&mut job, &mut response) })?;
        // SAFETY: on success the pointer is to a whole response, freed at once.
        let id = unsafe {
            #[cfg(not(slurm_25_11))]
            let id = (*response).job_id;
            #[cfg(slurm_25_11)]
            let id = (*response).step_id.job_id;
            sys::slurm_free_resource_allocation_response_msg(response);
            id
        };
        Ok(Answer::Allocated { job: JobId(id) })
    }

    fn cancel(&self, job: JobId) -> Result<Answer, Wrong> {
        const SIGKILL: u16 = 9;
        #[cfg(not(slurm_26_05))]
        // SAFETY: takes numbers alone.
        check(unsafe { sys::slurm_kill_job(job.0, SIGKILL, 0) })?;
        // In 26.05 the call takes a step id by pointer; the commands serve there.
        #[cfg(slurm_26_05)]
        {
            let _ = (job, SIGKILL);
            return Err(Wrong(-1));
        }
        Ok(Answer::Done)
    }
}

fn check(status: c_int) -> Result<(), Wrong> {
    match status {
        0 => Ok(()),
        _ => Err(Wrong(
            std::io::Error::last_os_error().raw_os_error().unwrap_or(status),
        )),
    }
}

fn strerror(code: c_int) -> String {
    // SAFETY: returns a string of its own for any number.
    unsafe { text(sys::slurm_strerror(code)) }.unwrap_or_else(|| format!("error {code}"))
}

/// # Safety
/// `first` points to `count` records, or is null.
unsafe fn slice<'a, T>(first: *const T, count: usize) -> &'a [T] {
    match first.is_null() {
        true => &[],
        // SAFETY: by the function's own condition.
        false => unsafe { std::slice::from_raw_parts(first, count) },
    }
}

/// A copy of a C string; none for null and for the empty one.
///
/// # Safety
/// `pointer` is null or points to a C string.
unsafe fn text(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: by the function's own condition.
    let text = unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned();
    (!text.is_empty()).then_some(text)
}

impl Library {
    /// # Safety
    /// `job` is a whole record of libslurm's.
    unsafe fn read_job(&self, job: &sys::slurm_job_info_t) -> Job {
        // SAFETY: the strings of a whole record are null or C strings.
        let t = |pointer| unsafe { text(pointer) };
        #[cfg(not(slurm_26_05))]
        let id = job.job_id;
        #[cfg(slurm_26_05)]
        let id = job.step_id.job_id;
        let reason = t(job.state_desc).or_else(|| reason_name(job.state_reason.into()));
        let (state, limit) = (job_state(job.job_state), limit(job.time_limit));
        let over = state.is_over();
        Job {
            id: JobId(id),
            name: t(job.name).unwrap_or_default(),
            comment: t(job.comment),
            user: t(job.user_name).map_or_else(|| self.user(job.user_id), UserName::from),
            uid: job.user_id,
            account: t(job.account).map(AccountName::from),
            partition: t(job.partition).unwrap_or_default(),
            qos: t(job.qos),
            state,
            reason,
            nodes: names(t(job.nodes)),
            cpus: job.num_cpus,
            gres: gres(t(job.tres_per_node)),
            submitted: time(job.submit_time),
            start: time(job.start_time),
            // Of a job without limit the library says a year from now, which means nothing.
            end: time(job.end_time).filter(|_| over || limit != TimeLimit::Unlimited),
            limit,
        }
    }

    /// slurmctld names the user of a job once the job has started. A waiting job's is asked of NSS, and kept.
    fn user(&self, uid: u32) -> UserName {
        if let Some(known) = self.users.borrow().get(&uid) {
            return known.clone();
        }
        match nix::unistd::User::from_uid(uid.into()) {
            Ok(Some(user)) => {
                let name = UserName::from(user.name);
                self.users.borrow_mut().insert(uid, name.clone());
                name
            }
            // As `squeue` shows a user without a name.
            Ok(None) | Err(_) => uid.to_string().into(),
        }
    }
}

/// # Safety
/// `job` is a whole record of libslurm's.
unsafe fn read_job_gres(job: &sys::slurm_job_info_t) -> Vec<JobGres> {
    // SAFETY: `gres_detail_str` has `gres_detail_cnt` C strings, one per node, in the order of `nodes`.
    let (details, nodes) = unsafe {
        let details = slice(job.gres_detail_str, job.gres_detail_cnt as usize);
        (
            details.iter().map(|pointer| text(*pointer)).collect::<Vec<_>>(),
            names(text(job.nodes)),
        )
    };
    nodes
        .into_iter()
        .zip(details)
        .map(|(node, detail)| JobGres {
            nodes: vec![node],
            // Cores and memory are in `job_resrcs`, which is opaque.
            cpus: String::new(),
            mem_mib: 0,
            gres: gres(detail),
        })
        .collect()
}

/// # Safety
/// `node` is a whole record of libslurm's.
unsafe fn read_node(node: &sys::node_info_t, partitions: &[Partition]) -> Node {
    // SAFETY: the strings of a whole record are null or C strings.
    let t = |pointer| unsafe { text(pointer) };
    let name = NodeName::from(t(node.name).unwrap_or_default());
    // SAFETY: `node` is whole.
    let (cpus_allocated, mem_allocated_mib) = unsafe { allocated(node) };
    Node {
        state: node_state(node.node_state),
        reason: t(node.reason),
        cpus: node.cpus.into(),
        cpus_allocated,
        threads_per_core: node.threads,
        mem_mib: node.real_memory,
        mem_allocated_mib,
        gres: gres(t(node.gres)),
        gres_unread: Gres::unread(&t(node.gres).unwrap_or_default()),
        gres_used: gres(t(node.gres_used)),
        features: words(t(node.features_act)),
        partitions: partitions
            .iter()
            .filter(|p| p.nodes.contains(&name))
            .map(|p| p.name.clone())
            .collect(),
        version: t(node.version),
        name,
    }
}

/// CPUs and MiB in use.
///
/// # Safety
/// `node` is a whole record of libslurm's.
#[cfg(not(slurm_25_05))]
unsafe fn allocated(node: &sys::node_info_t) -> (u32, u64) {
    let (mut cpus, mut memory) = (0_u16, 0_u64);
    let allocated = sys::node_states_NODE_STATE_ALLOCATED;
    // SAFETY: for these two kinds the call writes a u16 and a u64 through the pointer.
    unsafe {
        sys::slurm_get_select_nodeinfo(
            node.select_nodeinfo,
            sys::select_nodedata_type_SELECT_NODEDATA_SUBCNT,
            allocated,
            (&raw mut cpus).cast(),
        );
        sys::slurm_get_select_nodeinfo(
            node.select_nodeinfo,
            sys::select_nodedata_type_SELECT_NODEDATA_MEM_ALLOC,
            allocated,
            (&raw mut memory).cast(),
        );
    }
    (cpus.into(), memory)
}

/// CPUs and MiB in use.
///
/// # Safety
/// `node` is a whole record of libslurm's.
#[cfg(slurm_25_05)]
unsafe fn allocated(node: &sys::node_info_t) -> (u32, u64) {
    (node.alloc_cpus.into(), node.alloc_memory)
}

/// # Safety
/// `partition` is a whole record of libslurm's.
unsafe fn read_partition(partition: &sys::partition_info_t, cluster_preempt_mode: u16) -> Partition {
    // SAFETY: the strings of a whole record are null or C strings.
    let t = |pointer| unsafe { text(pointer) };
    let state = match u32::from(partition.state_up) {
        sys::HOP_PARTITION_UP => "UP",
        sys::HOP_PARTITION_DOWN => "DOWN",
        sys::HOP_PARTITION_DRAIN => "DRAIN",
        _ => "INACTIVE",
    };
    Partition {
        name: t(partition.name).unwrap_or_default(),
        state: state.to_owned(),
        nodes: names(t(partition.nodes)),
        is_default: u32::from(partition.flags) & sys::HOP_PART_FLAG_DEFAULT != 0,
        max_time: limit(partition.max_time),
        default_time: limit(partition.default_time),
        oversubscribe: oversubscribe(partition.max_share),
        exclusive_user: u32::from(partition.flags) & sys::HOP_PART_FLAG_EXCLUSIVE_USER != 0,
        preempt_mode: preempt_mode(partition.preempt_mode, cluster_preempt_mode),
        admits: Admits {
            accounts: t(partition.allow_accounts).map(|list| words(Some(list))),
            not_accounts: words(t(partition.deny_accounts)),
            groups: t(partition.allow_groups).map(|list| words(Some(list))),
            qos: t(partition.allow_qos).map(|list| words(Some(list))),
            not_qos: words(t(partition.deny_qos)),
        },
        qos: t(partition.qos_char),
    }
}

/// As `scontrol` writes it: the upper bit forces, 0 is exclusive, 1 means no sharing.
fn oversubscribe(max_share: u16) -> String {
    let (force, count) = (max_share & 0x8000 != 0, max_share & 0x7fff);
    match (force, count) {
        (_, 0) => "EXCLUSIVE".to_owned(),
        (true, n) => format!("FORCE:{n}"),
        (false, 1) => "NO".to_owned(),
        (false, n) => format!("YES:{n}"),
    }
}

/// A partition's `PreemptMode` as `scontrol` writes it. A partition without its own mode has the cluster's.
fn preempt_mode(mode: u16, cluster: u16) -> String {
    const NO_VAL16: u16 = 0xfffe;
    let mode = u32::from(if mode == NO_VAL16 { cluster } else { mode });
    let has = |bit: u32| mode & bit != 0;
    // The bit of WITHIN may be set beside any of these.
    let base = if has(sys::HOP_PREEMPT_MODE_SUSPEND) {
        "SUSPEND"
    } else if has(sys::HOP_PREEMPT_MODE_REQUEUE) {
        "REQUEUE"
    } else if has(sys::HOP_PREEMPT_MODE_CANCEL) {
        "CANCEL"
    } else {
        "OFF"
    };
    match has(sys::HOP_PREEMPT_MODE_GANG) {
        true => format!("GANG,{base}"),
        false => base.to_owned(),
    }
}

fn job_state(state: u32) -> JobState {
    if state & sys::HOP_JOB_COMPLETING != 0 {
        return JobState::Completing;
    }
    if state & sys::HOP_JOB_CONFIGURING != 0 {
        return JobState::Configuring;
    }
    if state & sys::HOP_JOB_REQUEUE_HOLD != 0 {
        return JobState::RequeueHold;
    }
    if state & sys::HOP_JOB_REQUEUE != 0 {
        return JobState::Requeued;
    }
    if state & sys::HOP_JOB_STOPPED != 0 {
        return JobState::Stopped;
    }
    match state & sys::HOP_JOB_STATE_BASE {
        sys::job_states_JOB_PENDING => JobState::Pending,
        sys::job_states_JOB_RUNNING => JobState::Running,
        sys::job_states_JOB_SUSPENDED => JobState::Suspended,
        sys::job_states_JOB_COMPLETE => JobState::Completed,
        sys::job_states_JOB_CANCELLED => JobState::Cancelled,
        sys::job_states_JOB_FAILED => JobState::Failed,
        sys::job_states_JOB_TIMEOUT => JobState::Timeout,
        sys::job_states_JOB_NODE_FAIL => JobState::NodeFail,
        sys::job_states_JOB_PREEMPTED => JobState::Preempted,
        sys::job_states_JOB_BOOT_FAIL => JobState::BootFail,
        sys::job_states_JOB_DEADLINE => JobState::Deadline,
        sys::job_states_JOB_OOM => JobState::OutOfMemory,
        other => JobState::Unknown(format!("STATE_{other}")),
    }
}

fn node_state(state: u32) -> NodeState {
    let base = match state & sys::HOP_NODE_STATE_BASE {
        sys::node_states_NODE_STATE_DOWN => NodeBase::Down,
        sys::node_states_NODE_STATE_IDLE => NodeBase::Idle,
        sys::node_states_NODE_STATE_ALLOCATED => NodeBase::Allocated,
        sys::node_states_NODE_STATE_MIXED => NodeBase::Mixed,
        sys::node_states_NODE_STATE_ERROR => NodeBase::Error,
        sys::node_states_NODE_STATE_FUTURE => NodeBase::Future,
        _ => NodeBase::Unset,
    };
    let all = [
        (sys::HOP_NODE_STATE_CLOUD, NodeFlag::Cloud),
        (sys::HOP_NODE_STATE_COMPLETING, NodeFlag::Completing),
        (sys::HOP_NODE_STATE_DRAIN, NodeFlag::Drain),
        (sys::HOP_NODE_STATE_FAIL, NodeFlag::Fail),
        (sys::HOP_NODE_STATE_INVALID_REG, NodeFlag::InvalidReg),
        (sys::HOP_NODE_STATE_MAINT, NodeFlag::Maintenance),
        (sys::HOP_NODE_STATE_NO_RESPOND, NodeFlag::NotResponding),
        (sys::HOP_NODE_STATE_POWER_DOWN, NodeFlag::PowerDown),
        (sys::HOP_NODE_STATE_POWERING_DOWN, NodeFlag::PoweringDown),
        (sys::HOP_NODE_STATE_POWERED_DOWN, NodeFlag::PoweredDown),
        (sys::HOP_NODE_STATE_POWERING_UP, NodeFlag::PoweringUp),
        (sys::HOP_NODE_STATE_PLANNED, NodeFlag::Planned),
        (sys::HOP_NODE_STATE_REBOOT_ISSUED, NodeFlag::RebootIssued),
        (sys::HOP_NODE_STATE_REBOOT_REQUESTED, NodeFlag::RebootRequested),
        (sys::HOP_NODE_STATE_RES, NodeFlag::Reserved),
    ];
    let flags = all
        .into_iter()
        .filter(|(bit, _)| state & bit != 0)
        .map(|(_, flag)| flag)
        .collect();
    NodeState { base, flags }
}

/// The library's own word for a reason. Exported by the library, under a name that has changed, but in no header.
fn reason_name(reason: u32) -> Option<String> {
    if reason == 0 {
        return None;
    }
    type Name = unsafe extern "C" fn(u32) -> *const c_char;
    let this = libloading::os::unix::Library::this();
    for symbol in [
        &b"slurm_job_state_reason_string\0"[..],
        b"slurm_job_reason_string\0",
    ] {
        // SAFETY: both take the enum and return a static string (or, for unknown values, a string never freed).
        let name = unsafe { this.get::<Name>(symbol).ok().and_then(|name| text(name(reason))) };
        if name.is_some() {
            return name;
        }
    }
    Some(format!("reason {reason}"))
}

fn names(list: Option<String>) -> Vec<NodeName> {
    let names = hostlist::expand(&list.unwrap_or_default()).unwrap_or_default();
    names.into_iter().map(NodeName::from).collect()
}

fn gres(list: Option<String>) -> Vec<Gres> {
    Gres::parse_list(&list.unwrap_or_default())
}

fn words(list: Option<String>) -> Vec<String> {
    list.map(|list| list.split(',').map(str::to_owned).collect())
        .unwrap_or_default()
}

fn time(seconds: i64) -> Option<Timestamp> {
    let seconds = u64::try_from(seconds).ok().filter(|s| *s > 0)?;
    Some(Timestamp(seconds.saturating_mul(1_000_000)))
}

/// Minutes, or one of Slurm's two odd numbers.
fn limit(minutes: u32) -> TimeLimit {
    match minutes {
        u32::MAX => TimeLimit::Unlimited,
        0xffff_fffe => TimeLimit::Unset,
        minutes => TimeLimit::At(Span::from_secs(u64::from(minutes) * 60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_without_a_mode_of_its_own_has_the_clusters() {
        let number = |bits: u32| u16::try_from(bits).unwrap();
        let gang = number(sys::HOP_PREEMPT_MODE_SUSPEND | sys::HOP_PREEMPT_MODE_GANG);
        let within = number(sys::HOP_PREEMPT_MODE_SUSPEND) | 0x4000;
        for (own, cluster, said) in [
            (0xfffe, gang, "GANG,SUSPEND"),
            (0xfffe, within, "SUSPEND"),
            (0xfffe, 0, "OFF"),
            (0, gang, "OFF"),
            (number(sys::HOP_PREEMPT_MODE_CANCEL), gang, "CANCEL"),
            (gang, number(sys::HOP_PREEMPT_MODE_REQUEUE), "GANG,SUSPEND"),
        ] {
            assert_eq!(preempt_mode(own, cluster), said, "{own:#x} {cluster:#x}");
        }
    }
}
