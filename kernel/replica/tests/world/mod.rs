//! A front and a lender that a test plays, and a replica with a real ipykernel between them.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(dead_code, unreachable_pub, reason = "each test binary uses some of it")]

pub mod gpu;

use bytes::Bytes;
use hop_api::message::{Device, Event, Grant, Handover, Request};
use hop_protocol::file::{Durable, FrontFile, Interrupt, Launch, Takeover};
use hop_protocol::jupyter::{Author, Channel, Envelope};
use hop_protocol::link::{Frame, Item, Link};
use hop_protocol::message::{Note, VERSION, Welcome};
use hop_protocol::step::StepSize;
use hop_protocol::tls::KernelKeys;
use hop_replica::leases::{Leases, News};
use hop_replica::place::Place;
use hop_replica::spare::Spare;
use hop_replica::start::{self, Setup};
use hop_words::id::{CellId, Epoch, GpuIndex, Incarnation, JobId, KernelId, LeaseId};
use hop_words::need::Need;
use hop_words::replica::Replicas;
use hop_words::time::{Span, Timestamp};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

pub const PATIENCE: Duration = Duration::from_secs(60);

/// The front and the lender.
pub struct World {
    /// The front's connection, which is never silent.
    out: mpsc::UnboundedSender<Frame>,
    input: mpsc::Receiver<Frame>,
    pub author: Author,
    pub sent: u64,
    pub kernel: KernelId,
    pub asked: mpsc::UnboundedReceiver<Request>,
    pub news: mpsc::UnboundedSender<News>,
}

/// Type, metadata and content.
pub type Heard = (String, Value, Value);

/// A reply, and what iopub said before it.
pub struct Answer {
    pub content: Value,
    pub metadata: Value,
    pub heard: Vec<Heard>,
}

impl World {
    pub async fn send(&mut self, channel: Channel, kind: &str, metadata: Value, content: Value) -> CellId {
        let message = self.author.write(
            kind,
            &Bytes::from_static(b"{}"),
            &metadata,
            &content,
            hop_words::clock::now(),
        );
        let id = message.header().unwrap().msg_id.as_str().into();
        self.sent += 1;
        let item = Item::Jupyter {
            channel,
            identity: Bytes::from_static(b"me"),
            message: message.message(),
        };
        self.out.send(Frame::Item(self.sent, item)).unwrap();
        id
    }

    pub async fn note(&mut self, note: Note) {
        self.sent += 1;
        self.out.send(Frame::Item(self.sent, Item::Note(note))).unwrap();
    }

    pub async fn run(&mut self, code: &str, gpus: u16) -> CellId {
        let need = if gpus > 0 {
            json!({"gresshopper": {"need": {"gpus": gpus}}})
        } else {
            json!({})
        };
        let content = json!({"code": code, "silent": false, "store_history": true, "stop_on_error": true});
        self.send(Channel::Shell, "execute_request", need, content).await
    }

    pub async fn item(&mut self) -> Item {
        loop {
            let frame = timeout(PATIENCE, self.input.recv())
                .await
                .expect("something in time")
                .expect("the replica keeps its connection");
            if let Frame::Item(seq, item) = frame {
                self.out.send(Frame::Done(vec![seq..=seq])).unwrap();
                return item;
            }
        }
    }

    /// Reads on until something on iopub is as wanted.
    pub async fn hear(&mut self, wanted: impl Fn(&Heard) -> bool) -> Heard {
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

    /// Reads on until the next reply on control.
    pub async fn control(&mut self) -> Heard {
        loop {
            if let Item::Jupyter {
                channel: Channel::Control,
                message,
                ..
            } = self.item().await
            {
                return open(&message);
            }
        }
    }

    /// Reads on until the reply to this cell, which has to be the next one.
    pub async fn reply(&mut self, cell: &CellId) -> Answer {
        let (mut heard, mut reply, mut idle) = (Vec::new(), None, false);
        // Shell and iopub are two sockets: what a cell printed may come behind its reply.
        loop {
            if idle && let Some((metadata, content)) = reply.take() {
                return Answer {
                    content,
                    metadata,
                    heard,
                };
            }
            match self.item().await {
                Item::Jupyter {
                    channel: Channel::Iopub,
                    message,
                    ..
                } => {
                    let parent = Envelope::parse(&message).unwrap().parent();
                    let own = parent.is_some_and(|p| p.msg_id == cell.as_str());
                    let said = open(&message);
                    idle |= own && said.0 == "status" && said.2["execution_state"] == "idle";
                    heard.push(said);
                }
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
                    reply = Some((metadata, content));
                }
                _ => {}
            }
        }
    }

    pub async fn asked(&mut self) -> Request {
        timeout(PATIENCE, self.asked.recv())
            .await
            .expect("a request in time")
            .expect("the replica lives")
    }

    pub fn nothing_asked(&mut self) {
        let asked = self.asked.try_recv();
        assert!(asked.is_err(), "asked unexpectedly: {asked:?}");
    }

    pub fn tell(&self, event: Event) {
        self.news.send(News::Event(event)).unwrap();
    }

    pub fn grant(&self, cell: &CellId, lease: u64) {
        self.grant_devices(cell, lease, &[]);
    }

    pub fn grant_devices(&self, cell: &CellId, lease: u64, devices: &[&Path]) {
        let device = |(index, path): (usize, &&Path)| Device {
            index: GpuIndex(u16::try_from(index).unwrap()),
            path: path.to_path_buf(),
            major: 195,
            minor: 0,
        };
        let handover = Handover {
            epoch: Epoch(1),
            pilot: JobId(1),
            step: 1,
            devices: devices.iter().enumerate().map(device).collect(),
            cores: "2-3".into(),
            at: Timestamp(0),
        };
        let grant = Grant {
            executor: Incarnation(1),
            lease: LeaseId(lease),
            node: "localhost".into(),
            handover,
            waited: Span::from_millis(7),
            lingering: false,
            quanta: Vec::new(),
        };
        let (kernel, cell) = (self.kernel.clone(), cell.clone());
        self.tell(Event::Granted { kernel, cell, grant });
    }
}

pub fn open(message: &hop_zmtp::Message) -> Heard {
    let e = Envelope::parse(message).unwrap();
    let json = |b: &Bytes| serde_json::from_slice::<Value>(b).unwrap();
    (e.header().unwrap().msg_type, json(&e.metadata), json(&e.content))
}

pub fn is_told((_, metadata, _): &Heard) -> bool {
    metadata.get("gresshopper").is_some()
}

pub async fn welcome(listener: TcpListener, keys: &KernelKeys) -> Link<TlsStream<TcpStream>> {
    let (stream, _) = listener.accept().await.unwrap();
    let mut link = Link::new(keys.acceptor().unwrap().accept(stream).await.unwrap());
    assert!(matches!(link.read().await.unwrap(), Frame::Hello(h) if h.version == VERSION && h.taken == 0));
    let yes = Welcome::Yes {
        version: VERSION,
        epoch: 1,
        taken: 0,
        again: Vec::new(),
        count: None,
    };
    link.write(&Frame::Welcome(yes)).await.unwrap();
    link
}

pub fn python() -> Option<String> {
    let python = std::env::var("HOP_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let mut probe = std::process::Command::new(&python);
    let there = probe
        .args(["-c", "import ipykernel"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success());
    there.then_some(python)
}

/// A replica with a kernel of this Python, and the scenario that is played with it.
pub async fn with_replica(python: &str, scenario: impl AsyncFnOnce(&mut World)) {
    with_spare(python, async |_| None, scenario).await;
}

/// The same, where the kernel's process may be a spare's.
pub async fn with_spare(
    python: &str,
    spare: impl AsyncFnOnce(&FrontFile) -> Option<Spare>,
    scenario: impl AsyncFnOnce(&mut World),
) {
    let tmp = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let keys = KernelKeys::generate().unwrap();
    let argv = [
        python,
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
        state: None,
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
            durable: Durable::No,
            interrupt: Interrupt::default(),
            replicas: Replicas::One,
            hot_standby: false,
        },
        takeover: Some(Takeover {
            size: StepSize {
                mem_mib: 2048,
                cpus: 1,
            },
            environment: Vec::new(),
        }),
    };
    file.write(tmp.path()).unwrap();
    let (leases, asked, news) = Leases::pair();
    let setup = Setup {
        seat: None,
        elected: None,
        spare: spare(&file).await,
        program: env!("CARGO_BIN_EXE_hop-replica").into(),
        dir: tmp.path().to_owned(),
        incarnation: Incarnation(1),
        place: Place::local(),
        leases,
        file,
        turn: hop_protocol::step::Turn::Now,
    };
    let play = async {
        let (out, queue) = mpsc::unbounded_channel();
        let (frames, input) = mpsc::channel(64);
        // A front that says nothing for eight seconds is left, however long its kernel takes to start.
        let (written, _) = watch::channel(0);
        tokio::spawn(welcome(listener, &keys).await.pump(queue, frames, written));
        let mut world = World {
            out,
            input,
            author: Author::new(b"key", "client".into()),
            sent: 0,
            kernel: "k".into(),
            asked,
            news,
        };
        register(&mut world).await;
        scenario(&mut world).await;
    };
    let (ran, ()) = tokio::join!(start::run(setup), play);
    ran.unwrap();
}

async fn register(world: &mut World) {
    world.news.send(News::Up).unwrap();
    assert!(
        matches!(world.asked().await, Request::ReplicaUp(up) if up.name == "nb" && up.waiting.is_empty())
    );
}
