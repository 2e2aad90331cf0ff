//! The channel under attack. The identities here are those of a table instead of `munged`'s; the tests in
//! `tests/munge.rs` run the same handshake over a real one.

use super::*;
use crate::message::{FromHopd, Request, Response, ToHopd};
use hop_words::id::Term;
use std::collections::HashSet;
use std::sync::Mutex;
use tokio::io::{DuplexStream, duplex};

const SERVICE: u32 = 900;
const ALICE: u32 = 1001;

/// As MUNGE: a credential names its maker, can be read by one uid, and once.
#[derive(Debug, Default)]
struct Table {
    made: Mutex<Vec<(u32, u32, Vec<u8>)>>,
    used: Mutex<HashSet<usize>>,
}

#[derive(Debug)]
struct As(Arc<Table>, u32);

impl Identity for As {
    fn encode(&self, payload: &[u8], restrict_uid: u32) -> Result<String, IdentityError> {
        let mut made = self.0.made.lock().unwrap();
        made.push((self.1, restrict_uid, payload.to_vec()));
        Ok((made.len() - 1).to_string())
    }

    fn decode(&self, credential: &str) -> Result<Proven, IdentityError> {
        let n: usize = credential.parse().map_err(|_| IdentityError("garbage".into()))?;
        let made = self.0.made.lock().unwrap();
        let (uid, for_uid, payload) = made.get(n).ok_or_else(|| IdentityError("garbage".into()))?;
        if *for_uid != self.1 {
            return Err(IdentityError("meant for another uid".into()));
        }
        if !self.0.used.lock().unwrap().insert(n) {
            return Err(IdentityError("used before".into()));
        }
        Ok(Proven {
            uid: *uid,
            gid: *uid,
            payload: payload.clone(),
        })
    }
}

fn quick() -> Timeouts {
    Timeouts {
        handshake: Duration::from_millis(300),
        frame: Duration::from_millis(200),
        silence: Duration::from_millis(300),
    }
}

fn welcome(_: &Proven, _: Role) -> Result<Welcome, Refusal> {
    Ok(Welcome {
        version: VERSION,
        term: Term(7),
        user: "alice".into(),
        operator: false,
    })
}

type Halves = (
    tokio::io::ReadHalf<DuplexStream>,
    tokio::io::WriteHalf<DuplexStream>,
);
type Server = Accepted<tokio::io::ReadHalf<DuplexStream>, tokio::io::WriteHalf<DuplexStream>>;

fn serve(
    table: &Arc<Table>,
    halves: Halves,
    judge: impl FnOnce(&Proven, Role) -> Result<Welcome, Refusal> + Send + 'static,
) -> tokio::task::JoinHandle<Result<Server, ChannelError>> {
    let identity = Arc::new(As(table.clone(), SERVICE));
    tokio::spawn(async move { accept(halves.0, halves.1, identity, quick(), judge).await })
}

async fn dial(
    table: &Arc<Table>,
    halves: Halves,
) -> Result<Connected<tokio::io::ReadHalf<DuplexStream>, tokio::io::WriteHalf<DuplexStream>>, ChannelError> {
    let identity = Arc::new(As(table.clone(), ALICE));
    let introduction = Introduction::make(identity, SERVICE).await?;
    connect(halves.0, halves.1, Role::Client, introduction, quick()).await
}

fn pipe() -> (Halves, Halves) {
    let (a, b) = duplex(1 << 20);
    (tokio::io::split(a), tokio::io::split(b))
}

/// A wire whose bytes a man in the middle sees: what one side writes is handed over frame by frame.
struct Middle {
    to_server: tokio::io::WriteHalf<DuplexStream>,
    from_server: tokio::io::ReadHalf<DuplexStream>,
    to_client: tokio::io::WriteHalf<DuplexStream>,
    from_client: tokio::io::ReadHalf<DuplexStream>,
}

fn middle() -> (Halves, Halves, Middle) {
    let (client, outer_client) = pipe();
    let (server, outer_server) = pipe();
    let middle = Middle {
        to_server: outer_server.1,
        from_server: outer_server.0,
        to_client: outer_client.1,
        from_client: outer_client.0,
    };
    (client, server, middle)
}

async fn one_frame(from: &mut tokio::io::ReadHalf<DuplexStream>) -> Vec<u8> {
    let mut header = [0; 4];
    from.read_exact(&mut header).await.unwrap();
    let mut body = vec![0; u32::from_be_bytes(header) as usize];
    from.read_exact(&mut body).await.unwrap();
    [&header[..], &body].concat()
}

fn ping(id: u64) -> ToHopd {
    ToHopd {
        id,
        body: Request::Ping,
    }
}

/// A proven channel with the attacker on the wire, and the frames of its handshake.
async fn attacked() -> (
    Arc<Table>,
    Connected<tokio::io::ReadHalf<DuplexStream>, tokio::io::WriteHalf<DuplexStream>>,
    Server,
    Middle,
    Vec<u8>,
) {
    let table = Arc::new(Table::default());
    let (client, server, mut wire) = middle();
    let serving = serve(&table, server, welcome);
    let dialling = {
        let table = table.clone();
        tokio::spawn(async move { dial(&table, client).await })
    };
    let hello = one_frame(&mut wire.from_client).await;
    wire.to_server.write_all(&hello).await.unwrap();
    let answer = one_frame(&mut wire.from_server).await;
    wire.to_client.write_all(&answer).await.unwrap();
    let connected = dialling.await.unwrap().unwrap();
    let accepted = serving.await.unwrap().unwrap();
    (table, connected, accepted, wire, hello)
}

#[tokio::test]
async fn both_sides_are_proven_and_messages_flow_both_ways() {
    let table = Arc::new(Table::default());
    let (client, server) = pipe();
    let serving = serve(&table, server, welcome);
    let mut connected = dial(&table, client).await.unwrap();
    let mut accepted = serving.await.unwrap().unwrap();
    assert_eq!((accepted.caller.uid, accepted.role), (ALICE, Role::Client));
    assert!(accepted.caller.payload.is_empty(), "the key stays in the channel");
    assert_eq!(connected.welcome.term, Term(7));
    for id in 1..4 {
        connected.writer.send(&ping(id)).await.unwrap();
        let got: ToHopd = accepted.reader.receive().await.unwrap();
        assert_eq!(got.id, id);
        let pong = FromHopd {
            id,
            body: Response::Pong,
        };
        accepted.writer.send(&pong).await.unwrap();
        let got: FromHopd = connected.reader.receive().await.unwrap();
        assert_eq!(got.id, id);
    }
}

#[tokio::test]
async fn a_tampered_frame_is_refused_wherever_the_bit_is() {
    for position in [4, 5, 9, 40] {
        let (_table, mut connected, mut accepted, mut wire, _) = attacked().await;
        connected.writer.send(&ping(1)).await.unwrap();
        let mut frame = one_frame(&mut wire.from_client).await;
        frame[position] ^= 1;
        wire.to_server.write_all(&frame).await.unwrap();
        let error = accepted.reader.receive::<ToHopd>().await.unwrap_err();
        assert!(matches!(error, ChannelError::NotAuthentic), "{error}");
    }
}

#[tokio::test]
async fn a_repeated_a_reordered_and_a_left_out_frame_are_refused() {
    for order in [&[0, 0][..], &[1], &[1, 0]] {
        let (_table, mut connected, mut accepted, mut wire, _) = attacked().await;
        let mut frames = Vec::new();
        for id in 1..3 {
            connected.writer.send(&ping(id)).await.unwrap();
            frames.push(one_frame(&mut wire.from_client).await);
        }
        for n in order {
            wire.to_server.write_all(&frames[*n]).await.unwrap();
        }
        if order[0] == 0 {
            accepted.reader.receive::<ToHopd>().await.unwrap();
        }
        let error = accepted.reader.receive::<ToHopd>().await.unwrap_err();
        assert!(matches!(error, ChannelError::NotAuthentic), "{error}");
    }
}

#[tokio::test]
async fn a_reflected_frame_is_refused() {
    let (_table, mut connected, _accepted, mut wire, _) = attacked().await;
    connected.writer.send(&ping(1)).await.unwrap();
    let frame = one_frame(&mut wire.from_client).await;
    wire.to_client.write_all(&frame).await.unwrap();
    let error = connected.reader.receive::<FromHopd>().await.unwrap_err();
    assert!(matches!(error, ChannelError::NotAuthentic), "{error}");
}

#[tokio::test]
async fn a_replayed_hello_is_refused_and_told_why() {
    let (table, _connected, _accepted, _wire, hello) = attacked().await;
    let (client, server) = pipe();
    let serving = serve(&table, server, welcome);
    let (mut read, mut write) = client;
    write.write_all(&hello).await.unwrap();
    let answer = one_frame(&mut read).await;
    assert_eq!(answer[4], PLAIN);
    let refusal: Refusal = serde_json::from_slice(&answer[5..]).unwrap();
    assert!(refusal.to_string().contains("used before"), "{refusal}");
    assert!(matches!(
        serving.await.unwrap().unwrap_err(),
        ChannelError::Refused(Refusal::Unauthenticated { .. })
    ));
}

/// Where munged's memory of used credentials is gone, a whole recorded connection is still worth nothing.
#[tokio::test]
async fn a_replayed_connection_is_refused_even_if_the_credential_is_believed_again() {
    let (table, mut connected, _accepted, mut wire, hello) = attacked().await;
    connected.writer.send(&ping(1)).await.unwrap();
    let frame = one_frame(&mut wire.from_client).await;
    table.used.lock().unwrap().clear();
    let (client, server) = pipe();
    let serving = serve(&table, server, welcome);
    let (_read, mut write) = client;
    write.write_all(&[hello, frame].concat()).await.unwrap();
    let mut accepted = serving.await.unwrap().unwrap();
    let error = accepted.reader.receive::<ToHopd>().await.unwrap_err();
    assert!(matches!(error, ChannelError::NotAuthentic), "{error}");
}

#[tokio::test]
async fn a_server_that_cannot_open_the_credential_is_not_believed() {
    let table = Arc::new(Table::default());
    let (client, server) = pipe();
    let dialling = {
        let table = table.clone();
        tokio::spawn(async move { dial(&table, client).await })
    };
    let (mut read, mut write) = server;
    let hello = one_frame(&mut read).await;
    let (_, mut to_client) = seals(&[0; KEY], &[0; KEY], &hello[5..]);
    let caller = Proven {
        uid: ALICE,
        gid: ALICE,
        payload: vec![],
    };
    let first = First::Welcome(welcome(&caller, Role::Client).unwrap());
    let mut frame = frame_of(FIRST, &[0; KEY], &first).unwrap();
    to_client.seal(&mut frame, 5 + KEY);
    write_frame(&mut write, &mut frame, Duration::from_secs(1))
        .await
        .unwrap();
    let error = dialling.await.unwrap().unwrap_err();
    assert!(matches!(error, ChannelError::NotAuthentic), "{error}");
}

#[tokio::test]
async fn a_role_changed_on_the_way_is_found_out_by_the_client() {
    let table = Arc::new(Table::default());
    let (client, server, mut wire) = middle();
    let serving = serve(&table, server, welcome);
    let dialling = {
        let table = table.clone();
        tokio::spawn(async move { dial(&table, client).await })
    };
    let hello = one_frame(&mut wire.from_client).await;
    let body = String::from_utf8(hello[5..].to_vec())
        .unwrap()
        .replace("client", "agent");
    let mut forged = vec![0, 0, 0, 0, PLAIN];
    forged.extend_from_slice(body.as_bytes());
    write_frame(&mut wire.to_server, &mut forged, Duration::from_secs(1))
        .await
        .unwrap();
    let answer = one_frame(&mut wire.from_server).await;
    wire.to_client.write_all(&answer).await.unwrap();
    assert!(matches!(
        dialling.await.unwrap().unwrap_err(),
        ChannelError::NotAuthentic
    ));
    assert_eq!(serving.await.unwrap().unwrap().role, Role::Agent);
}

#[tokio::test]
async fn a_credential_meant_for_another_uid_is_refused() {
    let table = Arc::new(Table::default());
    let (client, server) = pipe();
    let serving = serve(&table, server, welcome);
    let identity = Arc::new(As(table.clone(), ALICE));
    let introduction = Introduction::make(identity, ALICE).await.unwrap();
    let error = connect(client.0, client.1, Role::Client, introduction, quick())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("another uid"), "{error}");
    assert!(serving.await.unwrap().is_err());
}

#[tokio::test]
async fn who_is_proven_but_not_allowed_reads_why() {
    let table = Arc::new(Table::default());
    let (client, server) = pipe();
    let serving = serve(&table, server, |caller, _| {
        Err(Refusal::Forbidden {
            reason: format!("uid {} is no agent", caller.uid),
        })
    });
    let error = dial(&table, client).await.unwrap_err();
    assert_eq!(error.to_string(), "not allowed: uid 1001 is no agent");
    assert!(serving.await.unwrap().is_err());
}

#[tokio::test]
async fn versions_refuse_each_other_in_both_directions() {
    let table = Arc::new(Table::default());
    let (client, server) = pipe();
    let serving = serve(&table, server, welcome);
    let (mut read, mut write) = client;
    // A newer client, whose hello has another shape: only its version is read.
    let mut frame = frame_of(PLAIN, &[], &serde_json::json!({"version": 9, "proof": [1]})).unwrap();
    write_frame(&mut write, &mut frame, Duration::from_secs(1))
        .await
        .unwrap();
    let answer = one_frame(&mut read).await;
    let refusal: Refusal = serde_json::from_slice(&answer[5..]).unwrap();
    assert_eq!(
        refusal,
        Refusal::Version {
            server: VERSION,
            client: 9
        }
    );
    assert!(serving.await.unwrap().is_err());

    // A server of another version that lets us in all the same.
    let (client, server) = pipe();
    let serving = serve(&table, server, |caller, role| {
        welcome(caller, role).map(|w| Welcome { version: 9, ..w })
    });
    let error = dial(&table, client).await.unwrap_err();
    assert!(
        matches!(error, ChannelError::Refused(Refusal::Version { server: 9, .. })),
        "{error}"
    );
    assert!(serving.await.unwrap().is_ok());
}

#[tokio::test]
async fn an_oversize_frame_is_refused_before_it_is_read() {
    let table = Arc::new(Table::default());
    let (client, server) = pipe();
    let serving = serve(&table, server, welcome);
    let (_read, mut write) = client;
    write.write_all(&u32::MAX.to_be_bytes()).await.unwrap();
    let error = serving.await.unwrap().unwrap_err();
    assert!(
        matches!(
            error,
            ChannelError::Oversize {
                limit: HELLO_LIMIT,
                ..
            }
        ),
        "{error}"
    );

    let (_table, mut connected, mut accepted, mut wire, _) = attacked().await;
    let large = "x".repeat(TO_HOPD_LIMIT);
    let error = connected.writer.send(&large).await.unwrap_err();
    assert!(matches!(error, ChannelError::Oversize { .. }), "{error}");
    connected.writer.send(&ping(1)).await.unwrap();
    let frame = one_frame(&mut wire.from_client).await;
    wire.to_server.write_all(&frame).await.unwrap();
    accepted.reader.receive::<ToHopd>().await.unwrap();
    let size = TO_HOPD_LIMIT as u32 + 1;
    wire.to_server.write_all(&size.to_be_bytes()).await.unwrap();
    let error = accepted.reader.receive::<ToHopd>().await.unwrap_err();
    assert!(matches!(error, ChannelError::Oversize { .. }), "{error}");
}

#[tokio::test]
async fn a_slow_hello_a_slow_frame_and_silence_end_the_connection() {
    let table = Arc::new(Table::default());
    let (client, server) = pipe();
    let serving = serve(&table, server, welcome);
    let (_read, mut write) = client;
    let drip = tokio::spawn(async move {
        for byte in [0, 0, 0, 200, PLAIN, b'{', b'"'].into_iter().cycle().take(40) {
            if write.write_all(&[byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let error = serving.await.unwrap().unwrap_err();
    assert!(matches!(error, ChannelError::Silent), "{error}");
    drip.abort();

    let (_table, _connected, mut accepted, mut wire, _) = attacked().await;
    wire.to_server
        .write_all(&[0, 0, 0, 50, AUTHENTIC, b'{'])
        .await
        .unwrap();
    let error = accepted.reader.receive::<ToHopd>().await.unwrap_err();
    assert!(matches!(error, ChannelError::Silent), "{error}");

    let (_table, _connected, mut accepted, _wire, _) = attacked().await;
    let error = accepted.reader.receive::<ToHopd>().await.unwrap_err();
    assert!(matches!(error, ChannelError::Silent), "{error}");
}

#[tokio::test]
async fn another_protocol_on_the_port_is_refused() {
    let table = Arc::new(Table::default());
    let (client, server) = pipe();
    let serving = serve(&table, server, welcome);
    let (_read, mut write) = client;
    write.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(matches!(
        serving.await.unwrap().unwrap_err(),
        ChannelError::Oversize { .. }
    ));
}

/// Whichever field it is in: names and reasons go on into logs, tables and the accounting.
#[tokio::test]
async fn no_text_that_acts_on_a_terminal_comes_in() {
    let table = Arc::new(Table::default());
    let (client, server) = pipe();
    let serving = serve(&table, server, welcome);
    let mut client = dial(&table, client).await.unwrap();
    let mut server = serving.await.unwrap().unwrap();
    let wild = "n1\n2026 INFO hopd: all is well\u{1b}[2J\u{9b}31m\u{202e}";
    let release = |node: &str| Request::Release {
        node: node.into(),
        gpus: vec![],
    };
    for (said, heard) in [
        (wild, "n1 2026 INFO hopd: all is well?[2J?31m?"),
        ("né \\ \"", "né \\ \""),
    ] {
        let body = release(said);
        client.writer.send(&ToHopd { id: u64::MAX, body }).await.unwrap();
        let got: ToHopd = server.reader.receive().await.unwrap();
        assert_eq!(got.id, u64::MAX);
        assert!(
            matches!(&got.body, Request::Release { node, .. } if node.as_str() == heard),
            "{got:?}"
        );
    }
}
