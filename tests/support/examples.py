"""How many examples a test of a property tries."""

from hypothesis import settings


def examples(fast: int, thorough: int) -> int:
    """So many by `make test`, and by `--hypothesis-profile thorough`, which `make test-slow` asks for."""
    return thorough if settings.get_current_profile_name() == "thorough" else fast
