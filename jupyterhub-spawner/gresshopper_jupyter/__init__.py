"""Where Jupyter meets Gresshopper: the JupyterHub spawner and the kernel provisioner."""
