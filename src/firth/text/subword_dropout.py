"""Split words into other tokens of a WordPiece vocabulary at random, so that a model in training meets more of them.

Source: Hiraoka 2022, "MaxMatch-Dropout: Subword Regularization for WordPiece".
"""

from collections.abc import Sequence
from random import Random

from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import PREFIX


class SubwordDropout:
    """Splits the words of a sequence anew: the tokens that match are tried from the longest on, and each is passed over
    with probability ``share``, except the shortest.

    A word that cannot be completed in this way keeps its tokens, as do special and unknown ones.
    """

    def __init__(self, tokenizer: Tokenizer, share: float):
        self.share = share
        self._pieces = tokenizer.pieces
        self._ids = {piece: number for number, piece in enumerate(tokenizer.pieces)}
        self._continues: list[bool] = tokenizer.continues.tolist()
        self._special = frozenset(tokenizer.special_ids)
        self._longest = max(map(len, tokenizer.pieces))

    def __call__(self, ids: Sequence[int], random: Random) -> tuple[list[int], list[int]]:
        """Split the words of ``ids`` anew; also returns the index in ``ids`` of the first token of each token's word.

        Tokens that continue a word at the beginning of ``ids``, or after a special token, form a word of their own.
        """
        found, begins = list[int](), list[int]()
        at = 0
        while at < len(ids):
            end = at + 1
            new: Sequence[int] = ids[at:end]
            if ids[at] not in self._special:
                while end < len(ids) and self._continues[ids[end]]:
                    end += 1
                new = self._split(ids[at:end], random)
            found += new
            begins += [at] * len(new)
            at = end
        return found, begins

    def _split(self, given: Sequence[int], random: Random) -> Sequence[int]:
        whole = len(given) == 1  # then the longest match is the word itself
        if whole and random.random() >= self.share:
            return given
        inside = self._continues[given[0]]
        word = "".join(self._pieces[number].removeprefix(PREFIX) for number in given)
        found, at = list[int](), 0
        while at < len(word):
            prefix = PREFIX if at or inside else ""
            longest = min(len(word) - (whole and not at), at + self._longest)
            last: tuple[int, int] | None = None
            for end in range(longest, at, -1):
                number = self._ids.get(prefix + word[at:end])
                if number is not None:
                    last = number, end
                    if random.random() >= self.share:
                        break
            if last is None:
                return given
            found.append(last[0])
            at = last[1]
        return found
