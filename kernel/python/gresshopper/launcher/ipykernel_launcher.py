"""Is started in the place of ipykernel's launcher, whose name it has: see `gresshopper.spare`."""

import os

from gresshopper import spare

spare.run(os.path.dirname(os.path.abspath(__file__)))
