"""Names that the GGUF modules read from here; the families have a package of their own."""

from lmtool.interop.families.config import HARMLESS, Config
from lmtool.interop.families.layouts import SAME, ByHead, Layout, Same, Transposed

__all__ = ["HARMLESS", "SAME", "ByHead", "Config", "Layout", "Same", "Transposed"]
