"""The sizes of a decoder, and how many trained numbers they make."""

from dataclasses import dataclass

from inferlab.params import count_params
from inferlab.sizes import ModelSizes


@dataclass(frozen=True)
class ModelConfig(ModelSizes):
    __doc__ = ModelSizes.__doc__

    @property
    def n_params(self) -> int:
        """Trained numbers in all weights; a tied head is counted once."""
        return count_params(self)
