//! Processes below the replica, their subreaper: the kernel's orphans become its children.

use std::path::Path;

/// Ends the processes started or, as a subreaper, inherited by this process, in bounds.
pub(crate) fn end_children() {
    let me = std::process::id();
    for _ in 0..10 {
        let children = children_of(me);
        if children.is_empty() {
            return;
        }
        for pid in children
            .into_iter()
            .filter_map(|pid| rustix::process::Pid::from_raw(pid as i32))
        {
            // The process may already have exited.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        }
    }
}

/// The children of a process, by all of its threads.
pub(crate) fn children_of(pid: u32) -> Vec<u32> {
    let tasks = Path::new("/proc").join(pid.to_string()).join("task");
    let read = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).ok();
    let lists = std::fs::read_dir(tasks)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(read);
    lists
        .flat_map(|list| {
            list.split_whitespace()
                .filter_map(|p| p.parse().ok())
                .collect::<Vec<u32>>()
        })
        .collect()
}
