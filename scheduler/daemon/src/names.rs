//! Users' names and groups, from the host's user database (NSS), which may be slow or hang (LDAP, sssd).
//!
//! A thread asks the database and remembers answers, including that a user is unknown. Only this thread calls NSS:
//! neither the scheduler's task nor the workers of connections wait for NSS.

use hop_words::id::UserName;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Age up to which an answer is fresh. An older answer counts until its replacement arrives.
const FRESH: Duration = Duration::from_secs(600);
/// "No such user" counts for so long.
const ABSENT: Duration = Duration::from_secs(60);
/// Callers wait so long for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Users whose names may be asked for at a time.
const ASKED: usize = 64;
/// Answers that are remembered.
const REMEMBERED: usize = 65_536;

/// A user of the service host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Person {
    pub user: UserName,
    /// The names of the primary and the supplementary groups.
    pub groups: Arc<[String]>,
}

/// Why a user's name isn't known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NameError {
    #[error("the service host knows no user with uid {0}")]
    Unknown(u32),
    #[error("the service host's user database does not answer; try again")]
    Silent,
}

type Answer = Option<Person>;
/// A lookup in the slow user database. `None` means that the user is unknown.
type Lookup = dyn Fn(u32) -> Answer + Send;

#[derive(Debug, Clone)]
pub(crate) struct Names {
    asks: mpsc::Sender<u32>,
    known: Arc<Mutex<Known>>,
    patience: Duration,
}

#[derive(Debug, Default)]
struct Known {
    answers: HashMap<u32, (Instant, Answer)>,
    /// Callers who wait, by uid. The first of them has asked.
    waiting: HashMap<u32, Vec<oneshot::Sender<Answer>>>,
}

impl Names {
    /// The host's own user database.
    ///
    /// # Errors
    /// No thread could be started.
    pub(crate) fn of_host() -> std::io::Result<Self> {
        Self::of(Box::new(in_nss), PATIENCE)
    }

    fn of(lookup: Box<Lookup>, patience: Duration) -> std::io::Result<Self> {
        let (asks, mut asked) = mpsc::channel(ASKED);
        let known = Arc::new(Mutex::new(Known::default()));
        let answers = known.clone();
        std::thread::Builder::new().name("names".into()).spawn(move || {
            while let Some(uid) = asked.blocking_recv() {
                let answer = lookup(uid);
                let mut known = answers.lock().unwrap_or_else(PoisonError::into_inner);
                known.learn(uid, answer, Instant::now());
            }
        })?;
        Ok(Self {
            asks,
            known,
            patience,
        })
    }

    /// Who has this uid.
    ///
    /// # Errors
    /// Nobody, or the database doesn't answer.
    pub(crate) async fn of_uid(&self, uid: u32) -> Result<Person, NameError> {
        let found = match self.look(uid) {
            Look::Known(answer) => answer,
            Look::Wait(answer) => match tokio::time::timeout(self.patience, answer).await {
                Ok(Ok(answer)) => answer,
                _ => return Err(NameError::Silent),
            },
            Look::Full => return Err(NameError::Silent),
        };
        found.ok_or(NameError::Unknown(uid))
    }

    fn look(&self, uid: u32) -> Look {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let remembered = known.answers.get(&uid).cloned();
        let is_fresh = remembered.as_ref().is_some_and(|(at, answer)| {
            let counts = if answer.is_some() { FRESH } else { ABSENT };
            at.elapsed() < counts
        });
        let stale = remembered.and_then(|(_, answer)| answer);
        if is_fresh {
            return Look::Known(stale);
        }
        let is_asked = known.waiting.contains_key(&uid);
        if !is_asked && self.asks.try_send(uid).is_err() {
            return stale.map_or(Look::Full, |person| Look::Known(Some(person)));
        }
        let waiting = known.waiting.entry(uid).or_default();
        if stale.is_some() {
            return Look::Known(stale);
        }
        let (tx, rx) = oneshot::channel();
        waiting.push(tx);
        Look::Wait(rx)
    }
}

enum Look {
    Known(Answer),
    Wait(oneshot::Receiver<Answer>),
    /// Too many names are asked for already.
    Full,
}

impl Known {
    fn learn(&mut self, uid: u32, answer: Answer, now: Instant) {
        for waiting in self.waiting.remove(&uid).unwrap_or_default() {
            let _ = waiting.send(answer.clone());
        }
        if self.answers.len() >= REMEMBERED {
            self.answers.retain(|_, (at, _)| now.duration_since(*at) < ABSENT);
        }
        self.answers.insert(uid, (now, answer));
    }
}

fn in_nss(uid: u32) -> Answer {
    let user = nix::unistd::User::from_uid(uid.into()).ok().flatten()?;
    let name = std::ffi::CString::new(user.name.clone()).ok()?;
    let gids = nix::unistd::getgrouplist(&name, user.gid).unwrap_or_default();
    let group = |gid| nix::unistd::Group::from_gid(gid).ok().flatten();
    let groups = gids.into_iter().filter_map(group).map(|g| g.name);
    Some(Person {
        user: user.name.into(),
        groups: groups.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn person(uid: u32) -> Answer {
        (uid < 1000).then(|| Person {
            user: format!("user{uid}").into(),
            groups: Arc::new([]),
        })
    }

    /// Counts how often the database is asked.
    fn counted() -> (Names, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let seen = count.clone();
        let lookup = move |uid| {
            seen.fetch_add(1, Ordering::SeqCst);
            person(uid)
        };
        (Names::of(Box::new(lookup), PATIENCE).unwrap(), count)
    }

    #[tokio::test]
    async fn an_answer_is_remembered_also_that_there_is_nobody() {
        let (names, asked) = counted();
        for _ in 0..5 {
            assert_eq!(names.of_uid(7).await.unwrap().user.as_str(), "user7");
            assert_eq!(names.of_uid(1007).await, Err(NameError::Unknown(1007)));
        }
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn this_process_has_a_name_and_groups() {
        let uid = rustix::process::geteuid().as_raw();
        let names = Names::of_host().unwrap();
        let me = names.of_uid(uid).await.unwrap();
        assert!(!me.user.as_str().is_empty() && !me.groups.is_empty(), "{me:?}");
    }

    #[tokio::test]
    async fn a_database_that_hangs_holds_up_only_unknown_names() {
        let (release, hold) = std::sync::mpsc::channel::<()>();
        let hold = Mutex::new(hold);
        let lookup = move |uid| {
            if uid == 13 {
                let _ = hold.lock().unwrap().recv();
            }
            person(uid)
        };
        let names = Names::of(Box::new(lookup), Duration::from_millis(50)).unwrap();
        assert!(names.of_uid(7).await.is_ok());
        assert_eq!(names.of_uid(13).await, Err(NameError::Silent));
        assert!(names.of_uid(7).await.is_ok(), "it is remembered");
        // However many ask, they are refused in time, and few of them wait.
        let ask = |uid| {
            let names = names.clone();
            tokio::spawn(async move { names.of_uid(uid).await })
        };
        let asked: Vec<_> = (100..300).map(ask).collect();
        for answer in asked {
            assert_eq!(answer.await.unwrap(), Err(NameError::Silent));
        }
        assert!(names.known.lock().unwrap().waiting.len() <= ASKED + 1);
        drop(release);
    }

    #[tokio::test]
    async fn an_old_answer_counts_until_the_new_one_is_there() {
        let (names, asked) = counted();
        names.of_uid(7).await.unwrap();
        if let Some((at, _)) = names.known.lock().unwrap().answers.get_mut(&7) {
            *at = at.checked_sub(FRESH).unwrap();
        }
        assert!(matches!(names.look(7), Look::Known(Some(_))));
        while asked.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
    }
}
