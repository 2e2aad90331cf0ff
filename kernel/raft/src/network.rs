//! openraft's messages on the keeper's links.

use crate::types::{Command, Parts, Request, Response, Snapshot, Types, Vote};
use bytes::Bytes;
use hop_words::id::Incarnation;
use openraft::error::{Fatal, NetworkError, RPCError, RaftError, ReplicationClosed, StreamingError};
use openraft::network::{Backoff, RPCOption};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{OptionalSend, RaftNetwork, RaftNetworkFactory};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A way to the other members of one group. A message without an answer within the sender's patience is dropped with
/// its future.
pub trait Transport: Send + Sync + 'static {
    /// Carries a message to a member's [`crate::Member::receive`], and brings back the answer.
    ///
    /// # Errors
    /// No link to the member exists, or the link broke before the answer came.
    fn ask(&self, to: Incarnation, message: Bytes)
    -> impl Future<Output = Result<Bytes, Unreachable>> + Send;
}

/// The member can't be reached now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no link to the member's seat")]
pub struct Unreachable;

/// The pause before a member that can't be reached is tried again. [`crate::Member::remind`] doesn't cut it short.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Network<T>(pub(crate) Arc<T>);

/// The way to one member.
#[derive(Debug)]
pub(crate) struct Peer<T> {
    to: u32,
    transport: Arc<T>,
}

impl<T: Transport> RaftNetworkFactory<Types> for Network<T> {
    type Network = Peer<T>;

    async fn new_client(&mut self, target: u32, (): &()) -> Peer<T> {
        Peer {
            to: target,
            transport: Arc::clone(&self.0),
        }
    }
}

/// The reason why there is no answer.
enum NoAnswer {
    Unreachable(Unreachable),
    Form(io::Error),
}

/// Asks a member, and reads its answer.
pub(crate) async fn propose<T: Transport>(transport: &T, to: u32, command: Command) -> Option<Response> {
    ask(transport, to, Request::Propose { command }).await.ok()
}

async fn ask<T: Transport>(transport: &T, to: u32, request: Request) -> Result<Response, NoAnswer> {
    let answer = transport.ask(Incarnation(to), request.pack()).await;
    Response::unpack(answer.map_err(NoAnswer::Unreachable)?).map_err(NoAnswer::Form)
}

impl NoAnswer {
    fn other() -> Self {
        Self::Form(io::Error::other("an answer to another question"))
    }

    fn unreachable(&self) -> openraft::error::Unreachable {
        match self {
            Self::Unreachable(e) => openraft::error::Unreachable::new(e),
            // A member of another release: pause as for an absent one.
            Self::Form(e) => openraft::error::Unreachable::new(e),
        }
    }
}

impl From<NoAnswer> for RPCError<u32, (), RaftError<u32>> {
    fn from(no: NoAnswer) -> Self {
        Self::Unreachable(no.unreachable())
    }
}

impl<T: Transport> RaftNetwork<Types> for Peer<T> {
    async fn append_entries(
        &mut self,
        append: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<u32>, RPCError<u32, (), RaftError<u32>>> {
        match ask(&*self.transport, self.to, Request::Append(append)).await? {
            Response::Append { response } => Ok(response),
            _ => Err(NoAnswer::other().into()),
        }
    }

    async fn vote(
        &mut self,
        vote: VoteRequest<u32>,
        _: RPCOption,
    ) -> Result<VoteResponse<u32>, RPCError<u32, (), RaftError<u32>>> {
        match ask(&*self.transport, self.to, Request::Vote(vote)).await? {
            Response::Vote { response } => Ok(response),
            _ => Err(NoAnswer::other().into()),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: openraft::Snapshot<Types>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<u32>, StreamingError<Types, Fatal<u32>>> {
        let snapshot = Snapshot {
            meta: snapshot.meta,
            data: *snapshot.snapshot,
        };
        let asked = ask(&*self.transport, self.to, Request::Snapshot { vote, snapshot });
        let answer = tokio::select! {
            biased;
            closed = cancel => return Err(StreamingError::Closed(closed)),
            answer = tokio::time::timeout(option.hard_ttl(), asked) => answer,
        };
        match answer {
            Ok(Ok(Response::Snapshot { vote })) => Ok(SnapshotResponse::new(vote)),
            Ok(Ok(_)) => Err(NoAnswer::other().unreachable().into()),
            Ok(Err(no)) => Err(no.unreachable().into()),
            Err(late) => Err(NetworkError::new(&late).into()),
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(PAUSE))
    }
}
