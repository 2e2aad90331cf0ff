"""Jupyter's side of Gresshopper: the JupyterHub spawner and the kernel provisioner."""
