//! `hop gpu`: use of this machine's GPUs, and processes off them and back on. Needs neither Slurm nor `hopd`.

use crate::asked::{self, Reached};
use crate::context::Context;
use crate::failure::Failure;
use crate::gpu_restart::Kernels;
use crate::values::SECONDS;
use clap::{Args as ClapArgs, Subcommand};
use hop_door::Door;
use hop_gpu::Pid;
use hop_gpu::bench;
use hop_gpu::driver::GpuUuid;
use hop_gpu::inside;
use hop_gpu::inspect::{Look, Site, Sources};
use hop_gpu::ladder::{Chosen, Inside, Place, Rung, choose};
use hop_gpu::libcuda::LibCuda;
use hop_gpu::machine::{Call, Outcome};
use hop_gpu::park::{self, NoRestart, ParkContext, Report};
use hop_gpu::procs::Procs;
use hop_gpu::reserve::{self, Want};
use hop_gpu::telemetry::{DeviceSample, Sample};
use hop_words::memory::MemoryPaths;
use serde_json::json;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "Examples:
  hop gpu status             the devices, and who is on them
  hop gpu status 4242        what process 4242 holds, and how it could leave
  hop gpu status mine.ipynb  the same of a kernel's process; on another node, what it says of itself
  hop gpu park 4242          take it off its GPU; its memory goes to host memory
  hop gpu unpark 4242        bring it back, onto the same device
  hop gpu bench --size 4     the cost of both here, measured on an own process

A Python process copies its tensors out itself, which is faster, when it has run
  import gresshopper.gpu; gresshopper.gpu.install()
or, in a notebook, %load_ext gresshopper.gpu.

Exit status: 0 done; 1 refused or failed (nothing is lost unless it says so); 2 wrong usage.";

/// GPU memory to host memory and back, and what is on the devices
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    machine: Machine,
}

#[derive(Debug, Clone, ClapArgs)]
struct Machine {
    /// JSON instead of text
    #[arg(long, global = true)]
    json: bool,
    /// The driver's library, instead of the loader's libcuda.so.1
    #[arg(long, global = true, value_name = "PATH", env = "GRESSHOPPER_LIBCUDA")]
    libcuda: Option<PathBuf>,
    /// NVML, instead of the loader's libnvidia-ml.so.1
    #[arg(long, global = true, value_name = "PATH", env = "GRESSHOPPER_LIBNVML")]
    libnvml: Option<PathBuf>,
    /// Where the privileged helper listens
    #[arg(long, global = true, value_name = "PATH", default_value = hop_gpu::helper::SOCKET)]
    helper: PathBuf,
    /// Host memory of the machine in GiB, if its own figure is wrong (memory that grows with use)
    #[arg(long, global = true, value_name = "GIB")]
    host_gib: Option<u64>,
    /// Longest time for one step, in seconds
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(SECONDS))]
    timeout: u64,
    /// Prefix of device files; the tests' fake devices lie elsewhere
    #[arg(
        long,
        global = true,
        hide = true,
        default_value = "/dev/nvidia",
        env = "GRESSHOPPER_DEV_PREFIX"
    )]
    dev_prefix: String,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show the devices and their processes; with a process: its device memory, and the ways to leave
    Status {
        #[arg(value_name = "PID|KERNEL")]
        process: Option<Process>,
    },
    /// Take a process off its GPU
    Park {
        #[arg(value_name = "PID|KERNEL")]
        process: Process,
        /// Only this rung: copy-out (then the driver for the rest), checkpoint (the driver for everything) or restart
        /// (save a notebook's state, start its interpreter again, restore with the next cell)
        #[arg(long, value_parser = rung)]
        rung: Option<Rung>,
        /// Stop the process in its running cell, by the driver alone: its next CUDA call waits for the unpark
        #[arg(long, conflicts_with = "rung")]
        mid_cell: bool,
    },
    /// Bring a parked process back
    Unpark {
        #[arg(value_name = "PID|KERNEL")]
        process: Process,
        /// Target devices, by UUID or device file, instead of the former ones (driver 580)
        #[arg(long, value_name = "DEVICE", value_delimiter = ',')]
        device: Vec<Named>,
    },
    /// Measure the driver's checkpoint beside the copy bandwidth; with PID: park and unpark that process once
    Bench {
        pid: Option<Pid>,
        /// GiB on the device, several with commas
        #[arg(long, value_name = "GIB", value_delimiter = ',', default_value = "1")]
        size: Vec<f64>,
    },
    /// Hold device memory for a restore, or a pattern for a measurement
    #[command(hide = true)]
    Hold {
        #[arg(long)]
        device: Option<GpuUuid>,
        #[arg(long)]
        bytes: u64,
        #[arg(long)]
        pattern: bool,
    },
    /// The copy bandwidth, in a process of its own
    #[command(hide = true)]
    Bandwidth {
        #[arg(long)]
        bytes: usize,
    },
}

/// A process as a user names it.
#[derive(Debug, Clone)]
enum Process {
    Pid(Pid),
    /// A kernel's: a notebook's name, or a kernel's id or its beginning.
    Kernel(String),
}

impl std::str::FromStr for Process {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(text
            .parse()
            .map_or_else(|_| Self::Kernel(text.to_owned()), Self::Pid))
    }
}

/// The place of a named process.
enum Found {
    Here(Pid),
    /// On another node: the door of the kernel's process.
    There(Door),
}

impl Process {
    fn find(&self, context: &Context<'_>) -> Result<Found, Failure> {
        let word = match self {
            Self::Pid(pid) => return Ok(Found::Here(*pid)),
            Self::Kernel(word) => word,
        };
        let kernel = asked::find(Some(word), &asked::runtime(context)?, context)?;
        let Reached { door, here } = asked::reach(&kernel, None)?;
        Ok(match here {
            true => Found::Here(door.hello.pid),
            false => Found::There(door),
        })
    }

    /// The pid of a process on this machine: the driver and its device files are needed.
    fn here(&self, context: &Context<'_>) -> Result<Pid, Failure> {
        match self.find(context)? {
            Found::Here(pid) => Ok(pid),
            Found::There(door) => Err(Failure::Failed(format!(
                "the kernel's process {} runs on another node, and the driver is asked there: run this command on that node \
                 (`hop kernels` names it)",
                door.hello.pid
            ))),
        }
    }
}

/// A device as a user or a lease names it.
#[derive(Debug, Clone)]
enum Named {
    Uuid(GpuUuid),
    /// `/dev/nvidia3`: NVML's minor number 3.
    File {
        path: String,
        minor: u32,
    },
}

impl std::str::FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !text.starts_with('/') {
            return text
                .parse()
                .map(Self::Uuid)
                .map_err(|error: hop_gpu::driver::NoUuid| error.to_string());
        }
        let number = text
            .rsplit(|c: char| !c.is_ascii_digit())
            .next()
            .unwrap_or_default();
        let minor = number
            .parse()
            .map_err(|_| format!("{text} is no device file such as /dev/nvidia0"))?;
        Ok(Self::File {
            path: text.to_owned(),
            minor,
        })
    }
}

impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Uuid(uuid) => uuid.fmt(f),
            Self::File { path, .. } => f.write_str(path),
        }
    }
}

fn rung(text: &str) -> Result<Rung, String> {
    match text {
        "copy-out" | "b" => Ok(Rung::CopyOut),
        "checkpoint" | "c" => Ok(Rung::Checkpoint),
        "restart" | "d" => Ok(Rung::Restart),
        other => Err(format!(
            "{other:?} is no rung that can be asked for: copy-out, checkpoint or restart"
        )),
    }
}

impl Machine {
    fn sources(&self) -> Sources {
        Sources {
            procs: Procs {
                dev_prefix: self.dev_prefix.clone(),
                ..Procs::default()
            },
            memory: MemoryPaths {
                machine: self.host_gib.map(|gib| gib.saturating_mul(1 << 30)),
                ..MemoryPaths::here()
            },
            libcuda: self.libcuda.clone(),
            libnvml: self.libnvml.clone(),
            helper: self.helper.clone(),
            deadline: Duration::from_secs(self.timeout),
            ..Sources::default()
        }
    }

    fn cuda(&self) -> Result<LibCuda, Failure> {
        LibCuda::load(self.libcuda.as_deref()).map_err(|error| Failure::of(&error))
    }

    /// Runs this program again, for a process with device memory.
    fn again(&self, verb: &str) -> Command {
        // The kernel keeps a running program open, even if its file was replaced.
        let mut command = Command::new("/proc/self/exe");
        command.args(["gpu", verb]);
        if let Some(path) = &self.libcuda {
            command.arg("--libcuda").arg(path);
        }
        command
    }

    fn reserver(&self) -> impl Fn(Want) -> Command + '_ {
        |want| {
            let mut command = self.again("hold");
            command.args([
                "--device",
                &want.device.to_string(),
                "--bytes",
                &want.bytes.to_string(),
            ]);
            command
        }
    }
}

pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    let machine = &args.machine;
    match &args.verb {
        Verb::Status { process: None } => status(&Site::open(machine.sources()), machine.json, context),
        Verb::Status {
            process: Some(process),
        } => match process.find(context)? {
            Found::Here(pid) => status_of(&Site::open(machine.sources()), pid, machine.json, context),
            Found::There(door) => status_there(door, machine, context),
        },
        Verb::Park {
            process,
            rung,
            mid_cell,
        } => {
            let pid = process.here(context)?;
            let site = Site::open(machine.sources());
            let report = match mid_cell {
                true => park_mid_cell(&site, machine, pid)?,
                false => park(&site, machine, pid, *rung)?,
            };
            finish(&report, &Outcome::Parked, machine.json, context)
        }
        Verb::Unpark { process, device } => {
            let pid = process.here(context)?;
            let site = Site::open(machine.sources());
            let report = unpark(&site, machine, pid, device)?;
            finish(&report, &Outcome::Unparked, machine.json, context)
        }
        Verb::Bench { pid: Some(pid), .. } => bench_process(machine, *pid, context),
        Verb::Bench { pid: None, size } => bench_sizes(machine, size, context),
        Verb::Hold {
            device,
            bytes,
            pattern,
        } => hold(machine, *device, *bytes, *pattern),
        Verb::Bandwidth { bytes } => {
            let measured = bench::bandwidth(&machine.cuda()?, None, *bytes).map_err(|e| Failure::of(&e))?;
            write_json(&json!(measured), context)
        }
    }
}

fn write_json(value: &serde_json::Value, context: &mut Context<'_>) -> Result<(), Failure> {
    writeln!(context.out, "{value}")?;
    Ok(())
}

fn gib(bytes: u64) -> String {
    match bytes {
        0..0x2800_0000 => format!("{} MiB", bytes.div_ceil(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

fn or_unknown<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "?".to_owned(), |value| value.to_string())
}

fn status(site: &Site, as_json: bool, context: &mut Context<'_>) -> Result<(), Failure> {
    let driver = site.driver.as_ref().map(|driver| driver.api());
    match &site.telemetry {
        Ok(_) => {
            let sample = site
                .sample()
                .ok_or_else(|| Failure::Failed("NVML doesn't answer".to_owned()))?;
            if as_json {
                return write_json(
                    &json!({"cuda": site.cuda, "nvml": sample, "checkpoint": driver.ok()}),
                    context,
                );
            }
            write_devices(&sample, context)?;
        }
        Err(absent) if as_json => {
            let why = absent.to_string();
            return write_json(
                &json!({"cuda": site.cuda, "nvml": null, "why": why, "checkpoint": driver.ok()}),
                context,
            );
        }
        Err(absent) => writeln!(context.err, "hop: {absent}; going on without it")?,
    }
    match driver {
        Ok(Some(_)) => writeln!(context.out, "driver checkpoint: CUDA {}", version(site.cuda))?,
        Ok(None) => writeln!(
            context.out,
            "driver checkpoint: none (CUDA {}, 12.8 is needed)",
            version(site.cuda)
        )?,
        Err(why) => writeln!(context.out, "driver checkpoint: none ({why})")?,
    }
    Ok(())
}

fn version(cuda: i32) -> String {
    format!("{}.{}", cuda / 1000, cuda % 1000 / 10)
}

fn write_devices(sample: &Sample, context: &mut Context<'_>) -> Result<(), Failure> {
    writeln!(
        context.out,
        "{:<3} {:<24} {:<45} {:>10} {:>10} {:>5} {:>7}",
        "GPU", "NAME", "UUID", "USED", "TOTAL", "UTIL", "POWER"
    )?;
    for device in &sample.devices {
        let power = device.power_mw.map(|mw| format!("{} W", mw / 1000));
        let index = if device.parent.is_some() {
            "MIG".to_owned()
        } else {
            or_unknown(device.index)
        };
        writeln!(
            context.out,
            "{index:<3} {:<24} {:<45} {:>10} {:>10} {:>5} {:>7}",
            device.name,
            device.uuid,
            or_unknown(device.memory_used.map(gib)),
            or_unknown(device.memory_total.map(gib)),
            or_unknown(device.utilisation.map(|u| format!("{u}%"))),
            or_unknown(power),
        )?;
        write_processes(device, context)?;
    }
    Ok(())
}

fn write_processes(device: &DeviceSample, context: &mut Context<'_>) -> Result<(), Failure> {
    let procs = Procs::default();
    for process in &device.processes {
        let memory = or_unknown(process.memory.map(gib));
        writeln!(
            context.out,
            "    process {} ({}): {memory}",
            process.pid,
            procs.comm(process.pid)
        )?;
    }
    Ok(())
}

fn status_of(site: &Site, pid: Pid, as_json: bool, context: &mut Context<'_>) -> Result<(), Failure> {
    let look = site.look(pid).map_err(|error| Failure::of(&error))?;
    let parked = site.records(look.uid).get(pid, look.start_time);
    let choice = choose(&look.found);
    if as_json {
        let (rung, passed_over) = match &choice {
            Ok(Chosen { rung, passed_over }) => (Some(rung), passed_over),
            Err(refusal) => (None, &refusal.passed_over),
        };
        return write_json(
            &json!({
                "pid": pid, "state": look.state, "parked": parked, "rung": rung, "passed_over": passed_over,
                "found": look.found,
            }),
            context,
        );
    }
    write_look(&look, context)?;
    if parked.is_some() {
        writeln!(context.out, "parked; bring it back with: hop gpu unpark {pid}")?;
        return Ok(());
    }
    match choice {
        Ok(chosen) => {
            writeln!(context.out, "way off: ({}) {}", chosen.rung.letter(), chosen.rung)?;
            write_passed_over(&chosen.passed_over, context)
        }
        Err(refusal) => {
            writeln!(context.out, "no way off:")?;
            write_passed_over(&refusal.passed_over, context)
        }
    }
}

/// Use of the GPU by a kernel's process on another node, as the process itself says it.
fn status_there(mut door: Door, machine: &Machine, context: &mut Context<'_>) -> Result<(), Failure> {
    let pid = door.hello.pid;
    let deadline = Duration::from_secs(machine.timeout);
    let inside = inside::report(&mut door, deadline).map_err(|error| Failure::of(&error))?;
    if machine.json {
        return write_json(&json!({"pid": pid, "elsewhere": true, "inside": inside}), context);
    }
    writeln!(context.out, "process {pid}, on another node")?;
    match inside {
        Some(inside) => write_inside(&inside, context),
        None => Ok(writeln!(
            context.out,
            "frameworks: none that uses a GPU was imported"
        )?),
    }
}

fn write_inside(inside: &Inside, context: &mut Context<'_>) -> Result<(), Failure> {
    let (held, pool) = (gib(inside.frameworks_bytes), gib(inside.pool_bytes));
    Ok(writeln!(
        context.out,
        "frameworks: {held} on the device, {pool} of page-locked host memory at hand"
    )?)
}

fn write_look(look: &Look, context: &mut Context<'_>) -> Result<(), Failure> {
    let found = &look.found;
    writeln!(
        context.out,
        "on a device: {}",
        if found.touched { "yes" } else { "no" }
    )?;
    writeln!(
        context.out,
        "device memory: {}",
        or_unknown(found.device_bytes.map(gib))
    )?;
    if let Some(inside) = &found.inside {
        write_inside(inside, context)?;
    }
    if let Some(left) = &found.host_left {
        writeln!(
            context.out,
            "host memory left: {} ({})",
            gib(left.bytes),
            left.limit
        )?;
    }
    if let Some(state) = look.state {
        writeln!(context.out, "driver's state: {state}")?;
    }
    Ok(())
}

fn write_passed_over(passed: &hop_gpu::ladder::PassedOver, context: &mut Context<'_>) -> Result<(), Failure> {
    for (rung, reasons) in passed {
        let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
        writeln!(
            context.out,
            "  not ({}) {rung}: {}",
            rung.letter(),
            reasons.join("; ")
        )?;
    }
    Ok(())
}

/// Says on a terminal which call is under way.
fn progress(call: Call) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let doing = match call {
        Call::CopyOut => "copying out what the frameworks hold",
        Call::Lock => "waiting for the device to come to rest",
        Call::Checkpoint => "the driver takes the rest off",
        Call::Prove => "looking for what is left",
        Call::Reserve => "making sure of device memory",
        Call::Restore => "the driver brings the context back",
        Call::Unlock => "letting the process go on",
        Call::CopyIn => "copying in what the frameworks hold",
        Call::State => "asking the driver how the process stands",
    };
    let _ = writeln!(std::io::stderr(), "{doing} ...");
}

/// Starts no kernel anew, and leaves the choice of the rung open.
fn park_context(reserver: &dyn Fn(Want) -> Command) -> ParkContext<'_> {
    ParkContext {
        reserver,
        progress: &progress,
        restart: &NoRestart,
        only: None,
        mid_cell: false,
    }
}

fn park(site: &Site, machine: &Machine, pid: Pid, only: Option<Rung>) -> Result<Report, Failure> {
    let reserver = machine.reserver();
    let context = ParkContext {
        restart: &Kernels { site },
        only,
        ..park_context(&reserver)
    };
    park::park(site, pid, &context).map_err(|error| Failure::of(&error))
}

fn park_mid_cell(site: &Site, machine: &Machine, pid: Pid) -> Result<Report, Failure> {
    let reserver = machine.reserver();
    let context = ParkContext {
        mid_cell: true,
        ..park_context(&reserver)
    };
    park::park(site, pid, &context).map_err(|error| Failure::of(&error))
}

fn unpark(site: &Site, machine: &Machine, pid: Pid, devices: &[Named]) -> Result<Report, Failure> {
    let reserver = machine.reserver();
    let given = places(site, devices)?;
    park::unpark(site, pid, &given, &park_context(&reserver)).map_err(|error| Failure::of(&error))
}

/// The named devices. Without NVML devices can't be told apart: then the process's former devices.
fn places(site: &Site, devices: &[Named]) -> Result<Vec<Place>, Failure> {
    let Some(sample) = site.sample() else {
        return Ok(Vec::new());
    };
    let is = |named: &Named, device: &DeviceSample| match named {
        Named::Uuid(uuid) => device.place().is_some_and(|place| place.uuid == *uuid),
        Named::File { minor, .. } => device.parent.is_none() && device.minor == Some(*minor),
    };
    let find = |named: &Named| {
        let found = sample.devices.iter().find(|device| is(named, device));
        found
            .and_then(DeviceSample::place)
            .ok_or_else(|| Failure::Usage(format!("there is no device {named}: `hop gpu status` lists them")))
    };
    devices.iter().map(find).collect()
}

/// Writes the report; a missed goal is a failure.
fn finish(
    report: &Report,
    wanted: &Outcome,
    as_json: bool,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    if as_json {
        write_json(&json!(report), context)?;
    }
    if report.outcome == *wanted {
        if !as_json {
            write_done(report, context)?;
        }
        return Ok(());
    }
    let pid = report.pid;
    Err(Failure::Failed(match &report.outcome {
        Outcome::NotParked { why } => format!("process {pid} is still on its GPU and runs: {why}"),
        Outcome::StillParked { why } => {
            format!("process {pid} is off its GPU, its memory safe in host memory; try again later: {why}")
        }
        Outcome::HalfBack { why } => format!(
            "process {pid} is back on its GPU, but what its frameworks held is still in host memory, safe; run `hop \
             gpu unpark {pid}` again: {why}"
        ),
        Outcome::Broken {
            why,
            frameworks_in_host: true,
        } => format!(
            "the driver can't go on with process {pid}; what its frameworks held is safe in its host memory, save it \
             from there: {why}"
        ),
        Outcome::Broken { why, .. } => {
            format!("the driver can't go on with process {pid}, and its device memory is lost: {why}")
        }
        Outcome::Parked | Outcome::Unparked => "the process is elsewhere than was asked for".to_owned(),
    }))
}

fn write_done(report: &Report, context: &mut Context<'_>) -> Result<(), Failure> {
    if report.rung == Some(Rung::Nothing) {
        writeln!(
            context.out,
            "process {} holds no GPU: there is nothing to park",
            report.pid
        )?;
        return Ok(());
    }
    let seconds: f64 = report.log.calls.iter().map(|(_, s)| s).sum();
    let what = report
        .rung
        .map_or_else(String::new, |rung| format!(" by ({}) {rung}", rung.letter()));
    let verb = if report.outcome == Outcome::Parked {
        "parked"
    } else {
        "back"
    };
    writeln!(
        context.out,
        "process {} is {verb}{what} in {seconds:.3} s",
        report.pid
    )?;
    if let Some(left) = &report.left {
        writeln!(context.out, "{left}")?;
    }
    Ok(())
}

fn hold(machine: &Machine, device: Option<GpuUuid>, bytes: u64, pattern: bool) -> Result<(), Failure> {
    let cuda = machine.cuda()?;
    let held = match (pattern, device) {
        (true, device) => bench::hold_pattern(&cuda, device, usize::try_from(bytes).unwrap_or(usize::MAX)),
        (false, Some(device)) => reserve::hold(&cuda, Want { device, bytes }),
        (false, None) => return Err(Failure::Usage("--device is needed".to_owned())),
    };
    held.map_err(|error| Failure::of(&error))
}

/// One park and unpark of somebody's process.
fn bench_process(machine: &Machine, pid: Pid, context: &mut Context<'_>) -> Result<(), Failure> {
    let site = Site::open(machine.sources());
    let out = park(&site, machine, pid, None)?;
    if out.rung == Some(Rung::Nothing) {
        let text = format!("process {pid} holds no GPU: there is nothing to measure");
        return Err(Failure::Failed(text));
    }
    finish(&out, &Outcome::Parked, machine.json, context)?;
    let back = unpark(&site, machine, pid, &[])?;
    finish(&back, &Outcome::Unparked, machine.json, context)
}

/// Measures rung (c) with a process of our own and this much device memory, beside the copy bandwidth.
fn bench_sizes(machine: &Machine, sizes: &[f64], context: &mut Context<'_>) -> Result<(), Failure> {
    for size in sizes {
        if !(size.is_finite() && *size > 0.0) {
            return Err(Failure::Usage(format!("--size {size}: GiB, more than none")));
        }
        // Positive and far below 2^53 after the check.
        let bytes = (size * f64::from(1 << 30)) as u64;
        let measured = bench_size(machine, bytes)?;
        if machine.json {
            write_json(&measured, context)?;
        } else {
            writeln!(
                context.out,
                "{}: out {:.3} s, in {:.3} s by the driver; copying alone takes {:.3} s and {:.3} s",
                gib(bytes),
                measured["out_s"].as_f64().unwrap_or(f64::NAN),
                measured["in_s"].as_f64().unwrap_or(f64::NAN),
                measured["copy_out_s"].as_f64().unwrap_or(f64::NAN),
                measured["copy_in_s"].as_f64().unwrap_or(f64::NAN),
            )?;
        }
    }
    Ok(())
}

fn bench_size(machine: &Machine, bytes: u64) -> Result<serde_json::Value, Failure> {
    let bandwidth = bandwidth(machine, bytes.min(4 << 30))?;
    let mut subject = Subject::start(machine, bytes)?;
    let site = Site::open(machine.sources());
    let start = Instant::now();
    let out = park(&site, machine, subject.pid(), Some(Rung::Checkpoint))?;
    let out_s = start.elapsed().as_secs_f64();
    if out.outcome != Outcome::Parked {
        return Err(Failure::Failed(format!("the park ended as {:?}", out.outcome)));
    }
    let start = Instant::now();
    let back = unpark(&site, machine, subject.pid(), &[])?;
    let in_s = start.elapsed().as_secs_f64();
    if back.outcome != Outcome::Unparked {
        return Err(Failure::Failed(format!("the unpark ended as {:?}", back.outcome)));
    }
    let whole = subject.is_whole()?;
    let rate = |key: &str| bandwidth[key].as_f64().unwrap_or(f64::NAN);
    let value = json!({
        "bytes": bytes, "rung": "c", "out_s": out_s, "in_s": in_s,
        "copy_out_s": bytes as f64 / rate("out_bytes_per_s"), "copy_in_s": bytes as f64 / rate("in_bytes_per_s"),
        "pin_s_per_gib": rate("pin_s") / (rate("bytes") / f64::from(1 << 30)), "whole": whole,
        "out_calls": out.log.calls, "in_calls": back.log.calls,
    });
    match whole {
        true => Ok(value),
        false => Err(Failure::Failed(format!(
            "the device memory differs after park and unpark: {value}"
        ))),
    }
}

fn bandwidth(machine: &Machine, bytes: u64) -> Result<serde_json::Value, Failure> {
    let output = machine
        .again("bandwidth")
        .args(["--bytes", &bytes.to_string()])
        .output();
    let output = output.map_err(|error| Failure::of(&error))?;
    match output.status.success() {
        true => serde_json::from_slice(&output.stdout).map_err(|error| Failure::of(&error)),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(Failure::Failed(
                said.trim().trim_start_matches("hop: ").to_owned(),
            ))
        }
    }
}

/// A process of our own with a pattern on the device.
struct Subject {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Subject {
    fn start(machine: &Machine, bytes: u64) -> Result<Self, Failure> {
        let mut command = machine.again("hold");
        command
            .args(["--pattern", "--bytes", &bytes.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| Failure::of(&error))?;
        let stdin = child.stdin.take().expect("stdin is piped");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut subject = Self { child, stdin, stdout };
        match subject.line()?.as_str() {
            "ready" => Ok(subject),
            _ => Err(Failure::Failed(
                "the measured process can't get its device memory".to_owned(),
            )),
        }
    }

    fn pid(&self) -> Pid {
        Pid::try_from(self.child.id()).expect("a pid is positive")
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.stdout
            .read_line(&mut line)
            .map_err(|error| Failure::of(&error))?;
        Ok(line.trim_end().to_owned())
    }

    fn is_whole(&mut self) -> Result<bool, Failure> {
        writeln!(self.stdin).map_err(|error| Failure::of(&error))?;
        Ok(self.line()? == "same")
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
