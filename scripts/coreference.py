"""What "it" attends to: whether any head's attention follows the referent of "it", over pairs of sentences.

    .venv/bin/python scripts/coreference.py firth-mini-en

The sentences of a pair differ in one word, which decides what "it" stands for. A head that follows it gives the first
noun a larger share of the two nouns' weight in the sentence where "it" is the first noun.
"""

import sys
from math import comb

import numpy as np

import firth

# A sentence up to the deciding word; the two nouns; the word that makes "it" the first noun, and the second.
PAIRS = (
    ("The animal didn't cross the street because it was too", "animal", "street", "tired", "wide"),
    ("The book did not fit into the bag because it was too", "book", "bag", "thick", "small"),
    ("The truck could not pass under the bridge because it was too", "truck", "bridge", "high", "low"),
    ("The ship could not enter the harbour because it was too", "ship", "harbour", "large", "shallow"),
    ("The dog did not eat the meat because it was", "dog", "meat", "asleep", "rotten"),
    ("The horse could not jump over the fence because it was too", "horse", "fence", "old", "high"),
    ("The train did not stop at the station because it was", "train", "station", "late", "closed"),
    ("The boat did not cross the lake because it was", "boat", "lake", "damaged", "frozen"),
    ("The bird did not land on the branch because it was too", "bird", "branch", "heavy", "weak"),
    ("The car did not reach the top of the hill because it was too", "car", "hill", "slow", "steep"),
    ("The cat did not catch the mouse because it was too", "cat", "mouse", "slow", "fast"),
    ("The army could not capture the city because it was too", "army", "city", "weak", "strong"),
    ("The sofa did not go through the door because it was too", "sofa", "door", "wide", "narrow"),
    ("The tree did not grow in the soil because it was too", "tree", "soil", "old", "dry"),
    ("The computer could not run the program because it was too", "computer", "program", "old", "complex"),
    ("The wolf did not attack the sheep because it was", "wolf", "sheep", "afraid", "protected"),
    ("The company did not buy the land because it was too", "company", "land", "poor", "expensive"),
    ("The team did not win the game because it was too", "team", "game", "weak", "difficult"),
    ("The knife did not cut the bread because it was too", "knife", "bread", "blunt", "hard"),
    ("The aircraft could not use the runway because it was too", "aircraft", "runway", "large", "short"),
    ("The fish did not take the bait because it was", "fish", "bait", "sick", "poisoned"),
    ("The government did not publish the report because it was", "government", "report", "afraid", "unfinished"),
    ("The cow did not cross the river because it was too", "cow", "river", "tired", "deep"),
    ("The rocket did not reach the planet because it was too", "rocket", "planet", "slow", "distant"),
    ("The picture did not stay on the wall because it was too", "picture", "wall", "heavy", "damp"),
    ("The machine did not lift the stone because it was too", "machine", "stone", "weak", "heavy"),
)


def shares(model: firth.Model, text: str, nouns: tuple[str, str]) -> np.ndarray:
    """(layers, heads): the first noun's share of the attention weight from "it" to the two nouns."""
    found = model.attention(text)
    row = found.weights[:, :, found.tokens.index("it")]
    first, second = (sum(row[..., i] for i in places(model, found.tokens, noun)) for noun in nouns)
    return np.asarray(first / (first + second))


def places(model: firth.Model, tokens: list[str], word: str) -> range:
    """The positions of a word's tokens."""
    own = [piece.token for piece in model.tokenize(word)]
    return next(range(i, i + len(own)) for i in range(len(tokens)) if tokens[i : i + len(own)] == own)


def chance_of_best(n_right: int, n: int, n_heads: int) -> float:
    """The probability that the best of this many guessing heads is right as often, if heads were independent."""
    return 1 - (1 - sum(comb(n, k) for k in range(n_right, n + 1)) / 2**n) ** n_heads


def main(name: str) -> None:
    model = firth.load(name)
    each = np.array(
        [[shares(model, f"{begin} {end}.", (a, b)) for end in ends] for begin, a, b, *ends in PAIRS]
    )  # (pairs, 2, layers, heads)
    means, n = each.mean(0), len(PAIRS)
    follows = (each[:, 0] > each[:, 1]).sum(0)
    right = (each[:, 0] > 0.5).sum(0) + (each[:, 1] < 0.5).sum(0)
    print("layer  head  animal's share      mean of the pairs   larger where  noun that is meant")
    print("             tired     wide      first     second    it is meant   has more weight")
    # The first layer sees "it" without context: the deciding word cannot change the shares.
    for layer, head in list(np.ndindex(means.shape[1:]))[means.shape[2] :]:
        numbers = [*each[0, :, layer, head], *means[:, layer, head]]
        print(
            f"{layer + 1:5} {head + 1:5}  {'     '.join(f'{x:.3f}' for x in numbers)}     "
            f"{follows[layer, head]:2} of {n}      {right[layer, head]} of {2 * n}"
        )
    best, n_heads = int(follows[1:].max()), follows[1:].size
    print(
        f"\nbest head: {best} of {n} pairs; the best of {n_heads} heads that guess reaches that with probability "
        f"{chance_of_best(best, n, n_heads):.2f}"
    )


if __name__ == "__main__":
    main(sys.argv[1])
