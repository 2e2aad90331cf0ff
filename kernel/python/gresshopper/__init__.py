"""Gresshopper inside a kernel: `state` (this package's own), and what the kernel's supervisor asks of it."""
