"""Sessions: tokens, and what a model has computed of them."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from moeflux._requests import tokens_of
from moeflux._types import StrPath
from moeflux._values import path_of, whole_number_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from moeflux import _moeflux


def numpy() -> Any:
    """The module, which is imported only where arrays are asked for."""
    try:
        import numpy
    except ImportError as error:
        raise ImportError("logits and scores are arrays of numpy: pip install numpy") from error
    return numpy


class Session:
    """A sequence of tokens and the model's caches for it, for programs that choose tokens themselves.

    Caches of keys and values can be cut at any position. Recurrent states cannot: sessions of models that have any
    return to checkpoints alone. Any thread may use a session, one at a time. It takes memory as an answer does.
    """

    def __init__(self, session: _moeflux.Session, vocab: int) -> None:
        self._session = session
        self._vocab = vocab

    def eval(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Evaluates tokens behind those before.

        Args:
            tokens: Token ids, at least one.

        Returns:
            The logits after the last, of shape ``(vocab,)``.

        Raises:
            Error: Where a token is outside of the vocabulary or the context has no room, and nothing has changed; or
                where a step fails.
            KeyboardInterrupt: The session then ends after some of the tokens: see `position`.
        """
        module = numpy()
        array: npt.NDArray[np.float32] = module.frombuffer(self._session.eval(tokens_of(tokens)), module.float32)
        return array

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Evaluates tokens behind those before.

        Args:
            tokens: Token ids, at least one.

        Returns:
            The logits after each, of shape ``(n_tokens, vocab)``. The array is the memory that they were written to.

        Raises:
            Error: As `eval`.
        """
        module = numpy()
        array = module.frombuffer(self._session.eval_all(tokens_of(tokens)), module.float32)
        rows: npt.NDArray[np.float32] = array.reshape(-1, self._vocab)
        return rows

    @property
    def position(self) -> int:
        """The position of the next token."""
        return self._session.position()

    @property
    def tokens(self) -> list[int]:
        """The tokens that were evaluated."""
        return self._session.tokens()

    @property
    def checkpoints(self) -> list[int] | None:
        """Positions to which `restore` returns; ``None`` where that is any."""
        return self._session.checkpoints()

    def checkpoint(self) -> int:
        """Makes a checkpoint here.

        Returns:
            Its position.

        Raises:
            Error: Where the memory for checkpoints does not suffice (``checkpoint_bytes``).
        """
        return self._session.checkpoint()

    def restore(self, position: int) -> None:
        """Returns to a checkpoint, and forgets what is after it.

        Raises:
            Error: Where there is none at ``position``; nothing has changed then.
        """
        self._session.restore(_position(position))

    def truncate(self, position: int) -> int:
        """Forgets the tokens from ``position`` on.

        Returns:
            How many tokens before ``position`` have to be evaluated again: recurrent states return to an earlier
            checkpoint.

        Raises:
            Error: Where the session ends before ``position``; nothing has changed then.
        """
        return self._session.truncate(_position(position))

    def clear(self) -> None:
        """Forgets everything."""
        self._session.clear()

    def save(self, path: StrPath) -> None:
        """Writes the session to a file, whole or not at all, that only its owner may read.

        Raises:
            Error: Where the file cannot be written.
        """
        self._session.save(path_of(path, "path"))

    def load(self, path: StrPath) -> None:
        """Replaces the session by one that `save` has written.

        Raises:
            Error: Where the file is none of this model under these options, or is damaged; nothing has changed then.
        """
        self._session.load(path_of(path, "path"))

    def close(self) -> None:
        """Frees its memory."""
        self._session.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a session cannot be pickled: save() writes it to a file")


def _position(position: int) -> int:
    # Far behind what any session has, and within the numbers of any machine.
    return min(whole_number_of(position, "position"), (1 << 31) - 1)
