"""How activations enter the kernels: the option's names and the operators' codes for them."""

from __future__ import annotations

# Name of the option -> the operators' `activation` argument: 0 is x.dtype; otherwise int8 with one scale per
# row and per this many columns (or per weight group, where that is smaller).
ACTIVATIONS: dict[str, int] = {"native": 0, "int8": 128, "int8_32": 32}
