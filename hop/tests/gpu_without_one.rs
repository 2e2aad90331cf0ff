//! `hop gpu` on a machine without a GPU: what is said, where, and with which status.
#![allow(clippy::unwrap_used, reason = "a test's helpers are tests, too")]

use std::process::{Child, Command, Output};

/// Wherever this runs, there is no driver and no device.
fn hop(args: &[&str]) -> (i32, String, String) {
    let none = [
        "--libcuda",
        "/nonexistent/libcuda.so.1",
        "--libnvml",
        "/nonexistent/libnvidia-ml.so.1",
    ];
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(env!("CARGO_BIN_EXE_hop"))
        .arg("gpu")
        .args(none)
        .args(args)
        .env("GRESSHOPPER_DEV_PREFIX", "/nonexistent/nvidia")
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

struct Sleeper(Child);

impl Sleeper {
    fn new() -> Self {
        Self(Command::new("sleep").arg("60").spawn().unwrap())
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn status_says_what_is_missing_and_goes_on() {
    let (code, out, err) = hop(&["status"]);
    assert_eq!(code, 0);
    assert!(
        err.contains("NVML can't be used") && err.contains("going on without it"),
        "{err}"
    );
    assert!(
        out.starts_with("driver checkpoint: none (") && out.contains("no NVIDIA driver here"),
        "{out}"
    );
    let (code, out, err) = hop(&["status", "--json"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let said: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(said["nvml"].is_null() && said["why"].is_string(), "{said}");
}

#[test]
fn a_process_without_a_gpu_has_nothing_to_park_or_to_measure() {
    let sleeper = Sleeper::new();
    let pid = sleeper.pid();
    let (code, out, _) = hop(&["status", &pid]);
    assert_eq!(code, 0);
    assert!(
        out.contains("on a device: no") && out.contains("way off: (a) nothing to do"),
        "{out}"
    );
    let (code, out, err) = hop(&["park", &pid]);
    let nothing = format!("process {pid} holds no GPU: there is nothing to park\n");
    assert_eq!((code, out, err.as_str()), (0, nothing, ""));
    let (code, out, err) = hop(&["unpark", &pid]);
    assert_eq!(
        (code, out.as_str(), err),
        (1, "", format!("hop: process {pid} isn't parked\n"))
    );
    let (code, out, err) = hop(&["bench", &pid]);
    let nothing = format!("hop: process {pid} holds no GPU: there is nothing to measure\n");
    assert_eq!((code, out.as_str(), err), (1, "", nothing));
}

#[test]
fn without_a_driver_there_is_nothing_to_measure() {
    let (code, out, err) = hop(&["bench"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(
        err.starts_with("hop: /nonexistent/libcuda.so.1 can't be loaded"),
        "{err}"
    );
}

#[test]
fn mistakes_are_answered_with_what_to_do() {
    let (code, _, err) = hop(&["park", "2147483647"]);
    assert_eq!((code, err.as_str()), (1, "hop: there is no process 2147483647\n"));
    for (args, says) in [
        (&["unpark", "1", "--device", "GPU-x"][..], "no GPU UUID"),
        (
            &["unpark", "1", "--device", "/dev/nvidia"],
            "no device file such as /dev/nvidia0",
        ),
        (&["park", "1", "--rung", "e"], "copy-out, checkpoint or restart"),
        (&["bench", "--size", "0"], "--size 0"),
        (&["park"], "<PID|KERNEL>"),
    ] {
        let (code, out, err) = hop(args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}");
        assert!(err.contains(says), "{args:?}: {err}");
    }
}
