"""Write the novels of ``en-books`` that are in the public domain to a folder, one file each.

    python scripts/public_domain_novels.py DATA/en-books/train.txt.xz OUT

A novel is taken if it was published before 1931 (public domain in the United States in 2026) and its author died
before 1956 (in most other countries). The text holds 46 novels of computationalstylistics/100_english_novels in the
order of their file names, without marks between them; the table below says how many of its documents each one has.
"""

import hashlib
import lzma
import sys
from pathlib import Path

SHA256 = "10924946c248eab86322db623ef90813729ff028797bbe36d4df126b52d7b30d"
PUBLISHED_BEFORE, DIED_BEFORE = 1931, 1956
# documents, author, year of death, title, year of publication
NOVELS = (
    (84, "Blackmore", 1900, "Clara Vaughan", 1864),
    (1, "Barclay", 1921, "Through the Postern Gate", 1911),
    (30, "Bennett", 1931, "The Grand Babylon Hotel", 1902),
    (73, "Bennett", 1931, "Imperial Palace", 1930),
    (76, "Blackmore", 1900, "Lorna Doone", 1869),
    (48, "Braddon", 1915, "Fenton's Quest", 1871),
    (1, "Burnett", 1924, "Little Lord Fauntleroy", 1886),
    (39, "C. Brontë", 1855, "Jane Eyre", 1847),
    (43, "C. Brontë", 1855, "Villette", 1853),
    (16, "Chesterton", 1936, "The Man Who Was Thursday", 1908),
    (30, "Conrad", 1924, "Nostromo", 1904),
    (24, "Corelli", 1924, "Innocent", 1914),
    (1, "Corelli", 1924, "The Sorrows of Satan", 1895),
    (59, "Dickens", 1870, "Great Expectations", 1861),
    (15, "Doyle", 1930, "The Hound of the Baskervilles", 1902),
    (34, "Doyle", 1930, "Micah Clarke", 1889),
    (71, "G. Eliot", 1880, "Daniel Deronda", 1876),
    (2, "Ford", 1939, "An English Girl", 1907),
    (10, "Forster", 1970, "Where Angels Fear to Tread", 1905),
    (20, "Forster", 1970, "A Room with a View", 1908),
    (39, "Galsworthy", 1933, "Over the River", 1933),
    (45, "Gaskell", 1865, "Sylvia's Lovers", 1863),
    (60, "Gaskell", 1865, "Wives and Daughters", 1865),
    (48, "Gissing", 1903, "Will Warburton", 1905),
    (26, "Haggard", 1925, "She and Allan", 1921),
    (57, "Hardy", 1928, "Far from the Madding Crowd", 1874),
    (1, "James", 1916, "The Ambassadors", 1903),
    (11, "Kipling", 1936, "Captains Courageous", 1896),
    (15, "Kipling", 1936, "The Light That Failed", 1891),
    (27, "Lawrence", 1930, "The Plumed Serpent", 1926),
    (21, "V. Lee", 1935, "The Countess of Albany", 1884),
    (1, "V. Lee", 1935, "Penelope Brandling", 1903),
    (256, "Bulwer-Lytton", 1873, "My Novel", 1853),
    (45, "Meredith", 1909, "The Ordeal of Richard Feverel", 1859),
    (47, "Meredith", 1909, "The Adventures of Harry Richmond", 1871),
    (101, "Morris", 1896, "The Water of the Wondrous Isles", 1897),
    (1, "Schreiner", 1920, "Trooper Peter Halket of Mashonaland", 1897),
    (33, "Stevenson", 1894, "The Black Arrow", 1888),
    (7, "Stevenson", 1894, "Treasure Island", 1883),
    (75, "Thackeray", 1863, "Pendennis", 1850),
    (64, "Trollope", 1882, "Ayala's Angel", 1881),
    (22, "Trollope", 1882, "The Warden", 1855),
    (1, "Ward", 1920, "Harvest", 1920),
    (4, "W. Collins", 1889, "Basil", 1852),
    (1, "W. Collins", 1889, "The Woman in White", 1860),
    (34, "Woolf", 1941, "Night and Day", 1919),
)


def main() -> None:
    """Cut the text into novels and write those that may be used."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    if hashlib.sha256(source.read_bytes()).hexdigest() != SHA256:
        sys.exit(f"error: {source} is not the text that the table of novels is of; expected sha256 {SHA256}")
    with lzma.open(source, "rt", encoding="utf-8") as file:
        documents = file.read().strip("\n").split("\n\n")
    assert len(documents) == sum(novel[0] for novel in NOVELS)
    out.mkdir(parents=True, exist_ok=True)
    first = taken = 0
    for n, author, died, title, year in NOVELS:
        if year < PUBLISHED_BEFORE and died < DIED_BEFORE:
            text = "\n\n".join(documents[first : first + n]) + "\n"
            (out / f"{author}, {title} ({year}).txt").write_text(text, "utf-8")
            taken += 1
        else:
            print(f"left out: {author} (died {died}), {title} ({year})")
        first += n
    print(f"{out}: {taken} of {len(NOVELS)} novels")


if __name__ == "__main__":
    main()
