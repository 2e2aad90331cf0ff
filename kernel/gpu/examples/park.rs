//! Parks and unparks a process against the fakes, for the tests: `park there-and-back|mid-cell MS PID`, and `park home MS PID`
//! for what that left on its way. No call gets longer than MS milliseconds. `FAKE_LIBCUDA` and `FAKE_LIBNVML` name the
//! libraries, `FAKE_GPU_DIR` the fake device; the example `hold` beside it makes reservations.

use hop_gpu::Pid;
use hop_gpu::driver::ProcessState;
use hop_gpu::inspect::{Site, Sources};
use hop_gpu::machine::Outcome;
use hop_gpu::park::{self, NoRestart, ParkContext, Report};
use hop_gpu::procs::Procs;
use hop_gpu::reserve::Want;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [verb, ms, pid] = &args[..] else {
        return Err("usage: park there-and-back|mid-cell|home MS PID".into());
    };
    let (site, pid): (Site, Pid) = (site(Duration::from_millis(ms.parse()?))?, pid.parse()?);
    let hold = std::env::current_exe()?.with_file_name("hold");
    let reserver = |want: Want| {
        let mut command = Command::new(&hold);
        command.args(["reserve", &want.device.to_string(), &want.bytes.to_string()]);
        command
    };
    let context = ParkContext {
        reserver: &reserver,
        progress: &|_| {},
        restart: &NoRestart,
        only: None,
        mid_cell: verb == "mid-cell",
    };
    let unpark = || park::unpark(&site, pid, &[], &context);
    match verb.as_str() {
        "there-and-back" | "mid-cell" => match park::park(&site, pid, &context) {
            Ok(report) => {
                println!("{report:?}");
                proven(&report)?;
                println!("{:?}", unpark());
            }
            Err(refusal) => println!("{refusal}"),
        },
        "home" => {
            if site.look(pid)?.state != Some(ProcessState::Running) {
                let report = unpark()?;
                if report.outcome != Outcome::Unparked {
                    return Err(format!("it didn't come home: {report:?}").into());
                }
            }
        }
        other => return Err(format!("{other} is no verb").into()),
    }
    Ok(())
}

/// What is called parked is proven to be.
fn proven(report: &Report) -> Result<(), String> {
    let proof = report.left.as_ref().is_some_and(|left| left.is_empty());
    if report.outcome == Outcome::Parked && !proof {
        return Err(format!("parked without a proof: {report:?}"));
    }
    Ok(())
}

fn site(deadline: Duration) -> Result<Site, Box<dyn std::error::Error>> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let world = variable("FAKE_GPU_DIR").ok_or("FAKE_GPU_DIR is not set")?;
    Ok(Site::open(Sources {
        procs: Procs {
            dev_prefix: world.join("dev/nvidia").display().to_string(),
            ..Procs::default()
        },
        libcuda: variable("FAKE_LIBCUDA"),
        libnvml: variable("FAKE_LIBNVML"),
        helper: world.join("no-helper.sock"),
        dir: Some(world.join("run")),
        deadline,
        ..Sources::default()
    }))
}
