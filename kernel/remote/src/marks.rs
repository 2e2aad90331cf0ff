//! Marks that keep saving and collecting apart.
//!
//! A save relies on existing chunks; a collection removes chunks that no head names. Each puts its mark first and
//! then looks for the other's. An object store shows a put to every later list: at least one of the two sees the
//! other, and gives way. A mark that nobody renewed for [`LIFE`] belongs to broken-off work. The store's own clock
//! tells its age.

use crate::error::RemoteError;
use crate::remote::{Progress, Remote, absent};
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt, PutPayload};
use std::future::Future;
use std::time::Duration;

/// From so long without a renewal on a mark doesn't count.
pub(crate) const LIFE: Duration = Duration::from_secs(3600);
const RENEW: Duration = Duration::from_secs(600);

/// What is done at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Saving,
    Collecting,
}

impl Work {
    fn word(self) -> &'static str {
        match self {
            Self::Saving => "save-",
            Self::Collecting => "gc-",
        }
    }
}

/// Somebody's mark at a place.
pub(crate) struct Mark {
    place: Path,
    /// When it was put, by the store's clock, in seconds since 1970.
    pub(crate) at: i64,
}

pub(crate) fn seconds(meta: &ObjectMeta) -> i64 {
    meta.last_modified.timestamp()
}

impl Remote {
    /// Marks this place, unless the other kind of work is under way there. Removes broken-off marks.
    pub(crate) async fn begin(&self, work: Work) -> Result<Mark, RemoteError> {
        let place = self
            .busy()
            .join(format!("{}{}", work.word(), uuid::Uuid::new_v4().simple()));
        self.store.put(&place, PutPayload::from_static(b"busy")).await?;
        let at = seconds(&self.store.head(&place).await?);
        let mark = Mark { place, at };
        let other = self.other(work, at).await;
        if other.is_err() {
            self.end(&mark).await;
        }
        other.map(|()| mark)
    }

    async fn other(&self, work: Work, now: i64) -> Result<(), RemoteError> {
        let marks: Vec<ObjectMeta> = self.store.list(Some(&self.busy())).try_collect().await?;
        for meta in &marks {
            let name = meta.location.filename().unwrap_or_default();
            let age = u64::try_from(now - seconds(meta)).unwrap_or(0);
            if name.starts_with(work.word()) {
                continue;
            }
            if age < LIFE.as_secs() {
                let minutes = age / 60;
                return Err(match work {
                    Work::Saving => RemoteError::Collecting { minutes },
                    Work::Collecting => RemoteError::Saving { minutes },
                });
            }
            self.store.delete(&meta.location).await.or_else(absent)?;
        }
        Ok(())
    }

    /// Fails if the mark no longer counts: other work has taken it for broken off, and removed it.
    pub(crate) async fn still(&self, mark: &Mark) -> Result<(), RemoteError> {
        match self.store.head(&mark.place).await {
            Ok(_) => Ok(()),
            Err(e) => absent(e).and(Err(RemoteError::Late)),
        }
    }

    /// Removes a mark. If that fails, the mark expires.
    pub(crate) async fn end(&self, mark: &Mark) {
        let _ = self.store.delete(&mark.place).await;
    }

    /// Does work under a mark, and renews it meanwhile.
    pub(crate) async fn under<T>(
        &self,
        mark: &Mark,
        progress: &Progress,
        work: impl Future<Output = Result<T, RemoteError>>,
    ) -> Result<T, RemoteError> {
        tokio::pin!(work);
        let done = loop {
            tokio::select! {
                biased; // Who was stopped before it began does nothing.
                () = progress.stopped() => break Err(RemoteError::Stopped),
                done = &mut work => break done,
                () = tokio::time::sleep(RENEW) => {
                    self.still(mark).await?;
                    self.store.put(&mark.place, PutPayload::from_static(b"busy")).await?;
                }
            }
        };
        // A store that is away would only be waited for again.
        if !done.as_ref().is_err_and(RemoteError::is_away) {
            self.end(mark).await;
        }
        done
    }
}
