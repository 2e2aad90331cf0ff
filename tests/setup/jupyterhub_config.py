"""JupyterHub on a dev cluster, for the demo and the browser tests: the configuration that docs/jupyterhub.md shows, and
below it what is this machine's alone.

Environment: HUB_BASE (the cluster's folder), HUB_PORT (the proxy's; the next two are the Hub's and the proxy's API),
HUB_EXTRA (a Python file with more configuration, or nothing), HUB_PLACE (a folder for what the Hub keeps; HUB_BASE/hub).
"""

import os
import re
import sys
from pathlib import Path

c = get_config()  # type: ignore[name-defined]  # noqa: F821

repo = Path(__file__).resolve().parents[2]
base, port = os.environ["HUB_BASE"], int(os.environ["HUB_PORT"])
place = os.environ.get("HUB_PLACE", f"{base}/hub")
overlay = Path(sys.prefix)

page = (repo / "docs/jupyterhub.md").read_text()
exec(re.findall(r"```python\n(.*?)```", page, re.S)[0])

c.JupyterHub.bind_url = f"http://127.0.0.1:{port}"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{port + 1}"
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{port + 2}"
c.ConfigurableHTTPProxy.command = ["/opt/gresshopper-dev/node/node_modules/.bin/configurable-http-proxy"]
c.JupyterHub.cookie_secret_file = f"{place}/cookie_secret"
c.JupyterHub.db_url = f"sqlite:///{place}/jupyterhub.sqlite"
c.PAMAuthenticator.open_sessions = False
c.Authenticator.allowed_users = {"alice", "bob", "carol"}
c.GresshopperSpawner.ip = "127.0.0.1"
c.GresshopperSpawner.cmd = [
    str(overlay / "bin/jupyterhub-singleuser"),
    # For the tests, which ask JupyterLab and Notebook 7 themselves.
    "--LabApp.expose_app_in_browser=True",
    "--JupyterNotebookApp.expose_app_in_browser=True",
]
c.GresshopperSpawner.env_keep.extend(["MUNGE_SOCKET", "GRESSHOPPER_PREFIX"])

extra = os.environ.get("HUB_EXTRA")
if extra:
    exec(Path(extra).read_text())
