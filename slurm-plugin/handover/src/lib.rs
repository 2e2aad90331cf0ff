//! Handing a device and cores over to a kernel's cgroup, and taking them back.
