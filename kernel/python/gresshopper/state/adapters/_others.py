"""Libraries of which the engine knows single facts."""

from __future__ import annotations

from . import Adapter

ADAPTER = Adapter(
    modules=("bs4", "decorator", "distributed", "joblib", "pytest", "tqdm", "typing_extensions", "yaml", "zmq"),
    threads=("distributed", "joblib.externals.loky", "tqdm", "zmq"),
    distributions={"bs4": "beautifulsoup4", "yaml": "PyYAML", "zmq": "pyzmq"},
    bound=(("zmq.", "a connection belongs to this process"),),
    lends=("_pytest", "decorator", "pytest", "typing_extensions"),
)
