//! `hop-gpu-helper`: carries out a checkpoint step on a process, for the process's owner. Runs as root on machines
//! whose driver refuses the owner; see docs/gpu-park.md.

use hop_gpu::helper::{self, Helper};
use hop_gpu::libcuda::LibCuda;
use hop_gpu::procs::Procs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

const USAGE: &str = "usage: hop-gpu-helper [--socket PATH] [--libcuda PATH]

Serves checkpoint steps on users' own processes, at /run/gresshopper/gpu-helper.sock.
A caller is known by SO_PEERCRED and may ask only for processes that are its own.";

struct Options {
    socket: PathBuf,
    libcuda: Option<PathBuf>,
}

fn options() -> Option<Options> {
    let mut options = Options {
        socket: helper::SOCKET.into(),
        libcuda: None,
    };
    let mut args = std::env::args_os().skip(1);
    while let Some(arg) = args.next() {
        match arg.to_str()? {
            "--socket" => options.socket = args.next()?.into(),
            "--libcuda" => options.libcuda = Some(args.next()?.into()),
            _ => return None,
        }
    }
    Some(options)
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let served = LibCuda::load(options.libcuda.as_deref())
        .map_err(|error| error.to_string())
        .and_then(|cuda| {
            Ok((
                cuda,
                helper::bind(&options.socket).map_err(|error| error.to_string())?,
            ))
        })
        .and_then(|(cuda, listener)| {
            Helper::new(Arc::new(cuda), Procs::default())
                .serve(&listener)
                .map_err(|error| error.to_string())
        });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("hop-gpu-helper: {why}");
            ExitCode::FAILURE
        }
    }
}
