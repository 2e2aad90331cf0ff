//! Our endpoints against each other, against a peer that misbehaves, and against libzmq (through pyzmq, where it is).
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use bytes::Bytes;
use hop_zmtp::{Admit, Client, ClientKind, Endpoint, Event, Limits, Message, Receipts, Server, ServerKind};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(10);

type Events = mpsc::Receiver<(&'static str, Event)>;

fn message(frames: &[&[u8]]) -> Message {
    Message(frames.iter().map(|f| Bytes::copy_from_slice(f)).collect())
}

async fn bind(kind: ServerKind, limits: Limits) -> (Server, Events) {
    let (tx, rx) = mpsc::channel(100);
    let any_port = Endpoint::Tcp("127.0.0.1:0".parse().unwrap());
    let server = Server::bind(kind, &any_port, limits, Admit::SameUser, "server", tx)
        .await
        .unwrap();
    (server, rx)
}

async fn dealer(server: &Server, identity: &'static [u8]) -> (Client, Events) {
    let (tx, rx) = mpsc::channel(100);
    let kind = ClientKind::Dealer {
        identity: Bytes::from_static(identity),
    };
    let client = Client::connect(
        &kind,
        server.local(),
        Limits::default(),
        Admit::SameUser,
        "client",
        tx,
    );
    (client.await.unwrap(), rx)
}

async fn next(events: &mut Events) -> Event {
    timeout(PATIENCE, events.recv())
        .await
        .expect("an event in time")
        .expect("the endpoint lives")
        .1
}

#[tokio::test]
async fn a_router_and_a_dealer_talk_over_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let (tx, mut at_server) = mpsc::channel(100);
    let endpoint = Endpoint::Ipc(dir.path().join("shell"));
    let limits = Limits::default();
    let server = Server::bind(
        ServerKind::Router,
        &endpoint,
        limits,
        Admit::SameUser,
        "server",
        tx,
    )
    .await
    .unwrap();
    let (client, mut at_client) = dealer(&server, b"me").await;

    assert!(matches!(next(&mut at_server).await, Event::Connected(p) if &p.identity[..] == b"me"));
    let large = vec![7u8; 3 << 20];
    assert!(client.send(&message(&[b"a", &large, b""]), None));
    assert!(matches!(next(&mut at_server).await, Event::Message(_, m) if m == message(&[b"a", &large, b""])));
    server.send(b"me", message(&[b"answer"]), None).unwrap();
    assert!(matches!(next(&mut at_client).await, Event::Message(_, m) if m == message(&[b"answer"])));
    assert_eq!(
        server.send(b"nobody", message(&[b"x"]), None),
        Err(message(&[b"x"]))
    );
    drop(client);
    assert!(matches!(
        next(&mut at_server).await,
        Event::Disconnected {
            superseded: false,
            ..
        }
    ));
}

#[tokio::test]
async fn an_identity_belongs_to_its_newest_connection() {
    let (server, mut at_server) = bind(ServerKind::Router, Limits::default()).await;
    let mut old = dealer(&server, b"id").await;
    assert!(matches!(next(&mut at_server).await, Event::Connected(_)));
    for _ in 0..400 {
        let mut new = dealer(&server, b"id").await;
        let mut seen = [next(&mut at_server).await, next(&mut at_server).await];
        seen.sort_by_key(|e| matches!(e, Event::Disconnected { .. }));
        assert!(matches!(&seen[0], Event::Connected(p) if &p.identity[..] == b"id"));
        assert!(matches!(&seen[1], Event::Disconnected { superseded: true, .. }));
        assert!(matches!(next(&mut old.1).await, Event::Disconnected { .. }));
        server.send(b"id", message(&[b"to the new one"]), None).unwrap();
        assert!(matches!(next(&mut new.1).await, Event::Message(..)));
        old = new;
    }
    drop(old);
    assert!(matches!(
        next(&mut at_server).await,
        Event::Disconnected {
            superseded: false,
            ..
        }
    ));
}

#[tokio::test]
async fn a_subscriber_that_does_not_read_is_cut_off_and_nobody_waits_for_it() {
    let limits = Limits {
        queue_bytes: 4 << 20,
        ..Limits::default()
    };
    let (server, mut at_server) = bind(ServerKind::XPub, limits).await;
    let (tx, mut at_good) = mpsc::channel(1000);
    let good = Client::connect(
        &ClientKind::Sub,
        server.local(),
        limits,
        Admit::SameUser,
        "good",
        tx,
    )
    .await
    .unwrap();
    // The channel of the bad one is full at once, so it stops reading its socket.
    let (tx, _at_bad) = mpsc::channel(1);
    let bad = Client::connect(
        &ClientKind::Sub,
        server.local(),
        limits,
        Admit::SameUser,
        "bad",
        tx,
    )
    .await
    .unwrap();
    for _ in 0..4 {
        next(&mut at_server).await;
    }
    let receipts = Receipts::default();
    let megabyte = vec![1u8; 1 << 20];
    for tag in 0..300 {
        server.publish(&message(&[b"topic", &megabyte]), Some(&receipts.issue(tag)));
        assert!(matches!(next(&mut at_good).await, Event::Message(..)));
    }
    assert!(matches!(next(&mut at_server).await, Event::Disconnected { .. }));
    assert_eq!(server.subscribers(), 1);
    assert_eq!(
        receipts.take().len(),
        300,
        "what was cut off counts as delivered as far as it could be"
    );
    drop((good, bad));
}

#[tokio::test]
async fn a_topic_reaches_only_those_who_asked_for_it() {
    let (server, mut at_server) = bind(ServerKind::XPub, Limits::default()).await;
    assert_eq!(server.publish(&message(&[b"x"]), None), 0);
    let (tx, mut at_client) = mpsc::channel(10);
    let sub = Client::connect(
        &ClientKind::Sub,
        server.local(),
        Limits::default(),
        Admit::SameUser,
        "sub",
        tx,
    );
    let sub = sub.await.unwrap();
    assert!(matches!(next(&mut at_server).await, Event::Connected(_)));
    assert!(matches!(next(&mut at_server).await, Event::Subscribed(_, t) if t.is_empty()));
    assert_eq!(server.publish(&message(&[b"y"]), None), 1);
    assert!(matches!(next(&mut at_client).await, Event::Message(_, m) if m == message(&[b"y"])));
    drop(sub);
}

#[tokio::test]
async fn a_peer_that_says_nothing_or_nonsense_is_let_go() {
    let limits = Limits {
        handshake: Duration::from_millis(200),
        ..Limits::default()
    };
    let (server, mut at_server) = bind(ServerKind::Router, limits).await;
    let Endpoint::Tcp(addr) = server.local() else {
        panic!("bound to TCP")
    };
    for first in [
        &b""[..],
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    ] {
        let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
        stream.write_all(first).await.unwrap();
        let mut rest = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut rest))
            .await
            .expect("closed in time")
            .ok();
    }
    assert!(at_server.try_recv().is_err(), "no such peer was announced");
}

/// libzmq's sockets against ours: DEALER with an identity, REQ for the heartbeat, SUB with two topics, a large message.
const PYZMQ: &str = r#"
import sys, zmq
router, xpub, echo = sys.argv[1:]
ctx = zmq.Context()
d = ctx.socket(zmq.DEALER); d.identity = b"py"; d.heartbeat_ivl = 200; d.connect(router)
d.send_multipart([b"one", b"x" * 70000, b""]); assert d.recv_multipart() == [b"one", b"x" * 70000, b""]
r = ctx.socket(zmq.REQ); r.connect(echo)
for i in range(3):
    r.send(b"ping%d" % i); assert r.recv() == b"ping%d" % i
s = ctx.socket(zmq.SUB); s.connect(xpub); s.subscribe(b"a"); s.subscribe(b"b"); s.unsubscribe(b"b")
d.send(b"publish"); d.recv()
assert s.recv_multipart() == [b"abc", b"1"]
d.send(b"bye"); d.recv()
ctx.destroy(linger=1000)
"#;

#[tokio::test]
async fn libzmq_understands_us() {
    let python = std::env::var("HOP_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let probe = std::process::Command::new(&python)
        .args(["-c", "import zmq"])
        .stderr(Stdio::null())
        .status();
    if !probe.is_ok_and(|s| s.success()) {
        eprintln!("skipped: {python} has no pyzmq (set HOP_TEST_PYTHON)");
        return;
    }
    let (router, mut at_router) = bind(ServerKind::Router, Limits::default()).await;
    let (xpub, mut at_xpub) = bind(ServerKind::XPub, Limits::default()).await;
    let (echo, _at_echo) = bind(ServerKind::Echo, Limits::default()).await;
    let url = |s: &Server| match s.local() {
        Endpoint::Tcp(addr) => format!("tcp://{addr}"),
        Endpoint::Ipc(path) => format!("ipc://{}", path.display()),
    };
    let mut child = tokio::process::Command::new(&python)
        .args(["-c", PYZMQ, &url(&router), &url(&xpub), &url(&echo)])
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    loop {
        let Event::Message(peer, m) = next(&mut at_router).await else {
            continue;
        };
        assert_eq!(&peer.identity[..], b"py");
        if m == message(&[b"publish"]) {
            while !matches!(next(&mut at_xpub).await, Event::Unsubscribed(_, t) if &t[..] == b"b") {}
            assert_eq!(xpub.publish(&message(&[b"bcd", b"0"]), None), 0);
            assert_eq!(xpub.publish(&message(&[b"abc", b"1"]), None), 1);
        }
        let bye = m == message(&[b"bye"]);
        router.send(b"py", m, None).unwrap();
        if bye {
            break;
        }
    }
    assert!(
        timeout(PATIENCE, child.wait())
            .await
            .expect("ends in time")
            .unwrap()
            .success()
    );
}
