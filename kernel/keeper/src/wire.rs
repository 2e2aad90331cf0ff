//! Frames on a link between two seats.
//!
//! ```text
//! length u32 | kind u8 | number u64 | member u32 | length of the group's name u16 | the name | the body
//! ```
//! Numbers are big endian; `length` counts from `kind` on. The first frame of each side is a [`Frame::Hello`]. A
//! command opens with [`Frame::Visit`] instead ([`crate::visit`]).

use bytes::{Buf, BufMut, Bytes, BytesMut};
use hop_words::id::{Incarnation, JobId, KernelId, Tenure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The version of the frames. Keepers of two versions don't speak with each other.
pub(crate) const VERSION: u32 = 1;

/// A dial and the greetings may take so long each.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

const FIXED: usize = 1 + 8 + 4 + 2;
/// Marks the number of a ping that brings [`Says::Ended`]: the rest is the tenure.
const ENDED: u64 = 1 << 63;
/// A snapshot is the largest message. Both ends belong to one user; the limit is against a broken peer.
const MAX: usize = 256 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    pub(crate) seat: JobId,
}

/// A command's first and only frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Visit {
    pub(crate) version: u32,
    /// The kernel whose process is asked for.
    pub(crate) kernel: KernelId,
}

/// A seat's word on its member of a group. A keeper takes a word that it doesn't know for [`Says::Works`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) group: String,
    pub(crate) says: Says,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Says {
    Works,
    /// The kernel is at rest: another member could execute, and the user would lose nothing.
    Rests,
    /// This member can't go on: its log can't be written.
    Failed(Incarnation),
    /// The executor's process of this tenure, and of all before, has ended in this seat.
    Ended(Tenure),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    Hello(Hello),
    Visit(Visit),
    /// The sender hears these seats. A ping may bring a word on one group.
    Ping {
        hears: BTreeSet<JobId>,
        word: Option<Word>,
    },
    /// A message for a group's member, to be answered under the number.
    Ask {
        number: u64,
        group: String,
        to: Incarnation,
        message: Bytes,
    },
    Answer {
        number: u64,
        message: Bytes,
    },
    /// No such member exists here, or the member has stopped.
    Refused {
        number: u64,
    },
    /// The member should stand for election, in order to execute.
    Stand {
        group: String,
        to: Incarnation,
    },
    /// The kernel is over: every member leaves the group.
    Close {
        group: String,
    },
    /// Is this member, the sender's, still one?
    Asks {
        group: String,
        member: Incarnation,
    },
    /// The receiver's member has left the group by the log. The log's entry may not have reached the receiver.
    Left {
        group: String,
        member: Incarnation,
    },
}

impl Frame {
    pub(crate) fn encode(&self) -> Bytes {
        let (kind, number, to, group, body) = match self {
            Self::Hello(hello) => (1, 0, 0, "", json(hello)),
            Self::Ping { hears, word } => {
                let group = word.as_ref().map_or("", |word| word.group.as_str());
                let (number, member) = match word.as_ref().map(|word| word.says) {
                    None | Some(Says::Works) => (0, 0),
                    Some(Says::Rests) => (1, 0),
                    Some(Says::Failed(member)) => (2, member.0),
                    // The member field is too short for a tenure.
                    Some(Says::Ended(tenure)) => (ENDED | tenure.0, 0),
                };
                (2, number, member, group, json(hears))
            }
            Self::Ask {
                number,
                group,
                to,
                message,
            } => (3, *number, to.0, group.as_str(), message.clone()),
            Self::Answer { number, message } => (4, *number, 0, "", message.clone()),
            Self::Refused { number } => (5, *number, 0, "", Bytes::new()),
            Self::Stand { group, to } => (6, 0, to.0, group.as_str(), Bytes::new()),
            Self::Close { group } => (7, 0, 0, group.as_str(), Bytes::new()),
            Self::Visit(visit) => (8, 0, 0, "", json(visit)),
            Self::Asks { group, member } => (9, 0, member.0, group.as_str(), Bytes::new()),
            Self::Left { group, member } => (10, 0, member.0, group.as_str(), Bytes::new()),
        };
        let size = FIXED + group.len() + body.len();
        let mut out = BytesMut::with_capacity(4 + size);
        out.put_u32(u32::try_from(size).expect("a message is far below 4 GiB"));
        out.put_u8(kind);
        out.put_u64(number);
        out.put_u32(to);
        out.put_u16(u16::try_from(group.len()).expect("a group's name is short"));
        out.put_slice(group.as_bytes());
        out.put_slice(&body);
        out.freeze()
    }

    fn decode(mut bytes: Bytes) -> io::Result<Self> {
        let (kind, number, to) = (bytes.get_u8(), bytes.get_u64(), Incarnation(bytes.get_u32()));
        let length = usize::from(bytes.get_u16());
        if bytes.len() < length {
            return Err(malformed("a group's name is cut off"));
        }
        let group = String::from_utf8(bytes.split_to(length).into());
        let group = group.map_err(|_| malformed("a group's name is no text"))?;
        Ok(match kind {
            1 => Self::Hello(serde_json::from_slice(&bytes)?),
            2 => Self::Ping {
                hears: serde_json::from_slice(&bytes)?,
                word: (!group.is_empty()).then_some(Word {
                    group,
                    says: match number {
                        1 => Says::Rests,
                        2 => Says::Failed(to),
                        ended if ended & ENDED != 0 => Says::Ended(Tenure(ended & !ENDED)),
                        _ => Says::Works,
                    },
                }),
            },
            3 => Self::Ask {
                number,
                group,
                to,
                message: bytes,
            },
            4 => Self::Answer {
                number,
                message: bytes,
            },
            5 => Self::Refused { number },
            6 => Self::Stand { group, to },
            7 => Self::Close { group },
            8 => Self::Visit(serde_json::from_slice(&bytes)?),
            9 => Self::Asks { group, member: to },
            10 => Self::Left { group, member: to },
            _ => return Err(malformed("a frame is of an unknown kind")),
        })
    }

    /// Reads the next frame.
    pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let size = stream.read_u32().await? as usize;
        if !(FIXED..=MAX).contains(&size) {
            return Err(malformed("a frame is too short or too long"));
        }
        let mut bytes = BytesMut::zeroed(size);
        stream.read_exact(&mut bytes).await?;
        Self::decode(bytes.freeze())
    }
}

/// The other side's seat, by its greeting.
pub(crate) fn greeted(frame: Frame, expected: Option<JobId>) -> io::Result<JobId> {
    match frame {
        Frame::Hello(hello) if hello.version != VERSION => {
            let text = format!(
                "the keeper of seat {} speaks version {}",
                hello.seat, hello.version
            );
            Err(io::Error::new(io::ErrorKind::InvalidData, text))
        }
        Frame::Hello(hello) if expected.is_none_or(|seat| seat == hello.seat) => Ok(hello.seat),
        Frame::Hello(hello) => {
            let text = format!("seat {} answers at another's address", hello.seat);
            Err(io::Error::new(io::ErrorKind::InvalidData, text))
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "no greeting")),
    }
}

fn malformed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("plain data").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn says() -> impl Strategy<Value = Says> {
        prop_oneof![
            Just(Says::Works),
            Just(Says::Rests),
            any::<u32>().prop_map(|member| Says::Failed(Incarnation(member))),
            (0..ENDED).prop_map(|tenure| Says::Ended(Tenure(tenure)))
        ]
    }

    fn frames() -> impl Strategy<Value = Frame> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
        prop_oneof![
            any::<u32>().prop_map(|seat| Frame::Hello(Hello {
                version: VERSION,
                seat: JobId(seat)
            })),
            (
                proptest::collection::btree_set(any::<u32>().prop_map(JobId), 0..4),
                proptest::option::of(("[a-z.0-9]{1,20}", says()))
            )
                .prop_map(|(hears, word)| Frame::Ping {
                    hears,
                    word: word.map(|(group, says)| Word { group, says })
                }),
            (any::<u64>(), "[a-z.0-9]{0,20}", any::<u32>(), bytes()).prop_map(
                |(number, group, to, message)| Frame::Ask {
                    number,
                    group,
                    to: Incarnation(to),
                    message
                }
            ),
            (any::<u64>(), bytes()).prop_map(|(number, message)| Frame::Answer { number, message }),
            any::<u64>().prop_map(|number| Frame::Refused { number }),
            ("[a-z.0-9]{0,20}", any::<u32>()).prop_map(|(group, to)| Frame::Stand {
                group,
                to: Incarnation(to)
            }),
            "[a-z.0-9]{0,20}".prop_map(|group| Frame::Close { group }),
            ("[a-z.0-9]{0,20}", any::<u32>()).prop_map(|(group, member)| Frame::Asks {
                group,
                member: Incarnation(member)
            }),
            ("[a-z.0-9]{0,20}", any::<u32>()).prop_map(|(group, member)| Frame::Left {
                group,
                member: Incarnation(member)
            }),
            "[a-z.0-9]{0,20}".prop_map(|kernel| Frame::Visit(Visit {
                version: VERSION,
                kernel: KernelId::from(kernel)
            })),
        ]
    }

    async fn read(bytes: &[u8]) -> io::Result<Frame> {
        Frame::read(&mut &*bytes).await
    }

    proptest! {
        #[test]
        fn a_frame_comes_back(frame in frames(), cut in 1usize..12) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let bytes = frame.encode();
            prop_assert_eq!(runtime.block_on(read(&bytes)).unwrap(), frame);
            let cut = bytes.len().saturating_sub(cut);
            prop_assert!(runtime.block_on(read(&bytes[..cut])).is_err());
        }
    }
}
