"""JupyterHub for the demo and the end-to-end tests: PAM logins, servers as Slurm jobs, all on loopback."""

import os

base = os.environ["HOP_DEMO_BASE"]
port = int(os.environ["HUB_PORT"])

c = get_config()  # type: ignore[name-defined]  # noqa: F821

c.JupyterHub.bind_url = f"http://127.0.0.1:{port}"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{port + 1}"
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{port + 2}"
c.JupyterHub.cookie_secret_file = f"{base}/hub/cookie_secret"
c.JupyterHub.db_url = f"sqlite:///{base}/hub/jupyterhub.sqlite"
c.JupyterHub.authenticator_class = "pam"
c.PAMAuthenticator.open_sessions = False
c.Authenticator.allowed_users = {"alice", "bob", "carol"}
c.Authenticator.admin_users = set()

c.JupyterHub.spawner_class = "gresshopper_jupyter.spawner.GresshopperSpawner"
c.GresshopperSpawner.ip = "127.0.0.1"
c.GresshopperSpawner.partition = "notebook"
c.GresshopperSpawner.log_dir = f"{base}/home/{{username}}"
c.GresshopperSpawner.cmd = (
    [os.path.join(os.path.dirname(os.environ["HUB_BIN"]), "jupyterhub-singleuser")]
    if ("HUB_BIN" in os.environ)
    else ["/opt/gresshopper-dev/hub/bin/jupyterhub-singleuser"]
)
c.GresshopperSpawner.default_url = "/lab"
c.GresshopperSpawner.env_keep = [
    "PATH",
    "LANG",
    "SLURM_CONF",
    "MUNGE_SOCKET",
    "GRESSHOPPER_CONF",
    "JUPYTER_PATH",
    "PYTHONPATH",
]
c.GresshopperSpawner.environment = {"JUPYTERHUB_SINGLEUSER_APP": "jupyter_server.serverapp.ServerApp"}
