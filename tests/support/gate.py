"""Whether this is the gate, where what is missing is a failure and never a skip."""

import os
from typing import Final

IN_CI: Final = os.environ.get("CI", "").lower() in ("true", "1")
