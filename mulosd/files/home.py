"""Where this user's files belong."""

import os
from pathlib import Path

HOMELESS = Path("/nonexistent")  # the home of users without one, by Debian's convention


def home() -> Path:
    """The home folder; HOMELESS for a user who has none, such as the numeric user of a container: nothing is found in
    it, and what would be written there is refused by name."""
    try:
        return Path.home()
    except RuntimeError:  # HOME is not set and the user is in no list
        return HOMELESS


def cache_home() -> Path:
    """$XDG_CACHE_HOME, else ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or home() / ".cache")
