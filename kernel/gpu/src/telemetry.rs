//! What NVML says, as samples that a lease can be charged with: per device (MIG instances by their own UUID) and per
//! process. A value that a device doesn't offer is absent; a machine without NVML is [`Absent`], and its reason can
//! be shown.
//!
//! While a [`Telemetry`] is open this process holds device files; whoever must prove a device empty from outside
//! asks from a process of its own.

use crate::Pid;
use crate::driver::GpuUuid;
use crate::ladder::{Known, Place};
use nvml_wrapper::enums::device::UsedGpuMemory as UsedMemory;
use nvml_wrapper::{Device, Nvml};
use serde::Serialize;
use std::path::Path;

/// There is no NVML to ask.
#[derive(Debug, thiserror::Error)]
#[error("NVML can't be used: {why}")]
pub struct Absent {
    why: String,
    #[source]
    source: nvml_wrapper::error::NvmlError,
}

/// One look at all devices.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    /// Microseconds since the Unix epoch.
    pub at_us: u64,
    /// The driver's version as NVML prints it, `580.159.03`.
    pub driver: Option<String>,
    pub devices: Vec<DeviceSample>,
}

/// One device, or one MIG instance.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceSample {
    /// `GPU-...`, or `MIG-...` of an instance.
    pub uuid: String,
    /// For a MIG instance its device's UUID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    pub index: Option<u32>,
    /// N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    pub name: String,
    pub mig: bool,
    pub memory_total: Option<u64>,
    pub memory_used: Option<u64>,
    /// Percent of the last sampling period in which a kernel ran.
    pub utilisation: Option<u32>,
    /// Percent of the last sampling period in which memory was read or written.
    pub memory_utilisation: Option<u32>,
    pub power_mw: Option<u32>,
    /// Since the driver was loaded.
    pub energy_mj: Option<u64>,
    pub processes: Vec<ProcessSample>,
}

/// One process on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessSample {
    pub pid: Pid,
    /// Bytes of device memory, the context included.
    pub memory: Option<u64>,
    /// Percent of the multiprocessors' time, as NVML last sampled it.
    pub utilisation: Option<u32>,
    pub gpu_instance: Option<u32>,
}

/// NVML, initialised.
#[derive(Debug)]
pub struct Telemetry {
    nvml: Nvml,
}

impl Telemetry {
    /// Loads NVML from `path`, or from the loader's places.
    ///
    /// # Errors
    /// No NVML, or no driver behind it.
    pub fn open(path: Option<&Path>) -> Result<Self, Absent> {
        let default = Path::new("libnvidia-ml.so.1");
        let nvml = Nvml::builder()
            .lib_path(path.unwrap_or(default).as_os_str())
            .init();
        nvml.map(|nvml| Self { nvml }).map_err(|source| Absent {
            why: source.to_string(),
            source,
        })
    }

    /// Looks at all devices now. Values that fail are absent.
    pub fn sample(&self) -> Sample {
        Sample {
            at_us: now_us(),
            driver: self.nvml.sys_driver_version().ok(),
            devices: self.devices().iter().flat_map(one_device).collect(),
        }
    }

    fn devices(&self) -> Vec<Device<'_>> {
        let count = self.nvml.device_count().unwrap_or(0);
        (0..count)
            .filter_map(|index| self.nvml.device_by_index(index).ok())
            .collect()
    }

    /// The driver's branch: 580 of `580.159.03`.
    pub fn branch(&self) -> Option<u32> {
        self.nvml
            .sys_driver_version()
            .ok()?
            .split('.')
            .next()?
            .parse()
            .ok()
    }

    /// Whether `pid` runs under MPS.
    pub fn mps(&self, pid: Pid) -> Known {
        let lists: Vec<_> = self
            .devices()
            .iter()
            .map(Device::mps_running_compute_processes)
            .collect();
        if lists
            .iter()
            .flatten()
            .flatten()
            .any(|process| same(process.pid, pid))
        {
            return Known::Yes;
        }
        match lists.iter().all(Result::is_ok) {
            true => Known::No,
            false => Known::Unknown,
        }
    }
}

impl Sample {
    /// The devices that list the process, whole devices only.
    pub fn devices_of(&self, pid: Pid) -> impl Iterator<Item = &DeviceSample> {
        self.devices
            .iter()
            .filter(move |d| d.parent.is_none() && d.process(pid).is_some())
    }

    /// Device memory of a process over all devices; none where NVML doesn't list it or doesn't say.
    pub fn memory_of(&self, pid: Pid) -> Option<u64> {
        self.devices_of(pid)
            .map(|d| d.process(pid).and_then(|p| p.memory))
            .sum()
    }
}

impl DeviceSample {
    pub fn process(&self, pid: Pid) -> Option<&ProcessSample> {
        self.processes.iter().find(|p| p.pid == pid)
    }

    pub fn free(&self) -> Option<u64> {
        Some(self.memory_total?.saturating_sub(self.memory_used?))
    }

    /// The device as a restore sees it.
    pub fn place(&self) -> Option<Place> {
        Some(Place {
            uuid: self.uuid.parse::<GpuUuid>().ok()?,
            name: self.name.clone(),
            total_bytes: self.memory_total?,
        })
    }
}

/// The device and its MIG instances.
fn one_device(device: &Device<'_>) -> Vec<DeviceSample> {
    let Ok(whole) = describe(device, None) else {
        return Vec::new();
    };
    let instances = match whole.mig {
        true => device.mig_device_count().unwrap_or(0),
        false => 0,
    };
    let uuid = whole.uuid.clone();
    let mut found = vec![whole];
    // Slots without an instance answer "not found".
    let present = (0..instances).filter_map(|index| device.mig_device_by_index(index).ok());
    found.extend(present.filter_map(|instance| describe(&instance, Some(&uuid)).ok()));
    found
}

fn describe(
    device: &Device<'_>,
    parent: Option<&str>,
) -> Result<DeviceSample, nvml_wrapper::error::NvmlError> {
    let memory = device.memory_info().ok();
    let rates = device.utilization_rates().ok();
    Ok(DeviceSample {
        uuid: device.uuid()?,
        parent: parent.map(str::to_owned),
        index: device.index().ok(),
        minor: device.minor_number().ok(),
        name: device.name().unwrap_or_default(),
        mig: parent.is_none() && device.mig_mode().is_ok_and(|mode| mode.current != 0),
        memory_total: memory.as_ref().map(|m| m.total),
        memory_used: memory.as_ref().map(|m| m.used),
        utilisation: rates.as_ref().map(|r| r.gpu),
        memory_utilisation: rates.as_ref().map(|r| r.memory),
        power_mw: device.power_usage().ok(),
        energy_mj: device.total_energy_consumption().ok(),
        processes: processes(device),
    })
}

fn processes(device: &Device<'_>) -> Vec<ProcessSample> {
    let mut found = device.running_compute_processes().unwrap_or_default();
    found.extend(device.running_graphics_processes().unwrap_or_default());
    let busy = device.process_utilization_stats(None).unwrap_or_default();
    let mut samples: Vec<ProcessSample> = Vec::new();
    for process in found {
        let Ok(pid) = Pid::try_from(process.pid) else {
            continue;
        };
        if samples.iter().any(|s| s.pid == pid) {
            continue;
        }
        samples.push(ProcessSample {
            pid,
            memory: match process.used_gpu_memory {
                UsedMemory::Used(bytes) => Some(bytes),
                UsedMemory::Unavailable => None,
            },
            utilisation: busy
                .iter()
                .filter(|b| b.pid == process.pid)
                .max_by_key(|b| b.timestamp)
                .map(|b| b.sm_util),
            gpu_instance: process.gpu_instance_id,
        });
    }
    samples
}

fn same(raw: u32, pid: Pid) -> bool {
    Pid::try_from(raw) == Ok(pid)
}

fn now_us() -> u64 {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
