//! Finding the kernel that a person means: its id, the beginning of its id, or the name of its notebook.

use crate::context::Context;
use crate::failure::Failure;
use crate::hopd::unexpected;
use hop_api::message::{QueueQuery, QueueRow, Request, Response};
use hop_words::id::KernelId;

/// The id of the one kernel that `word` means. A whole id is not looked up.
pub(crate) fn find(word: &str, context: &Context<'_>) -> Result<KernelId, Failure> {
    if is_whole(word) {
        return Ok(word.into());
    }
    let query = QueueQuery {
        users: Vec::new(),
        all_users: context.is_root,
        ..QueueQuery::default()
    };
    let rows = match context.hopd.ask(Request::Queue(query))? {
        Response::Queue { rows, .. } => rows,
        other => return Err(unexpected(&other)),
    };
    pick(word, &rows)
}

fn is_whole(word: &str) -> bool {
    word.len() == 36 && word.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

fn pick(word: &str, rows: &[QueueRow]) -> Result<KernelId, Failure> {
    let mut found: Vec<&KernelId> = rows
        .iter()
        .filter(|row| row.kernel.as_str().starts_with(word) || row.name == word)
        .map(|row| &row.kernel)
        .collect();
    found.sort();
    found.dedup();
    match found[..] {
        [kernel] => Ok(kernel.clone()),
        [] => Err(Failure::Failed(format!(
            "no kernel of yours that waits or has a lease is called {word:?} or begins with it: `hop queue` lists them; for another one give its whole id"
        ))),
        _ => Err(Failure::Failed(format!(
            "{word:?} can mean {} kernels: give more of the id",
            found.len()
        ))),
    }
}
