//! Against a real `munged` of the test's own: its key, socket and pid file lie in a temporary directory.
//! Needs the package munge; without it each test says so and passes.

use hop_munge::{Error, decode, encode};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A foreground munged, ended when dropped.
struct Munged {
    child: Child,
    dir: tempfile::TempDir,
}

impl Munged {
    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }
}

impl Drop for Munged {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn munged_binary() -> Option<PathBuf> {
    ["/usr/sbin/munged", "/usr/bin/munged", "/usr/local/sbin/munged"]
        .iter()
        .map(PathBuf::from)
        .find(|p| p.exists())
}

/// None, with a message, where munged is not installed.
fn start() -> Option<Munged> {
    let Some(binary) = munged_binary() else {
        eprintln!("SKIPPED: munged is not installed (package munge)");
        return None;
    };
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let key = dir.path().join("key");
    let mut file = std::fs::File::create(&key).expect("key file");
    file.write_all(&random_key()).expect("write key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o400)).expect("chmod key");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let child = Command::new(binary)
        .args(["--foreground", "--force", "--num-threads=2"]) // --force: /tmp is writable by others
        .arg(format!("--key-file={}", path("key")))
        .arg(format!("--socket={}", path("socket")))
        .arg(format!("--pid-file={}", path("pid")))
        .arg(format!("--log-file={}", path("log")))
        .arg(format!("--seed-file={}", path("seed")))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("start munged");
    let munged = Munged { child, dir };
    let since = Instant::now();
    while encode(b"", None, None, Some(&munged.socket())).is_err() {
        assert!(since.elapsed() < Duration::from_secs(10), "munged did not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    Some(munged)
}

fn random_key() -> [u8; 128] {
    let mut key = [0; 128];
    let mut random = std::fs::File::open("/dev/urandom").expect("urandom");
    std::io::Read::read_exact(&mut random, &mut key).expect("read urandom");
    key
}

fn me() -> u32 {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").expect("proc"))
}

#[test]
fn a_credential_carries_its_payload_and_its_maker() {
    let Some(munged) = start() else { return };
    let socket = munged.socket();
    let payload = b"{\"v\":1}\0binary too".as_slice();
    let credential =
        encode(payload, Some(me()), Some(Duration::from_secs(20)), Some(&socket)).expect("encode");
    assert!(!credential.contains("binary"));
    let decoded = decode(&credential, Some(&socket)).expect("decode");
    assert_eq!(decoded.payload, payload);
    assert_eq!(decoded.uid, me());
    assert_eq!(decoded.restricted_to, Some(me()));
    assert_eq!(decoded.ttl, Duration::from_secs(20));
    assert!(decoded.encoded.elapsed().expect("the past") < Duration::from_secs(60));
}

#[test]
fn an_empty_payload_is_fine() {
    let Some(munged) = start() else { return };
    let credential = encode(b"", None, None, Some(&munged.socket())).expect("encode");
    let decoded = decode(&credential, Some(&munged.socket())).expect("decode");
    assert_eq!((decoded.payload.len(), decoded.restricted_to), (0, None));
}

#[test]
fn a_replay_is_refused() {
    let Some(munged) = start() else { return };
    let credential = encode(b"once", None, None, Some(&munged.socket())).expect("encode");
    decode(&credential, Some(&munged.socket())).expect("the first time");
    let second = decode(&credential, Some(&munged.socket()));
    assert!(matches!(second, Err(Error::Replayed)), "{second:?}");
}

#[test]
fn an_expired_one_is_refused() {
    let Some(munged) = start() else { return };
    let credential =
        encode(b"old", None, Some(Duration::from_secs(1)), Some(&munged.socket())).expect("encode");
    std::thread::sleep(Duration::from_millis(2100)); // munge counts whole seconds
    let late = decode(&credential, Some(&munged.socket()));
    assert!(matches!(late, Err(Error::Expired)), "{late:?}");
}

#[test]
fn another_uid_than_the_one_named_is_refused() {
    let Some(munged) = start() else { return };
    let credential = encode(b"for somebody", Some(me() + 1), None, Some(&munged.socket())).expect("encode");
    let mine = decode(&credential, Some(&munged.socket()));
    assert!(matches!(mine, Err(Error::Unauthorised)), "{mine:?}");
}

#[test]
fn a_credential_of_another_site_and_garbage_are_refused() {
    let (Some(ours), Some(theirs)) = (start(), start()) else {
        return;
    };
    let credential = encode(b"x", None, None, Some(&theirs.socket())).expect("encode");
    for bad in [credential.as_str(), "MUNGE:abc:", "", "hello\0"] {
        let result = decode(bad, Some(&ours.socket()));
        assert!(
            matches!(result, Err(Error::Invalid { .. } | Error::Argument { .. })),
            "{bad:?}: {result:?}"
        );
    }
}

#[test]
fn no_munged_is_told_as_such() {
    if munged_binary().is_none() {
        eprintln!("SKIPPED: munged is not installed (package munge)");
        return;
    }
    let nowhere = PathBuf::from("/nonexistent/munge.socket");
    for result in [
        encode(b"x", None, None, Some(&nowhere)).map(drop),
        decode("MUNGE:AwQ:", Some(&nowhere)).map(drop),
    ] {
        assert!(matches!(&result, Err(Error::SocketDown { .. })), "{result:?}");
        assert!(
            result
                .unwrap_err()
                .to_string()
                .contains("/nonexistent/munge.socket")
        );
    }
}
