//! A command asks the seats of its user for a kernel's process.

#![allow(clippy::unwrap_used, reason = "a test's helpers")]

use hop_keeper::visit::visit;
use hop_keeper::{Book, Event, Keeper, Patience, Settings};
use hop_wal::Options;
use hop_words::id::JobId;
use std::io::ErrorKind;
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

async fn seat(home: &Path, id: u32) -> (Keeper, mpsc::UnboundedReceiver<Event>) {
    let settings = Settings {
        me: JobId(id),
        listen: "127.0.0.1".parse().unwrap(),
        ports: None,
        log: &home.join(format!("log-{id}")),
        wal: Options::default(),
        book: Book::open(&home.join("seats")).unwrap(),
        patience: Patience::default(),
    };
    Keeper::start(settings).await.unwrap()
}

/// The processes on a seat's node: one, of this kernel, that answers each byte with the next one.
async fn answer(mut events: mpsc::UnboundedReceiver<Event>, kernel: &str) {
    while let Some(event) = events.recv().await {
        let Event::Visited(visitor) = event else { continue };
        if visitor.kernel.as_str() != kernel {
            continue;
        }
        let (door, mut process) = UnixStream::pair().unwrap();
        tokio::spawn(visitor.lead_to(door));
        while let Ok(byte) = process.read_u8().await {
            process.write_u8(byte + 1).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_command_is_led_to_the_seat_that_has_the_process() {
    let home = tempfile::tempdir().unwrap();
    let (_first, events) = seat(home.path(), 1).await;
    tokio::spawn(answer(events, "a"));
    let (_second, events) = seat(home.path(), 2).await;
    tokio::spawn(answer(events, "b"));
    let book = Book::open(&home.path().join("seats")).unwrap();
    // A seat that was killed leaves its address.
    book.enter(JobId(3), "127.0.0.1:1".parse().unwrap()).unwrap();
    for kernel in ["a", "b", "a"] {
        let mut door = visit(&book, &kernel.into()).await.unwrap();
        door.write_u8(7).await.unwrap();
        door.flush().await.unwrap();
        assert_eq!(door.read_u8().await.unwrap(), 8);
    }
    let nowhere = visit(&book, &"c".into()).await.unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_command_with_another_users_keys_is_not_heard() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (keeper, mut events) = seat(ours.path(), 1).await;
    let book = Book::open(&theirs.path().join("seats")).unwrap();
    book.enter(JobId(1), keeper.address()).unwrap();
    assert!(visit(&book, &"a".into()).await.is_err());
    drop(keeper);
    assert!(events.recv().await.is_none(), "no visit was told");
}
