//! The proven channel: frames over a stream, after a handshake with proofs of both sides.
//!
//! A frame is a length (4 bytes, big-endian), a kind byte, and the rest. The client's first frame is a plain [`Hello`],
//! with a MUNGE credential for the service account alone; inside lies a fresh key. The server answers with a nonce of
//! its own, and with its first message under keys derived from key, nonce and hello. A server with an answer has
//! therefore opened the credential, and a recorded connection can't be replayed. From there on each frame ends with a
//! keyed BLAKE3 MAC over its number and payload, one key per direction: nothing can be changed, added, left out,
//! repeated, reordered or reflected. Contents are not encrypted.
//!
//! Timeouts limit the handshake, a frame once begun, and silence; sizes limit a hello, and a frame by direction. The
//! server reads no character that acts on a terminal: names and reasons come from users, and go into logs and tables.
//! The meaning of messages is left to `hopd` and the client.

use crate::identity::{Identity, IdentityError, Proven};
use crate::message::{Hello, Refusal, Role, VERSION, Welcome};
use hop_words::error::system_words;
use hop_words::text::plain;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Semaphore;

/// Bytes of a session key, of a nonce and of a MAC.
const KEY: usize = 32;
/// Most bytes of a hello.
pub const HELLO_LIMIT: usize = 16 << 10;
/// Most bytes of a frame to `hopd`.
pub const TO_HOPD_LIMIT: usize = 1 << 20;
/// Most bytes of a frame to `hopd` from whoever isn't an agent.
pub const FROM_USER_LIMIT: usize = 256 << 10;
/// Most bytes of a frame from `hopd`.
pub const FROM_HOPD_LIMIT: usize = 64 << 20;

const PLAIN: u8 = b'P';
const FIRST: u8 = b'S';
const AUTHENTIC: u8 = b'A';

/// How long things may take on a channel.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// The whole handshake.
    pub handshake: Duration,
    /// A frame from first byte to last, and the writing of a frame.
    pub frame: Duration,
    /// Without any frame from the other side.
    pub silence: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            frame: Duration::from_secs(20),
            silence: Duration::from_secs(45),
        }
    }
}

/// Why a channel came to its end, or never came to be.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    #[error("{}", broke(.0))]
    Io(io::Error),
    #[error("the other side closed the connection")]
    Closed,
    #[error("the other side was silent for too long")]
    Silent,
    #[error("a frame of {size} bytes is over the limit of {limit}")]
    Oversize { size: usize, limit: usize },
    #[error("a frame is not one of this protocol, or was tampered with")]
    NotAuthentic,
    #[error("a message could not be understood: {0}")]
    Malformed(String),
    #[error("{0}")]
    Identity(#[from] IdentityError),
    #[error("{0}")]
    Refused(Refusal),
}

/// Why there is no connection, in words for people who don't know the system's.
fn broke(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "no process listens at its address".to_owned(),
        io::ErrorKind::TimedOut => "its host does not answer".to_owned(),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            "its host can't be reached from here".to_owned()
        }
        _ => format!("the connection broke ({})", system_words(error)),
    }
}

impl From<io::Error> for ChannelError {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                Self::Closed
            }
            _ => Self::Io(e),
        }
    }
}

/// The MAC of one direction: a key and the number of the next frame.
struct Seal {
    key: [u8; KEY],
    next: u64,
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seal")
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

impl Seal {
    fn mac(&mut self, payload: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.next.to_be_bytes());
        hasher.update(payload);
        self.next += 1;
        hasher.finalize()
    }

    /// Appends the MAC to a payload that lies in `frame[from..]`.
    fn seal(&mut self, frame: &mut Vec<u8>, from: usize) {
        let mac = self.mac(&frame[from..]);
        frame.extend_from_slice(mac.as_bytes());
    }

    /// The payload of `sealed`, if its MAC is right. The comparison takes constant time.
    fn open<'a>(&mut self, sealed: &'a [u8]) -> Result<&'a [u8], ChannelError> {
        let (payload, mac) = sealed
            .split_at_checked(sealed.len().wrapping_sub(KEY))
            .ok_or(ChannelError::NotAuthentic)?;
        let mac: [u8; KEY] = mac.try_into().map_err(|_| ChannelError::NotAuthentic)?;
        if self.mac(payload) == blake3::Hash::from_bytes(mac) {
            Ok(payload)
        } else {
            Err(ChannelError::NotAuthentic)
        }
    }
}

/// The seals of both directions: (client to server, server to client).
fn seals(key: &[u8], nonce: &[u8], hello: &[u8]) -> (Seal, Seal) {
    let derive = |context: &str| {
        let mut hasher = blake3::Hasher::new_derive_key(context);
        hasher.update(key);
        hasher.update(nonce);
        hasher.update(blake3::hash(hello).as_bytes());
        Seal {
            key: *hasher.finalize().as_bytes(),
            next: 0,
        }
    };
    (
        derive("gresshopper control wire v1, client to server"),
        derive("gresshopper control wire v1, server to client"),
    )
}

/// The receiving half of a channel.
#[derive(Debug)]
pub struct Reader<S> {
    stream: S,
    seal: Seal,
    limit: usize,
    timeouts: Timeouts,
    /// Whether what the texts in messages could do to a terminal is taken out.
    plain: bool,
}

/// The sending half of a channel.
#[derive(Debug)]
pub struct Writer<S> {
    stream: S,
    seal: Seal,
    limit: usize,
    timeouts: Timeouts,
}

impl<S> Reader<S> {
    /// Takes frames of at most so many bytes from now on.
    pub fn limit_to(&mut self, bytes: usize) {
        self.limit = self.limit.min(bytes);
    }
}

impl<S: AsyncRead + Unpin> Reader<S> {
    /// The next message. Not cancel-safe: a dropped call may lose the place in the stream, so one task owns the
    /// reader.
    ///
    /// # Errors
    /// After any error the channel is of no more use.
    pub async fn receive<T: DeserializeOwned>(&mut self) -> Result<T, ChannelError> {
        let frame = read_frame(
            &mut self.stream,
            self.limit,
            self.timeouts.silence,
            self.timeouts.frame,
        )
        .await?;
        match frame.split_first() {
            Some((&AUTHENTIC, sealed)) => {
                let message = self.seal.open(sealed)?;
                match self.plain && may_act(message) {
                    true => parse_plain(message),
                    false => parse(message),
                }
            }
            _ => Err(ChannelError::NotAuthentic),
        }
    }
}

impl<S: AsyncWrite + Unpin> Writer<S> {
    /// Sends one message. Not cancel-safe, as [`Reader::receive`].
    ///
    /// # Errors
    /// [`ChannelError::Oversize`] leaves the channel usable; any other error doesn't.
    pub async fn send<T: Serialize>(&mut self, message: &T) -> Result<(), ChannelError> {
        let mut frame = frame_of(AUTHENTIC, &[], message)?;
        check_size(frame.len() - 4 + KEY, self.limit)?;
        self.seal.seal(&mut frame, 5);
        write_frame(&mut self.stream, &mut frame, self.timeouts.frame).await
    }

    /// Tells the other side that nothing more will come.
    pub async fn close(&mut self) {
        let _ = tokio::time::timeout(self.timeouts.frame, self.stream.shutdown()).await;
    }
}

/// A client's view of a new channel.
#[derive(Debug)]
pub struct Connected<R, W> {
    pub reader: Reader<R>,
    pub writer: Writer<W>,
    pub welcome: Welcome,
}

/// A client's proof of identity, for one channel. MUNGE takes a while for the proof, so it is made before the server is
/// dialled: a server under a flood soon closes silent connections.
#[derive(Debug)]
pub struct Introduction {
    key: [u8; KEY],
    credential: String,
}

impl Introduction {
    /// `service_uid` is the only uid that can answer.
    ///
    /// # Errors
    /// MUNGE's.
    pub async fn make(identity: Arc<dyn Identity>, service_uid: u32) -> Result<Self, ChannelError> {
        let key: [u8; KEY] = rand::random();
        let credential = blocking(move || identity.encode(&key, service_uid)).await?;
        Ok(Self { key, credential })
    }
}

/// Opens a channel as a client.
pub async fn connect<R, W>(
    read: R,
    write: W,
    role: Role,
    introduction: Introduction,
    timeouts: Timeouts,
) -> Result<Connected<R, W>, ChannelError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let work = connect_untimed(read, write, role, introduction, timeouts);
    tokio::time::timeout(timeouts.handshake, work)
        .await
        .unwrap_or(Err(ChannelError::Silent))
}

async fn connect_untimed<R, W>(
    mut read: R,
    mut write: W,
    role: Role,
    Introduction { key, credential }: Introduction,
    timeouts: Timeouts,
) -> Result<Connected<R, W>, ChannelError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let hello = Hello {
        version: VERSION,
        credential,
        role,
    };
    let mut frame = frame_of(PLAIN, &[], &hello)?;
    let hello_bytes = frame[5..].to_vec();
    write_frame(&mut write, &mut frame, timeouts.frame).await?;

    let answer = read_frame(&mut read, FROM_HOPD_LIMIT, timeouts.handshake, timeouts.frame).await?;
    let (welcome, to_server, to_client) = match answer.split_first() {
        Some((&PLAIN, refusal)) => return Err(ChannelError::Refused(parse(refusal)?)),
        Some((&FIRST, rest)) if rest.len() > KEY => {
            let (nonce, sealed) = rest.split_at(KEY);
            let (to_server, mut to_client) = seals(&key, nonce, &hello_bytes);
            let welcome = match parse::<First>(to_client.open(sealed)?)? {
                First::Welcome(welcome) => welcome,
                First::Refused(refusal) => return Err(ChannelError::Refused(refusal)),
            };
            (welcome, to_server, to_client)
        }
        _ => return Err(ChannelError::NotAuthentic),
    };
    if welcome.version != VERSION {
        return Err(ChannelError::Refused(Refusal::Version {
            server: welcome.version,
            client: VERSION,
        }));
    }
    Ok(Connected {
        reader: Reader {
            stream: read,
            seal: to_client,
            limit: FROM_HOPD_LIMIT,
            timeouts,
            plain: false,
        },
        writer: Writer {
            stream: write,
            seal: to_server,
            limit: TO_HOPD_LIMIT,
            timeouts,
        },
        welcome,
    })
}

/// The server's first authenticated message.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum First {
    Welcome(Welcome),
    Refused(Refusal),
}

/// A server's view of a new channel.
#[derive(Debug)]
pub struct Accepted<R, W> {
    pub reader: Reader<R>,
    pub writer: Writer<W>,
    /// uid and gid of the caller; the payload is gone.
    pub caller: Proven,
    pub role: Role,
}

/// A proven caller in wait of the answer.
#[derive(Debug)]
pub struct Arrival<R, W> {
    read: R,
    write: W,
    timeouts: Timeouts,
    nonce: [u8; KEY],
    to_server: Seal,
    to_client: Seal,
    /// uid and gid of the caller; the payload is gone.
    pub caller: Proven,
    pub role: Role,
}

/// Opens a channel as the server. `judge` identifies the caller, or says why the channel is refused.
///
/// # Errors
/// A refused caller has been told why, as far as the handshake had come.
pub async fn accept<R, W, F>(
    read: R,
    write: W,
    identity: Arc<dyn Identity>,
    timeouts: Timeouts,
    judge: F,
) -> Result<Accepted<R, W>, ChannelError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    F: FnOnce(&Proven, Role) -> Result<Welcome, Refusal>,
{
    let work = async {
        let arrival = receive(read, write, identity, &Semaphore::new(1), timeouts).await?;
        let judged = judge(&arrival.caller, arrival.role);
        arrival.answer(judged).await
    };
    tokio::time::timeout(timeouts.handshake, work)
        .await
        .unwrap_or(Err(ChannelError::Silent))
}

/// The first half of [`accept`], for a server in need of time to judge: the caller's hello, and the caller's proof.
/// `decodes` limits the credentials at MUNGE; a whole hello is required before a place there.
///
/// # Errors
/// As [`accept`].
pub async fn receive<R, W>(
    mut read: R,
    mut write: W,
    identity: Arc<dyn Identity>,
    decodes: &Semaphore,
    timeouts: Timeouts,
) -> Result<Arrival<R, W>, ChannelError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let frame = read_frame(&mut read, HELLO_LIMIT, timeouts.handshake, timeouts.handshake).await?;
    let Some((&PLAIN, hello_bytes)) = frame.split_first() else {
        return Err(ChannelError::NotAuthentic);
    };
    let hello = match hello_of(hello_bytes) {
        Ok(hello) => hello,
        Err(refusal) => return refuse_plainly(&mut write, refusal, timeouts).await,
    };
    let place = decodes.acquire().await.map_err(|_| ChannelError::Closed)?;
    let decoded = blocking(move || identity.decode(&hello.credential)).await;
    drop(place);
    let mut caller = match decoded {
        Ok(caller) => caller,
        Err(e) => {
            let refusal = Refusal::Unauthenticated {
                reason: e.to_string(),
            };
            return refuse_plainly(&mut write, refusal, timeouts).await;
        }
    };
    let key = std::mem::take(&mut caller.payload);
    if key.len() != KEY {
        let reason = "the credential carries no session key".into();
        return refuse_plainly(&mut write, Refusal::Unauthenticated { reason }, timeouts).await;
    }
    let nonce: [u8; KEY] = rand::random();
    let (to_server, to_client) = seals(&key, &nonce, hello_bytes);
    Ok(Arrival {
        read,
        write,
        timeouts,
        nonce,
        to_server,
        to_client,
        caller,
        role: hello.role,
    })
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Arrival<R, W> {
    /// Lets the caller in, or says why not.
    ///
    /// # Errors
    /// [`ChannelError::Refused`], once the caller has been told; or the connection broke.
    pub async fn answer(mut self, judged: Result<Welcome, Refusal>) -> Result<Accepted<R, W>, ChannelError> {
        let timeouts = self.timeouts;
        let first = match judged {
            Ok(welcome) => First::Welcome(welcome),
            Err(refusal) => First::Refused(refusal),
        };
        let mut frame = frame_of(FIRST, &self.nonce, &first)?;
        self.to_client.seal(&mut frame, 5 + KEY);
        write_frame(&mut self.write, &mut frame, timeouts.frame).await?;
        if let First::Refused(refusal) = first {
            let _ = self.write.shutdown().await;
            return Err(ChannelError::Refused(refusal));
        }
        Ok(Accepted {
            reader: Reader {
                stream: self.read,
                seal: self.to_server,
                limit: TO_HOPD_LIMIT,
                timeouts,
                plain: true,
            },
            writer: Writer {
                stream: self.write,
                seal: self.to_client,
                limit: FROM_HOPD_LIMIT,
                timeouts,
            },
            caller: self.caller,
            role: self.role,
        })
    }
}

/// Only the version is read of a hello of another version: the rest may mean anything.
fn hello_of(bytes: &[u8]) -> Result<Hello, Refusal> {
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: u32,
    }
    let invalid = |e: serde_json::Error| Refusal::Invalid {
        reason: format!("the hello could not be understood: {e}"),
    };
    let version = serde_json::from_slice::<Versioned>(bytes)
        .map_err(invalid)?
        .version;
    if version != VERSION {
        return Err(Refusal::Version {
            server: VERSION,
            client: version,
        });
    }
    serde_json::from_slice(bytes).map_err(invalid)
}

async fn refuse_plainly<T, W: AsyncWrite + Unpin>(
    write: &mut W,
    refusal: Refusal,
    timeouts: Timeouts,
) -> Result<T, ChannelError> {
    let mut frame = frame_of(PLAIN, &[], &refusal)?;
    write_frame(write, &mut frame, timeouts.frame).await?;
    let _ = write.shutdown().await;
    Err(ChannelError::Refused(refusal))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, IdentityError> + Send + 'static,
) -> Result<T, ChannelError> {
    let done = tokio::task::spawn_blocking(work).await;
    Ok(done.map_err(|_| IdentityError("the call to munge did not come to its end".into()))??)
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ChannelError> {
    serde_json::from_slice(bytes).map_err(|e| ChannelError::Malformed(e.to_string()))
}

/// Whether a text in the message may hold a character that acts: JSON spells it as an escape or beyond ASCII.
fn may_act(json: &[u8]) -> bool {
    json.iter().any(|b| *b == b'\\' || !b.is_ascii() || *b == 0x7f)
}

fn parse_plain<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ChannelError> {
    let mut message: Value = parse(bytes)?;
    make_plain(&mut message);
    serde_json::from_value(message).map_err(|e| ChannelError::Malformed(e.to_string()))
}

fn make_plain(value: &mut Value) {
    match value {
        Value::String(text) => *text = plain(text),
        Value::Array(values) => values.iter_mut().for_each(make_plain),
        Value::Object(fields) => fields.values_mut().for_each(make_plain),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Room for the length, the kind, `prefix`, the message; the length is filled in when it is written.
fn frame_of<T: Serialize>(kind: u8, prefix: &[u8], message: &T) -> Result<Vec<u8>, ChannelError> {
    let mut frame = vec![0, 0, 0, 0, kind];
    frame.extend_from_slice(prefix);
    serde_json::to_writer(&mut frame, message).map_err(|e| ChannelError::Malformed(e.to_string()))?;
    Ok(frame)
}

fn check_size(size: usize, limit: usize) -> Result<(), ChannelError> {
    if size > limit {
        return Err(ChannelError::Oversize { size, limit });
    }
    Ok(())
}

async fn write_frame<W: AsyncWrite + Unpin>(
    write: &mut W,
    frame: &mut [u8],
    timeout: Duration,
) -> Result<(), ChannelError> {
    let size = u32::try_from(frame.len() - 4).map_err(|_| ChannelError::Oversize {
        size: frame.len(),
        limit: FROM_HOPD_LIMIT,
    })?;
    frame[..4].copy_from_slice(&size.to_be_bytes());
    let work = async {
        write.write_all(frame).await?;
        write.flush().await
    };
    tokio::time::timeout(timeout, work)
        .await
        .map_err(|_| ChannelError::Silent)?
        .map_err(ChannelError::from)
}

/// Waits up to `silence` for the first byte, then up to `frame` for the last. Memory grows with the bytes received,
/// not with the announced length.
async fn read_frame<R: AsyncRead + Unpin>(
    read: &mut R,
    limit: usize,
    silence: Duration,
    frame: Duration,
) -> Result<Vec<u8>, ChannelError> {
    let mut header = [0; 4];
    tokio::time::timeout(silence, read.read_exact(&mut header[..1]))
        .await
        .map_err(|_| ChannelError::Silent)??;
    let rest = async {
        read.read_exact(&mut header[1..]).await?;
        let size = u32::from_be_bytes(header) as usize;
        check_size(size, limit)?;
        let mut body = Vec::with_capacity(size.min(64 << 10));
        let got = (&mut *read).take(size as u64).read_to_end(&mut body).await?;
        if got < size {
            return Err(ChannelError::Closed);
        }
        Ok(body)
    };
    tokio::time::timeout(frame, rest)
        .await
        .map_err(|_| ChannelError::Silent)?
}

#[cfg(test)]
mod tests;
