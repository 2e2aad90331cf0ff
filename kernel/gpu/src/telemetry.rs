//! NVML's data as samples, by which a lease is charged: per device (MIG instances by their own UUID) and per process.
//! A value that a device doesn't offer is absent. A machine without NVML is [`Absent`], and its reason can be shown.
//!
//! While a [`Telemetry`] is open this process holds device files. Callers in need of a proof of emptiness from outside
//! use a separate process.

use crate::Pid;
use crate::driver::GpuUuid;
use crate::ladder::{Known, Place};
use hop_words::deadline::within;
use nvml_wrapper::enums::device::UsedGpuMemory as UsedMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// How long NVML may take to shut down.
const SHUTDOWN: Duration = Duration::from_secs(1);

/// NVML can't be used, for the reason named.
#[derive(Debug, thiserror::Error)]
#[error("NVML can't be used: {why}")]
pub struct Absent {
    why: String,
}

impl Absent {
    /// NVML was asked and doesn't answer.
    pub(crate) fn silent(after: Duration) -> Self {
        Self {
            why: format!("it has not answered for {after:?}"),
        }
    }
}

/// One look at all devices.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    /// Microseconds since the Unix epoch.
    pub at_us: u64,
    /// The driver's version as NVML prints it, `580.159.03`.
    pub driver: Option<String>,
    pub devices: Vec<DeviceSample>,
    /// Answers missing from NVML that a proof of emptiness needs: an empty list of processes then proves nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
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
    /// None once it is being dropped.
    nvml: Option<Nvml>,
}

/// NVML's shutdown waits for calls inside NVML, which may never return.
impl Drop for Telemetry {
    fn drop(&mut self) {
        let nvml = self.nvml.take();
        // Otherwise the process's end closes it.
        let _ = within(SHUTDOWN, move || drop(nvml));
    }
}

impl Telemetry {
    /// Loads NVML from `path`, or from the loader's places.
    ///
    /// # Errors
    /// No NVML, or no driver behind it.
    pub fn open(path: Option<&Path>) -> Result<Self, Absent> {
        let default = Path::new("libnvidia-ml.so.1");
        let library = path.unwrap_or(default);
        let nvml = Nvml::builder().lib_path(library.as_os_str()).init();
        nvml.map(|nvml| Self { nvml: Some(nvml) })
            .map_err(|error| Absent {
                why: why_absent(&error, library),
            })
    }

    fn nvml(&self) -> &Nvml {
        self.nvml.as_ref().expect("it is taken by drop alone")
    }

    /// Looks at all devices now. Values that fail are absent.
    pub fn sample(&self) -> Sample {
        let mut unknown = Vec::new();
        let count = known("the number of devices", self.nvml().device_count(), &mut unknown).unwrap_or(0);
        let mut devices = Vec::new();
        for index in 0..count {
            let device = self.nvml().device_by_index(index);
            if let Some(device) = known(&format!("device {index}"), device, &mut unknown) {
                devices.extend(one_device(&device, index, &mut unknown));
            }
        }
        Sample {
            at_us: now_us(),
            driver: self.nvml().sys_driver_version().ok(),
            devices,
            unknown,
        }
    }

    fn devices(&self) -> Vec<Device<'_>> {
        let count = self.nvml().device_count().unwrap_or(0);
        (0..count)
            .filter_map(|index| self.nvml().device_by_index(index).ok())
            .collect()
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

/// A lease's use between samples, the basis of the charge.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Charge {
    /// Time that each device was held, summed over the devices, in seconds.
    pub held_s: f64,
    /// Part of the time in which a kernel ran, as far as the devices tell.
    pub busy_s: f64,
    pub energy_mj: u64,
    /// The most memory that the lease's processes held at once, over all devices.
    pub peak_bytes: u64,
}

impl Charge {
    /// Adds the use between two samples of these devices (whole devices or MIG instances, by UUID), held by a single
    /// lease all the time. A MIG instance has no energy of its own, and is charged none.
    pub fn add(&mut self, before: &Sample, after: &Sample, devices: &[String], processes: &[Pid]) {
        let seconds = after.at_us.saturating_sub(before.at_us) as f64 / 1e6;
        let mut bytes = 0;
        for now in after.devices.iter().filter(|d| devices.contains(&d.uuid)) {
            self.held_s += seconds;
            self.busy_s += seconds * f64::from(now.utilisation.unwrap_or(0)) / 100.0;
            let then = before.devices.iter().find(|d| d.uuid == now.uuid);
            if let (Some(then), Some(now)) = (then.and_then(|d| d.energy_mj), now.energy_mj) {
                // The counter begins anew when the driver is loaded.
                self.energy_mj += now.checked_sub(then).unwrap_or(now);
            }
            let held = now.processes.iter().filter(|p| processes.contains(&p.pid));
            bytes += held.filter_map(|p| p.memory).sum::<u64>();
        }
        self.peak_bytes = self.peak_bytes.max(bytes);
    }
}

impl Sample {
    /// The driver's branch: 580 of `580.159.03`.
    pub fn branch(&self) -> Option<u32> {
        self.driver.as_ref()?.split('.').next()?.parse().ok()
    }

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

/// Why NVML can't be used, in words for people who didn't write it.
fn why_absent(error: &NvmlError, library: &Path) -> String {
    let library = library.display();
    match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => format!(
            "{library} can't be loaded: this host has no NVIDIA driver, or its libraries are not where programs look"
        ),
        NvmlError::FailedToLoadSymbol(_) => format!("{library} is not NVIDIA's management library"),
        NvmlError::DriverNotLoaded => {
            "the NVIDIA driver is not loaded: `modprobe nvidia` loads it, as root".to_owned()
        }
        NvmlError::NoPermission => "this user may not open the GPUs' device files".to_owned(),
        NvmlError::LibRmVersionMismatch => {
            "the NVIDIA driver that is loaded and its libraries are of different releases: boot the host"
                .to_owned()
        }
        other => other.to_string(),
    }
}

/// An answer; what a device doesn't offer at all is no gap.
fn known<T>(what: &str, answer: Result<T, NvmlError>, unknown: &mut Vec<String>) -> Option<T> {
    match answer {
        Ok(value) => Some(value),
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => None,
        Err(error) => {
            unknown.push(format!("{what}: {error}"));
            None
        }
    }
}

/// The device and its MIG instances.
fn one_device(device: &Device<'_>, index: u32, unknown: &mut Vec<String>) -> Vec<DeviceSample> {
    let whole = describe(device, None, unknown);
    let Some(whole) = known(&format!("the UUID of device {index}"), whole, unknown) else {
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
    for instance in present {
        let described = describe(&instance, Some(&uuid), unknown);
        found.extend(known(&format!("an instance of {uuid}"), described, unknown));
    }
    found
}

fn describe(
    device: &Device<'_>,
    parent: Option<&str>,
    unknown: &mut Vec<String>,
) -> Result<DeviceSample, NvmlError> {
    let memory = device.memory_info().ok();
    let rates = device.utilization_rates().ok();
    let uuid = device.uuid()?;
    Ok(DeviceSample {
        processes: processes(device, &uuid, unknown),
        uuid,
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
    })
}

fn processes(device: &Device<'_>, uuid: &str, unknown: &mut Vec<String>) -> Vec<ProcessSample> {
    let what = format!("the processes on {uuid}");
    let mut found = known(&what, device.running_compute_processes(), unknown).unwrap_or_default();
    let graphics = device.running_graphics_processes();
    found.extend(known(&what, graphics, unknown).unwrap_or_default());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn device(uuid: &str, energy_mj: Option<u64>, memory: u64) -> DeviceSample {
        DeviceSample {
            uuid: uuid.to_owned(),
            parent: None,
            index: None,
            minor: None,
            name: String::new(),
            mig: false,
            memory_total: None,
            memory_used: None,
            utilisation: Some(50),
            memory_utilisation: None,
            power_mw: None,
            energy_mj,
            processes: vec![ProcessSample {
                pid: 7,
                memory: Some(memory),
                utilisation: None,
                gpu_instance: None,
            }],
        }
    }

    fn sample(at_s: u64, energy_mj: u64, memory: u64) -> Sample {
        Sample {
            at_us: at_s * 1_000_000,
            driver: Some("580.159.03".to_owned()),
            devices: vec![
                device("GPU-a", Some(energy_mj), memory),
                device("MIG-b", None, 1),
                device("GPU-else", Some(energy_mj * 9), 1000),
            ],
            unknown: Vec::new(),
        }
    }

    #[test]
    fn a_lease_is_charged_with_its_own_devices_and_processes() {
        let samples = [sample(10, 500, 64), sample(12, 700, 80), sample(13, 20, 8)];
        assert_eq!(samples[0].branch(), Some(580));
        let lease = ["GPU-a".to_owned(), "MIG-b".to_owned()];
        let mut charge = Charge::default();
        for pair in samples.windows(2) {
            charge.add(&pair[0], &pair[1], &lease, &[7]);
        }
        let expected = Charge {
            held_s: 6.0,
            busy_s: 3.0,
            // The counter began anew between the last two.
            energy_mj: 220,
            peak_bytes: 81,
        };
        assert_eq!(charge, expected);
        let mut others = Charge::default();
        others.add(&samples[0], &samples[1], &lease, &[8]);
        assert_eq!(others.peak_bytes, 0);
    }
}
