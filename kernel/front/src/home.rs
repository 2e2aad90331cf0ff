//! Writes to the user's home, in a thread of their own: a home that hangs never holds up a message. Of each thing to
//! write, only the newest is kept.

use crate::announce;
use crate::claim::{Noted, Parting};
use hop_words::error::chain;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

/// The pause between two writes. A file system over the network has few of them, however many messages pass.
const PAUSE: Duration = Duration::from_millis(10);

/// The news to write. `None` means that a part is unchanged.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// The record of [`crate::delivered`].
    pub(crate) delivered: Option<Vec<u8>>,
    /// The notebook that the next opening names.
    pub(crate) notebook: Option<Noted>,
    /// The notebook's name, for the replicas that follow.
    pub(crate) name: Option<String>,
    /// The next opening is to wait for this front's end.
    pub(crate) parting: Option<Parting>,
}

impl News {
    fn is_empty(&self) -> bool {
        let Self {
            delivered,
            notebook,
            name,
            parting,
        } = self;
        delivered.is_none() && notebook.is_none() && name.is_none() && parting.is_none()
    }
}

/// The places of what is written.
#[derive(Debug)]
pub(crate) struct Places {
    /// The kernel's folder.
    pub(crate) dir: PathBuf,
    pub(crate) delivered: File,
}

impl Places {
    fn write(&mut self, news: News) {
        if let Some(record) = news.delivered
            && let Err(error) = self.delivered.write_all_at(&record, 0)
        {
            tracing::warn!(%error, "can't note what was delivered: a new front may deliver it again");
        }
        if let Some(notebook) = news.notebook {
            notebook.write_or_warn();
        }
        if let Some(name) = news.name
            && let Err(error) = announce::change(&self.dir, |file| file.launch.name.clone_from(&name))
        {
            tracing::warn!(error = chain(&error), "the notebook's name can't be written");
        }
        if let Some(parting) = news.parting {
            parting.write();
        }
    }
}

/// The thread's other end.
#[derive(Debug)]
pub(crate) struct Home {
    shared: Arc<Shared>,
    /// `None` means that nothing is written any more.
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    desk: Mutex<Desk>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Desk {
    news: News,
    over: bool,
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for news. `None` means that no more come.
    fn next(&self) -> Option<News> {
        let waits = |desk: &mut Desk| desk.news.is_empty() && !desk.over;
        let desk = self.changed.wait_while(self.desk(), waits);
        let mut desk = desk.unwrap_or_else(PoisonError::into_inner);
        (!desk.news.is_empty()).then(|| std::mem::take(&mut desk.news))
    }

    fn is_over(&self) -> bool {
        self.desk().over
    }
}

impl Home {
    pub(crate) fn start(mut places: Places) -> Self {
        Self::with(move |news| places.write(news))
    }

    fn with(mut write: impl FnMut(News) + Send + 'static) -> Self {
        let shared = Arc::new(Shared::default());
        let thread = spawn({
            let shared = shared.clone();
            move || {
                while let Some(news) = shared.next() {
                    write(news);
                    if !shared.is_over() {
                        sleep(PAUSE);
                    }
                }
            }
        });
        Self {
            shared,
            thread: Some(thread),
        }
    }

    /// Never waits for the home.
    pub(crate) fn tell(&self, change: impl FnOnce(&mut News)) {
        change(&mut self.shared.desk().news);
        self.shared.changed.notify_one();
    }

    /// Waits until all is written.
    pub(crate) fn end(&mut self) {
        self.shared.desk().over = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the thread.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Owned;
    use crate::owner::{Notebook, Start};
    use hop_protocol::file::FrontFile;
    use hop_protocol::states::{NOTEBOOK, OWNER};
    use std::sync::mpsc::channel;

    #[test]
    fn a_home_that_hangs_holds_nobody_up_and_gets_the_newest() {
        let (begun, begins) = channel();
        let (thaw, thawed) = channel();
        let mut home = Home::with(move |news| {
            begun.send(news.delivered.unwrap()).unwrap();
            thawed.recv().unwrap();
        });
        let put = |n: u8| home.tell(|news| news.delivered = Some(vec![n]));
        put(1);
        assert_eq!(begins.recv().unwrap(), [1]);
        (2..=9).for_each(put);
        thaw.send(()).unwrap();
        thaw.send(()).unwrap();
        home.end();
        assert_eq!(begins.try_iter().collect::<Vec<_>>(), [[9]]);
    }

    #[test]
    fn each_piece_of_news_is_written_also_alone_and_to_a_thread_that_waits() {
        let (wrote, written) = channel();
        let home = Home::with(move |news| wrote.send((news.delivered, news.name)).unwrap());
        let next = || written.recv_timeout(Duration::from_secs(20));
        for n in 0..3 {
            // The pause after a write is over, and the thread waits.
            sleep(10 * PAUSE);
            home.tell(|news| news.delivered = Some(vec![n]));
            assert_eq!(next(), Ok((Some(vec![n]), None)));
            sleep(10 * PAUSE);
            home.tell(|news| news.name = Some("b.ipynb".into()));
            assert_eq!(next(), Ok((None, Some("b.ipynb".into()))));
        }
    }

    /// A front's folder and its kernel's, with what is written there.
    struct Folders {
        home: tempfile::TempDir,
        owned: Owned,
    }

    impl Folders {
        async fn new() -> Self {
            let home = tempfile::tempdir().unwrap();
            let (front, kernel) = (home.path().join("front"), home.path().join("states/k"));
            std::fs::create_dir(&front).unwrap();
            let order = serde_json::json!({
                "version": crate::owner::VERSION, "kernel": "k", "incarnation": 1, "epoch": 1, "key": "key",
                "launch": {"argv": ["python"], "cwd": null, "local": true},
            });
            let mut start: Start = serde_json::from_value(order).unwrap();
            let (file, _) = announce::announce(&mut start, &front).unwrap();
            file.write(&front).unwrap();
            let owned = Owned::take(&kernel).unwrap().unwrap();
            Self { home, owned }
        }

        /// Writes the chosen pieces of news.
        fn write(&self, chosen: [bool; 4]) {
            let dir = self.home.path().join("front");
            let delivered = File::create(dir.join("delivered")).unwrap();
            let notebook = Notebook {
                path: "b.ipynb".into(),
                kernelspec: "python3".into(),
            };
            let [has_record, has_notebook, has_name, parts] = chosen;
            Places { dir, delivered }.write(News {
                delivered: has_record.then(|| vec![7]),
                notebook: has_notebook.then(|| self.owned.name(&"k".into(), &notebook, None)),
                name: has_name.then(|| "b.ipynb".into()),
                parting: parts.then(|| self.owned.parts().unwrap()),
            });
        }

        /// The pieces of news found in their places.
        fn written(&self) -> [bool; 4] {
            let home = self.home.path();
            let (front, kernel) = (home.join("front"), home.join("states/k"));
            let read = |path: PathBuf| String::from_utf8(std::fs::read(path).unwrap_or_default()).unwrap();
            [
                read(front.join("delivered")) == "\u{7}",
                read(kernel.join(NOTEBOOK)).contains("b.ipynb"),
                FrontFile::read(&front).unwrap().launch.name == "b.ipynb",
                read(kernel.join(OWNER)) == "parting\n",
            ]
        }
    }

    #[tokio::test]
    async fn each_piece_of_news_is_written_to_its_place() {
        let one = |i| std::array::from_fn(|n| n == i);
        for chosen in [[true; 4], one(0), one(1), one(2), one(3)] {
            let folders = Folders::new().await;
            assert_eq!(folders.written(), [false; 4]);
            folders.write(chosen);
            assert_eq!(folders.written(), chosen);
        }
    }

    #[test]
    fn all_that_was_told_is_written_before_the_end() {
        let (wrote, written) = channel();
        let mut home = Home::with(move |news| wrote.send((news.delivered, news.name)).unwrap());
        home.tell(|news| news.delivered = Some(vec![1]));
        home.tell(|news| news.name = Some("b.ipynb".into()));
        home.end();
        let all: Vec<_> = written.iter().collect();
        assert!(all.iter().any(|(delivered, _)| delivered.is_some()), "{all:?}");
        assert!(all.iter().any(|(_, name)| name.is_some()), "{all:?}");
    }
}
