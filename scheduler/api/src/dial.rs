//! Several addresses of one peer, dialled beside each other. The caller defines a dial, and the addresses' order.

use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// After this time without an answer the next address is dialled as well: a lost host, or a peer that stands still, holds
/// nobody up for longer.
pub const STAGGER: Duration = Duration::from_millis(300);

/// Dials the addresses, each a little after the one before, and returns the first success. A failed dial brings on the
/// next one at once.
///
/// # Errors
/// The error of the last address; `None` if there is no address.
pub async fn first_of<T, E, F>(
    addresses: impl IntoIterator<Item = String>,
    dial: impl Fn(String) -> F,
) -> Result<T, Option<E>>
where
    T: Send + 'static,
    E: Send + 'static,
    F: Future<Output = Result<T, E>> + Send + 'static,
{
    let mut last = (0, None);
    let mut dials = JoinSet::new();
    let mut addresses = addresses.into_iter().enumerate().peekable();
    loop {
        if let Some((n, address)) = addresses.next() {
            let dial = dial(address);
            dials.spawn(async move { (n, dial.await) });
        } else if dials.is_empty() {
            return Err(last.1);
        }
        let patience = match addresses.peek() {
            Some(_) => STAGGER,
            None => Duration::MAX,
        };
        match timeout(patience, dials.join_next()).await {
            Ok(Some(Ok((_, Ok(found))))) => return Ok(found),
            Ok(Some(Ok((n, Err(error))))) if n >= last.0 => last = (n, Some(error)),
            // The next address is due, if there is one.
            Ok(_) | Err(_) => {}
        }
    }
}
