"""The published families that can be imported and exported."""

from lmtool.interop.decoders import DECODERS
from lmtool.interop.encoders import ENCODERS
from lmtool.interop.family import Family
from lmtool.interop.seq2seq import SEQ2SEQ

EVERY: tuple[Family, ...] = (*DECODERS, *ENCODERS, *SEQ2SEQ)
"""In the order of preference for export."""

FAMILIES = {family.model_type: family for family in EVERY}
"""Each by its `model_type`."""
