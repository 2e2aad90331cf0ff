//! A replica with a real ipykernel, between a front and a lender that this test plays: what becomes of cells that ask
//! for a lease. Needs a Python with ipykernel (`HOP_TEST_PYTHON`, else `python3`).
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use bytes::Bytes;
use hop_api::message::{EndCause, Event, Grant, Handover, Outcome, Request};
use hop_core::id::{CellId, Epoch, Incarnation, JobId, KernelId, LeaseId};
use hop_core::need::Need;
use hop_core::time::{Span, Timestamp};
use hop_protocol::file::{FrontFile, Launch};
use hop_protocol::jupyter::{Author, Channel, Envelope};
use hop_protocol::link::{Frame, Item, Link};
use hop_protocol::message::{Note, Over, VERSION, Welcome};
use hop_protocol::tls::KernelKeys;
use hop_replica::leases::{Leases, News};
use hop_replica::run::{self, Place, Setup};
use serde_json::{Value, json};
use std::process::Stdio;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

const PATIENCE: Duration = Duration::from_secs(60);

/// The front and the lender.
struct World {
    link: Link<TlsStream<TcpStream>>,
    author: Author,
    sent: u64,
    kernel: KernelId,
    asked: mpsc::UnboundedReceiver<Request>,
    news: mpsc::UnboundedSender<News>,
}

/// Type, metadata and content.
type Heard = (String, Value, Value);

/// A reply, and what iopub said before it.
struct Answer {
    content: Value,
    metadata: Value,
    heard: Vec<Heard>,
}

impl World {
    async fn send(&mut self, channel: Channel, kind: &str, metadata: Value, content: Value) -> CellId {
        let message = self
            .author
            .write(kind, &Bytes::from_static(b"{}"), &metadata, &content);
        let id = message.header().unwrap().msg_id.as_str().into();
        self.sent += 1;
        let item = Item::Jupyter {
            channel,
            identity: Bytes::from_static(b"me"),
            message: message.message(),
        };
        self.link.write(&Frame::Item(self.sent, item)).await.unwrap();
        id
    }

    async fn run(&mut self, code: &str, gpus: u16) -> CellId {
        let need = if gpus > 0 {
            json!({"gresshopper": {"need": {"gpus": gpus}}})
        } else {
            json!({})
        };
        let content = json!({"code": code, "silent": false, "store_history": true, "stop_on_error": true});
        self.send(Channel::Shell, "execute_request", need, content).await
    }

    async fn item(&mut self) -> Item {
        loop {
            let frame = timeout(PATIENCE, self.link.read())
                .await
                .expect("something in time")
                .unwrap();
            if let Frame::Item(seq, item) = frame {
                self.link.write(&Frame::Done(vec![seq..=seq])).await.unwrap();
                return item;
            }
        }
    }

    /// Reads on until something on iopub is as wanted.
    async fn hear(&mut self, wanted: impl Fn(&Heard) -> bool) -> Heard {
        loop {
            if let Item::Jupyter {
                channel: Channel::Iopub,
                message,
                ..
            } = self.item().await
            {
                let heard = open(&message);
                if wanted(&heard) {
                    return heard;
                }
            }
        }
    }

    /// Reads on until the reply to this cell, which has to be the next one.
    async fn reply(&mut self, cell: &CellId) -> Answer {
        let mut heard = Vec::new();
        loop {
            match self.item().await {
                Item::Jupyter {
                    channel: Channel::Iopub,
                    message,
                    ..
                } => heard.push(open(&message)),
                Item::Jupyter {
                    channel: Channel::Shell,
                    message,
                    ..
                } => {
                    let envelope = Envelope::parse(&message).unwrap();
                    self.author
                        .signer()
                        .verify(&envelope)
                        .expect("a signature that clients accept");
                    assert_eq!(
                        envelope.parent().unwrap().msg_id,
                        cell.as_str(),
                        "replies come in order"
                    );
                    let (_, metadata, content) = open(&message);
                    return Answer {
                        content,
                        metadata,
                        heard,
                    };
                }
                _ => {}
            }
        }
    }

    async fn asked(&mut self) -> Request {
        timeout(PATIENCE, self.asked.recv())
            .await
            .expect("a request in time")
            .expect("the replica lives")
    }

    fn nothing_asked(&mut self) {
        let asked = self.asked.try_recv();
        assert!(asked.is_err(), "asked unexpectedly: {asked:?}");
    }

    fn tell(&self, event: Event) {
        self.news.send(News::Event(event)).unwrap();
    }

    fn grant(&self, cell: &CellId, lease: u64) {
        let handover = Handover {
            epoch: Epoch(1),
            pilot: JobId(1),
            step: 1,
            devices: Vec::new(),
            cores: "2-3".into(),
            at: Timestamp(0),
        };
        let grant = Grant {
            lease: LeaseId(lease),
            node: "n1".into(),
            handover,
            waited: Span::from_millis(7),
            lingering: false,
        };
        let (kernel, cell) = (self.kernel.clone(), cell.clone());
        self.tell(Event::Granted { kernel, cell, grant });
    }
}

fn open(message: &hop_zmtp::Message) -> Heard {
    let e = Envelope::parse(message).unwrap();
    let json = |b: &Bytes| serde_json::from_slice::<Value>(b).unwrap();
    (e.header().unwrap().msg_type, json(&e.metadata), json(&e.content))
}

fn is_told((_, metadata, _): &Heard) -> bool {
    metadata.get("gresshopper").is_some()
}

async fn welcome(listener: TcpListener, keys: &KernelKeys) -> Link<TlsStream<TcpStream>> {
    let (stream, _) = listener.accept().await.unwrap();
    let mut link = Link::new(keys.acceptor().unwrap().accept(stream).await.unwrap());
    assert!(matches!(link.read().await.unwrap(), Frame::Hello(h) if h.version == VERSION && h.taken == 0));
    let yes = Welcome::Yes {
        version: VERSION,
        epoch: 1,
        taken: 0,
        again: Vec::new(),
    };
    link.write(&Frame::Welcome(yes)).await.unwrap();
    link
}

fn python() -> Option<String> {
    let python = std::env::var("HOP_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let mut probe = std::process::Command::new(&python);
    let there = probe
        .args(["-c", "import ipykernel"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success());
    there.then_some(python)
}

#[tokio::test]
async fn cells_that_ask_for_a_lease_wait_for_it_in_order() {
    let Some(python) = python() else {
        eprintln!("skipped: no Python with ipykernel (set HOP_TEST_PYTHON)");
        return;
    };
    let tmp = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let keys = KernelKeys::generate().unwrap();
    let argv = [
        &python,
        "-m",
        "ipykernel_launcher",
        "-f",
        "{connection_file}",
        "--HistoryManager.enabled=False",
    ];
    let file = FrontFile {
        version: VERSION,
        kernel: "k".into(),
        incarnation: Incarnation(1),
        epoch: 1,
        addresses: vec![listener.local_addr().unwrap().to_string()],
        keys: keys.clone(),
        signing_key: "key".into(),
        launch: Launch {
            argv: argv.map(str::to_owned).to_vec(),
            cwd: None,
            default_need: Need::default(),
            account: None,
            pool: None,
            name: "nb".into(),
            local: true,
        },
    };
    file.write(tmp.path()).unwrap();
    let (leases, asked, news) = Leases::pair();
    let setup = Setup {
        program: env!("CARGO_BIN_EXE_hop-replica").into(),
        dir: tmp.path().to_owned(),
        incarnation: Incarnation(1),
        place: Place::local(),
        leases,
        file,
    };
    let scenario = async {
        let mut world = World {
            link: welcome(listener, &keys).await,
            author: Author::new(b"key"),
            sent: 0,
            kernel: "k".into(),
            asked,
            news,
        };
        register(&mut world).await;
        granted_in_order(&mut world).await;
        interrupted_while_it_waits(&mut world).await;
        refused(&mut world).await;
        resubmitted_when_the_scheduler_is_back(&mut world).await;
        revoked(&mut world).await;
        closed(&mut world).await;
    };
    let (ran, ()) = tokio::join!(run::run(setup), scenario);
    ran.unwrap();
}

async fn register(world: &mut World) {
    world.news.send(News::Up).unwrap();
    assert!(
        matches!(world.asked().await, Request::ReplicaUp(up) if up.name == "nb" && up.waiting.is_empty())
    );
}

async fn granted_in_order(world: &mut World) {
    let first = world.run("import time; time.sleep(0.3); x = 1", 0).await;
    let leased = world.run("x += 1; x", 1).await;
    let behind = world.run("x * 10", 0).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.nothing_asked();
    world.reply(&first).await;
    let asked = world.asked().await;
    assert!(matches!(asked, Request::Submit { cell, need, .. } if cell == leased && need == Need::gpus(1)));
    world.grant(&leased, 5);
    let answer = world.reply(&leased).await;
    assert_eq!(answer.content["status"], "ok");
    let lease = json!({"lease": 5, "node": "n1", "gpus": [], "devices": [], "cores": "2-3", "waited_ms": 7,
        "lingering": false});
    assert_eq!(answer.metadata["gresshopper"], lease);
    assert!(!answer.heard.iter().any(is_told), "a short wait is not told");
    let ended = world.asked().await;
    assert!(matches!(ended, Request::CellEnded { cell, outcome: Outcome::Ok, .. } if cell == leased));
    let answer = world.reply(&behind).await;
    assert!(answer.metadata.get("gresshopper").is_none());
    let result = answer
        .heard
        .iter()
        .find(|(kind, ..)| kind == "execute_result")
        .unwrap();
    assert_eq!(result.2["data"]["text/plain"], "20");
    world.nothing_asked();
}

async fn interrupted_while_it_waits(world: &mut World) {
    let waits = world.run("never", 2).await;
    let behind = world.run("never", 0).await;
    assert!(matches!(world.asked().await, Request::Submit { .. }));
    let (kernel, cell) = (world.kernel.clone(), waits.clone());
    world.tell(Event::Queued {
        kernel,
        cell,
        position: 2,
        reason: "others came first".into(),
        estimate: Some(Span::from_secs(5)),
    });
    let (_, metadata, content) = world.hear(is_told).await;
    assert_eq!(content["execution_state"], "busy");
    assert_eq!(metadata["gresshopper"]["position"], 2);
    assert_eq!(metadata["gresshopper"]["reason"], "others came first");
    world
        .send(Channel::Control, "interrupt_request", json!({}), json!({}))
        .await;
    assert_eq!(world.reply(&waits).await.content["ename"], "KeyboardInterrupt");
    assert_eq!(world.reply(&behind).await.content["status"], "aborted");
    assert!(matches!(world.asked().await, Request::CancelCell { cell, .. } if cell == waits));
    world.grant(&waits, 6);
    let next = world.run("x", 0).await;
    assert_eq!(
        world.reply(&next).await.content["status"],
        "ok",
        "a late grant runs nothing"
    );
    world.nothing_asked();
}

async fn refused(world: &mut World) {
    let cell = world.run("never", 8).await;
    world.asked().await;
    world.tell(Event::Refused {
        kernel: world.kernel.clone(),
        cell: cell.clone(),
        reason: "too many".into(),
    });
    let answer = world.reply(&cell).await;
    assert_eq!(
        (&answer.content["ename"], &answer.content["evalue"]),
        (&json!("LeaseRefused"), &json!("too many"))
    );
    assert!(answer.heard.iter().any(|(kind, ..)| kind == "error"));
}

async fn resubmitted_when_the_scheduler_is_back(world: &mut World) {
    let reason = "no route".to_owned();
    world.news.send(News::Down { reason }).unwrap();
    let plain = world.run("x", 0).await;
    assert_eq!(world.reply(&plain).await.content["status"], "ok");
    let waits = world.run("x", 1).await;
    world.asked().await;
    let (_, metadata, _) = world.hear(is_told).await;
    assert_eq!(
        metadata["gresshopper"]["reason"],
        "the scheduler is away: no route"
    );
    world.news.send(News::Up).unwrap();
    let up = world.asked().await;
    assert!(matches!(up, Request::ReplicaUp(up) if up.waiting[0].0 == waits && up.holds.is_none()));
    world.grant(&waits, 7);
    assert_eq!(world.reply(&waits).await.metadata["gresshopper"]["lease"], 7);
    assert!(matches!(world.asked().await, Request::CellEnded { .. }));
}

async fn revoked(world: &mut World) {
    let cell = world.run("print('on it', flush=True); time.sleep(30)", 1).await;
    world.asked().await;
    world.grant(&cell, 8);
    world
        .hear(|(kind, _, content)| kind == "stream" && content["text"] == "on it\n")
        .await;
    world.tell(Event::Revoked {
        kernel: world.kernel.clone(),
        lease: LeaseId(8),
        cause: EndCause::Cancelled,
        reason: "an operator cancelled it".into(),
        grace: Span::from_secs(2),
    });
    let answer = world.reply(&cell).await;
    assert_eq!(answer.content["ename"], "KeyboardInterrupt");
    assert_eq!(
        answer.metadata["gresshopper"]["revoked"],
        "an operator cancelled it"
    );
    let why = |(kind, _, content): &Heard| {
        kind == "stream"
            && content["text"]
                .as_str()
                .is_some_and(|t| t.contains("an operator cancelled it"))
    };
    assert!(answer.heard.iter().any(why), "its user reads why");
    assert!(matches!(
        world.asked().await,
        Request::CellEnded {
            outcome: Outcome::Error,
            ..
        }
    ));
}

async fn closed(world: &mut World) {
    world.tell(Event::Close {
        kernel: world.kernel.clone(),
        reason: "hop cancel".into(),
    });
    loop {
        if let Item::Note(Note::KernelOver { over }) = world.item().await {
            let reason = "the kernel was closed: hop cancel".to_owned();
            assert_eq!(over, Over::Died { reason });
            return;
        }
    }
}
