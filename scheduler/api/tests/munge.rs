//! The handshake over a real `munged`. Needs root (to be several users); started by `HOP_E2E=1`.
//!
//! Users are bare uids: MUNGE knows no names. Each acts in a process of its own, this very test started again.

#![allow(clippy::unwrap_used)] // what fails here fails the test

use hop_api::channel::{self, ChannelError, Introduction, Timeouts};
use hop_api::identity::{Identity, Munge, Proven};
use hop_api::message::{FromHopd, Refusal, Request, Response, Role, ToHopd, VERSION, Welcome};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

const SERVICE: u32 = 61_990;
const ALICE: u32 = 61_991;

struct Munged {
    child: Child,
    dir: tempfile::TempDir,
}

impl Drop for Munged {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Munged {
    fn start() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("hop-munge")
            .tempdir_in("/tmp")
            .unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let key = dir.path().join("key");
        std::fs::write(&key, rand::random::<[u8; 128]>()).unwrap();
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o400)).unwrap();
        let file = |name: &str| dir.path().join(name).display().to_string();
        let child = Command::new("munged")
            .arg("--foreground")
            .arg("--force")
            .arg(format!("--key-file={}", key.display()))
            .arg(format!("--socket={}", file("socket")))
            .arg(format!("--pid-file={}", file("pid")))
            .arg(format!("--log-file={}", file("log")))
            .arg(format!("--seed-file={}", file("seed")))
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let munged = Self { child, dir };
        for _ in 0..100 {
            if munged.socket().exists() {
                return munged;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("munged did not start");
    }

    fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("socket")
    }
}

fn munge(socket: &Path) -> Arc<Munge> {
    Arc::new(Munge {
        socket: Some(socket.into()),
    })
}

/// What a child process does as its own uid: `HOP_TEST_ACT` names it.
#[tokio::test]
async fn act() {
    let Ok(act) = std::env::var("HOP_TEST_ACT") else {
        return;
    };
    let identity = munge(Path::new(&std::env::var("HOP_TEST_SOCKET").unwrap()));
    let address = std::env::var("HOP_TEST_ADDRESS").unwrap_or_default();
    match act.as_str() {
        "serve" => serve(identity).await,
        "dial" => {
            let (read, write) = TcpStream::connect(&address).await.unwrap().into_split();
            let introduction = Introduction::make(identity, SERVICE).await.unwrap();
            let mut channel = channel::connect(read, write, Role::Client, introduction, Timeouts::default())
                .await
                .unwrap();
            assert_eq!(channel.welcome.user.as_str(), ALICE.to_string());
            let ping = ToHopd {
                id: 5,
                body: Request::Ping,
            };
            channel.writer.send(&ping).await.unwrap();
            let pong: FromHopd = channel.reader.receive().await.unwrap();
            assert_eq!(pong.id, 5);
            println!("ACTED pong");
        }
        "impostor" => {
            // Somebody who listens on hopd's port but isn't the service account can't open a hello.
            let (read, write) = TcpStream::connect(&address).await.unwrap().into_split();
            let introduction = Introduction::make(identity, SERVICE).await.unwrap();
            let error = channel::connect(read, write, Role::Client, introduction, Timeouts::default())
                .await
                .unwrap_err();
            let ChannelError::Refused(Refusal::Unauthenticated { reason }) = error else {
                panic!("{error}")
            };
            println!("ACTED {reason}");
        }
        "steal" => {
            let credential = std::env::var("HOP_TEST_CREDENTIAL").unwrap();
            println!("ACTED {}", identity.decode(&credential).unwrap_err());
        }
        "encode" => println!("ACTED {}", identity.encode(&[7; 32], SERVICE).unwrap()),
        "decode-twice" => {
            let credential = std::env::var("HOP_TEST_CREDENTIAL").unwrap();
            let proven = identity.decode(&credential).unwrap();
            println!(
                "ACTED {} {}",
                proven.uid,
                identity.decode(&credential).unwrap_err()
            );
        }
        other => panic!("{other}"),
    }
}

async fn serve(identity: Arc<dyn Identity>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("ACTED {}", listener.local_addr().unwrap());
    let (stream, _) = listener.accept().await.unwrap();
    let (read, write) = stream.into_split();
    let judge = |caller: &Proven, _| {
        Ok(Welcome {
            version: VERSION,
            term: hop_words::id::Term(1),
            user: caller.uid.to_string().into(),
            operator: false,
        })
    };
    if let Ok(mut channel) = channel::accept(read, write, identity, Timeouts::default(), judge).await {
        let ping: ToHopd = channel.reader.receive().await.unwrap();
        let pong = FromHopd {
            id: ping.id,
            body: Response::Pong,
        };
        channel.writer.send(&pong).await.unwrap();
    }
}

/// Starts this test again as `uid`; its executable is copied to where everybody may read it.
fn command(munged: &Munged, uid: u32, act: &str, more: &[(&str, &str)]) -> Command {
    let program = munged.dir.path().join("test");
    if !program.exists() {
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(program);
    command
        .args(["--exact", "act", "--nocapture"])
        .env("HOP_TEST_ACT", act)
        .env("HOP_TEST_SOCKET", munged.socket())
        .envs(more.iter().copied())
        .current_dir("/")
        .uid(uid)
        .gid(uid);
    command
}

fn said(output: &str) -> String {
    let at = output.find("ACTED ").unwrap_or_else(|| panic!("{output}"));
    output[at + 6..].lines().next().unwrap().trim().to_owned()
}

fn run(munged: &Munged, uid: u32, act: &str, more: &[(&str, &str)]) -> String {
    let output = command(munged, uid, act, more).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    said(&text)
}

fn server(munged: &Munged, uid: u32) -> (Child, String) {
    use std::io::{BufRead, BufReader};
    let mut child = command(munged, uid, "serve", &[])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = lines
        .find_map(|l| Some(l.ok()?.split_once("ACTED ")?.1.to_owned()))
        .unwrap();
    // Keep the pipe drained, or the server's last words would block it.
    std::thread::spawn(move || lines.for_each(drop));
    (child, address)
}

fn wanted() -> bool {
    std::env::var_os("HOP_E2E").is_some()
}

#[test]
fn a_real_munged_proves_both_sides() {
    if !wanted() {
        return;
    }
    let munged = Munged::start();
    let (mut child, address) = server(&munged, SERVICE);
    assert_eq!(
        run(&munged, ALICE, "dial", &[("HOP_TEST_ADDRESS", &address)]),
        "pong"
    );
    child.wait().unwrap();
}

#[test]
fn a_server_of_another_uid_can_not_pose_as_hopd() {
    if !wanted() {
        return;
    }
    let munged = Munged::start();
    let (mut child, address) = server(&munged, ALICE);
    let reason = run(&munged, ALICE, "impostor", &[("HOP_TEST_ADDRESS", &address)]);
    assert!(reason.contains("another uid"), "{reason}");
    child.wait().unwrap();
}

#[test]
fn a_hello_is_good_once_and_for_the_service_account_alone() {
    if !wanted() {
        return;
    }
    let munged = Munged::start();
    let credential = run(&munged, ALICE, "encode", &[]);
    let with = [("HOP_TEST_CREDENTIAL", credential.as_str())];
    for uid in [0, ALICE] {
        let reason = run(&munged, uid, "steal", &with);
        assert!(reason.contains("another uid"), "{reason}");
    }
    let said = run(&munged, SERVICE, "decode-twice", &with);
    assert!(
        said.starts_with(&format!("{ALICE} ")) && said.contains("used before"),
        "{said}"
    );
}
