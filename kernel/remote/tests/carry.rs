//! A state to an object store and back, with a store that breaks at each of its requests.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use hop_blobs::local::Local;
use hop_blobs::places::Places;
use hop_blobs::{CHUNK_BYTES, ChunkId, GetError};
use hop_remote::address::Name;
use hop_remote::error::RemoteError;
use hop_remote::remote::{Progress, Remote};
use hop_state::form::{self, Saved};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Barrier;

const KEY: [u8; 32] = [7; 32];

/// A store in memory that answers so many requests and then none.
#[derive(Debug)]
struct Breaking {
    inner: InMemory,
    left: AtomicUsize,
    puts: AtomicUsize,
    /// Heads are written once so many senders are about to.
    heads_meet: OnceLock<Barrier>,
}

impl Breaking {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: InMemory::new(),
            left: AtomicUsize::new(usize::MAX),
            puts: AtomicUsize::new(0),
            heads_meet: OnceLock::new(),
        })
    }

    fn answer(&self) -> Result<()> {
        let left = self.left.load(SeqCst);
        if left == 0 {
            return Err(Error::Generic {
                store: "S3",
                source: "Server returned non-2xx status code: 503 Service Unavailable: ".into(),
            });
        }
        self.left.store(left - 1, SeqCst);
        Ok(())
    }

    async fn objects(&self) -> BTreeMap<String, Bytes> {
        let mut found = BTreeMap::new();
        let all: Vec<ObjectMeta> = self.inner.list(None).try_collect().await.unwrap();
        for meta in all {
            let bytes = self
                .inner
                .get(&meta.location)
                .await
                .unwrap()
                .bytes()
                .await
                .unwrap();
            found.insert(meta.location.to_string(), bytes);
        }
        found
    }

    async fn change(&self, place: &str, bytes: Bytes) {
        self.inner
            .put(&Path::from(place), PutPayload::from(bytes))
            .await
            .unwrap();
    }
}

impl fmt::Display for Breaking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a store that breaks")
    }
}

#[async_trait]
impl ObjectStore for Breaking {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.answer()?;
        self.puts.fetch_add(1, SeqCst);
        if location.filename() == Some("head")
            && let Some(barrier) = self.heads_meet.get()
        {
            barrier.wait().await;
        }
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.answer()?;
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        match self.answer() {
            Ok(()) => self.inner.delete_stream(locations),
            Err(e) => futures_util::stream::once(async { Err(e) }).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.answer() {
            Ok(()) => self.inner.list(prefix),
            Err(e) => futures_util::stream::once(async { Err(e) }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// A local store, and states in it that the agent might have saved.
struct Here {
    _dir: tempfile::TempDir,
    local: Arc<Local>,
    places: Arc<Places>,
}

impl Here {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let local = Arc::new(Local::at(&dir.path().join("chunks")));
        let places = Arc::new(Places::at([dir.path().to_owned()]));
        Self {
            _dir: dir,
            local,
            places,
        }
    }

    /// A state that refers to this content.
    fn save(&self, at: u32, content: &[&[u8]], key: &[u8; 32]) -> Saved {
        let blobs: Vec<String> = content
            .iter()
            .map(|bytes| {
                let (ids, _) = self.local.put_all(bytes, None).unwrap();
                let names: Vec<String> = ids.iter().map(|id| format!("\"{id}\"")).collect();
                format!("[{},0,[{}]]", bytes.len(), names.join(","))
            })
            .collect();
        let text = format!(
            r#"{{"full":true,"at":{at}.0,"cell":null,"units":[{{"u":1,"m":["n:x"],"s":{{"in":[0,4]}},"b":[{}],"f":[],"c":[],"t":[],"gone":[],"notes":[],"types":[],"cell":1,"sec":0.5,"dig":"{at:02}"}}],"gone":[],"process":{{}},"env":null}}"#,
            blobs.join(",")
        );
        let mut log = b"HOPSTATE\x04\0\0\0b3\0\0".to_vec();
        let mac = *blake3::keyed_hash(key, &log).as_bytes();
        let mut record = (text.len() as u64).to_le_bytes().to_vec();
        record.extend(4u64.to_le_bytes());
        record.extend(text.as_bytes());
        record.extend(b"body");
        let mac = blake3::keyed_hash(key, &[&mac[..], &record].concat());
        log.extend(record);
        log.extend(mac.as_bytes());
        let head = format!(
            r#"{{"version":7,"kind":"62330000","records":1,"length":{},"mac":"{}"}}"#,
            log.len(),
            mac.to_hex()
        );
        let proof = blake3::keyed_hash(key, &[b"head", head.as_bytes()].concat());
        let slot = format!("{:<512}", format!("{head}\n{}\n", proof.to_hex()));
        form::prove(slot.repeat(2).as_bytes(), log, key).unwrap()
    }
}

fn noise(seed: u8, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new()
        .update(&[seed])
        .finalize_xof()
        .fill(&mut out);
    out
}

fn remote(store: &Arc<Breaking>) -> Remote {
    Remote::new(Arc::clone(store) as Arc<dyn ObjectStore>, Path::from("me"))
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// Reads and fetches a state into an empty store; what it holds.
async fn restored(store: &Arc<Breaking>, state: &str) -> std::result::Result<(f64, Vec<u8>), RemoteError> {
    let there = Here::new();
    let progress = Progress::default();
    let saved = remote(store).read(&name(state), &KEY).await?;
    remote(store).fetch(&saved, &there.local, &progress).await?;
    let mut content = Vec::new();
    for (bytes, _, chunks) in &saved.snapshot.units[&1].buffers {
        let ids: Vec<ChunkId> = chunks.iter().map(|c| c.parse().unwrap()).collect();
        let mut into = vec![0; usize::try_from(*bytes).unwrap()];
        there.local.get_all(&ids, &mut into).unwrap();
        content.extend(into);
    }
    Ok((saved.snapshot.saved_at, content))
}

#[tokio::test]
async fn only_what_is_new_is_sent_and_all_of_it_comes_back() {
    let (store, here, progress) = (Breaking::new(), Here::new(), Progress::default());
    let (a, b) = (noise(1, CHUNK_BYTES + 77), vec![5; 300_000]);
    let first = here.save(1, &[&a, &b], &KEY);
    let sent = remote(&store)
        .send(&name("work"), &first, &KEY, &here.places, &progress)
        .await
        .unwrap();
    assert_eq!((sent.chunks, sent.of), (3, 3));
    assert!(
        sent.bytes < a.len() as u64 + 5000,
        "the second array goes compressed"
    );
    assert_eq!(progress.done_bytes.load(SeqCst), progress.of_bytes.load(SeqCst));
    assert_eq!(
        restored(&store, "work").await.unwrap(),
        (1.0, [&a[..], &b].concat())
    );

    let c = noise(2, 1000);
    let second = here.save(2, &[&a, &c], &KEY);
    let sent = remote(&store)
        .send(&name("work"), &second, &KEY, &here.places, &progress)
        .await
        .unwrap();
    assert_eq!((sent.chunks, sent.of), (1, 3));
    assert_eq!(sent.bytes, 1000 + second.log.len() as u64);
    assert_eq!(
        restored(&store, "work").await.unwrap(),
        (2.0, [&a[..], &c].concat())
    );
    let objects = store.objects().await;
    let kinds = |kind: &str| objects.keys().filter(|place| place.contains(kind)).count();
    assert_eq!(
        (kinds("/log-"), kinds("/head"), kinds("/chunks/"), kinds("/busy/")),
        (1, 1, 4, 0)
    );

    let done = remote(&store)
        .collect(&KEY, Duration::ZERO, &Progress::default())
        .await
        .unwrap();
    assert_eq!((done.kept, done.removed), (3, 1));
    assert_eq!(
        restored(&store, "work").await.unwrap(),
        (2.0, [&a[..], &c].concat())
    );
    let done = remote(&store)
        .collect(&KEY, Duration::ZERO, &Progress::default())
        .await
        .unwrap();
    assert_eq!((done.kept, done.removed), (3, 0));
    assert!(store.objects().await.keys().all(|place| !place.contains("busy")));
}

#[tokio::test]
async fn broken_at_each_request_it_leaves_the_earlier_state_and_goes_on() {
    let (a, b) = (noise(1, 5000), noise(2, 7000));
    let mut requests = 0;
    loop {
        let (store, here, progress) = (Breaking::new(), Here::new(), Progress::default());
        let first = here.save(1, &[&a], &KEY);
        let second = here.save(2, &[&a, &b], &KEY);
        remote(&store)
            .send(&name("work"), &first, &KEY, &here.places, &progress)
            .await
            .unwrap();
        store.left.store(requests, SeqCst);
        let sent = remote(&store)
            .send(&name("work"), &second, &KEY, &here.places, &progress)
            .await;
        let broke = store.left.swap(usize::MAX, SeqCst) == 0;
        let (at, content) = restored(&store, "work").await.unwrap();
        match sent {
            Ok(_) => assert_eq!((at, &content), (2.0, &[&a[..], &b].concat()), "after {requests}"),
            Err(e) => {
                assert!(e.is_away(), "{e}");
                assert_eq!((at, &content), (1.0, &a), "after {requests}");
                assert!(
                    remote(&store)
                        .send(&name("work"), &second, &KEY, &here.places, &progress)
                        .await
                        .is_ok()
                );
                assert_eq!(restored(&store, "work").await.unwrap().1, [&a[..], &b].concat());
            }
        }
        if !broke {
            break;
        }
        requests += 1;
    }
    assert!(requests > 8, "only {requests} requests were broken");
}

#[tokio::test]
async fn each_object_that_is_changed_cut_or_missing_is_refused() {
    let (store, here, progress) = (Breaking::new(), Here::new(), Progress::default());
    let (a, b) = (noise(1, 5000), vec![5; 300_000]);
    let saved = here.save(1, &[&a, &b], &KEY);
    remote(&store)
        .send(&name("work"), &saved, &KEY, &here.places, &progress)
        .await
        .unwrap();
    for (place, whole) in store.objects().await {
        let mut changed = whole.to_vec();
        let at = whole.len().min(80) / 2;
        changed[at] ^= 1;
        if place.ends_with("head") {
            changed[512 + at] ^= 1;
        }
        let grown = [&whole[..], b"more"].concat();
        for bad in [changed, whole[..whole.len() - 1].to_vec(), Vec::new(), grown] {
            store.change(&place, bad.into()).await;
            let read = restored(&store, "work").await;
            assert!(
                matches!(read, Err(RemoteError::State(_) | RemoteError::Content(_)))
                    || is_log_grown(&read, &place),
                "{place}: {read:?}"
            );
        }
        store.inner.delete(&Path::from(place.as_str())).await.unwrap();
        let read = restored(&store, "work").await.unwrap_err();
        match &read {
            RemoteError::NoState => assert!(place.ends_with("head")),
            RemoteError::State(_) => assert!(place.contains("log-")),
            RemoteError::Content(GetError::Missing { .. }) => assert!(place.contains("chunks")),
            other => panic!("{place}: {other:?}"),
        }
        store.change(&place, whole).await;
    }
    assert!(restored(&store, "work").await.is_ok());
    let read = remote(&store).read(&name("work"), &[8; 32]).await;
    assert!(matches!(read, Err(RemoteError::State(_))), "another key");
}

/// What lies behind a log's end doesn't count.
fn is_log_grown<T>(read: &std::result::Result<T, RemoteError>, place: &str) -> bool {
    read.is_ok() && place.contains("log-")
}

#[tokio::test]
async fn what_is_anothers_or_changed_meanwhile_is_not_replaced() {
    let (store, here, progress) = (Breaking::new(), Here::new(), Progress::default());
    let theirs = here.save(1, &[b"theirs"], &[9; 32]);
    let mine = here.save(1, &[b"mine"], &KEY);
    remote(&store)
        .send(&name("work"), &theirs, &[9; 32], &here.places, &progress)
        .await
        .unwrap();
    let before = store.objects().await;
    let sent = remote(&store)
        .send(&name("work"), &mine, &KEY, &here.places, &progress)
        .await;
    assert!(matches!(sent, Err(RemoteError::Foreign(_))), "{sent:?}");
    assert_eq!(store.objects().await, before);
    let collected = remote(&store)
        .collect(&KEY, Duration::ZERO, &Progress::default())
        .await;
    assert!(
        matches!(collected, Err(RemoteError::Unknown { .. })),
        "{collected:?}"
    );
    assert_eq!(store.objects().await, before);
    let chunk = before.keys().find(|place| place.contains("/states/")).unwrap();
    let folder = chunk.split("/states/").next().unwrap();
    let unknown = format!("{folder}/states/kernel/3.0/head");
    store.change(&unknown, Bytes::from_static(b"a kernel's")).await;
    let collected = remote(&store)
        .collect(&[9; 32], Duration::ZERO, &Progress::default())
        .await;
    assert!(
        matches!(&collected, Err(RemoteError::Strange { place }) if *place == unknown),
        "{collected:?}"
    );
    store.inner.delete(&Path::from(&unknown[..])).await.unwrap();
    assert_eq!(store.objects().await, before);

    // Two that save under one name: the later finds a head that it hasn't seen.
    let (sender, both) = (remote(&store), name("both"));
    let (one, two) = (here.save(2, &[b"one"], &KEY), here.save(3, &[b"two"], &KEY));
    store.heads_meet.set(Barrier::new(2)).unwrap();
    let (first, second) = tokio::join!(
        sender.send(&both, &one, &KEY, &here.places, &progress),
        sender.send(&both, &two, &KEY, &here.places, &progress),
    );
    let (won, lost) = if first.is_ok() {
        ((2.0, b"one"), second)
    } else {
        ((3.0, b"two"), first)
    };
    assert!(matches!(lost, Err(RemoteError::Changed)), "{lost:?}");
    assert_eq!(restored(&store, "both").await.unwrap(), (won.0, won.1.to_vec()));
}

#[tokio::test]
async fn saving_and_collecting_keep_apart() {
    let (store, here, progress) = (Breaking::new(), Here::new(), Progress::default());
    let saved = here.save(1, &[b"mine"], &KEY);
    store.change("me/busy/gc-1", Bytes::from_static(b"busy")).await;
    let sent = remote(&store)
        .send(&name("work"), &saved, &KEY, &here.places, &progress)
        .await;
    assert!(
        matches!(sent, Err(RemoteError::Collecting { minutes: 0 })),
        "{sent:?}"
    );
    store.inner.delete(&Path::from("me/busy/gc-1")).await.unwrap();
    assert!(store.objects().await.is_empty(), "nothing is left of it");
    remote(&store)
        .send(&name("work"), &saved, &KEY, &here.places, &progress)
        .await
        .unwrap();
    store.change("me/busy/save-1", Bytes::from_static(b"busy")).await;
    let collected = remote(&store)
        .collect(&KEY, Duration::ZERO, &Progress::default())
        .await;
    assert!(
        matches!(collected, Err(RemoteError::Saving { minutes: 0 })),
        "{collected:?}"
    );
    // Who is stopped takes their mark away.
    store.inner.delete(&Path::from("me/busy/save-1")).await.unwrap();
    progress.stop();
    let two = here.save(2, &[b"two"], &KEY);
    let sent = remote(&store)
        .send(&name("work"), &two, &KEY, &here.places, &progress)
        .await;
    assert!(matches!(sent, Err(RemoteError::Stopped)), "{sent:?}");
    assert_eq!(restored(&store, "work").await.unwrap().0, 1.0);
    assert!(store.objects().await.keys().all(|place| !place.contains("busy")));
    store.change("me/busy/save-1", Bytes::from_static(b"busy")).await;
    // Others that save are no hindrance to each other.
    remote(&store)
        .send(&name("other"), &saved, &KEY, &here.places, &progress)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_broken_upload_is_spared_for_a_while() {
    let (store, here, progress) = (Breaking::new(), Here::new(), Progress::default());
    let saved = here.save(1, &[&noise(1, 5000), &noise(2, 5000)], &KEY);
    store.left.store(7, SeqCst);
    let sent = remote(&store)
        .send(&name("work"), &saved, &KEY, &here.places, &progress)
        .await;
    assert!(sent.unwrap_err().is_away());
    store.left.store(usize::MAX, SeqCst);
    let busy = store
        .objects()
        .await
        .into_keys()
        .find(|place| place.contains("busy"))
        .unwrap();
    store.inner.delete(&Path::from(busy)).await.unwrap();
    let left = store.objects().await.len();
    assert!(left > 0);
    let hour = Duration::from_secs(3600);
    assert_eq!(
        remote(&store)
            .collect(&KEY, hour, &Progress::default())
            .await
            .unwrap()
            .removed,
        0
    );
    assert_eq!(store.objects().await.len(), left);
    remote(&store)
        .collect(&KEY, Duration::ZERO, &Progress::default())
        .await
        .unwrap();
    assert!(store.objects().await.is_empty());
}
