//! A stand-in for `hop-replica` in the end-to-end tests: a real process in a seat's step that speaks to `hopd` as
//! a replica, driven by lines on stdin, answering by JSON lines on stdout. It has no kernel.

use hop_api::client::{self, Item, Options};
use hop_api::config::Config;
use hop_api::message::{Outcome, ReplicaUp, Request, Role, SeatStep};
use hop_core::id::{CellId, Incarnation, LeaseId};
use hop_core::need::{Class, Need};
use hop_core::time::Timestamp;
use serde_json::json;
use std::collections::BTreeMap;
use tokio::io::{AsyncBufReadExt, BufReader};

fn now() -> Timestamp {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    Timestamp(u64::try_from(since.as_micros()).unwrap_or(0))
}

fn say(value: &serde_json::Value) {
    println!("{value}");
}

fn variable<T: std::str::FromStr>(name: &str) -> T {
    let text = std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}"))
}

fn start_time() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("stat");
    let (_, rest) = stat.rsplit_once(") ").expect("a stat line");
    rest.split(' ')
        .nth(19)
        .expect("22 fields")
        .parse()
        .expect("a number")
}

/// What has to be said again after a reconnection.
#[derive(Default)]
struct Held {
    lease: Option<(LeaseId, Option<CellId>)>,
    waiting: BTreeMap<CellId, Need>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let config = Config::load().expect("the configuration");
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|w| w == "as-client") {
        println!("{}", as_client(&config, &words[1..]).await);
        return;
    }
    let kernel = std::env::args().nth(1).expect("a kernel id");
    let incarnation = Incarnation(
        std::env::args()
            .nth(2)
            .map_or(0, |n| n.parse().expect("a number")),
    );
    let uid = std::fs::metadata("/proc/self")
        .map(|m| std::os::unix::fs::MetadataExt::uid(&m))
        .expect("proc");
    let seat = SeatStep {
        job: hop_core::id::JobId(variable("SLURM_JOB_ID")),
        step: variable("SLURM_STEP_ID"),
        pid: std::process::id(),
        start_time: start_time(),
        uid,
    };
    let node: String = variable("SLURMD_NODENAME");
    let (client, mut items) = client::start(Options::from_config(&config, Role::Replica).expect("options"));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut held = Held::default();
    let up = |held: &Held| {
        Request::ReplicaUp(ReplicaUp {
            kernel: kernel.as_str().into(),
            incarnation,
            account: None,
            pool: None,
            node: node.as_str().into(),
            seat: seat.clone(),
            name: "test".into(),
            holds: held.lease.clone(),
            waiting: held
                .waiting
                .iter()
                .map(|(c, n)| (c.clone(), n.clone(), Class::Interactive))
                .collect(),
        })
    };
    loop {
        tokio::select! {
            item = items.next() => match item.expect("the connection's task") {
                Item::Connected(welcome) => {
                    say(&json!({"connected": welcome.term, "user": welcome.user, "pid": seat.pid}));
                    if let Err(error) = client.send(up(&held)).await {
                        say(&json!({"error": error.to_string()}));
                    }
                }
                Item::Disconnected { reason, .. } => say(&json!({"disconnected": reason})),
                Item::Refused(refusal) => say(&json!({"refused": refusal.to_string()})),
                Item::Event(event) => {
                    use hop_api::message::Event;
                    match &event {
                        Event::Granted { cell, grant, .. } => {
                            held.waiting.remove(cell);
                            held.lease = Some((grant.lease, Some(cell.clone())));
                        }
                        Event::Refused { cell, .. } => drop(held.waiting.remove(cell)),
                        Event::Revoked { lease, .. } if held.lease.as_ref().is_some_and(|(l, _)| l == lease) => held.lease = None,
                        _ => {}
                    }
                    say(&json!({"event": event, "at": now()}));
                }
                Item::Order(_) => {}
            },
            line = lines.next_line() => {
                let Ok(Some(line)) = line else { return };
                let words: Vec<&str> = line.split_whitespace().collect();
                command(&words, &kernel, &client, &mut held).await;
            }
        }
    }
}

/// What a user's own `hop` would be told: the number of rows, or the refusal.
async fn as_client(config: &Config, words: &[String]) -> String {
    use hop_api::message::{CancelTarget, QueueQuery, Response};
    let role = if words[0] == "agent" {
        Role::Agent
    } else {
        Role::Client
    };
    let options = Options::from_config(config, role).expect("options");
    let request = match words[0].as_str() {
        "cancel-lease" => Request::Cancel(CancelTarget::Lease {
            lease: LeaseId(words[1].parse().expect("a number")),
        }),
        "queue-all" => Request::Queue(QueueQuery {
            all_users: true,
            ..QueueQuery::default()
        }),
        "queue" => Request::Queue(QueueQuery::default()),
        _ => Request::Ping,
    };
    match client::call(&options, request, std::time::Duration::from_secs(10)).await {
        Ok(Response::Queue { rows }) => rows.len().to_string(),
        Ok(other) => format!("{other:?}"),
        Err(error) => error.to_string(),
    }
}

async fn command(words: &[&str], kernel: &str, client: &client::Client, held: &mut Held) {
    match words {
        ["submit", cell, gpus, cpus] => {
            let need = Need {
                gpus: gpus.parse().expect("a number"),
                cpus: cpus.parse().expect("a number"),
                ..Need::default()
            };
            held.waiting.insert((*cell).into(), need.clone());
            say(&json!({"submitted": cell, "at": now()}));
            let request = Request::Submit {
                kernel: kernel.into(),
                cell: (*cell).into(),
                need,
                class: Class::Interactive,
            };
            let _ = client.send(request).await;
        }
        ["end", cell] => {
            let Some((lease, _)) = held.lease.clone() else {
                say(&json!({"error": "no lease"}));
                return;
            };
            held.lease = Some((lease, None));
            let request = Request::CellEnded {
                kernel: kernel.into(),
                cell: (*cell).into(),
                lease,
                started: now(),
                ended: now(),
                outcome: Outcome::Ok,
            };
            let _ = client.send(request).await;
            say(&json!({"ended": cell, "at": now()}));
        }
        ["release"] => {
            if let Some((lease, _)) = held.lease.take() {
                let request = Request::ReleaseLease {
                    kernel: kernel.into(),
                    lease,
                };
                let _ = client.send(request).await;
            }
        }
        ["open", path] => {
            use std::os::unix::fs::OpenOptionsExt;
            let opened = std::fs::OpenOptions::new()
                .read(true)
                .custom_flags(0o400 | 0o4000) // O_NOCTTY, O_NONBLOCK
                .open(path);
            let said = match opened {
                Ok(_) => "ok".to_owned(),
                Err(error) => error.to_string(),
            };
            say(&json!({"open": path, "said": said}));
        }
        ["ask", ask] => {
            let request = match *ask {
                "queue" => Request::Queue(Default::default()),
                "acct" => Request::Acct(Default::default()),
                _ => Request::Info,
            };
            match client.request(request).await {
                Ok(response) => say(&json!({"answer": response})),
                Err(error) => say(&json!({"error": error.to_string()})),
            }
        }
        _ => say(&json!({"error": "unknown command"})),
    }
}
