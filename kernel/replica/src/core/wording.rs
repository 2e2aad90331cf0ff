//! The sentences and the JSON that a notebook's user and the kernel's agent read. No state, no decisions.

use crate::models::Models;
use hop_api::message::Grant;
use hop_words::id::LeaseId;
use hop_words::need::Need;
use hop_words::time::{Span, spell};
use serde_json::{Value, json};
use std::path::PathBuf;

pub(super) const BLOCK_WAITS: &str = "a gresshopper.gpu() or cpu() block outside of this cell waits for a lease, and a kernel \
    has one at a time: let that block end, or restart the kernel";

pub(super) const BLOCK_IS_PARKED: &str = "a gresshopper.gpu() block of an earlier cell is parked and waits for a GPU, and a \
    kernel has one lease at a time: let that block end, or restart the kernel";

pub(super) const ANOTHER_BLOCK: &str =
    "this kernel waits for or holds another lease of gresshopper.gpu() or cpu()";

pub(super) const CELL_IS_PARKED: &str =
    "the cell is parked and waits for a GPU, and a kernel has one lease at a time";

pub(super) const CELL_WAITS: &str =
    "a cell of this kernel waits for its lease, and a kernel has one at a time";

pub(super) const LEASE_TOO_SMALL: &str =
    "the cell's own lease (%%gpu or the kernel's default) is smaller: ask for all of it there";

pub(super) const STANDS_IN_CUDA: &str = "gresshopper: the cell is interrupted, but stands in a GPU operation, which waits for \
    a GPU. It ends as soon as it has one. To end it now, restart the kernel.\n";

/// To an order to move that names the replica before this one. `hopd` says the same of a move that another replica
/// overtakes (`Withdrawal` in scheduler/core).
pub(super) const ORDER_TO_ANOTHER: &str =
    "its process was lost or restarted meanwhile, and the new one has to be asked again (`hop migrate`)";

/// Why a replica leaves its group.
pub(super) const MOST_REPLICAS_GONE: &str = "most of its replicas are out of reach";

/// A cell is answered in place of the kernel, which was lost before its own reply.
pub(super) const LAST_OUTPUTS_MAY_BE_MISSING: &str = "gresshopper: the kernel's process or node was lost right after this cell \
    had ended. The last of what it printed may be missing.\n";

/// The bounds of `hop_zmtp`, rounded.
pub(super) const OVERSIZED_OUTPUT: &str = "gresshopper: an output was dropped, because it is too large: a message has at most \
    65,000 parts, 2 GB in each and 4 GB in all.\n";
pub(super) const OVERSIZED_REPLY: &str = "the kernel's reply is too large: a message has at most 65,000 parts, 2 GB in each and 4 GB \
    in all";

/// The connection over which a process publishes broke, though the process lives.
pub(super) const NOT_HEARD: &str = "gresshopper: the connection to the kernel's process was lost for a moment. What it printed \
    meanwhile is missing.\n";
pub(super) const UNREACHABLE: &str = "the kernel's process runs and can't be reached: restart the kernel";
pub(super) const DEAF: &str = "the connection to the kernel's process was lost, and the process was ended";

/// For what an interrupted cell waited.
pub(super) const ITS_LEASE: &str = "its lease";
pub(super) const ITS_KERNEL: &str = "its kernel";
pub(super) const ITS_FORMER_RUN: &str = "the end of its former run";

/// Why a cell with `%%retry` waits.
pub(super) const FORMER_ATTEMPT: &str = "its former run may not have ended on the node that was lost";
pub(super) const NO_MAJORITY: &str = "most of this kernel's replicas don't answer";

/// Why the process of a cell with `%%retry` was ended.
pub(super) const OUT_OF_OFFICE: &str =
    "most of the kernel's replicas didn't answer, and the kernel may go on with one of them";

pub(super) const NOT_SAVED_IN_TIME: &str = "its state could not be saved in time";
pub(super) const NOT_SAVED: &str = "its state could not be saved";

pub(super) fn not_saved(why: &str) -> String {
    format!("{NOT_SAVED}: {why}")
}

/// A lease as told by the reply of the cell (docs/wiring.md).
pub(super) fn describe(grant: &Grant, models: &Models) -> Value {
    let devices = &grant.handover.devices;
    let mut described = json!({
        "lease": grant.lease,
        "node": grant.node,
        "gpus": devices.iter().map(|d| d.index).collect::<Vec<_>>(),
        "devices": devices.iter().map(|d| &d.path).collect::<Vec<_>>(),
        "cores": grant.handover.cores,
        "waited_ms": grant.waited.0 / 1000,
        "lingering": grant.lingering,
    });
    let named: Option<Vec<&String>> = devices.iter().map(|d| models.get(&d.path)).collect();
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        described["models"] = json!(named);
    }
    described
}

pub(super) fn device_paths(grant: &Grant) -> Vec<PathBuf> {
    grant.handover.devices.iter().map(|d| d.path.clone()).collect()
}

/// The text at a waiting cell, for clients that show no notices. `state` is the wait's place, reason and estimate.
pub(super) fn waits(need: &Need, state: &Value) -> String {
    let what = match need.gpus {
        0 => format!("{} more cores", need.cpus),
        1 => "1 GPU".to_owned(),
        n => format!("{n} GPUs"),
    };
    let place = match state["position"].as_u64() {
        None => String::new(),
        Some(0 | 1) => ": next in the queue".to_owned(),
        Some(n) => format!(": place {n} in the queue"),
    };
    let eta = state["eta_s"].as_f64().filter(|eta| *eta >= 1.0);
    let eta = eta
        .map(|eta| format!(", about {}", rough(eta)))
        .unwrap_or_default();
    let reason = state["reason"]
        .as_str()
        .map(|r| format!(" ({r})"))
        .unwrap_or_default();
    format!("Waiting for {what}{place}{eta}{reason}")
}

/// The text at a cell with `%%retry` that waits.
pub(super) fn attempt_waits(state: &Value) -> String {
    let reason = state["reason"].as_str().unwrap_or_default();
    format!("Waiting to run again: {reason}")
}

/// A length of time as a person says it, in steps useful to a waiting person.
fn rough(seconds: f64) -> String {
    let seconds = seconds as u64;
    match seconds {
        0..10 => format!("{seconds} s"),
        10..60 => format!("{} s", (seconds + 2) / 5 * 5),
        60..3600 => format!("{} min", (seconds + 30) / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// The state of a cell that waits while the scheduler is away.
pub(super) fn scheduler_away(why: &str) -> Value {
    json!({"state": "queued", "reason": format!("the scheduler is away: {why}")})
}

/// The state of a waiting cell while the scheduler refuses to hear this kernel.
pub(super) fn scheduler_deaf(why: &str) -> Value {
    json!({"state": "queued", "reason": format!("the scheduler doesn't serve this kernel: {why}")})
}

pub(super) fn taken_away(reason: &str) -> String {
    format!("gresshopper: the GPU was taken away: {reason}\n")
}

/// What `LeaseRevoked` says in the cell.
pub(super) fn lease_revoked(reason: &str) -> String {
    format!("the GPU was taken away: {reason}. The variables are kept, and the cell can be run again")
}

pub(super) fn block_holds(lease: LeaseId) -> String {
    format!(
        "a gresshopper.gpu() or cpu() block of an earlier cell still holds lease {lease}, and a kernel has one at a time: \
         let that block end (close its generator, join its thread), or restart the kernel"
    )
}

pub(super) fn is_parked(reason: &str) -> String {
    format!(
        "gresshopper: the cell is parked: {reason}. Its GPU memory is in host memory; it goes on by itself where it is when \
         a GPU is free.\n"
    )
}

pub(super) fn goes_on(stood: Span) -> String {
    format!(
        "gresshopper: the cell goes on; it stood still for {} s.\n",
        stood.0 / 1_000_000
    )
}

pub(super) fn asks_again(why: &str, pause: Span) -> String {
    format!(
        "gresshopper: {why}. The cell stands still and asks again in about {} s.\n",
        pause.0 / 1_000_000
    )
}

pub(super) fn can_not_go_back(why: &str) -> String {
    format!("a GPU was there, but what this kernel has in host memory can't go back to it: {why}")
}

pub(super) fn cell_can_not_go_back(why: &str) -> String {
    format!("a GPU was there, but what the cell has in host memory can't go back to it: {why}")
}

/// The warning to a user whose kernel can't leave a GPU whose lease is over.
pub(super) fn still_holds(why: &str, grace: Span) -> String {
    format!(
        "gresshopper: the GPU goes back, but this kernel still holds it: {why}. Processes that hold it are ended {}after \
         the end of the lease, this kernel among them: variables that are not saved are lost then. {LET_GO}\n",
        long(grace)
    )
}

const LET_GO: &str =
    "To let go: `del model; torch.cuda.empty_cache()`, or end the program that the cell has started.";

/// To a user whose kernel can't let go of a GPU that nobody waits for.
pub(super) fn stays_held(why: &str, within: Span) -> String {
    format!(
        "gresshopper: this kernel still holds its GPU: {why}. Nobody waits for the GPU, so it stays with the kernel, and \
         counts as used by you. Once somebody waits for it, you read so here, and {} later the processes that still hold \
         it are ended, this kernel among them: variables that are not saved are lost then. {LET_GO}\n",
        seconds(within)
    )
}

/// The warning to a user whose kernel can't let go of a GPU but must leave it.
pub(super) fn must_let_go(wanted: &str, why: &str, within: Span) -> String {
    format!(
        "gresshopper: the GPU goes back, as {wanted}, but this kernel still holds it: {why}. Processes that hold it are \
         ended in {}, this kernel among them: variables that are not saved are lost then. {LET_GO}\n",
        seconds(within)
    )
}

// Reasons for a death by SIGKILL.

pub(super) fn held_on(wanted: &str, why: &str) -> String {
    format!(
        "the kernel still held its GPU after it was warned that the GPU goes back, as {wanted} ({why}), so it was ended"
    )
}

/// The take-back begins after the grace and waits for holders as long again.
fn twice(grace: Span) -> Span {
    Span(2 * grace.0)
}

pub(super) fn would_not_end(reason: &str, grace: Span) -> String {
    let later = match grace {
        Span::ZERO => "by then".to_owned(),
        grace => format!("{} later", seconds(twice(grace))),
    };
    format!("its GPU was taken away ({reason}) and the running cell hadn't ended {later}")
}

pub(super) fn held_too_long(why: &str, grace: Span) -> String {
    format!(
        "the kernel still held its GPU {}after the end of its lease ({why}), so it was ended",
        long(grace)
    )
}

pub(super) fn parked_too_slowly(grace: Span) -> String {
    let late = format!(
        "its GPU memory was still on its way to host memory {}after the end of its lease, so it was ended",
        long(twice(grace))
    );
    match grace {
        Span::ZERO => late,
        grace => format!(
            "{late}. An administrator can give kernels longer: `grace_ms` of the pool is {} now",
            seconds(grace)
        ),
    }
}

pub(super) fn lost_by_driver(why: &str) -> String {
    format!("the cell was parked in its middle for others, and the driver lost what it had on its GPU: {why}")
}

fn seconds(span: Span) -> String {
    format!("{} s", span.as_secs_f64())
}

/// The length before an "after". A lease that ended with its pilot had no grace: there is nothing to say.
fn long(grace: Span) -> String {
    match grace {
        Span::ZERO => String::new(),
        grace => format!("{} ", seconds(grace)),
    }
}

// A kernel that outlives its process.

pub(super) fn cell_lost(reason: &str) -> String {
    format!(
        "{reason}. The kernel goes on with its variables as they were saved before this cell. Run the cell again, or begin it with \
         %%retry to have that done by itself"
    )
}

/// To a cell that the kernel ended without a reply, after an interrupt.
pub(super) const INTERRUPTED_WITHOUT_REPLY: &str =
    "the cell was interrupted, and the kernel gave no answer to it";

/// The same, without an interrupt.
pub(super) const ENDED_WITHOUT_REPLY: &str =
    "the kernel ended the cell without an answer: the kernel's log may tell of an error of its own";

pub(super) fn runs_again(reason: &str) -> String {
    format!("gresshopper: {reason}. The cell runs again (%%retry).\n")
}

/// `comes_back`: the notebook's next opening finds the kernel.
pub(super) fn died_too_often(reason: &str, times: usize, comes_back: bool) -> String {
    let kept = match comes_back {
        true => ". Its saved variables are back at its notebook's next opening",
        false => "",
    };
    format!("{reason}. It has died {times} times within a minute{kept}")
}

/// To the first cell of a process whose predecessor died between two cells.
pub(super) fn process_is_new(reason: &str) -> String {
    format!("gresshopper: this kernel's process is new: {reason}. It has the variables that were saved.\n")
}

pub(super) fn widgets_may_be_lost(within: Span) -> String {
    format!(
        "gresshopper: what widgets changed in the last {} before the kernel's process was lost may be lost.\n",
        spell(within.max(Span::from_secs(1)))
    )
}

pub(super) fn could_not_come_back(lost: &[String]) -> String {
    format!(
        "gresshopper: these variables could not be brought back: {}. Using one raises LostError.\n",
        lost.join(", ")
    )
}

pub(super) fn not_restored(why: &str, kept: Option<&std::path::Path>) -> String {
    let kept = kept.map_or_else(String::new, |folder| {
        format!(" They are kept in {}.", folder.display())
    });
    format!(
        "gresshopper: the kernel is a new one, since its variables could not be brought back: {why}.{kept}\n"
    )
}

/// `since` is the number of the first cell that isn't saved.
pub(super) fn not_captured(why: &str, since: Option<i64>) -> String {
    let since = since.map_or_else(String::new, |count| format!(" since [{count}]"));
    format!(
        "gresshopper: this kernel is not saved{since}: {why}. If its process or its node is lost, its variables are too.\n"
    )
}

/// The reason for the end of a kernel whose process died while its store was broken.
pub(super) fn died_unsaved(reason: &str, why: &str) -> String {
    format!("{reason}, and its variables could not be saved: {why}")
}

/// The end of a kernel that can't be saved at the end of its server.
pub(super) fn ended_unsaved(reason: &str) -> String {
    format!("{reason}, and this kernel's variables could not be saved")
}

pub(super) fn bad_default(why: &str) -> String {
    format!("gresshopper: the GPUs that the notebook's metadata name for each cell are not used: {why}\n")
}

pub(super) fn captured_again() -> String {
    "gresshopper: this kernel is saved again, from this cell on.\n".to_owned()
}

pub(super) fn notice(text: &str) -> String {
    format!("gresshopper: {text}\n")
}
