"""What is to be searched, from a file, the environment and flags.

preset, file, environment, flags ──resolve()──▶ Resolved: Settings, and where each value is from
"""

from supermax.settings.model import DataSettings, Settings
from supermax.settings.resolving import Resolved, resolve

__all__ = ["DataSettings", "Resolved", "Settings", "resolve"]
