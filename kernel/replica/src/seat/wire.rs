//! Frames between a replica and the keeper of its seat, over the seat's socket.
//!
//! ```text
//! length u32 | kind u8 | length of the head u32 | the head, JSON | the body
//! ```
//! Numbers are big endian; `length` counts from `kind` on. Bodies are entries and states in the log's own form.

use crate::core::{GroupStanding, Lack};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use hop_log::{Entry, Form, FormError, Index, State};
use hop_words::id::{Incarnation, KernelId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use tokio::io::{AsyncRead, AsyncReadExt};

const FIXED: usize = 1 + 4;
/// A state with all its records is the largest frame. Both ends belong to one user; the limit is against a broken peer.
const MAX: usize = 256 << 20;

/// A replica's word to its seat's keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ToSeat {
    /// Did the kernel's group elect this replica? `hot` means that the replica follows the log as the kernel's hot
    /// standby.
    Attach {
        kernel: KernelId,
        incarnation: Incarnation,
        hot: bool,
    },
    /// The kernel gets a group, with this replica as first member and this state as beginning.
    Found {
        kernel: KernelId,
        incarnation: Incarnation,
        wanted: usize,
        state: Box<State>,
    },
    /// The group's log is to take in this entry, behind the entries proposed before.
    Propose(Entry),
    /// Whether the kernel is at rest: another replica could go on now, and its user would lose nothing. Only for a seat
    /// that hears it.
    Rests(bool),
    /// The kernel is over, and its group as well.
    Over,
    /// This process waits to become a replica.
    Spare { number: u32 },
    /// Have all processes of earlier executors ended? Only for a seat that hears it.
    AskFormer,
}

/// The keeper's word to a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FromSeat {
    /// No group elected this replica.
    Alone,
    /// The group's state; news of the log follow.
    State {
        state: Box<State>,
        hears: Hears,
    },
    Applied {
        index: Index,
        entry: Entry,
    },
    /// The group's voters: it survives the loss of a minority of them. Of the release before, it says no more.
    Standing(GroupStanding),
    /// The group lacks members.
    Need(Lack),
    /// The group can't be founded.
    Failed(String),
    /// The spare is to become the replica that the kernel's group has elected here.
    Become(Called),
    /// After [`ToSeat::AskFormer`]: all processes of earlier executors have ended.
    FormerGone,
}

/// Who a spare becomes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Called {
    /// The kernel's folder with `front.json`.
    pub(crate) dir: PathBuf,
    pub(crate) incarnation: Incarnation,
}

/// The head of [`FromSeat::State`]: what the seat hears, and one of an earlier release doesn't.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Hears {
    /// [`ToSeat::Rests`].
    pub(crate) rest: bool,
    /// [`ToSeat::AskFormer`].
    pub(crate) former: bool,
}

impl Hears {
    /// A seat of this release.
    pub(crate) const ALL: Self = Self {
        rest: true,
        former: true,
    };
}

/// The body of [`FromSeat::Standing`], whose head is the voters. The release before sends and reads none.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Log {
    leader: Option<Incarnation>,
    lacking: BTreeMap<Incarnation, Option<u64>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Replica {
    kernel: KernelId,
    incarnation: Incarnation,
    /// Absent if false: a seat of the previous release refuses a frame with this field.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    hot: bool,
    #[serde(default)]
    wanted: usize,
}

/// A frame that can't be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("a frame of another release")]
    Form(#[from] FormError),
    #[error("a frame of another release")]
    Json(#[from] serde_json::Error),
    #[error("a frame of kind {0}, or of a wrong length")]
    Malformed(u8),
}

impl ToSeat {
    pub(crate) fn encode(&self) -> Bytes {
        match self {
            Self::Attach {
                kernel,
                incarnation,
                hot,
            } => {
                let head = Replica {
                    hot: *hot,
                    ..head(kernel, *incarnation, 0)
                };
                frame(1, &head, Bytes::new())
            }
            Self::Found {
                kernel,
                incarnation,
                wanted,
                state,
            } => frame(2, &head(kernel, *incarnation, *wanted), state.encode()),
            Self::Propose(entry) => frame(3, &(), entry.encode()),
            Self::Over => frame(4, &(), Bytes::new()),
            Self::Spare { number } => frame(5, number, Bytes::new()),
            Self::Rests(rests) => frame(6, rests, Bytes::new()),
            Self::AskFormer => frame(7, &(), Bytes::new()),
        }
    }

    pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Self, FrameError> {
        let (kind, head, body) = read(stream).await?;
        Ok(match kind {
            1 | 2 => {
                let Replica {
                    kernel,
                    incarnation,
                    hot,
                    wanted,
                } = serde_json::from_slice(&head)?;
                match kind {
                    1 => Self::Attach {
                        kernel,
                        incarnation,
                        hot,
                    },
                    _ => Self::Found {
                        kernel,
                        incarnation,
                        wanted,
                        state: Box::new(State::decode(body)?),
                    },
                }
            }
            3 => Self::Propose(Entry::decode(body)?),
            4 => Self::Over,
            5 => Self::Spare {
                number: serde_json::from_slice(&head)?,
            },
            6 => Self::Rests(serde_json::from_slice(&head)?),
            7 => Self::AskFormer,
            other => return Err(FrameError::Malformed(other)),
        })
    }
}

impl FromSeat {
    pub(crate) fn encode(&self) -> Bytes {
        match self {
            Self::Alone => frame(1, &(), Bytes::new()),
            Self::State { state, hears } => frame(2, hears, state.encode()),
            Self::Applied { index, entry } => frame(3, index, entry.encode()),
            Self::Need(lack) => frame(4, lack, Bytes::new()),
            Self::Failed(why) => frame(5, why, Bytes::new()),
            Self::Standing(GroupStanding {
                voters,
                leader,
                lacking,
            }) => {
                let log = Log {
                    leader: *leader,
                    lacking: lacking.clone(),
                };
                let log = serde_json::to_vec(&log).expect("plain data");
                frame(6, voters, log.into())
            }
            Self::Become(called) => frame(7, called, Bytes::new()),
            Self::FormerGone => frame(8, &(), Bytes::new()),
        }
    }

    pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Self, FrameError> {
        let (kind, head, body) = read(stream).await?;
        Ok(match kind {
            1 => Self::Alone,
            2 => Self::State {
                state: Box::new(State::decode(body)?),
                hears: serde_json::from_slice::<Option<Hears>>(&head)?.unwrap_or_default(),
            },
            3 => Self::Applied {
                index: serde_json::from_slice(&head)?,
                entry: Entry::decode(body)?,
            },
            4 => Self::Need(serde_json::from_slice(&head)?),
            5 => Self::Failed(serde_json::from_slice(&head)?),
            6 => {
                let log = match &body[..] {
                    [] => Log::default(),
                    body => serde_json::from_slice(body)?,
                };
                Self::Standing(GroupStanding {
                    voters: serde_json::from_slice(&head)?,
                    leader: log.leader,
                    lacking: log.lacking,
                })
            }
            7 => Self::Become(serde_json::from_slice(&head)?),
            8 => Self::FormerGone,
            other => return Err(FrameError::Malformed(other)),
        })
    }
}

fn head(kernel: &KernelId, incarnation: Incarnation, wanted: usize) -> Replica {
    Replica {
        kernel: kernel.clone(),
        incarnation,
        hot: false,
        wanted,
    }
}

fn frame(kind: u8, head: &impl Serialize, body: Bytes) -> Bytes {
    let head = serde_json::to_vec(head).expect("plain data");
    let size = FIXED + head.len() + body.len();
    let mut out = BytesMut::with_capacity(4 + size);
    out.put_u32(u32::try_from(size).expect("a state is far below 4 GiB"));
    out.put_u8(kind);
    out.put_u32(u32::try_from(head.len()).expect("a head is short"));
    out.put_slice(&head);
    out.put_slice(&body);
    out.freeze()
}

async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<(u8, Bytes, Bytes), FrameError> {
    let size = stream.read_u32().await? as usize;
    if !(FIXED..=MAX).contains(&size) {
        return Err(FrameError::Malformed(0));
    }
    let mut bytes = BytesMut::zeroed(size);
    stream.read_exact(&mut bytes).await?;
    let mut bytes = bytes.freeze();
    let (kind, length) = (bytes.get_u8(), bytes.get_u32() as usize);
    if length > bytes.len() {
        return Err(FrameError::Malformed(kind));
    }
    let head = bytes.split_to(length);
    Ok((kind, head, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_log::Act;
    use hop_words::id::Tenure;
    use std::collections::BTreeSet;

    fn entry() -> Entry {
        Entry::Act {
            tenure: Tenure(2),
            sequence: hop_log::Sequence(1),
            act: Act::Lost {
                cell: "cell".into(),
                why: "lost".into(),
            },
        }
    }

    #[tokio::test]
    async fn each_frame_comes_back_and_a_cut_one_is_an_error() {
        let found = ToSeat::Found {
            kernel: "k".into(),
            incarnation: Incarnation(7),
            wanted: 3,
            state: Box::new(State::new()),
        };
        let attach = ToSeat::Attach {
            kernel: "k".into(),
            incarnation: Incarnation(7),
            hot: true,
        };
        let spare = ToSeat::Spare { number: 3 };
        for word in [
            attach,
            found,
            spare,
            ToSeat::Propose(entry()),
            ToSeat::Rests(true),
            ToSeat::Over,
            ToSeat::AskFormer,
        ] {
            let bytes = word.encode();
            assert_eq!(ToSeat::read(&mut &bytes[..]).await.unwrap(), word);
            assert!(ToSeat::read(&mut &bytes[..bytes.len() - 1]).await.is_err());
        }
        let applied = FromSeat::Applied {
            index: Index(9),
            entry: entry(),
        };
        let state = FromSeat::State {
            state: Box::new(State::new()),
            hears: Hears::ALL,
        };
        let failed = FromSeat::Failed("no".into());
        let lack = Lack {
            replicas: 2,
            gone: [Incarnation(2)].into(),
            failed: [Incarnation(3)].into(),
        };
        let standing = FromSeat::Standing(GroupStanding {
            voters: [1, 3].map(Incarnation).into(),
            leader: Some(Incarnation(1)),
            lacking: [(Incarnation(3), Some(1204)), (Incarnation(4), None)].into(),
        });
        let called = FromSeat::Become(Called {
            dir: "/home/k".into(),
            incarnation: Incarnation(7),
        });
        let need = FromSeat::Need(lack);
        let gone = FromSeat::FormerGone;
        for word in [
            FromSeat::Alone,
            state,
            applied,
            need,
            failed,
            standing,
            called,
            gone,
        ] {
            let bytes = word.encode();
            assert_eq!(FromSeat::read(&mut &bytes[..]).await.unwrap(), word);
            assert!(FromSeat::read(&mut &bytes[..bytes.len() - 1]).await.is_err());
        }
    }

    #[tokio::test]
    async fn a_seat_of_the_release_before_names_the_voters_alone() {
        let voters: BTreeSet<_> = [1, 3].map(Incarnation).into();
        let before = frame(6, &voters, Bytes::new());
        let standing = GroupStanding {
            voters: voters.clone(),
            ..GroupStanding::default()
        };
        let word = FromSeat::Standing(standing);
        assert_eq!(FromSeat::read(&mut &before[..]).await.unwrap(), word);
        // A replica of that release reads the head alone.
        let (kind, head, _) = read(&mut &word.encode()[..]).await.unwrap();
        assert_eq!((kind, serde_json::from_slice(&head).ok()), (6, Some(voters)));
    }
}
