//! Connections: accepting them, proving who calls, and carrying messages to and from the scheduler's task.
//!
//! A connection is two tasks, a reader and a writer. The reader waits for room in the scheduler's queue, so a
//! flood slows its sender alone; the writer's queue is bounded, and a caller that doesn't read is hung up on.

use hop_api::channel::{self, Accepted, ChannelError, Timeouts};
use hop_api::identity::{Identity, Proven, user_name};
use hop_api::message::{FromHopd, Refusal, Role, ToHopd, VERSION, Welcome};
use hop_core::id::{Term, UserName};
use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::BufReader;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

/// Messages that may wait for one caller.
const OUTGOING: usize = 4096;
/// Connections that are not proven yet, in all.
const UNPROVEN: usize = 256;
/// Connections of one user; the service account and operators have no limit.
const PER_USER: usize = 512;

/// A connection's number; never used again in one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ConnId(pub u64);

/// Who is at the other end.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub uid: u32,
    pub user: UserName,
    pub operator: bool,
    pub role: Role,
}

/// What connections tell the scheduler's task.
#[derive(Debug)]
pub(crate) enum Incoming {
    Opened {
        conn: ConnId,
        caller: Caller,
        outgoing: mpsc::Sender<FromHopd>,
    },
    Message {
        conn: ConnId,
        message: ToHopd,
    },
    Closed {
        conn: ConnId,
    },
}

/// Who is who in this house.
#[derive(Debug)]
pub(crate) struct House {
    pub identity: Arc<dyn Identity>,
    pub service_uid: u32,
    pub operators: BTreeSet<UserName>,
    pub term: Term,
    pub timeouts: Timeouts,
    /// Connections by uid.
    pub open: Mutex<HashMap<u32, usize>>,
}

impl House {
    fn judge(&self, caller: &Proven, role: Role) -> Result<Welcome, Refusal> {
        let user = user_name(caller.uid).ok_or_else(|| Refusal::Unauthenticated {
            reason: format!("the service host knows no user with uid {}", caller.uid),
        })?;
        if role == Role::Agent && caller.uid != self.service_uid {
            return Err(Refusal::Forbidden {
                reason: format!("{user} is not the service account, so it runs no agents"),
            });
        }
        let user = UserName::from(user);
        let operator = self.is_operator(&user);
        let count = self.count(caller.uid);
        if !operator && caller.uid != self.service_uid && count >= PER_USER {
            return Err(Refusal::Unavailable {
                reason: format!("{user} has {count} connections already"),
            });
        }
        Ok(Welcome {
            version: VERSION,
            term: self.term,
            operator,
            user,
        })
    }

    fn is_operator(&self, user: &UserName) -> bool {
        self.operators.contains(user)
    }

    fn count(&self, uid: u32) -> usize {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.get(&uid).copied().unwrap_or_default()
    }

    fn add(&self, uid: u32) {
        *self
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(uid)
            .or_default() += 1;
    }

    fn remove(&self, uid: u32) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&uid) {
            *count -= 1;
            if *count == 0 {
                open.remove(&uid);
            }
        }
    }
}

/// Accepts connections for ever.
pub(crate) async fn serve(listener: TcpListener, house: Arc<House>, scheduler: mpsc::Sender<Incoming>) {
    let unproven = Arc::new(tokio::sync::Semaphore::new(UNPROVEN));
    let mut next = 0u64;
    loop {
        // Who waits here waits in the listen queue: the proven are not disturbed by a flood of strangers.
        let Ok(permit) = unproven.clone().acquire_owned().await else {
            return;
        };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!("no connection could be accepted: {error}");
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
                continue;
            }
        };
        next += 1;
        let conn = ConnId(next);
        let (house, scheduler) = (house.clone(), scheduler.clone());
        tokio::spawn(async move {
            let proven = prove(stream, &house).await;
            drop(permit);
            match proven {
                Ok(accepted) => talk(conn, accepted, &house, scheduler).await,
                Err(error) => debug!(%peer, "a caller was not let in: {error}"),
            }
        });
    }
}

type Channel = Accepted<BufReader<OwnedReadHalf>, OwnedWriteHalf>;

async fn prove(stream: TcpStream, house: &Arc<House>) -> Result<Channel, ChannelError> {
    stream.set_nodelay(true)?;
    let (read, write) = stream.into_split();
    let judge = |caller: &Proven, role| house.judge(caller, role);
    channel::accept(
        BufReader::new(read),
        write,
        house.identity.clone(),
        house.timeouts,
        judge,
    )
    .await
}

async fn talk(conn: ConnId, channel: Channel, house: &Arc<House>, scheduler: mpsc::Sender<Incoming>) {
    let Accepted {
        mut reader,
        mut writer,
        caller: proven,
        role,
    } = channel;
    let Some(user) = user_name(proven.uid).map(UserName::from) else {
        return;
    };
    let caller = Caller {
        uid: proven.uid,
        operator: house.is_operator(&user),
        user,
        role,
    };
    let (outgoing, mut queue) = mpsc::channel::<FromHopd>(OUTGOING);
    house.add(caller.uid);
    debug!(?conn, user = %caller.user, ?role, "connected");
    let uid = caller.uid;
    let opened = Incoming::Opened {
        conn,
        caller,
        outgoing,
    };
    if scheduler.send(opened).await.is_ok() {
        let writing = tokio::spawn(async move {
            while let Some(message) = queue.recv().await {
                if let Err(error) = writer.send(&message).await {
                    debug!(?conn, "a message could not be sent: {error}");
                    break;
                }
            }
            writer.close().await;
        });
        let abort = writing.abort_handle();
        tokio::select! {
            () = read_all(conn, &mut reader, &scheduler) => {}
            // The scheduler hung up, or the caller doesn't read.
            _ = writing => {}
        }
        let _ = scheduler.send(Incoming::Closed { conn }).await;
        // What is queued still goes out; the scheduler's end of the queue closes with its record of us.
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        abort.abort();
    }
    house.remove(uid);
}

async fn read_all(
    conn: ConnId,
    reader: &mut channel::Reader<BufReader<OwnedReadHalf>>,
    scheduler: &mpsc::Sender<Incoming>,
) {
    loop {
        match reader.receive::<ToHopd>().await {
            Ok(message) => {
                if scheduler.send(Incoming::Message { conn, message }).await.is_err() {
                    return;
                }
            }
            Err(ChannelError::Closed) => return,
            Err(error) => {
                info!(?conn, "a connection ends: {error}");
                return;
            }
        }
    }
}

/// Binds the address that the configuration names.
pub(crate) async fn listen(address: &str) -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}
