//! `hop state` without a kernel: states and stores that lie in folders, and a kernel's refusals in words.

use super::failed;
use crate::context::Context;
use crate::hopd::Hopd;
use crate::{Cli, dispatch, failure};
use clap::Parser as _;
use hop_api::config::Config;
use hop_api::message::{Request, Response};
use hop_blobs::local::Local;
use hop_door::AskError;
use hop_state::log::Key;
use hop_state::writer::Writer;
use hop_words::time::Timestamp;
use jiff::tz::TimeZone;
use serde_json::json;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

thread_local! {
    /// The environment of the user who asks.
    static ENV: RefCell<BTreeMap<String, String>> = RefCell::default();
}

/// `hop state` doesn't need it.
struct Nobody;

impl Hopd for Nobody {
    fn ask(&self, _: Request) -> Result<Response, failure::Failure> {
        unreachable!("hop state asks no hopd")
    }
}

/// A user's home, on a site that has named a store for content.
struct User {
    tmp: tempfile::TempDir,
}

impl User {
    fn new() -> Self {
        let user = Self {
            tmp: tempfile::tempdir().unwrap(),
        };
        let config = user.home().join(".config/gresshopper");
        fs::create_dir_all(&config).unwrap();
        fs::write(config.join("state.key"), [7; 32]).unwrap();
        fs::set_permissions(config.join("state.key"), fs::Permissions::from_mode(0o600)).unwrap();
        ENV.set(BTreeMap::from([(
            "HOME".into(),
            user.home().to_str().unwrap().into(),
        )]));
        user
    }

    fn home(&self) -> PathBuf {
        self.tmp.path().join("home")
    }

    fn data(&self) -> PathBuf {
        self.home().join(".local/share/gresshopper")
    }

    fn site(&self) -> PathBuf {
        self.tmp.path().join("scratch")
    }

    /// The address of a new folder that stands for an object store.
    fn remote(&self) -> String {
        let folder = self.tmp.path().join("remote");
        fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
        format!("file://{}", folder.display())
    }

    /// Saves a state under this name, with its content in this store.
    fn saved(&self, name: &str, store: &Path, content: &[u8]) {
        let folder = self.data().join("states").join(name);
        fs::create_dir_all(&folder).unwrap();
        let chunk = Local::at(&store.join("chunks")).put(content).unwrap().0;
        let record = json!({
            "full": true, "at": 1.0, "cell": null, "gone": [], "process": {}, "inputs": {}, "env": null,
            "units": [{"u": 1, "m": ["n:a"], "s": {"in": [0, 0]}, "b": [[content.len(), 0, [chunk.to_string()]]], "f": [],
                "c": [], "t": [], "gone": [], "notes": [], "types": [], "sec": 0.0, "dig": ""}],
        });
        let mut log = Writer::create(&folder, &Key::new([7; 32])).unwrap();
        log.append(record.to_string().as_bytes(), b"").unwrap();
        log.commit().unwrap();
    }

    /// What `hop state` tells on stderr.
    fn hop(&self, line: &str) -> String {
        let words = ["hop", "state"].into_iter().chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).unwrap();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut config = Config::default();
        config.seat.store = Some(self.site().to_str().unwrap().into());
        let mut context = Context {
            out: &mut out,
            err: &mut err,
            hopd: Box::new(Nobody),
            now: Timestamp(0),
            zone: TimeZone::UTC,
            env: |name| ENV.with_borrow(|env| env.get(name).cloned()),
            is_root: false,
            user: |_| Some("alice".into()),
            config: Some(config),
            columns: None,
        };
        let done = dispatch(&cli.command, &mut context);
        let status = failure::report(done, context.err);
        let told = String::from_utf8(err).unwrap();
        match status == std::process::ExitCode::SUCCESS {
            true => told,
            false => format!("{told}{status:?}"),
        }
    }
}

#[test]
fn a_dot_is_no_states_name() {
    let user = User::new();
    for line in ["diff . ..", "copy .. s3://bucket/me/work", "export . out"] {
        assert!(user.hop(line).contains("is no state's name"), "{line}");
    }
}

#[test]
fn a_state_is_sent_from_the_store_that_has_its_content() {
    let user = User::new();
    let remote = user.remote();
    let (home, site) = (user.data().join("store"), user.site());
    user.saved("before", &home, &[1; 5000]);
    user.saved("after", &site, &[2; 5000]);
    for name in ["before", "after"] {
        let told = user.hop(&format!("copy {name} {remote}/{name}"));
        assert!(told.contains("(1 of 1 chunks) to file://"), "{told}");
    }
    // It comes back to the store in which kernels keep content.
    fs::remove_dir_all(&home).unwrap();
    let told = user.hop(&format!("copy {remote}/before again"));
    assert!(told.contains("fetched"), "{told}");
    assert!(!home.exists());
    let told = user.hop(&format!("copy again {remote}/again"));
    assert!(told.contains("(0 of 1 chunks)"), "{told}");
}

#[test]
fn the_users_own_store_comes_first_and_a_relative_one_is_told_and_not_used() {
    let user = User::new();
    let (mine, site) = (user.tmp.path().join("mine"), user.site());
    user.saved("work", &site, &[2; 5000]);
    let collected = |store: &str, line: &str| {
        ENV.with_borrow_mut(|env| env.insert("GRESSHOPPER_STORE".into(), store.into()));
        user.hop(line)
    };
    assert_eq!(
        collected("mine", "gc"),
        "hop: GRESSHOPPER_STORE is mine, which is no absolute path: it isn't used\n\
         removed 0 chunks, 0 B; kept 1\n"
    );
    assert!(!Path::new("mine").exists());
    let none = "removed 0 chunks, 0 B; kept 0\n";
    assert_eq!(collected(mine.to_str().unwrap(), "gc"), none);
    let site = site.display();
    assert_eq!(
        collected("mine", &format!("gc --store {site}")),
        none.replace("kept 0", "kept 1")
    );
}

#[test]
fn nothing_is_written_into_a_store_that_others_can_read() {
    let user = User::new();
    let remote = user.remote();
    user.saved("work", &user.data().join("store"), &[1; 5000]);
    let told = user.hop(&format!("copy work {remote}/work"));
    assert!(told.contains("(1 of 1 chunks)"), "{told}");
    fs::create_dir(user.site()).unwrap();
    fs::set_permissions(user.site(), fs::Permissions::from_mode(0o755)).unwrap();
    for line in ["gc".to_owned(), format!("copy {remote}/work again")] {
        let told = user.hop(&line);
        assert!(told.contains("(mode 755): chmod 700"), "{told}");
    }
    assert_eq!(fs::read_dir(user.site()).unwrap().count(), 0);
    assert!(!user.data().join("states/again").exists());
}

#[test]
fn what_was_begun_goes_on_and_the_rest_is_dropped() {
    let limit = Duration::from_secs(7);
    let timed_out = |begun| failed(&AskError::TimedOut(limit), limit, begun).to_string();
    assert!(timed_out(false).ends_with("a cell runs"));
    assert_eq!(
        timed_out(true),
        "the kernel hasn't finished within 7 s, and goes on"
    );
}

#[test]
fn an_operation_of_another_release_asks_for_a_restart() {
    let error = AskError::Refused {
        kind: "unknown".to_owned(),
        message: "there is no operation state.load".to_owned(),
    };
    let said = failed(&error, Duration::ZERO, false).to_string();
    assert_eq!(
        said,
        "there is no operation state.load in this kernel, which is of another release: restart it"
    );
}
