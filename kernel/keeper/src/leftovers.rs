//! Addresses in the book at which no keeper answers. Their seats may have been killed, or be out of reach.

use crate::book::Book;
use crate::wire::PATIENCE;
use hop_words::id::JobId;
use std::io;
use std::net::SocketAddr;
use tokio::net::TcpStream;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

/// The seats in the book at whose address nobody takes a connection.
///
/// # Errors
/// If the book can't be read.
pub async fn unanswering(book: &Book) -> io::Result<Vec<(JobId, SocketAddr)>> {
    let book = book.clone();
    // The home may hang.
    let all = spawn_blocking(move || {
        let seats = book.seats()?.into_iter();
        // An address that can't be read now is not judged.
        let known = seats.filter_map(|seat| Some((seat, book.address(seat).ok()??)));
        Ok::<_, io::Error>(known.collect::<Vec<_>>())
    })
    .await??;
    let mut dials = JoinSet::new();
    for (seat, address) in all {
        dials.spawn(async move {
            let stream = timeout(PATIENCE, TcpStream::connect(address)).await;
            (!matches!(stream, Ok(Ok(_)))).then_some((seat, address))
        });
    }
    let mut silent: Vec<_> = dials.join_all().await.into_iter().flatten().collect();
    silent.sort_unstable();
    Ok(silent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_seat_that_nobody_answers_for_is_named() {
        let tmp = tempfile::tempdir().unwrap();
        let book = Book::open(tmp.path()).unwrap();
        let mut listeners = Vec::new();
        for seat in 1..=3 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            book.enter(JobId(seat), listener.local_addr().unwrap()).unwrap();
            listeners.push(listener);
        }
        assert_eq!(unanswering(&book).await.unwrap(), []);
        let address = listeners.remove(1).local_addr().unwrap();
        assert_eq!(unanswering(&book).await.unwrap(), [(JobId(2), address)]);
        drop(listeners);
        // What can't be read is not judged. No read of a folder as a file succeeds.
        book.strike(JobId(1));
        std::fs::create_dir(tmp.path().join("1")).unwrap();
        let silent: Vec<JobId> = unanswering(&book)
            .await
            .unwrap()
            .iter()
            .map(|(seat, _)| *seat)
            .collect();
        assert_eq!(silent, [JobId(2), JobId(3)]);
    }
}
