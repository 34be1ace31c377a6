"""The space that settings ask for. Light: wrong settings are told before torch is loaded."""

from __future__ import annotations

from supermax.settings import Settings
from supermax.space import Space, load, narrowed
from supermax.space.presets import LENGTH, preset


def space_of(settings: Settings) -> Space:
    """Return the space to be searched, as far as it is known without looking for encoders."""
    models = ",".join(settings.models) if settings.models else None
    if settings.space is None:
        space = preset(settings.agent, settings.preset, models=models).space
    elif isinstance(settings.space, str):
        space = load(settings.space)
    else:
        space = Space(**{"name": settings.study, **settings.space})
    if settings.space is not None and models:
        space = narrowed(space, {"encoder.name": settings.models})
    return narrowed(space, settings.narrow) if settings.narrow else space


def fits_length(settings: Settings) -> bool:
    """Tell whether text.max_length follows from the data."""
    if settings.space is not None or LENGTH in settings.narrow:
        return False
    return preset(settings.agent, settings.preset).fit_length
