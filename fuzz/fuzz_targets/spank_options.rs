//! plugstack.conf's arguments, slurm.conf's AuthInfo, and the variables that Slurm sets for a step.
#![no_main]
use hop_handover::cpuset::CpuSet;
use hop_handover::options::{Options, munge_socket_of, step_gpus};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = Options::parse(text.split_ascii_whitespace());
    let _ = munge_socket_of(text);
    let _ = step_gpus(text);
    if let Ok(set) = text.parse::<CpuSet>() {
        assert_eq!(set.to_string().parse::<CpuSet>().ok(), Some(set));
    }
});
