"""Settings of a search, from a preset, a file, the environment and flags.

preset, file, environment, flags ──resolve()──▶ Resolved: Settings, and the source of each value
"""

from supermax.search.settings.model import DataSettings, Settings
from supermax.search.settings.resolving import Resolved, resolve

__all__ = ["DataSettings", "Resolved", "Settings", "resolve"]
